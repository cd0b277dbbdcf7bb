"""Bulk jobs into a bucket: the same objects as the files of a folder, whatever happens."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from flowvec import Encoder
from flowvec.bulk import encode_files, merge_shares, verify_folder, windows
from flowvec.bulk.bucket_folder import BucketFolder
from flowvec.bulk.open_folder import folder_at
from flowvec.bulk.records import ShardRecord
from flowvec.errors import BulkError, InputValueError
from flowvec.object_store import Lease, lease, s3
from flowvec.object_store.s3 import S3Store
from tests.buckets.conftest import on_both_servers
from tests.faults.bucket_server import Bucket, url_of
from tests.makers import contents, texts_of, write_jsonl
from tests.waiting import wait_until

pytest.importorskip("s3fs", reason="needs the extra [s3]")
pytest.importorskip("moto", reason="needs the extra [test-buckets]")

OPTIONS: dict[str, Any] = {"rows_per_shard": 40}


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Uploads in parts, leases that change often, and shards of several windows."""
    monkeypatch.setattr(windows, "WINDOW", 16)
    monkeypatch.setattr(s3, "PART_BYTES", 2048)
    monkeypatch.setattr(lease, "LEASE_SECONDS", 300.0)  # no slow test loses one
    monkeypatch.setattr(lease, "_RENEWALS", 1000)


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    """150 rows, a few of which cannot be embedded."""
    return write_jsonl(
        tmp_path / "rows.jsonl",
        [{"text": None if i % 17 == 3 else text} for i, text in enumerate(texts_of(150))],
    )


@pytest.fixture
def url(server: str, prefix: str) -> str:
    return url_of(server, prefix)


class StopAfter(threading.Event):
    """Set once a run has finished some shards."""

    def __init__(self, shards: int) -> None:
        super().__init__()
        self._rows = 40 * shards

    def on_progress(self, progress: Any) -> None:
        if progress.rows >= self._rows:
            self.set()


@on_both_servers
@pytest.mark.parametrize("out_format", ["npy", "parquet"])
def test_a_stopped_job_ends_with_the_bytes_of_a_local_one(
    tmp_path: Path, tiny: Encoder, rows: Path, url: str, bucket: Bucket, prefix: str, out_format
) -> None:
    here = encode_files(tiny, rows, tmp_path / "here", out_format=out_format, **OPTIONS)
    before = 0
    for shards in (1, 2):
        stop = StopAfter(shards)
        part = encode_files(tiny, rows, url, out_format=out_format, stop=stop,
                            on_progress=stop.on_progress, **OPTIONS)  # fmt: skip
        assert part.shards_before == before
        before = part.shards
        assert part.complete or before < 4
    done = encode_files(tiny, rows, url, out_format=out_format, **OPTIONS)
    assert done.shards_before == before > 0
    assert (done.out, done.complete) == (f"s3://bucket/{prefix}", True)
    assert (done.rows, done.dead_letters, done.codes) == (here.rows, 9, here.codes)
    assert bucket.objects(prefix) == contents(tmp_path / "here")
    assert bucket.uploads(prefix) == []
    again = encode_files(tiny, rows, url, out_format=out_format, **OPTIONS)
    assert (again.encoded, again.shards_before) == (0, 4)
    assert bucket.objects(prefix) == contents(tmp_path / "here")


@pytest.mark.parametrize(
    "name", ["part-000001.npy", "part-000001.rows.jsonl", "_dead_letter.jsonl"]
)
def test_a_deleted_object_is_named_and_written_again(
    tmp_path: Path, tiny: Encoder, rows: Path, url: str, bucket: Bucket, prefix: str, name: str
) -> None:
    encode_files(tiny, rows, url, out_format="npy", **OPTIONS)
    before = bucket.objects(prefix)
    check = verify_folder(url)
    assert (check.rows, check.shards, check.dead_letters, check.problems) == (141, 4, 9, ())
    changed = bytearray(before[name])
    changed[-2] ^= 1
    bucket.put(f"{prefix}/{name}", bytes(changed[:-1]))
    assert [name in problem for problem in verify_folder(url).problems] == [True]
    bucket.delete_one(f"{prefix}/{name}")
    assert [name in problem for problem in verify_folder(url).problems] == [True]
    assert encode_files(tiny, rows, url, out_format="npy", **OPTIONS).complete
    assert bucket.objects(prefix) == before


@on_both_servers
def test_another_job_on_the_prefix_is_refused(
    tmp_path: Path, tiny: Encoder, rows: Path, url: str, bucket: Bucket, prefix: str
) -> None:
    encode_files(tiny, rows, url, **OPTIONS)
    before = bucket.objects(prefix)
    with pytest.raises(BulkError, match=r"another job: .*precision"):
        encode_files(tiny, rows, url, precision="float16", **OPTIONS)
    assert bucket.objects(prefix) == before
    done = encode_files(tiny, rows, url, precision="float16", resume=False, **OPTIONS)
    assert (done.shards_before, done.complete) == (0, True)
    assert len(bucket.objects(prefix)) == len(before)
    bucket.put(f"{prefix}-other/notes.txt", b"x")
    with pytest.raises(BulkError, match=r"-other .*\(notes\.txt\)"):
        encode_files(tiny, rows, url.replace(prefix, f"{prefix}-other"), **OPTIONS)
    assert bucket.objects(f"{prefix}-other") == {"notes.txt": b"x"}


@on_both_servers
def test_two_jobs_on_one_prefix_are_refused(
    tmp_path: Path, tiny: Encoder, rows: Path, url: str, bucket: Bucket, prefix: str
) -> None:
    refused: list[str] = []

    def beside(_: Any) -> None:
        if not refused:
            with pytest.raises(BulkError) as raised, Encoder.load(tiny.bundle.handle) as other:
                encode_files(other, rows, url, out_format="npy", **OPTIONS)
            refused.append(str(raised.value))

    encode_files(tiny, rows, tmp_path / "here", out_format="npy", **OPTIONS)
    done = encode_files(tiny, rows, url, out_format="npy", on_progress=beside, **OPTIONS)
    assert done.complete
    assert "is being written by another process" in refused[0]
    assert bucket.objects(prefix) == contents(tmp_path / "here")


@on_both_servers
def test_shares_fill_one_prefix(
    tmp_path: Path, tiny: Encoder, rows: Path, url: str, bucket: Bucket, prefix: str
) -> None:
    for index in (3, 1, 2):
        encode_files(tiny, rows, tmp_path / "here", share=(index, 3), **OPTIONS)
        encode_files(tiny, rows, url, share=(index, 3), **OPTIONS)
    assert bucket.objects(prefix) == contents(tmp_path / "here")
    assert not verify_folder(url).problems
    encode_files(tiny, rows, tmp_path / "whole", **OPTIONS)
    assert merge_shares(url).rows == 141
    assert bucket.objects(prefix) == contents(tmp_path / "whole")


def test_vectors_are_carried_over_from_and_to_a_bucket(
    tmp_path: Path, tiny: Encoder, rows: Path, url: str, bucket: Bucket, prefix: str
) -> None:
    encode_files(tiny, rows, tmp_path / "here", dedupe=True, **OPTIONS)
    stop = StopAfter(2)
    encode_files(tiny, rows, url, dedupe=True, stop=stop, on_progress=stop.on_progress, **OPTIONS)
    encode_files(tiny, rows, url, dedupe=True, **OPTIONS)
    assert bucket.objects(prefix) == contents(tmp_path / "here")
    more = write_jsonl(tmp_path / "more.jsonl", [{"text": text} for text in texts_of(160)])
    known = {json.loads(line)["text"] for line in rows.read_text().splitlines()}
    done = encode_files(tiny, more, url.replace(prefix, f"{prefix}-2"), changed_since=url,
                        **OPTIONS)  # fmt: skip
    assert done.carried == sum(text in known for text in texts_of(160)) > 100
    assert done.encoded == len(set(texts_of(160)) - known) > 0
    assert not verify_folder(url.replace(prefix, f"{prefix}-2")).problems


@on_both_servers
def test_clean_removes_what_nothing_needs(
    tmp_path: Path, tiny: Encoder, rows: Path, url: str, bucket: Bucket, prefix: str, flowvec
) -> None:
    encode_files(tiny, rows, url, out_format="npy", **OPTIONS)
    before = bucket.objects(prefix)
    for name in ("part-000009.npy", "_journal.0123456789ab-0000.jsonl"):
        bucket.put(f"{prefix}/{name}", b"x")
    bucket.begin_upload(f"{prefix}/part-000003.npy")
    bucket.put(f"{prefix}/_journal.2-of-8.0123456789ab-0000.jsonl", b"of a share")
    said = flowvec("verify", url, "--clean").stdout
    assert "removed an unfinished upload of part-000003.npy" in said
    assert "removed part-000009.npy" in said
    assert "all well" in said
    bucket.delete_one(f"{prefix}/_journal.2-of-8.0123456789ab-0000.jsonl")
    assert bucket.objects(prefix) == before
    assert bucket.uploads(prefix) == []
    told = json.loads(flowvec("info", url, "--json").stdout)
    assert (told["kind"], told["complete"], told["rows"]) == ("folder of a bulk job", True, 141)


def test_a_worker_writes_only_for_the_process_that_has_the_lease(
    tmp_path: Path, url: str, bucket: Bucket, prefix: str
) -> None:
    record = ShardRecord(3, "part-000003.parquet", 29, 0, 0, 3, "0" * 64)
    holding, worker = folder_at(url), folder_at(url)
    assert isinstance(holding, BucketFolder)
    assert isinstance(worker, BucketFolder)
    with worker.lent(holding.holder) as upload:
        (worker.path / record.file).write_bytes(b"abc")
        with pytest.raises(BulkError, match="was taken over"):
            upload(record)  # nobody has it
        with holding.locked():
            upload(record)
            assert bucket.objects(prefix)[record.file] == b"abc"
            bucket.delete_one(f"{prefix}/{record.file}")
        (worker.path / record.file).write_bytes(b"abc")
        with folder_at(url).locked(), pytest.raises(BulkError, match="was taken over"):
            upload(record)
    assert bucket.objects(prefix) == {}


@on_both_servers
@pytest.mark.parametrize("place", ["_journal.", ".dead_letter.jsonl"])
def test_a_run_that_was_paused_leaves_nothing(
    tmp_path: Path,
    tiny: Encoder,
    rows: Path,
    url: str,
    bucket: Bucket,
    prefix: str,
    monkeypatch: pytest.MonkeyPatch,
    place: str,
) -> None:
    """It is paused while it writes, and goes on when another one has finished the job."""
    put, paused = S3Store._put, threading.Event()
    acquire, leases = Lease.acquire, list[Lease]()

    def noted(one: Lease) -> None:
        leases.append(one)
        acquire(one)

    def is_lost() -> bool:
        # Again and again: where a put has no conditions, the lease may be renewed over this.
        bucket.put(f"{prefix}/_lease.json", b"{}")
        return leases[0].is_lost

    def put_late(store: S3Store, name: str, content: bytes, **condition: str) -> str:
        is_line = place != "_journal." or b"part-" in content
        if place in name and is_line and not paused.is_set():
            paused.set()
            wait_until(is_lost)  # as if it had been lost,
            bucket.delete_one(f"{prefix}/_lease.json")
            encode_files(tiny, rows, url, out_format="npy", **OPTIONS)  # and taken over
        return put(store, name, content, **condition)

    monkeypatch.setattr(Lease, "acquire", noted)
    monkeypatch.setattr(S3Store, "_put", put_late)
    with pytest.raises(BulkError, match="may have been taken over"):
        encode_files(tiny, rows, url, out_format="npy", **OPTIONS)
    encode_files(tiny, rows, tmp_path / "local", out_format="npy", **OPTIONS)
    assert bucket.objects(prefix) == contents(tmp_path / "local")
    assert bucket.uploads(prefix) == []


def test_the_journal_of_another_job_counts_for_nothing(
    tmp_path: Path, tiny: Encoder, rows: Path, url: str, bucket: Bucket, prefix: str
) -> None:
    """A process that was believed dead may write it after --restart."""
    stop = StopAfter(1)
    begun = encode_files(tiny, rows, url, out_format="npy", stop=stop, on_progress=stop.on_progress,
                 **OPTIONS)  # fmt: skip
    assert not begun.complete
    record = ShardRecord(3, "part-000003.npy", 29, 0, 0, 3, "0" * 64)
    bucket.put(f"{prefix}/part-000003.npy", b"bad")
    lines = f'{{"job": "of another"}}\n{json.dumps(asdict(record))}\n'
    bucket.put(f"{prefix}/_journal.0123456789ab-0000.jsonl", lines.encode())
    encode_files(tiny, rows, url, out_format="npy", **OPTIONS)
    assert not verify_folder(url).problems


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"out": "s3://b/x.npy"}, "a folder of shards, not one file"),
        ({"out": "s3://b/x", "out_format": "collection"}, "a collection is a directory"),
        ({"out": Path("s3://b/x")}, "as a text"),
    ],
)
def test_what_cannot_be_below_a_url_is_refused(tiny: Encoder, rows: Path, change, message) -> None:
    with pytest.raises(InputValueError, match=message):
        encode_files(tiny, rows, **change)


FULL = """
import resource, sys
from flowvec.bulk import encode_files
from flowvec.errors import BulkError
model, texts, out = sys.argv[1:]
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
try:
    encode_files(model, texts, out, out_format="npy", rows_per_shard=40)
except BulkError as error:
    print(error)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs limits of files")
def test_a_full_temporary_folder_is_named_and_not_the_bucket(
    tmp_path: Path, tiny: Encoder, rows: Path, url: str, prefix: str, monkeypatch: Any
) -> None:
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    words = [sys.executable, "-c", FULL, str(tiny.bundle.path), str(rows), url]
    done = subprocess.run(words, timeout=600, check=False, capture_output=True, text=True)
    assert done.stdout == (
        f"cannot write the files of s3://bucket/{prefix} to the temporary folder "
        f"{tmp_path / 'tmp'}: File too large; set TMPDIR to a folder with space for them\n"
    ), done.stderr


def test_the_scheme_may_be_in_upper_case(tiny: Encoder, rows: Path, url: str, prefix: str) -> None:
    upper = url.replace("s3://", "S3://")
    assert (
        encode_files(tiny, rows, upper, out_format="npy", **OPTIONS).out == f"s3://bucket/{prefix}"
    )
    assert verify_folder(url).problems == verify_folder(upper).problems == ()
