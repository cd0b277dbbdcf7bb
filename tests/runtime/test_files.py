"""Files appear whole or not at all; pointers of git-lfs and byte order marks."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from flowvec import (
    BulkError,
    Bundle,
    BundleError,
    Collection,
    CorruptCollectionError,
    Encoder,
    InputValueError,
)
from flowvec.bulk import encode_files, verify_folder
from flowvec.bundle.bundle import shipped_bundles
from flowvec.files import lfs_advice, staged_file, sync_folder, write_file
from flowvec.texts.rows import read_rows


def test_a_file_takes_its_name_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"old")
    with staged_file(path) as partial:
        partial.write_bytes(b"new")
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_what_failed_leaves_nothing(tmp_path: Path, error: type[BaseException]) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"old")

    def fail() -> None:
        with staged_file(path) as partial:
            partial.write_bytes(b"ne")
            raise error

    with pytest.raises(error):
        fail()
    with pytest.raises(OSError, match="No such file"), staged_file(path):
        pass  # nothing was written
    (tmp_path / "folder").mkdir()
    with pytest.raises(IsADirectoryError):
        write_file(tmp_path / "folder", b"x")
    assert path.read_bytes() == b"old"
    assert {p.name for p in tmp_path.iterdir()} == {"a", "folder"}


@pytest.mark.skipif(sys.platform != "linux", reason="calls are caught on Linux alone")
def test_the_file_is_on_disk_before_its_name_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    fsync, replace = os.fsync, Path.replace

    def flushed(handle: int) -> None:
        calls.append("sync " + Path(f"/proc/self/fd/{handle}").readlink().name)
        fsync(handle)

    def renamed(self: Path, target: Path) -> Path:
        calls.append(f"rename {target.name}")
        return replace(self, target)

    monkeypatch.setattr(os, "fsync", flushed)
    monkeypatch.setattr(Path, "replace", renamed)
    write_file(tmp_path / "a", b"x", tmp_path / "b")
    assert calls == ["sync b", "rename a", f"sync {tmp_path.name}"]


def test_a_folder_that_cannot_be_listed_is_not_flushed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> int:
        raise PermissionError

    monkeypatch.setattr(os, "open", refused)
    sync_folder(tmp_path)


def test_a_folder_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        write_file(tmp_path / "missing" / "a", b"new")
    assert caught.value.filename == str(tmp_path / "missing")


POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:0123\nsize 90868376\n"


def test_a_pointer_of_git_lfs_is_told_from_other_files(tmp_path: Path) -> None:
    file = tmp_path / "model.onnx"
    assert lfs_advice(file) is None
    for content in (b"", POINTER[1:], POINTER + b" " * 2000):
        file.write_bytes(content)
        assert lfs_advice(file) is None
    file.write_bytes(POINTER)
    assert f"{file} is a pointer of git-lfs" in str(lfs_advice(file))
    assert "git lfs pull" in str(lfs_advice(file))


@pytest.mark.parametrize("name", ["manifest.json", "model.onnx", "tokenizer.json"])
def test_a_pointer_in_a_bundle_is_named(tmp_path: Path, name: str) -> None:
    bundle = tmp_path / "bundle"
    shutil.copytree(shipped_bundles()["mini"], bundle)
    (bundle / name).write_bytes(POINTER)
    with pytest.raises(BundleError, match=rf"{name} .*git lfs pull"):
        Bundle.load(bundle)


def test_a_manifest_with_a_byte_order_mark_is_read(tmp_path: Path) -> None:
    bundle = tmp_path / "bundle"
    shutil.copytree(shipped_bundles()["mini"], bundle)
    file = bundle / "manifest.json"
    file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes())
    assert Bundle.load(bundle).manifest.name == "mini"


@pytest.mark.parametrize("kind", ["txt", "jsonl", "csv", "parquet"])
def test_a_pointer_among_the_texts_is_not_taken_for_texts(tmp_path: Path, kind: str) -> None:
    if kind == "parquet":
        pytest.importorskip("pyarrow", reason="needs the extra [files]")
    file = tmp_path / f"texts.{kind}"
    file.write_bytes(POINTER)
    with pytest.raises(InputValueError, match=r"is a pointer of git-lfs"):
        encode_files("mini", file, tmp_path / "out", out_format="npy")
    if kind != "parquet":
        with pytest.raises(InputValueError, match=r"is a pointer of git-lfs"):
            list(read_rows(str(file)))


def test_a_pointer_in_a_collection_or_a_job_is_named(tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "collection.sqlite").write_bytes(POINTER)
    with pytest.raises(CorruptCollectionError, match=r"sqlite is a pointer of git-lfs"):
        Collection.open(tmp_path / "notes")
    (tmp_path / "a.txt").write_text("a cat")
    job = tmp_path / "job"
    encode_files("mini", tmp_path / "a.txt", job, out_format="npy")
    (job / "part-000000.npy").write_bytes(POINTER)
    assert any("pointer of git-lfs" in problem for problem in verify_folder(job).problems)
    (job / "_manifest.json").write_bytes(POINTER)
    with pytest.raises(BulkError, match=r"_manifest\.json .*git-lfs"):
        verify_folder(job)


@pytest.mark.parametrize("kind", ["txt", "jsonl", "csv"])
def test_a_byte_order_mark_before_texts_is_no_part_of_them(tmp_path: Path, kind: str) -> None:
    lines = {"txt": "a cat\n", "jsonl": '{"text": "a cat"}\n', "csv": "text\na cat\n"}
    file = tmp_path / f"texts.{kind}"
    file.write_bytes(b"\xef\xbb\xbf" + lines[kind].encode())
    summary = encode_files("mini", file, tmp_path / "out", out_format="npy")
    assert (summary.rows, summary.dead_letters) == (1, 0)
    assert [row.text for row in read_rows(str(file))] == ["a cat"]
    vectors = np.concatenate([np.load(path) for path in sorted((tmp_path / "out").glob("*.npy"))])
    with Encoder.load("mini") as encoder:
        np.testing.assert_allclose(vectors[0], encoder.encode("a cat"), atol=1e-5)
