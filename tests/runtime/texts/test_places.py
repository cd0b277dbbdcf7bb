"""Whether an output and an input are apart: by links, spellings and URLs, either way."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from flowvec.errors import ConvertError, InputValueError
from flowvec.texts.places import Place, check_apart, check_new, check_outputs_apart


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """`in/deep/a.txt`, a link and a hard link to it, and a link to `in`."""
    (tmp_path / "in" / "deep").mkdir(parents=True)
    (tmp_path / "in" / "deep" / "a.txt").write_text("x\n")
    (tmp_path / "soft").symlink_to(tmp_path / "in" / "deep" / "a.txt")
    (tmp_path / "hard").hardlink_to(tmp_path / "in" / "deep" / "a.txt")
    (tmp_path / "linked").symlink_to(tmp_path / "in")
    (tmp_path / "nowhere").symlink_to(tmp_path / "in" / "new")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("out", "one", "how"),
    [
        ("in/deep/a.txt", "in/deep/a.txt", "is the"),
        ("./in/../in/deep/a.txt", "linked/deep/a.txt", "is the"),
        ("soft", "hard", "is the"),
        ("in", "soft", "contains the"),
        ("linked/deep", "in/deep/a.txt", "contains the"),
        (".", "in/deep/a.txt", "contains the"),
        ("in/new", "linked", "is in the"),
        ("nowhere", "in", "is in the"),
        ("in/new/er/v.npy", "in/deep/..", "is in the"),
        ("in/deep/b.txt", ".", "is in the"),
    ],
)
def test_paths_that_lead_to_one_place_are_not_apart(
    folder: Path, out: str, one: str, how: str
) -> None:
    for written in (out, Path(out), str(folder / out), (folder / out).as_uri()):
        with pytest.raises(InputValueError, match=f"the output .* {how} input"):
            check_apart(written, [one])
    with pytest.raises(ConvertError):
        check_apart(out, [None, one], ConvertError)


def test_other_places_are_apart(folder: Path) -> None:
    read = ["in/deep/a.txt", "missing", "org/model", None]
    for out in ("in/deep/b.txt", "in/deep/a.txt.npy", "out", "in/dee", "missing", "org"):
        check_apart(out, read)
    check_apart("in/deep/vectors", ["in"], may_be_in=True)
    with pytest.raises(InputValueError):
        check_apart("in", ["in"], may_be_in=True)
    if sys.platform != "win32":
        check_apart(os.devnull, [os.devnull])  # a device is in no place


def test_what_differs_in_case_is_one_place_where_the_file_system_says_so(folder: Path) -> None:
    is_one = (folder / "IN").exists()
    assert Place.of("IN/deep/A.TXT").contains(Place.of("in/deep/a.txt")) == is_one


@pytest.mark.parametrize(
    ("out", "one"),
    [
        ("s3://b/x", "s3://b/x/y.jsonl"),
        ("s3://b/x/y", "s3://b/x"),
        ("s3a://b/x/", "S3://key:secret@b/x?region=eu"),
        ("s3://b/z/../x", "s3://b/x"),
        ("s3://b/a%20b", "s3://b/a b/c"),
        ("gs://b/x", "gcs://b/x/y"),
        ("abfs://box@account.dfs.core.windows.net/x", "az://box/x/y"),
        ("memory://x", "memory:///x/y"),
        ("s3://b/x", "simplecache::s3://b/x/y"),
        ("s3://b/x?endpoint_override=https://one", "s3://b/x/y?endpoint_override=one"),
    ],
)
def test_urls_of_one_bucket_are_compared_by_their_paths(out: str, one: str) -> None:
    for written, read in ((out, one), (one, out)):
        with pytest.raises(InputValueError, match="the output") as error:
            check_apart(written, [read])
        assert "secret" not in str(error.value)


def test_urls_of_other_places_are_apart() -> None:
    check_apart("s3://b/x", ["s3://b/xy", "s3://c/x", "gs://b/x", "x", "s3://b/X"])
    check_apart("s3://b/x?endpoint_override=one", ["s3://b/x?endpoint_override=two"])


def test_a_file_that_exists_is_replaced_only_if_asked(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    check_new(file, overwrite=False)
    file.touch()
    check_new(file, overwrite=True)
    with pytest.raises(InputValueError, match="--overwrite"):
        check_new(file, overwrite=False)
    check_new(os.devnull, overwrite=False)
    check_outputs_apart([file, None, tmp_path / "b.json"])
    with pytest.raises(InputValueError, match="the same output"):
        check_outputs_apart([tmp_path / "new", tmp_path / "." / "new"])
