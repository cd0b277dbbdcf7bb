"""The turn to write: fair among processes, free when its holder dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from flowvec import CollectionBusyError, CollectionError
from flowvec.collection.store.writer_locks import LOCK_FILE, NEXT_FILE, WriterTurn
from flowvec.file_lock import lock


def test_a_turn_is_waited_for(tmp_path: Path) -> None:
    one, other = WriterTurn(tmp_path), WriterTurn(tmp_path)
    one.acquire(0)
    ending = threading.Timer(0.3, one.release)
    ending.start()
    other.acquire(60)
    assert other.held
    ending.join()  # the lock is free before its holder says so
    assert not one.held
    with pytest.raises(CollectionBusyError, match=r"this waited 0\.05 s"):
        one.acquire(0.05)
    other.release()


def test_a_turn_that_others_have_is_refused_at_once_by_a_timeout_of_0(tmp_path: Path) -> None:
    one, other = WriterTurn(tmp_path), WriterTurn(tmp_path)
    one.acquire(0)
    one.acquire(0)
    assert one.held
    with pytest.raises(CollectionBusyError, match="another handle"):
        other.acquire(0)
    assert not other.held
    one.release()
    one.release()
    other.acquire(0)
    other.release()


LOOP = """
import sys, time
from pathlib import Path
from flowvec.collection.store.writer_locks import WriterTurn
turn = WriterTurn(Path(sys.argv[1]))
print("looping", flush=True)
while True:
    turn.acquire(600)
    time.sleep(0.002)
    turn.release()
"""


@pytest.mark.process
def test_processes_that_write_in_a_loop_leave_turns_to_others(tmp_path: Path) -> None:
    """Twenty turns beside two processes that want every turn: each is got in the time limit."""
    children = [
        subprocess.Popen([sys.executable, "-c", LOOP, str(tmp_path)], stdout=subprocess.PIPE)
        for _ in range(2)
    ]
    try:
        for child in children:
            assert child.stdout is not None
            assert child.stdout.readline() == b"looping\n"
        turn = WriterTurn(tmp_path)
        for _ in range(20):
            turn.acquire(60)
            turn.release()
    finally:
        for child in children:
            child.kill()
            child.communicate()


def test_a_writer_waits_behind_the_next_one(tmp_path: Path) -> None:
    """Only the next writer tries for the turn, so that nobody overtakes it."""
    (tmp_path / NEXT_FILE).touch()
    with (tmp_path / NEXT_FILE).open("r+b") as file:
        lock(file)
        with pytest.raises(CollectionBusyError):
            WriterTurn(tmp_path).acquire(0.01)
    WriterTurn(tmp_path).acquire(0)


FULL = """
import resource, sys
from pathlib import Path
from flowvec.collection.store.writer_locks import WriterTurn
turn = WriterTurn(Path(sys.argv[1]))
resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
turn.acquire(0)
turn.release()
"""


@pytest.mark.process
@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such limit")
def test_a_full_disk_hinders_no_turn(tmp_path: Path) -> None:
    """The content of a lock file is only used in other processes' messages."""
    done = subprocess.run([sys.executable, "-c", FULL, str(tmp_path)], timeout=600, check=False)
    assert done.returncode == 0


FORKED = """
import os, sys, time
from pathlib import Path
from flowvec.collection.store.writer_locks import WriterTurn
turn = WriterTurn(Path(sys.argv[1]))
turn.acquire(0)
if os.fork() == 0:
    print("forked", flush=True)
    time.sleep(600)
os._exit(0)
"""


@pytest.mark.process
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_child_that_outlives_its_parent_holds_nothing(tmp_path: Path) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", FORKED, str(tmp_path)],
        stdout=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "forked\n"
        child.wait(600)
        turn = WriterTurn(tmp_path)
        turn.acquire(0)
        turn.release()
    finally:
        os.killpg(child.pid, signal.SIGKILL)
        child.stdout.close()


CHILD = """
import sys, time
from pathlib import Path
from flowvec.collection.store.writer_locks import WriterTurn
turn = WriterTurn(Path(sys.argv[1]))
turn.acquire(0)
print("held", flush=True)
time.sleep(600)
"""


@pytest.mark.process
def test_a_killed_process_leaves_no_lock(tmp_path: Path) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "held\n"
        turn = WriterTurn(tmp_path)
        with pytest.raises(CollectionBusyError, match=f"by process {child.pid}"):
            turn.acquire(0)
        child.send_signal(signal.SIGKILL)
        child.wait(600)
        turn.acquire(0)
        turn.release()
    finally:
        child.kill()
        child.communicate()


@pytest.mark.parametrize("file", [LOCK_FILE, NEXT_FILE])
def test_a_folder_that_cannot_be_written_is_a_typed_error(tmp_path: Path, file: str) -> None:
    (tmp_path / file).mkdir()
    turn = WriterTurn(tmp_path)
    with pytest.raises(CollectionError, match="cannot be written"):
        turn.acquire(0)
    (tmp_path / file).rmdir()
    turn.acquire(60)  # the attempt that failed has left no lock
    turn.release()
