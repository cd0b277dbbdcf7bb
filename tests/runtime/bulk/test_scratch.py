"""The temporary folder of bulk jobs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import IO

import pytest

from flowvec.bulk import scratch
from flowvec.bulk.scratch import scratch_folder

# Python reads TMPDIR once in a process.
_CODE = (
    "from flowvec.bulk.scratch import scratch_folder\n"
    "for _ in range(2):\n"
    "    with scratch_folder() as folder:\n"
    "        print(folder.parent)"
)


def run(named: Path | str) -> tuple[str, str]:
    """The folder that is used, and what is said."""
    done = subprocess.run(
        [sys.executable, "-c", _CODE], env={**os.environ, "TMPDIR": str(named)},
        capture_output=True, text=True, timeout=600, check=True,
    )  # fmt: skip
    first, second = done.stdout.splitlines()
    assert first == second
    return first, done.stderr


@pytest.mark.process
def test_a_temporary_folder_that_cannot_be_used_is_said_once(tmp_path: Path) -> None:
    """Python takes another folder, and says nothing."""
    used, told = run(tmp_path / "missing")
    assert Path(used) != tmp_path / "missing"
    assert told.splitlines() == [
        f"TMPDIR is {tmp_path / 'missing'}, which cannot be used (No such file or directory): "
        f"temporary files go to {used}"
    ]


@pytest.mark.process
def test_a_file_is_not_a_temporary_folder(tmp_path: Path) -> None:
    (tmp_path / "t").touch()
    used, told = run(tmp_path / "t")
    assert f"{tmp_path / 't'}, which cannot be used (Not a directory): " in told
    assert used in told


@pytest.mark.process
@pytest.mark.parametrize("named", ["t", "t/", "t/../t", ""])
def test_nothing_is_said_of_a_temporary_folder_that_is_used(tmp_path: Path, named: str) -> None:
    (tmp_path / "t").mkdir()
    used, told = run(f"{tmp_path}/{named}" if named else "")
    assert told == ""
    # Without a name it is the system's own, whatever TMPDIR is in this process.
    assert Path(used) == tmp_path / "t" if named else Path(used).is_dir()


def test_a_new_folder_that_another_process_takes_for_a_leftover_is_replaced(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, files = scratch.lock, list[str]()

    def lock(file: IO[bytes]) -> None:
        files.append(file.name)
        if len(files) == 1:  # the other one comes before the folder is locked
            with scratch_folder():
                pass
        real(file)

    monkeypatch.setattr(scratch, "lock", lock)
    with scratch_folder() as folder:
        (folder / "file").touch()
        assert folder != Path(files[0]).parent
    assert list(temporary.iterdir()) == []
