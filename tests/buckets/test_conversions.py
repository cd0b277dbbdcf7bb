"""Conversions into and out of a bucket: what a local one writes, whole or not at all."""

from __future__ import annotations

import io
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flowvec.convert import ConvertError, convert
from flowvec.errors import BulkError
from flowvec.object_store import Lease, lease, s3
from tests.buckets.conftest import on_both_servers
from tests.faults.bucket_server import Bucket, bucket_server, url_of
from tests.job_folders import write_job
from tests.makers import contents, unit_vectors

pytest.importorskip("s3fs", reason="needs the extra [s3]")
pytest.importorskip("moto", reason="needs the extra [test-buckets]")

ROWS = 250
FORMATS = ["parquet", "faiss", "hnswlib", "pgvector", "lance"]
FOLDERS = FORMATS[1:]
# The object without which a folder is not a target.
NAMING = {"faiss": "flowvec.json", "pgvector": "flowvec.json", "lance": "_versions/"}


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Uploads in parts, leases that change often, and a temporary folder of the test's own."""
    monkeypatch.setattr(s3, "PART_BYTES", 2048)
    monkeypatch.setattr(lease, "LEASE_SECONDS", 300.0)  # no slow test loses one
    monkeypatch.setattr(lease, "_RENEWALS", 1000)
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr(tempfile, "tempdir", None)


@pytest.fixture
def job(tmp_path: Path) -> Path:
    keys = [f"k{i * 7919 % ROWS:03}" for i in range(ROWS)]
    return write_job(tmp_path / "job", unit_vectors(ROWS, 8), keys)


@pytest.fixture
def url(server: str, prefix: str) -> str:
    return url_of(server, f"{prefix}/out")


def needs(to: str) -> None:
    if to == "lance":
        pytest.importorskip("lance", reason="needs the extra [lance]")


def is_empty(folder: Path) -> bool:
    return not list(folder.iterdir())


def read_back(to: str, objects: dict[str, bytes], folder: Path) -> dict[Any, bytes]:
    """The vector of each id, as the format's own package reads it from a copy of the objects."""
    import pyarrow.parquet as pq

    if to == "parquet":
        rows = pq.read_table(io.BytesIO(objects["out"]))
        return _by_id(rows)
    for name, content in objects.items():
        path = folder / "copy" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    copy = folder / "copy" / "out"
    if to == "lance":
        import lance

        return _by_id(lance.dataset(copy).to_table())
    if to == "pgvector":
        # tests/conversions/test_pgvector.py loads such files into PostgreSQL.
        convert(folder / "job", folder / "out", "pgvector")
        assert contents(copy) == contents(folder / "out")
        return expected()
    ids = pq.read_table(copy / "rows.parquet")["id"].to_pylist()
    if to == "faiss":
        faiss = pytest.importorskip("faiss", reason="needs the extra [test-convert]")
        index = faiss.read_index(str(copy / "index.faiss"))
        kept = faiss.downcast_index(index.index).reconstruct_n(0, index.ntotal)
        labels = faiss.vector_to_array(index.id_map)
    else:
        hnswlib = pytest.importorskip("hnswlib", reason="needs hnswlib, a peer")
        index = hnswlib.Index("ip", 8)
        index.load_index(str(copy / "index.bin"))
        labels = range(ROWS)
        kept = np.array(index.get_items(labels), np.float32)
    return {ids[label]: row.tobytes() for label, row in zip(labels, kept, strict=True)}


def _by_id(table: Any) -> dict[Any, bytes]:
    vectors = table["vector"].combine_chunks().flatten().to_numpy().reshape(len(table), -1)
    return {key: row.tobytes() for key, row in zip(table["id"].to_pylist(), vectors, strict=True)}


def expected() -> dict[Any, bytes]:
    vectors = unit_vectors(ROWS, 8)
    return {f"k{i * 7919 % ROWS:03}": vectors[i].tobytes() for i in range(ROWS)}


@pytest.mark.parametrize("to", FORMATS)
def test_every_format_is_written_below_a_url(
    tmp_path: Path, job: Path, url: str, bucket: Bucket, prefix: str, to: Any
) -> None:
    needs(to)
    stages = []
    done = convert(job, url, to, on_progress=lambda progress: stages.append(progress))
    assert done.target == f"s3://bucket/{prefix}/out"
    objects = bucket.objects(prefix)
    assert sum(map(len, objects.values())) == done.bytes
    assert read_back(to, objects, tmp_path) == expected()
    assert bucket.uploads(prefix) == []
    assert (stages[-1].stage, stages[-1].total) == ("uploading", ROWS)
    assert is_empty(tmp_path / "tmp")
    for note in done.notes:
        assert f"s3://bucket/{prefix}/out" in note
        assert "endpoint" not in note
    with pytest.raises(ConvertError, match=f"{prefix}/out exists"):
        convert(job, url, to)
    assert bucket.objects(prefix) == objects


@pytest.mark.parametrize("to", ["parquet", "faiss", "lance"])
def test_another_scheme_is_written_too(tmp_path: Path, job: Path, prefix: str, to: Any) -> None:
    """fsspec's file system in memory: without conditions on writes, and without parts."""
    import fsspec

    needs(to)
    url, system = f"memory://{prefix}/out", fsspec.filesystem("memory")
    for overwrite in (False, True):
        done = convert(job, url, to, overwrite=overwrite)
        objects = {
            name.removeprefix(f"/{prefix}/"): system.cat_file(name)
            for name in system.find(f"/{prefix}")
        }
        assert read_back(to, objects, tmp_path) == expected()
        assert sum(map(len, objects.values())) == done.bytes
        shutil.rmtree(tmp_path / "copy", ignore_errors=True)
    with pytest.raises(ConvertError, match=rf"memory://{prefix}/out exists"):
        convert(job, url, to)


@pytest.mark.parametrize("to", FORMATS)
def test_a_dry_run_checks_and_writes_nothing(
    tmp_path: Path, job: Path, url: str, bucket: Bucket, prefix: str, to: Any, flowvec: Any
) -> None:
    needs(to)
    words = ("convert", job, url, "--to", to, "--dry-run")
    done = flowvec(*words)
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert first == f"s3://bucket/{prefix}/out: 250 rows of 8 x float32; nothing was written"
    assert second.startswith(f"it takes at least 0.0 MB; {tmp_path / 'tmp'} has ")
    assert bucket.objects(prefix) == {}
    convert(job, url, to)
    done = flowvec(*words)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done.stderr
    assert f"s3://bucket/{prefix}/out exists" in done.stderr
    assert is_empty(tmp_path / "tmp")


def test_lance_opens_the_dataset_in_the_bucket(job: Path, server: str, prefix: str) -> None:
    lance = pytest.importorskip("lance", reason="needs the extra [lance]")
    convert(job, url_of(server, f"{prefix}/v.lance"), "lance")
    options = {"aws_endpoint": server, "allow_http": "true", "aws_region": "us-east-1"}
    dataset = lance.dataset(f"s3://bucket/{prefix}/v.lance", storage_options=options)
    assert _by_id(dataset.to_table()) == expected()


@pytest.mark.parametrize("to", FORMATS)
def test_overwrite_replaces_everything_and_only_what_was_converted(
    tmp_path: Path, job: Path, url: str, bucket: Bucket, prefix: str, to: Any
) -> None:
    needs(to)
    other = write_job(tmp_path / "other", unit_vectors(40, 8))
    convert(other, url, to)
    before = bucket.objects(prefix)
    convert(job, url, to, overwrite=True)
    objects = bucket.objects(prefix)
    assert read_back(to, objects, tmp_path) == expected()
    if to != "lance":
        assert objects.keys() == before.keys()
    else:
        assert len(objects) == len(before)  # nothing of the old dataset is left
    if to == "parquet":
        return
    for name in ("notes.txt", "_mine/index.faiss"):
        bucket.put(f"{prefix}/out/{name}", b"mine")
        shown = name.partition("/")[0]
        with pytest.raises(ConvertError, match=rf"did not write \({shown}\)"):
            convert(job, url, to, overwrite=True)
        assert bucket.objects(prefix) == objects | {f"out/{name}": b"mine"}
        bucket.delete_one(f"{prefix}/out/{name}")


def test_a_folder_may_change_its_format(
    tmp_path: Path, job: Path, url: str, bucket: Bucket, prefix: str
) -> None:
    needs("lance")
    for to in ("lance", "faiss", "lance", "pgvector"):
        convert(job, url, to, overwrite=True)  # type: ignore[arg-type]
    assert bucket.objects(prefix).keys() == {
        "out/flowvec.json", "out/load.sql", "out/rows.copy"
    }  # fmt: skip


def test_what_others_wrote_is_not_replaced(
    job: Path, url: str, bucket: Bucket, prefix: str
) -> None:
    bucket.put(f"{prefix}/out/part-0.parquet", b"mine")
    for to, overwrite, message in (
        ("faiss", False, "exists: name another target"),
        ("faiss", True, "is a folder that `flowvec convert` did not write"),
        ("parquet", True, "is a folder that `flowvec convert` did not write"),
    ):
        with pytest.raises(ConvertError, match=message):
            convert(job, url, to, overwrite=overwrite)  # type: ignore[arg-type]
    bucket.put(f"{prefix}/file", b"mine")
    with pytest.raises(ConvertError, match="file is an object"):
        convert(job, url.replace("/out", "/file"), "faiss", overwrite=True)
    assert bucket.objects(prefix) == {"out/part-0.parquet": b"mine", "file": b"mine"}


@pytest.mark.parametrize("to", ["parquet", "faiss"])
def test_what_appears_meanwhile_stays(
    job: Path, url: str, bucket: Bucket, prefix: str, to: Any
) -> None:
    name = "out" if to == "parquet" else "out/other"

    def put(progress: Any) -> None:
        if progress.stage == "uploading":
            bucket.put(f"{prefix}/{name}", b"mine")

    with pytest.raises(ConvertError, match="exists: name another target"):
        convert(job, url, to, on_progress=put)
    assert bucket.objects(prefix) == {name: b"mine"}
    assert bucket.uploads(prefix) == []


@pytest.mark.parametrize("to", ["parquet", "faiss"])
def test_one_process_converts_to_a_target_at_a_time(
    job: Path, url: str, bucket: Bucket, prefix: str, to: Any
) -> None:
    refused = []

    def beside(_: Any) -> None:
        if not refused:
            with pytest.raises(BulkError) as raised:
                convert(job, url, to)
            refused.append(str(raised.value))

    convert(job, url, to, on_progress=beside)
    assert f"s3://bucket/{prefix}/out is being written" in refused[0]
    assert not [name for name in bucket.objects(prefix) if "converting" in name]


@pytest.mark.parametrize("to", FORMATS)
def test_conversions_go_through_a_connection_that_fails(tmp_path: Path, job: Path, to: Any) -> None:
    """A third of all requests fail: before the store sees them, in the middle, or afterwards."""
    needs(to)
    with bucket_server(faults=0.3, seed=int(os.environ.get("FLOWVEC_SEED", "1"))) as address:
        url, bucket = url_of(address, "flaky/out"), Bucket(address)
        for overwrite in (False, True):
            convert(job, url, to, overwrite=overwrite)
            assert bucket.uploads("flaky") == []  # of those whose beginning was not answered
        assert read_back(to, bucket.objects("flaky"), tmp_path) == expected()


# Kills itself at the given call of a method of the store, or at a stage.
KILLED = """
import os, signal, sys
from flowvec.convert import convert
from flowvec.object_store import lease, s3
from flowvec.object_store.s3 import S3Store
source, target, to, method, number = sys.argv[1:]
s3.PART_BYTES = 2048
calls = 0
def die():
    os.kill(os.getpid(), signal.SIGKILL)
if method != "building":
    real = getattr(S3Store, method)
    def counted(*arguments, **named):
        global calls
        calls += 1
        if calls == int(number):
            die()
        return real(*arguments, **named)
    setattr(S3Store, method, counted)
def on_progress(progress):
    if method == "building" and progress.stage == "writing":
        die()
convert(source, target, to, overwrite=True, on_progress=on_progress)
"""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="this system has no fork")
@pytest.mark.parametrize("to", ["parquet", "faiss", "lance"])
def test_a_kill_leaves_no_target_or_the_old_one_and_the_next_conversion_cleans_up(
    tmp_path: Path, job: Path, url: str, bucket: Bucket, prefix: str, to: str
) -> None:
    needs(to)
    other = write_job(tmp_path / "other", unit_vectors(400, 8))
    died = 0
    for method, number, is_replaced in KILLS:
        bucket.delete(prefix)
        if is_replaced:
            convert(other, url, to)  # type: ignore[arg-type]
        before = bucket.objects(prefix)
        words = [sys.executable, "-c", KILLED, str(job), url, to, method, str(number)]
        done = subprocess.run(words, timeout=600, check=False)
        if done.returncode == 0:  # it makes fewer such calls
            continue
        assert done.returncode == -signal.SIGKILL
        died += 1
        objects = {n: c for n, c in bucket.objects(prefix).items() if "converting" not in n}
        is_there = to == "parquet" or any(NAMING[to] in name for name in objects)
        if to == "parquet" or (is_there and is_replaced):
            assert objects == before
        else:
            assert not is_there
        convert(job, url, to, overwrite=is_there and is_replaced)  # type: ignore[arg-type]
        assert read_back(to, bucket.objects(prefix), tmp_path) == expected()
        assert bucket.uploads(prefix) == []
        assert not [name for name in bucket.objects(prefix) if "converting" in name]
        assert is_empty(tmp_path / "tmp")
        shutil.rmtree(tmp_path / "copy", ignore_errors=True)
    assert died >= 4


# A method of the store, the call of it that kills, and whether there is an older target. A folder
# is deleted in its first calls of `delete`, and its files appear by `complete` and `write`.
KILLS = [
    ("building", 0, True), ("_put_part", 3, False), ("complete", 1, False), ("complete", 1, True),
    ("complete", 2, True), ("delete", 2, True), ("write", 1, False),
]  # fmt: skip


@pytest.mark.parametrize("to", FOLDERS)
def test_a_failure_in_the_middle_of_the_upload_leaves_nothing(
    job: Path, url: str, bucket: Bucket, prefix: str, to: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs(to)
    put = s3.S3Store._put

    def refused(store: Any, name: str, *arguments: Any, **condition: Any) -> str:
        if name == "flowvec.json" or name.endswith(".manifest"):
            raise OSError(5, "Input/output error")
        return put(store, name, *arguments, **condition)

    monkeypatch.setattr(s3.S3Store, "_put", refused)
    with pytest.raises(BulkError, match=r"write .*Input/output error"):
        convert(job, url, to)
    assert (bucket.objects(prefix), bucket.uploads(prefix)) == ({}, [])


@pytest.mark.parametrize("to", ["parquet", "faiss"])
def test_a_process_that_lost_its_lease_changes_nothing(
    job: Path, url: str, bucket: Bucket, prefix: str, to: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(progress: Any) -> None:
        if progress.stage == "uploading":
            monkeypatch.setattr(Lease, "_is_overdue", lambda self: True)

    monkeypatch.setattr(lease, "PATIENCE", 0.1)
    with pytest.raises(BulkError, match="the same command starts again"):
        convert(job, url, to, on_progress=lost)
    assert not [name for name in bucket.objects(prefix) if "converting" not in name]


@pytest.mark.parametrize("out_format", ["npy", "parquet"])
def test_a_job_in_a_bucket_is_a_source(
    tmp_path: Path, server: str, bucket: Bucket, prefix: str, out_format: str
) -> None:
    import pyarrow.parquet as pq

    keys = [f"k{i * 7919 % ROWS:03}" for i in range(ROWS)]
    job = write_job(tmp_path / "job", unit_vectors(ROWS, 8), keys, out_format=out_format)
    for name, content in contents(job).items():
        bucket.put(f"{prefix}/job/{name}", content)
    source = url_of(server, f"{prefix}/job")
    convert(source, tmp_path / "v.parquet", "parquet")
    convert(source, url_of(server, f"{prefix}/v.parquet"), "parquet")
    assert bucket.objects(prefix)["v.parquet"] == (tmp_path / "v.parquet").read_bytes()
    assert _by_id(pq.read_table(tmp_path / "v.parquet")) == expected()
    assert is_empty(tmp_path / "tmp")
    with pytest.raises(ConvertError, match="the input"):
        convert(source, url_of(server, f"{prefix}/job/v.parquet"), "parquet")
    part = f"part-000001.{out_format}"
    content = bytearray(bucket.objects(prefix)[f"job/{part}"])
    content[-1] ^= 1
    bucket.put(f"{prefix}/job/{part}", bytes(content))
    with pytest.raises(ConvertError, match=f"{prefix}/job/{part} is not"):
        convert(source, url_of(server, f"{prefix}/w.parquet"), "parquet")
    bucket.delete_one(f"{prefix}/job/{part}")
    with pytest.raises(ConvertError, match=f"{part} is missing"):
        convert(source, tmp_path / "w.parquet", "parquet")
    assert [name for name in bucket.objects(prefix) if not name.startswith("job")] == ["v.parquet"]


def test_a_source_is_read_through_a_connection_that_fails(tmp_path: Path, job: Path) -> None:
    with bucket_server(faults=0.3, seed=int(os.environ.get("FLOWVEC_SEED", "1"))) as address:
        bucket = Bucket(address)
        for name, content in contents(job).items():
            bucket.put(f"job/{name}", content)
        convert(url_of(address, "job"), tmp_path / "there.parquet", "parquet")
    convert(job, tmp_path / "here.parquet", "parquet")
    assert (tmp_path / "there.parquet").read_bytes() == (tmp_path / "here.parquet").read_bytes()


def test_mistakes_are_one_line_and_name_the_url(
    tmp_path: Path, job: Path, url: str, server: str, flowvec: Any, prefix: str
) -> None:
    nobody = url.replace("s3://bucket/", "s3://nobody/")
    shown = f"s3://nobody/{prefix}/out"
    for words, message in (
        ((job, nobody, "--to", "faiss"), f"cannot list {shown}: "),
        ((job, nobody, "--to", "parquet"), f"cannot list {shown}: "),
        ((nobody, "v.parquet"), f"cannot read {shown}/shards.json: "),
        ((url, "v.parquet"), "is not the folder of a bulk job: it has no manifest"),
        ((job, "nowhere://b/x", "--to", "faiss"), "fsspec does not know nowhere://"),
        ((job, "file:///tmp/x", "--to", "faiss"), "file:// is not an object store"),
        ((job, "https://host/x.parquet"), "https:// is not an object store"),
        ((job, "s3://bucket", "--to", "faiss"), "needs a name: s3://BUCKET/NAME"),
        ((job, nobody, "--to", "faiss", "--dry-run"), f"cannot list {shown}: "),
        ((job, url), f"name the format of s3://bucket/{prefix}/out: --to parquet"),
        ((job, "s3://b/x.parquet?secret=hush"), "endpoint_override, region, scheme, not secret"),
        ((job, "s3://key:hush@bucket/x.parquet"), "an s3:// URL has no keys"),
        (("s3://key:hush@bucket/x", "v.parquet"), "an s3:// URL has no keys"),
    ):
        done = flowvec("convert", *words)
        assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done.stderr
        assert message in done.stderr
        assert "hush" not in done.stderr


def test_refused_credentials_are_not_shown(
    tmp_path: Path, job: Path, url: str, monkeypatch: pytest.MonkeyPatch, flowvec: Any
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    done = flowvec("convert", job, url, "--to", "parquet")
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done.stderr
    assert "access is refused" in done.stderr


FULL = """
import resource, sys
from flowvec.convert import ConvertError, convert
source, target, to, limit = sys.argv[1:]
resource.setrlimit(resource.RLIMIT_FSIZE, (int(limit), resource.RLIM_INFINITY))
try:
    convert(source, target, to)
except ConvertError as error:
    print(error)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs limits of files")
@pytest.mark.parametrize("to", ["parquet", "faiss", "hnswlib", "pgvector"])
def test_a_full_temporary_folder_is_a_clear_error_and_leaves_nothing(
    tmp_path: Path, job: Path, url: str, bucket: Bucket, prefix: str, to: str
) -> None:
    words = [sys.executable, "-c", FULL, str(job), url, to, "4000"]
    done = subprocess.run(words, timeout=600, check=False, capture_output=True, text=True)
    where = f"s3://bucket/{prefix}/out to the temporary folder {tmp_path / 'tmp'}"
    assert done.stdout == (
        f"cannot write the files of {where}: File too large; set TMPDIR to a folder with space "
        "for them\n"
    ), done.stderr
    assert (bucket.objects(prefix), bucket.uploads(prefix)) == ({}, [])
    assert is_empty(tmp_path / "tmp")


ROOM = """
import sys
from flowvec.convert import ConvertError, convert
try:
    convert(*sys.argv[1:])
except ConvertError as error:
    print(error)
"""


@pytest.mark.skipif(shutil.which("unshare") is None, reason="needs unshare to mount a tmpfs")
@pytest.mark.parametrize(("size", "is_begun"), [("100k", False), ("160k", True)])
def test_a_small_temporary_folder_is_refused(
    tmp_path: Path, url: str, bucket: Bucket, prefix: str, size: str, is_begun: bool
) -> None:
    job = write_job(tmp_path / "large", unit_vectors(4000, 8))  # 128,000 bytes
    folder = tmp_path / "tmp"
    mount = f"mount -t tmpfs -o size={size} tmpfs {shlex.quote(str(folder))}"
    inside = ["unshare", "--map-root-user", "--mount", "sh", "-c"]
    if subprocess.run([*inside, mount], capture_output=True, check=False).returncode:
        pytest.skip("this system does not let the tests mount a tmpfs")
    words = [sys.executable, "-c", ROOM, str(job), url, "pgvector"]
    done = subprocess.run(
        [*inside, f"{mount} && {shlex.join(words)}"], capture_output=True, text=True, check=False
    )
    shown = f"the files of s3://bucket/{prefix}/out "
    expected = (
        f"cannot write {shown}to the temporary folder {folder}: No space left on device; set TMPDIR"
        if is_begun
        else f"{shown}take at least 0.1 MB, and the temporary folder {folder} has 0.1 MB free; set "
    )
    assert done.stdout.startswith(expected), (done.stdout, done.stderr)
    assert (bucket.objects(prefix), bucket.uploads(prefix)) == ({}, [])


@pytest.mark.skipif(shutil.which("unshare") is None, reason="needs unshare to mount a tmpfs")
@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("size=100k", "it takes at least 0.1 MB, and {} has only 0.1 MB free; nothing was written"),
        ("ro", "cannot write to {}: it is read-only"),
    ],
)
def test_a_dry_run_refuses_what_the_conversion_would_refuse(
    tmp_path: Path, option: str, message: str
) -> None:
    job = write_job(tmp_path / "large", unit_vectors(4000, 8))  # 128,000 bytes
    folder = tmp_path / "target"
    folder.mkdir()
    mount = f"mount -t tmpfs -o {option} tmpfs {shlex.quote(str(folder))}"
    inside = ["unshare", "--map-root-user", "--mount", "sh", "-c"]
    if subprocess.run([*inside, mount], capture_output=True, check=False).returncode:
        pytest.skip("this system does not let the tests mount a tmpfs")
    program = ROOM.replace("(*sys.argv[1:])", "(*sys.argv[1:], dry_run=True)")
    words = [sys.executable, "-c", program, str(job), str(folder / "v.parquet"), "parquet"]
    done = subprocess.run(
        [*inside, f"{mount} && {shlex.join(words)}"], capture_output=True, text=True, check=False
    )
    assert done.stdout == message.format(folder) + "\n", done.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="needs limits of files")
def test_a_shard_that_does_not_fit_into_the_temporary_folder_is_named(
    tmp_path: Path, job: Path, server: str, bucket: Bucket, prefix: str
) -> None:
    for name, content in contents(job).items():
        bucket.put(f"{prefix}/{name}", content)
    words = [sys.executable, "-c", FULL.replace("ConvertError as", "Exception as"),
             url_of(server, prefix), str(tmp_path / "v.parquet"), "parquet", "2000"]  # fmt: skip
    done = subprocess.run(words, timeout=600, check=False, capture_output=True, text=True)
    part = f"s3://bucket/{prefix}/part-000000.npy"
    assert done.stdout.startswith(f"cannot copy {part} into {tmp_path / 'tmp'}/"), done.stderr
    assert done.stdout.endswith(": File too large; set TMPDIR to a folder with space for it\n")


@on_both_servers
def test_the_folder_of_an_unfinished_upload_does_not_refuse_a_conversion(
    job: Path, url: str, bucket: Bucket, prefix: str
) -> None:
    """rclone lists an empty folder for it, as in the middle of a conversion to Lance."""
    bucket.begin_upload(f"{prefix}/out/data/a.lance")
    convert(job, url, "faiss")
    assert "out/flowvec.json" in bucket.objects(prefix)
    with pytest.raises(ConvertError, match="exists"):
        convert(job, url, "faiss")
