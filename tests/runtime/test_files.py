"""Files appear whole or not at all."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from flowvec.files import staged_file, sync_folder, write_file


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
