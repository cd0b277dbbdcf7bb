"""The locks: their order, and what is released when a process ends."""

from __future__ import annotations

import signal
import threading
from functools import partial

import pytest

from flowvec.collection.store.locks import ReadersWriter
from tests.waiting import wait_until


def test_readers_share_and_a_writer_is_alone() -> None:
    lock = ReadersWriter()
    together, inside, wrong = threading.Barrier(4), [], []

    def read() -> None:
        with lock.reading():
            together.wait(60)  # all four are in at once, or this breaks
            inside.append("r")
            if "w" in inside:
                wrong.append(1)
            inside.remove("r")

    def write() -> None:
        with lock.writing():
            if inside:
                wrong.append(2)
            inside.append("w")
            inside.remove("w")

    threads = [threading.Thread(target=read) for _ in range(4)]
    threads += [threading.Thread(target=write) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert not wrong


def test_many_threads_never_meet_a_writer() -> None:
    lock, state, wrong = ReadersWriter(), {"readers": 0, "writers": 0}, []

    def read() -> None:
        for _ in range(300):
            with lock.reading():
                state["readers"] += 1
                if state["writers"]:
                    wrong.append("reader beside a writer")
                state["readers"] -= 1

    def write() -> None:
        for _ in range(100):
            with lock.writing():
                state["writers"] += 1
                if state["writers"] != 1:
                    wrong.append("two writers")
                state["writers"] -= 1

    threads = [threading.Thread(target=t) for t in [read] * 6 + [write] * 3]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive()
    assert not wrong


def test_a_waiting_writer_goes_before_readers_that_come_later() -> None:
    lock, order = ReadersWriter(), []
    first_in, let_go = threading.Event(), threading.Event()

    def first() -> None:
        with lock.reading():
            first_in.set()
            assert let_go.wait(60)

    def write() -> None:
        with lock.writing():
            order.append("writer")

    def late() -> None:
        with lock.reading():
            order.append("late reader")

    threads = [threading.Thread(target=first)]
    threads[0].start()
    assert first_in.wait(60)
    threads.append(threading.Thread(target=write))
    threads[1].start()
    wait_until(lambda: lock._waiting_writers)
    threads.append(threading.Thread(target=late))
    threads[2].start()
    wait_until(lambda: lock._waiting_readers)
    let_go.set()
    for thread in threads:
        thread.join(60)
    assert order == ["writer", "late reader"]


def test_readers_that_waited_go_before_the_next_writer() -> None:
    lock, order = ReadersWriter(), []

    def read() -> None:
        with lock.reading():
            order.append("reader")

    def write() -> None:
        with lock.writing():
            order.append("writer")

    threads = []
    with lock.writing():
        for work, counter in ((read, "_waiting_readers"), (write, "_waiting_writers")):
            threads.append(threading.Thread(target=work))
            threads[-1].start()
            wait_until(partial(getattr, lock, counter))
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert order == ["reader", "writer"]


@pytest.mark.parametrize("kind", ["reading", "writing"])
def test_an_abandoned_wait_leaves_nothing_behind(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Ctrl-C while one waits must not stop the others."""
    lock = ReadersWriter()

    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    acquired, end = threading.Event(), threading.Event()

    def hold() -> None:
        with lock.writing():
            acquired.set()
            end.wait()

    holder = threading.Thread(target=hold)
    holder.start()
    acquired.wait()
    with monkeypatch.context() as patch:
        name = "_reader_may_go" if kind == "reading" else "_writer_may_go"
        patch.setattr(lock, name, interrupted)
        with pytest.raises(KeyboardInterrupt), getattr(lock, kind)():
            pass
    end.set()
    holder.join()
    for _ in range(2):
        with lock.reading():
            pass
        with lock.writing():
            pass
    assert not any(lock._kept)


# In a process of its own: signals would also reach threads that other tests have left.
INTERRUPTS = """
import signal, sys, threading
from random import Random
from flowvec.collection.store.locks import ReadersWriter

kind, lock, random, is_armed, interrupts = sys.argv[1], ReadersWriter(), Random(0), False, 0

def interrupt(*_):
    if is_armed:
        raise KeyboardInterrupt

def writes():
    done = threading.Event()
    def write():
        with lock.writing():
            done.set()
    thread = threading.Thread(target=write, daemon=True)
    thread.start()
    thread.join(600)  # it has left its block then
    return done.is_set()

signal.signal(signal.SIGALRM, interrupt)
for turn in range(3000):
    try:
        is_armed = True
        signal.setitimer(signal.ITIMER_REAL, random.uniform(20e-6, 200e-6))
        for _ in range(10_000):
            with getattr(lock, kind)():
                pass
    except KeyboardInterrupt:
        interrupts += 1
        is_armed = False
        if turn % 2:
            with lock.reading():  # by the same thread, while the exception is at hand
                pass
    finally:
        is_armed = False
        signal.setitimer(signal.ITIMER_REAL, 0)
    assert writes()
    assert not lock._readers
    assert not any(lock._kept)
print(interrupts)
"""


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="Windows has no timers of signals")
@pytest.mark.parametrize("kind", ["reading", "writing"])
def test_a_ctrl_c_leaves_the_lock_free(kind: str, python) -> None:
    """Signals at random moments while one thread takes the lock and releases it."""
    done = python(INTERRUPTS, kind)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 1000
