"""Shares that are merged leave the bytes of one job."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from flowvec import Encoder
from flowvec.bulk import encode_files, merge_shares, verify_folder
from flowvec.bulk.journal import Folder
from flowvec.errors import BulkError
from tests.makers import contents, write_jsonl
from tests.runtime.bulk.conftest import COMMON


def shares(tiny: Encoder, rows: Path, out: Path, *indices: int, count: int = 3) -> Path:
    for index in indices:
        encode_files(tiny, rows, out, share=(index, count), **COMMON)
    return out


@pytest.mark.usefixtures("small_windows")
@pytest.mark.parametrize("count", [2, 3, 7])
def test_merged_shares_have_the_bytes_of_one_job(
    tmp_path: Path, tiny: Encoder, rows: Path, count: int
) -> None:
    encode_files(tiny, rows, tmp_path / "whole", **COMMON)
    out = shares(tiny, rows, tmp_path / "out", *range(count, 0, -1), count=count)
    merged = merge_shares(out)
    assert (merged.rows, merged.shards, merged.dead_letters, merged.problems) == (94, 5, 6, ())
    assert contents(out) == contents(tmp_path / "whole")
    assert merge_shares(out) == merged  # nothing left to do
    assert not verify_folder(out).problems
    assert encode_files(tiny, rows, out, **COMMON).shards_before == 5


def test_shares_of_an_empty_input_are_merged(tmp_path: Path, tiny: Encoder) -> None:
    empty = tmp_path / "a.txt"
    empty.write_text("")
    encode_files(tiny, empty, tmp_path / "whole", **COMMON)
    out = shares(tiny, empty, tmp_path / "out", 1, 2, count=2)
    assert merge_shares(out).rows == 0
    assert contents(out) == contents(tmp_path / "whole")


@pytest.mark.usefixtures("small_windows")
def test_a_merge_that_was_interrupted_is_repeated(
    tmp_path: Path, tiny: Encoder, rows: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encode_files(tiny, rows, tmp_path / "whole", **COMMON)
    begun = shares(tiny, rows, tmp_path / "begun", 1, 2, 3)
    for moment in ("write_blocks", "write_manifest", "delete"):
        out = Path(shutil.copytree(begun, tmp_path / moment))
        with monkeypatch.context() as patched:
            real = getattr(Folder, moment)

            def interrupted(*given, real=real, **named) -> None:
                real(*given, **named)
                raise KeyboardInterrupt

            patched.setattr(Folder, moment, interrupted)
            with pytest.raises(KeyboardInterrupt):
                merge_shares(out)
        merge_shares(out)
        assert contents(out) == contents(tmp_path / "whole")


@pytest.mark.usefixtures("small_windows")
def test_what_is_not_whole_is_not_merged(tmp_path: Path, tiny: Encoder, rows: Path) -> None:
    with pytest.raises(BulkError, match="has no manifest"):
        merge_shares(tmp_path / "nothing")
    out = shares(tiny, rows, tmp_path / "out", 1, 3)
    before = contents(out)
    with pytest.raises(BulkError, match=r"share 2/3 .* is missing"):
        merge_shares(out)
    assert contents(out) == before
    shares(tiny, rows, out, 2)
    (out / "part-000001.npy").rename(tmp_path / "kept")
    with pytest.raises(BulkError, match=r"part-000001\.npy"):
        merge_shares(out)
    (tmp_path / "kept").rename(out / "part-000001.npy")
    other = write_jsonl(tmp_path / "other.jsonl", [{"text": f"other {i}"} for i in range(100)])
    shares(tiny, other, tmp_path / "other", 2)
    before = (out / "_manifest.2-of-3.json").read_bytes()
    shutil.copy(tmp_path / "other/_manifest.2-of-3.json", out)
    with pytest.raises(BulkError, match=r"2-of-3\.json .*another job"):
        merge_shares(out)
    (out / "_manifest.2-of-3.json").write_bytes(before)
    assert merge_shares(out).rows == 94


def test_the_merge_command(flowvec, tmp_path: Path, tiny: Encoder, rows: Path) -> None:
    out = shares(tiny, rows, tmp_path / "out", 1, 2, count=2)
    done = flowvec("merge", out)
    assert done.stdout == (
        f"{out}: 94 rows in 5 shards, 6 dead letters; flowvec verify reads all vectors\n"
    )
    again = flowvec("merge", tmp_path)
    assert (again.returncode, "has no manifest" in again.stderr) == (2, True)
