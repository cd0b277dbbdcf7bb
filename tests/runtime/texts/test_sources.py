"""Finding the files of an input."""

from __future__ import annotations

from pathlib import Path

import pytest

from flowvec.errors import InputValueError
from flowvec.texts.sources import find_sources


def test_files_folders_and_globs_are_found_in_order(tmp_path: Path) -> None:
    for name in ("b.txt", "a.jsonl", "c.csv.gz", "notes.md", ".hidden.txt", "_SUCCESS.txt",
                 "deep/er/z.txt", "_temporary/y.txt", "notes.dead_letter.jsonl"):  # fmt: skip
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x\n")
    names = [Path(s.path).name for s in find_sources([tmp_path])]
    assert names == ["a.jsonl", "b.txt", "c.csv.gz", "z.txt"]
    sources = find_sources([str(tmp_path / "**/*.txt"), tmp_path / "a.jsonl"])
    assert [Path(s.path).name for s in sources][-1] == "a.jsonl"
    assert [s.format for s in find_sources([tmp_path / "c.csv.gz", tmp_path / "b.txt"])] == [
        "csv", "txt"]  # fmt: skip
    assert find_sources([tmp_path / "notes.md"], "txt")[0].format == "txt"


@pytest.mark.parametrize(
    ("inputs", "file_format", "part"),
    [
        ([], None, "nothing to read"),
        (["-", "a.txt"], None, "cannot be combined"),
        (["-"], "parquet", "standard input"),
        (["a.txt", "./a.txt"], None, "named twice"),
        (["nowhere.txt"], None, "cannot read nowhere.txt"),
        (["*.json"], None, "has no files"),
        (["empty"], None, "has no files"),
        (["a.md"], None, "cannot tell how to read a.md"),
        (["a.txt"], "xml", "must be one of txt"),
        (["a.txt\0"], "txt", "cannot read"),
    ],
)
def test_a_missing_input_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inputs, file_format, part
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    for name in ("a.txt", "a.md"):
        (tmp_path / name).write_text("x\n")
    with pytest.raises(InputValueError, match=part.replace("*", r"\*")):
        find_sources(inputs, file_format)


def test_a_link_to_another_input_is_the_same_file(tmp_path: Path) -> None:
    (tmp_path / "b.txt").write_text("x\n")
    (tmp_path / "a.txt").symlink_to("b.txt")  # by name it comes first
    (tmp_path / "c.txt").hardlink_to(tmp_path / "b.txt")
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep/d.txt").symlink_to(tmp_path / "b.txt")
    for inputs in ([tmp_path], [tmp_path / "*.txt"], [tmp_path / "a.txt", tmp_path / "b.txt"]):
        assert [Path(s.path).name for s in find_sources(inputs)] == ["b.txt"]
    assert [Path(s.path).name for s in find_sources([tmp_path / "a.txt"])] == ["a.txt"]
