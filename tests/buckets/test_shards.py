"""Shards of a collection as objects: they appear whole, and each machine keeps verified copies."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("s3fs", reason="needs the extra [s3]")
pytest.importorskip("moto", reason="needs the extra [test-buckets]")

from flowvec import Collection
from flowvec.convert import ConvertError, convert
from flowvec.errors import BulkError, CollectionError
from flowvec.object_store import Lease, ObjectStore, open_store
from flowvec.sharded import is_sharded, verify_shards
from flowvec.sharded.manifest import LEASE, shard_name
from flowvec.sharded.shard_cache import CachedShard
from flowvec.sharded.stored_shard import (
    StoredShard,
    clean_shards,
    fetch,
    publish,
    read_shard,
)
from tests.faults.bucket_server import Bucket, bucket_server, url_of
from tests.makers import unit_vectors

NAME = "shard-000"


def build(folder: Path, rows: int = 50, seed: int = 0) -> tuple[Path, Path]:
    """A closed collection, and the folder of the job that filled it."""
    path, job = folder / f"c{seed}", folder / f"c{seed}.job"
    with Collection.create(path, dim=8) as collection:
        texts = [f"text {i} of {seed}" for i in range(rows)]
        collection.add_vectors(list(range(rows)), unit_vectors(rows, 8, seed), texts)
        collection.prepare()
    job.mkdir()
    (job / "_manifest.json").write_text("{}")
    return path, job


def put(store: ObjectStore, built: tuple[Path, Path], before: StoredShard | None = None):
    return publish(store, NAME, *built, {"rows": 50}, before, lambda: None)


def names(bucket: Bucket, prefix: str) -> set[str]:
    return set(bucket.objects(prefix))


@pytest.fixture
def store(server: str, prefix: str) -> ObjectStore:
    return open_store(url_of(server, prefix))


@pytest.fixture
def url(server: str, prefix: str) -> str:
    return url_of(server, prefix)


def texts_in(collection: Collection) -> list[str | None]:
    return [item.text for item in collection.get(range(50)) if item is not None]


# --- publishing -----------------------------------------------------------------------------------


def test_a_shard_comes_back_as_it_was(tmp_path: Path, store: ObjectStore) -> None:
    built = build(tmp_path)
    assert read_shard(store, NAME) is None
    shard = put(store, built)
    assert read_shard(store, NAME) == shard
    (tmp_path / "back").mkdir()
    fetch(store, shard.collection, tmp_path / "back")
    with Collection.open(built[0]) as before, Collection.open(tmp_path / "back") as after:
        assert texts_in(after) == texts_in(before)
        assert after.verify() == []


def test_a_shard_that_replaces_another_leaves_nothing_of_it(
    tmp_path: Path, store: ObjectStore, bucket: Bucket, prefix: str
) -> None:
    first = put(store, build(tmp_path))
    second = put(store, build(tmp_path, seed=1), first)
    assert first.version != second.version
    assert names(bucket, prefix) == {f"{NAME}.json", *(file.object for file in second.files)}


def test_of_two_attempts_the_first_is_kept(
    tmp_path: Path, store: ObjectStore, bucket: Bucket, prefix: str
) -> None:
    """Ray may start a task again whose worker it believes dead."""
    first = put(store, build(tmp_path))
    assert put(store, build(tmp_path, seed=1)) == first
    assert names(bucket, prefix) == {f"{NAME}.json", *(file.object for file in first.files)}


def test_a_shard_without_the_right_to_write_is_not_recorded(
    tmp_path: Path, store: ObjectStore, bucket: Bucket, prefix: str
) -> None:
    calls = iter([None, None, BulkError("taken over")])

    def check() -> None:
        if (error := next(calls)) is not None:
            raise error

    with pytest.raises(BulkError, match="taken over"):
        publish(store, NAME, *build(tmp_path), {"rows": 50}, None, check)
    assert read_shard(store, NAME) is None
    left = names(bucket, prefix)
    assert left
    assert set(clean_shards(store, 1, shard_name)) == left
    assert names(bucket, prefix) == set()


def test_a_failing_store_changes_nothing(tmp_path: Path) -> None:
    """One request of four fails: refused, reset, lost, cut off or late."""
    with bucket_server(0.25, int(os.environ.get("FLOWVEC_SEED", "3"))) as address:
        store = open_store(url_of(address, "flaky"))
        built = build(tmp_path, 2000)
        shard = put(store, built)
        (tmp_path / "back").mkdir()
        fetch(store, shard.collection, tmp_path / "back")
    for file in shard.collection:
        assert (tmp_path / "back" / file.name).read_bytes() == (built[0] / file.name).read_bytes()


@pytest.mark.skipif(sys.platform == "win32", reason="SIGKILL is POSIX's")
def test_a_killed_upload_leaves_the_old_shard_and_nothing_that_cleaning_misses(
    tmp_path: Path,
) -> None:
    with bucket_server(proxied=True) as server:
        _kill_uploads(tmp_path, server, Bucket(server), "killed")


def _kill_uploads(tmp_path: Path, server: str, bucket: Bucket, prefix: str) -> None:
    rng = random.Random(int(os.environ.get("FLOWVEC_SEED", "1")))
    url, store = url_of(server, prefix), open_store(url_of(server, prefix))
    old = put(store, build(tmp_path))
    new = build(tmp_path, 4000, seed=1)
    (new[1] / "_dead_letter.jsonl").write_bytes(rng.randbytes(40 << 20))  # an upload in parts
    code = (
        "import sys, time; from pathlib import Path; from flowvec.object_store import open_store\n"
        "from flowvec.sharded.stored_shard import publish, read_shard\n"
        "calls, last = 0, int(sys.argv[4])\n"
        "def check():\n"
        "    global calls\n"
        "    calls += 1\n"
        "    if calls == last:\n"
        "        print('waits', flush=True); time.sleep(600)\n"
        "store = open_store(sys.argv[1])\n"
        "if not last: print('begun', flush=True)\n"
        "publish(store, 'shard-000', Path(sys.argv[2]), Path(sys.argv[3]), {'rows': 4000},\n"
        "        read_shard(store, 'shard-000'), check)"
    )
    outcomes = set()
    # The first kill comes while a file is written, and the others at any time.
    for delay in (None, *(rng.uniform(0.0, 0.8) for _ in range(3))):
        with subprocess.Popen(
            [sys.executable, "-c", code, url, *map(str, new), "2" if delay is None else "0"],
            stdout=subprocess.PIPE,
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline()
            time.sleep(delay or 0.0)
            process.send_signal(signal.SIGKILL)
        bucket.settle()
        shard = read_shard(store, NAME)
        assert shard is not None
        outcomes.add(shard.version)
        for file in shard.files:
            (tmp_path / "got").mkdir(exist_ok=True)
            fetch(store, [file], tmp_path / "got")
        list(clean_shards(store, 1, shard_name))
        assert bucket.uploads(prefix) == []
        assert names(bucket, prefix) == {f"{NAME}.json", *(file.object for file in shard.files)}
    assert old.version in outcomes


# --- the cache of a machine -----------------------------------------------------------------------


def test_a_shard_is_downloaded_once(
    tmp_path: Path, store: ObjectStore, url: str, bucket: Bucket, prefix: str
) -> None:
    shard = put(store, build(tmp_path))
    for _ in range(2):
        cached = CachedShard(url, NAME, tmp_path / "cache")
        assert len(texts_in(cached.collection)) == 50
        cached.close()
        cached.close()
        for file in shard.collection:  # the record alone is enough for the next start
            bucket.delete_one(f"{prefix}/{file.object}")


def test_a_damaged_object_is_refused_and_a_repaired_one_is_taken(
    tmp_path: Path, store: ObjectStore, url: str
) -> None:
    shard = put(store, build(tmp_path))
    file = shard.collection[0]
    content = store.read(file.object)
    assert content is not None
    store.write(file.object, content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(CollectionError, match="not what was written"):
        CachedShard(url, NAME, tmp_path / "cache")
    store.delete([file.object])
    with pytest.raises(CollectionError, match="is missing"):
        CachedShard(url, NAME, tmp_path / "cache")
    store.write(file.object, content)
    CachedShard(url, NAME, tmp_path / "cache").close()


def test_a_damaged_copy_is_downloaded_again(tmp_path: Path, store: ObjectStore, url: str) -> None:
    shard = put(store, build(tmp_path))
    CachedShard(url, NAME, tmp_path / "cache").close()
    (copy,) = (tmp_path / "cache").glob(f"*/{NAME}/{shard.version}/collection/collection.sqlite")
    copy.write_bytes(b"nothing")
    cached = CachedShard(url, NAME, tmp_path / "cache")
    assert len(texts_in(cached.collection)) == 50
    cached.close()


def test_a_new_build_replaces_the_old_copy_once_nobody_has_it_open(
    tmp_path: Path, store: ObjectStore, url: str
) -> None:
    def builds() -> set[str]:
        return {path.name for path in (tmp_path / "cache").glob(f"*/{NAME}/*") if path.is_dir()}

    first = put(store, build(tmp_path))
    old = CachedShard(url, NAME, tmp_path / "cache")
    second = put(store, build(tmp_path, seed=1), first)
    new = CachedShard(url, NAME, tmp_path / "cache")
    assert builds() == {first.version, second.version}
    assert texts_in(old.collection)[3] == "text 3 of 0"
    assert texts_in(new.collection)[3] == "text 3 of 1"
    new.close()
    old.close()
    CachedShard(url, NAME, tmp_path / "cache").close()
    assert builds() == {second.version}


@pytest.mark.skipif(sys.platform == "win32", reason="limits of files are POSIX's")
def test_a_full_disk_leaves_no_partial_copy(tmp_path: Path, store: ObjectStore, url: str) -> None:
    put(store, build(tmp_path, 4000))
    code = (
        "import resource, sys; from pathlib import Path\n"
        "from flowvec.errors import FlowvecError\n"
        "from flowvec.sharded.shard_cache import CachedShard\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, 40_000))\n"
        "try: CachedShard(sys.argv[1], 'shard-000', Path(sys.argv[2]))\n"
        "except FlowvecError as error: print(type(error).__name__, error)"
    )
    told = subprocess.run(
        [sys.executable, "-c", code, url, str(tmp_path / "cache")], text=True,
        capture_output=True, check=True,
    ).stdout  # fmt: skip
    assert "File too large" in told, told
    assert [path for path in (tmp_path / "cache").glob("*/*/*") if path.is_dir()] == []
    CachedShard(url, NAME, tmp_path / "cache").close()


def test_a_killed_download_is_removed_by_the_next(
    tmp_path: Path, store: ObjectStore, url: str
) -> None:
    put(store, build(tmp_path))
    CachedShard(url, NAME, tmp_path / "cache").close()
    (folder,) = (tmp_path / "cache").glob(f"*/{NAME}")
    for version in folder.iterdir():
        if version.is_dir():
            version.rename(folder / "partial")  # as a kill before the last step leaves it
    (folder / "partial" / "collection" / "collection.sqlite").write_bytes(b"half")
    cached = CachedShard(url, NAME, tmp_path / "cache")
    assert len(texts_in(cached.collection)) == 50
    cached.close()
    assert not (folder / "partial").exists()


def test_processes_that_start_together_share_one_copy(
    tmp_path: Path, store: ObjectStore, url: str
) -> None:
    shard = put(store, build(tmp_path, 4000))
    code = (
        "import sys; from pathlib import Path\n"
        "from flowvec.sharded.shard_cache import CachedShard\n"
        "cached = CachedShard(sys.argv[1], 'shard-000', Path(sys.argv[2]))\n"
        "print(len(cached.collection)); cached.close()"
    )
    processes = [
        subprocess.Popen([sys.executable, "-c", code, url, str(tmp_path / "cache")],
                         stdout=subprocess.PIPE)
        for _ in range(3)
    ]  # fmt: skip
    assert [process.communicate()[0].split() for process in processes] == [[b"4000"]] * 3
    builds = [path.name for path in (tmp_path / "cache").glob(f"*/{NAME}/*") if path.is_dir()]
    assert builds == [shard.version]


# --- mistakes ---------------------------------------------------------------------------------


def test_a_collection_in_shards_is_not_converted_from_a_url(
    tmp_path: Path, store: ObjectStore, url: str
) -> None:
    with pytest.raises(BulkError, match="is not"):
        convert(url, tmp_path / "v.parquet", to="parquet")
    store.write("shards.json", b"{}")
    with pytest.raises(ConvertError, match="is a collection in shards"):
        convert(url, tmp_path / "v.parquet", to="parquet")


# --- verifying ------------------------------------------------------------------------------------


@pytest.fixture
def whole(tmp_path: Path, store: ObjectStore) -> StoredShard:
    """A collection of one shard."""
    store.write("shards.json", b'{"flowvec_shards": 1, "shards": 1, "model": "mini", '
                b'"fingerprint": "f"}')  # fmt: skip
    return put(store, build(tmp_path))


def test_what_is_wrong_is_found(
    whole: StoredShard, store: ObjectStore, url: str, bucket: Bucket, prefix: str
) -> None:
    assert is_sharded(url)
    assert (verify_shards(url).rows, verify_shards(url).problems) == (50, ())
    bucket.begin_upload(f"{prefix}/shard-000.0123456789ab.collection.sqlite")
    store.write("shard-000.0123456789ab.vectors", b"left by a kill")
    store.write("shard-000.notes.txt", b"somebody else's")
    cleaned = verify_shards(url, clean=True)
    assert cleaned.removed == (
        "an unfinished upload of shard-000.0123456789ab.collection.sqlite",
        "shard-000.0123456789ab.vectors",
    )
    assert bucket.uploads(prefix) == []
    assert store.read("shard-000.notes.txt") is not None
    store.write(whole.collection[0].object, b"x")
    assert "not what was written" in verify_shards(url).problems[0]
    store.delete([whole.collection[0].object])
    assert verify_shards(url).problems == (
        f"{whole.collection[0].object} is missing",
        "shard-000 is damaged; index with --rebuild restores it",
    )
    store.write("shard-000.json", b"{}")
    assert "does not describe a shard" in verify_shards(url).problems[0]
    store.delete(["shard-000.json"])
    assert verify_shards(url).problems == ("shard-000 is missing; run the job again",)


def test_nothing_is_cleaned_while_a_job_writes(
    whole: StoredShard, store: ObjectStore, url: str
) -> None:
    store.write("shard-000.0123456789ab.vectors", b"of the job that writes")
    with Lease(store, LEASE), pytest.raises(BulkError, match="being written"):
        verify_shards(url, clean=True)
    assert store.read("shard-000.0123456789ab.vectors") is not None


def test_a_record_cannot_name_files_elsewhere(whole: StoredShard, store: ObjectStore) -> None:
    content = store.read("shard-000.json")
    assert content is not None
    for wrong in (b'"../../x"', b'"/etc/x"', b'"a/b"'):
        store.write("shard-000.json", content.replace(b'"collection.sqlite"', wrong))
        with pytest.raises(CollectionError, match="does not describe a shard"):
            read_shard(store, NAME)


def test_vectors_of_a_downloaded_shard_are_searched(
    tmp_path: Path, store: ObjectStore, url: str
) -> None:
    put(store, build(tmp_path))
    cached = CachedShard(url, NAME, tmp_path / "cache")
    query = unit_vectors(50, 8, 0)[7]
    assert cached.collection.search(np.asarray(query), 1)[0].id == 7
    cached.close()
