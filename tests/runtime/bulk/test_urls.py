"""Outputs by URL, in fsspec's file system in memory; tests/buckets has those of S3."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from flowvec import Encoder
from flowvec.bulk import encode_files, verify_folder
from flowvec.errors import BulkError
from tests.makers import contents
from tests.runtime.bulk.conftest import COMMON


@pytest.mark.usefixtures("small_windows")
@pytest.mark.parametrize("out_format", ["npy", "parquet"])
def test_a_job_by_url_continues_and_has_the_bytes_of_a_local_one(
    tmp_path: Path, tiny: Encoder, rows: Path, memory: Any, temporary: Path, monkeypatch, out_format
) -> None:
    if out_format == "parquet":
        pytest.importorskip("pyarrow.parquet", reason="needs the extra [files]")
    options = COMMON | {"out_format": out_format}
    encode_files(tiny, rows, tmp_path / "here", **options)
    with monkeypatch.context() as patched:
        fail_after(memory, patched, 2)
        with pytest.raises(BulkError, match=r"vectors/.*no more space"):
            encode_files(tiny, rows, "memory://vectors", **options)
    (problem,) = verify_folder("memory://vectors").problems
    assert "not complete" in problem
    done = encode_files(tiny, rows, "memory://vectors", **options)
    assert done.complete
    assert done.shards_before >= 1
    objects = {path.rpartition("/")[2]: memory.cat(path) for path in memory.find("/vectors")}
    assert objects == contents(tmp_path / "here")
    check = verify_folder("memory://vectors")
    assert (check.rows, check.dead_letters, check.problems) == (94, 6, ())
    assert not list(temporary.glob("flowvec-bulk-*"))


@pytest.mark.usefixtures("small_windows", "at_once")
def test_work_on_a_shard_is_kept_below_the_url(
    tmp_path: Path, tiny: Encoder, many: Path, memory: Any
) -> None:
    options: dict[str, Any] = {"out_format": "npy", "rows_per_shard": 4000}

    class OnceSaved(threading.Event):
        def is_set(self) -> bool:
            return len(memory.glob("/vectors/*.batches")) >= 9

    encode_files(tiny, many, tmp_path / "here", **options)
    done = encode_files(tiny, many, "memory://vectors", stop=OnceSaved(), **options)
    assert not done.complete
    rest = encode_files(tiny, many, "memory://vectors", **options)
    assert rest.complete
    assert 0 < rest.encoded <= 941 - done.kept < 941
    objects = {path.rpartition("/")[2]: memory.cat(path) for path in memory.find("/vectors")}
    assert objects == contents(tmp_path / "here")


def fail_after(memory: Any, monkeypatch: pytest.MonkeyPatch, files: int) -> None:
    """Refuse to write any file after some shards."""
    written: list[str] = []
    put_file = memory.put_file

    def limited(local: str, path: str, **given: Any) -> None:
        if "part-" in path and "_part" not in path:
            written.append(path)
        if len(set(written)) > files * 2:
            raise OSError("no more space")
        put_file(local, path, **given)

    monkeypatch.setattr(memory, "put_file", limited)
