"""What a conversion promises: whole or not at all, checked, at constant memory."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flowvec import (
    BulkError,
    Collection,
    Encoder,
    InputTypeError,
    InputValueError,
    MissingDependencyError,
)
from flowvec.bulk import encode_files
from flowvec.convert import ConvertError, convert, staging
from flowvec.convert.job_source import JobSource
from tests.inside import run_sql
from tests.job_folders import write_job
from tests.makers import texts_of, unit_vectors, write_jsonl

pytestmark = pytest.mark.usefixtures("arrow")
FORMATS = ["parquet", "faiss", "hnswlib", "pgvector"]


@pytest.fixture
def job(tmp_path: Path) -> Path:
    keys = [f"k{i * 7919 % 250:03}" for i in range(250)]
    return write_job(tmp_path / "job", unit_vectors(250, 8), keys)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def refused(source: Any, target: Any, match: str, **options: Any) -> None:
    with pytest.raises(ConvertError, match=match):
        convert(source, target, **{"to": "parquet", **options})


def test_damaged_and_unfinished_jobs_are_refused(tmp_path: Path, job: Path, tiny: Encoder) -> None:
    target = tmp_path / "v.parquet"
    part = job / "part-000001.npy"
    whole = part.read_bytes()
    part.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    refused(job, target, "part-000001.npy is not what was written: its size or SHA-256 differs")
    part.write_bytes(whole[:-1])
    refused(job, target, "part-000001.npy has another size than was written")
    part.unlink()
    refused(job, target, "part-000001.npy is missing; `flowvec verify` names all damage")
    part.write_bytes(whole)
    rows = job / "part-000002.rows.jsonl"
    rows.write_bytes(rows.read_bytes().replace(b"k", b"j", 1))
    refused(job, target, r"part-000002.rows.jsonl is not what was written")
    manifest = json.loads((job / "_manifest.json").read_text())
    del manifest["shards"]
    (job / "_manifest.json").write_text(json.dumps(manifest))
    refused(job, target, "is not complete: run the same `flowvec encode` again to finish it")
    (job / "_manifest.json").write_text("{}")
    with pytest.raises(BulkError, match="the manifest of a bulk job"):
        JobSource(str(job), None)
    lines = write_jsonl(tmp_path / "rows.jsonl", [{"text": t} for t in texts_of(20)])
    encode_files(tiny, lines, tmp_path / "half", out_format="npy", rows_per_shard=4, share=(2, 3))
    refused(tmp_path / "half", target, "the manifest of share 1/3, 3/3 is missing")
    write_job(tmp_path / "int8", unit_vectors(3, 8).astype(np.int8))
    refused(tmp_path / "int8", target, "holds vectors of int8; only float32 and float16")
    assert names(tmp_path) == ["half", "int8", "job", "rows.jsonl"]


def test_a_damaged_collection_is_refused(tmp_path: Path) -> None:

    with Collection.create(tmp_path / "c", dim=4) as c:
        c.add_vectors(["a", "b"], unit_vectors(2, 4))
    run_sql(tmp_path / "c", "UPDATE items SET text = 'other' WHERE id = 'b'")
    with pytest.raises(Exception, match="checksum"):
        convert(tmp_path / "c", tmp_path / "v.parquet", "parquet")
    assert names(tmp_path) == ["c"]


@pytest.mark.parametrize("to", ["parquet", "faiss", "hnswlib", "pgvector"])
def test_an_empty_collection_becomes_an_empty_target(tmp_path: Path, to: Any) -> None:
    pytest.importorskip("pyarrow.parquet", reason="needs the extra [files]")
    with Collection.create(tmp_path / "new", dim=4, metric="l2"):
        pass
    with Collection.create(tmp_path / "cleared", dim=4) as c:
        c.add_vectors([1], [[1, 2, 3, 4]], ["a text"], [{"n": 1}])
        c.delete([1])
    for name in ("new", "cleared"):
        done = convert(tmp_path / name, tmp_path / f"{name}.{to}", to)
        assert (done.rows, done.dim) == (0, 4)
        assert (tmp_path / f"{name}.{to}").exists()
        if to == "parquet":
            with Collection.from_parquet(tmp_path / f"{name}-back", tmp_path / f"{name}.{to}") as c:
                assert (len(c), c.info().dim, c.info().metric) == (
                    0, 4, "l2" if name == "new" else "cosine"
                )  # fmt: skip


def test_what_is_no_source_or_no_target_is_refused(tmp_path: Path, job: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "notes.txt").touch()
    refused(tmp_path / "nothing", tmp_path / "t", "neither the folder .*: it does not exist")
    refused(tmp_path / "folder", tmp_path / "t", "neither the folder of a bulk job nor a coll")
    refused(job, job / "v.parquet", "is in the input")
    refused(job, tmp_path / "folder", "exists: name another target, or give --overwrite")
    refused(job, tmp_path / "folder", "convert` did not write, so", overwrite=True, to="faiss")
    refused(job, job, "did not write", overwrite=True)
    for options in ({"to": "csv"}, {"metric": "dot"}, {"row_group_rows": 0}, {"labels": "x"}):
        with pytest.raises(InputValueError):
            convert(job, tmp_path / "t", **{"to": "parquet", **options})
    with pytest.raises(InputTypeError, match="the source must be a path"):
        convert(7, tmp_path / "t", "parquet")  # type: ignore[arg-type]
    assert names(tmp_path) == ["folder", "job"]


def test_the_extra_of_a_format_is_named(
    tmp_path: Path, job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for to, package in (("lance", "lance"), ("qdrant", "qdrant_client")):
        monkeypatch.setitem(sys.modules, package, None)
        with pytest.raises(MissingDependencyError, match=rf"needs {package}: .*\[{to}\]"):
            convert(job, tmp_path / "out", to)  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "s3fs", None)
    with pytest.raises(MissingDependencyError, match=r"s3:// needs .*\[s3\]"):
        convert(job, "s3://bucket/v.parquet", "parquet")
    assert names(tmp_path) == ["job"]


@pytest.mark.parametrize("to", FORMATS)
def test_overwrite_replaces_the_output(tmp_path: Path, job: Path, to: Any) -> None:
    convert(job, tmp_path / "out", to)
    other = write_job(tmp_path / "other", unit_vectors(3, 4))
    refused(other, tmp_path / "out", "exists", to=to)
    convert(other, tmp_path / "out", to, overwrite=True)
    import pyarrow.parquet as pq

    if to == "pgvector":
        assert json.loads((tmp_path / "out" / "flowvec.json").read_text())["rows"] == 3
    else:
        rows = tmp_path / "out" if to == "parquet" else tmp_path / "out" / "rows.parquet"
        assert pq.read_metadata(rows).num_rows == 3
    assert names(tmp_path) == ["job", "other", "out"]


def test_one_process_converts_to_a_target_at_a_time(tmp_path: Path, job: Path) -> None:
    with staging.staged(tmp_path / "v.parquet", overwrite=False) as (out, _):
        refused(job, tmp_path / "v.parquet", "another process is converting to .*v.parquet")
        out.write_bytes(b"first")
    assert (tmp_path / "v.parquet").read_bytes() == b"first"


# Kills itself once the given stage has done a block, or on the given call of a rename.
KILLED = """
import os, signal, sys
from pathlib import Path
from flowvec.convert import convert
source, target, to, when = sys.argv[1:]
def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)
def on_progress(progress):
    if progress.stage == when:
        die()
if when == "renaming":
    rename = Path.rename
    def renamed(self, other):
        rename(self, other)
        die()
    Path.rename = renamed
convert(source, target, to, overwrite=True, on_progress=on_progress)
"""


@pytest.mark.process
@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="this system has no fork")
@pytest.mark.parametrize("to", FORMATS)
def test_a_kill_leaves_no_target_or_the_old_one(tmp_path: Path, job: Path, to: str) -> None:
    target = tmp_path / "out"

    def killed(when: str) -> None:
        words = [sys.executable, "-c", KILLED, str(job), str(target), to, when]
        assert subprocess.run(words, timeout=900, check=False).returncode == -signal.SIGKILL

    when = "sorting" if to == "parquet" else "writing"
    killed(when)
    assert names(tmp_path) == [".out.converting", "job"]
    convert(job, target, to)  # type: ignore[arg-type]
    assert names(tmp_path) == ["job", "out"]
    before = _contents(target)
    killed("writing")
    assert _contents(target) == before
    if to != "parquet":  # a file is replaced in one step
        killed("renaming")
        assert not target.exists()
        refused(job, target, "exists")  # it is back
        assert _contents(target) == before
    convert(job, target, to, overwrite=True)  # type: ignore[arg-type]
    assert names(tmp_path) == ["job", "out"]


def _contents(path: Path) -> dict[str, bytes]:
    files = [path] if path.is_file() else sorted(path.iterdir())
    return {file.name: file.read_bytes() for file in files}


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


@pytest.mark.process
@pytest.mark.skipif(sys.platform == "win32", reason="needs limits of files")
@pytest.mark.parametrize("to", FORMATS)
def test_a_full_disk_is_a_clear_error_and_leaves_nothing(
    tmp_path: Path, job: Path, to: str
) -> None:
    words = [sys.executable, "-c", FULL, str(job), str(tmp_path / "out"), to, "4000"]
    done = subprocess.run(words, timeout=900, check=False, capture_output=True, text=True)
    assert done.stdout == f"cannot write {tmp_path / 'out'}: File too large\n", done.stderr
    assert names(tmp_path) == ["job"]


# Prints by how much memory has grown at most, in MB, after a first, small conversion.
MEASURED = """
import sys, threading
from flowvec.convert import convert, sorting
sorting.RUN_BYTES, sorting._BATCH_BYTES = 4 << 20, 256 << 10
small, large, target, to = sys.argv[1:]
def peak():
    lines = open("/proc/self/status").read().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 1024
convert(small, target + "-small", to, row_group_rows=1024)
before = peak()
convert(large, target, to, row_group_rows=1024)
print(peak() - before)
"""


@pytest.mark.process
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
@pytest.mark.parametrize("to", ["parquet", "faiss", "pgvector"])
def test_memory_does_not_grow_with_the_rows(tmp_path: Path, to: str) -> None:
    block = unit_vectors(5_000, 128)
    sources = []
    for rows in (20_000, 200_000):  # 10 and 102 MB
        keys = (np.arange(rows) * 7919 % rows).tolist()
        every = np.concatenate([block] * (rows // 5_000))
        path = tmp_path / f"job-{rows}"
        sources.append(write_job(path, every, keys, rows_per_shard=20_000))
    words = [sys.executable, "-c", MEASURED, *map(str, sources), str(tmp_path / "out"), to]
    done = subprocess.run(words, timeout=900, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 50
