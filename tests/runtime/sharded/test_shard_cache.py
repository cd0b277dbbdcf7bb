"""The cache of downloaded shards keeps what a process has open."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from flowvec import Collection
from flowvec.collection.store.store import FILE
from flowvec.errors import ClosedError, CollectionError
from flowvec.object_store import open_store
from flowvec.sharded.shard_cache import CachedShard
from flowvec.sharded.stored_shard import publish

pytest.importorskip("fsspec", reason="needs fsspec")

URL = "memory://cached/c"


@pytest.fixture
def published(tmp_path: Path) -> Iterator[None]:
    """A shard of one row below a URL."""
    import fsspec

    fsspec.filesystem("memory").store.clear()
    with Collection.create(tmp_path / "built", dim=2) as c:
        c.add_vectors(["a"], [[1, 0]])
    (tmp_path / "job").mkdir()
    publish(
        open_store(URL), "shard-000", tmp_path / "built", tmp_path / "job", {}, None, lambda: None
    )
    yield
    fsspec.filesystem("memory").store.clear()


def test_what_another_has_open_stays_if_it_cannot_be_opened_again(
    published: None, tmp_path: Path
) -> None:
    first = CachedShard(URL, "shard-000", tmp_path / "cache")
    try:
        (stored,) = (tmp_path / "cache").rglob(FILE)
        content = stored.read_bytes()
        stored.write_bytes(b"damaged" + content[7:])
        with pytest.raises(CollectionError):
            CachedShard(URL, "shard-000", tmp_path / "cache")
        assert stored.is_file()
        stored.write_bytes(content)
        assert len(first.collection) == 1
    finally:
        first.close()
    # Nobody has it open now, so it is downloaded again.
    stored.write_bytes(b"damaged" + content[7:])
    again = CachedShard(URL, "shard-000", tmp_path / "cache")
    assert len(again.collection) == 1
    again.close()
    assert not list((tmp_path / "cache").rglob("user-*"))


def test_a_collection_is_closed_if_it_cannot_be_marked(
    published: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: Path) -> None:
        raise OSError(28, "No space left on device")

    opened: list[Collection] = []
    real = Collection.open

    def remembered(path: Path) -> Collection:
        opened.append(real(path))
        return opened[-1]

    monkeypatch.setattr("flowvec.sharded.shard_cache._marked", full)
    monkeypatch.setattr(Collection, "open", remembered)
    with pytest.raises(CollectionError, match="No space left"):
        CachedShard(URL, "shard-000", tmp_path / "cache")
    (collection,) = opened
    with pytest.raises(ClosedError):
        collection.list()
