"""A shard below a URL, without Ray: the same job again fetches its notes, and not its rows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flowvec import Encoder
from flowvec.errors import BulkError
from flowvec.object_store import Lease, open_store
from flowvec.sharded.building import TaskModel, build_shard
from flowvec.sharded.manifest import LEASE, ShardsManifest
from tests.makers import texts_of, write_jsonl


@pytest.mark.campaign
def test_a_shard_that_is_stored_is_not_made_again(tmp_path: Path, tiny: Encoder) -> None:
    rows = write_jsonl(tmp_path / "in.jsonl", [{"text": text} for text in texts_of(40)])
    store = open_store((tmp_path / "out").as_uri())
    bare = ShardsManifest(2, tiny.bundle.handle, tiny.fingerprint)

    def build(manifest: ShardsManifest, **options: Any) -> tuple[int, int]:
        with Lease(store, LEASE) as lease:
            done = build_shard(
                TaskModel.like(tiny, 1), None, manifest, [str(rows)], store.url, 0,
                {"rows_per_shard": 10, **options}, lease.holder,
            )  # fmt: skip
        return done["rows"], done["encoded"]

    assert build(bare) == (20, 20)
    files = store.sizes()
    assert build(bare) == (20, 0)
    assert store.sizes() == files
    # What a shard is to have besides rows is made of those that are stored.
    assert build(replace(bare, full_text="unicode61")) == (20, 0)
    assert store.sizes().keys() != files.keys()
    with pytest.raises(BulkError, match=r"options\.precision was"):
        build(bare, precision="float16")
