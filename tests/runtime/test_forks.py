"""A child that is forked while other threads compute can compute, or says why not."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from flowvec import EngineError
from flowvec.engine.providers import CPU, OPENVINO
from flowvec.engine.selection import available_providers
from flowvec.forks import UnderWay
from tests.conftest import RunCommand
from tests.inside import calls_and_forks
from tests.waiting import wait_until

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")


def started(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def call(under_way: UnderWay, inside: threading.Event, end: threading.Event) -> None:
    with under_way, under_way:
        inside.set()
        assert end.wait(120)


def test_a_fork_waits_for_calls_and_calls_wait_for_forks() -> None:
    under_way = UnderWay(patience=600.0)
    inside, end, later, over = (threading.Event() for _ in range(4))
    started(lambda: call(under_way, inside, end))
    assert inside.wait(120)
    steps: list[str] = []

    def fork() -> None:
        under_way.before_fork()
        steps.append("fork")
        assert over.wait(120)
        under_way.after_in_parent()

    forking = started(fork)
    wait_until(lambda: calls_and_forks(under_way)[1])
    calling = started(lambda: call(under_way, later, end))
    assert steps == []
    assert not later.is_set()
    end.set()  # the first call ends, and the second one has not begun
    wait_until(lambda: steps == ["fork"])
    assert not later.is_set()
    over.set()
    assert later.wait(120)
    calling.join(120)
    forking.join(120)
    assert calls_and_forks(under_way) == ({}, {})


def test_a_thread_that_forks_waits_neither_for_its_own_call_nor_for_its_fork() -> None:
    under_way = UnderWay()
    with under_way:
        under_way.before_fork()
        with under_way:
            under_way.before_fork()
            under_way.after_in_parent()
        under_way.after_in_parent()
        under_way.after_in_child()
    with under_way:
        pass
    assert calls_and_forks(under_way) == ({}, {})


def test_a_child_of_a_call_that_does_not_end_says_so(caplog: pytest.LogCaptureFixture) -> None:
    under_way = UnderWay(patience=0.01)
    inside, end = threading.Event(), threading.Event()
    calling = started(lambda: call(under_way, inside, end))
    assert inside.wait(120)
    under_way.before_fork()
    assert "will not work in the child" in caplog.text
    under_way.after_in_parent()
    child = UnderWay(patience=0.01)
    calls_and_forks(child)[0].update(calls_and_forks(under_way)[0])
    end.set()
    calling.join(120)
    with under_way:  # the parent goes on
        pass
    child.after_in_child()
    for _ in range(2):
        with pytest.raises(EngineError, match="spawn"), child:
            pass
        child.after_in_child()  # and children of the child


FORKS = """
import asyncio, os, signal, sys, threading, warnings
warnings.simplefilter("ignore")
import numpy as np
from flowvec import AsyncEncoder, Encoder, Reranker

provider = sys.argv[1]
encoder = Encoder.load(sys.argv[2], provider=provider, compute="float32", streams=2)
reranker = Reranker.load(sys.argv[3], provider=provider, compute="float32", streams=1)
expected = encoder.encode("the cat")
is_over = False

async def waits():
    async with AsyncEncoder(encoder) as shared:
        while not is_over:
            await shared.encode(["a dog runs"] * 5)

def forever(work):
    def repeat():
        while not is_over:
            work()
    threading.Thread(target=repeat, daemon=True).start()

forever(lambda: asyncio.run(waits()))
forever(lambda: encoder.encode(["stocks fell " * 20] * 8))
forever(lambda: reranker.rank("the cat", ["a dog"] * 9))

def use():
    assert np.allclose(encoder.encode("the cat"), expected, atol=1e-5)
    assert len(reranker.rank("the cat", ["a dog", "b"])) == 2

def in_a_child(work):
    child = os.fork()
    if child == 0:
        signal.alarm(300)  # ends a child that hangs
        try:
            work()
        except BaseException as error:
            print(repr(error), file=sys.stderr, flush=True)
            os._exit(7)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0

for _ in range(3):
    in_a_child(use)
in_a_child(lambda: (use(), in_a_child(use)))

is_over = True

seen = []

def fork_in_a_handler(*_):
    in_a_child(lambda: None)
    seen.append(1)

signal.signal(signal.SIGUSR1, fork_in_a_handler)
for number in range(3):  # also while the main thread is in a call of its own
    threading.Timer(.01, os.kill, (os.getpid(), signal.SIGUSR1)).start()
    while len(seen) <= number:  # the signal may have come before this line
        encoder.encode("the cat")
print("done", flush=True)
os._exit(0)
"""


@needs_fork
@pytest.mark.parametrize("provider", [CPU, OPENVINO])
def test_children_compute_while_threads_of_the_parent_do(
    python: RunCommand, tiny_dir: Path, reranker_dir: Path, provider: str
) -> None:
    if provider not in available_providers():
        pytest.skip(f"{provider} cannot run on this machine")
    done = python(FORKS, provider, tiny_dir, reranker_dir)
    assert done.stdout == "done\n", done.stderr


CUT = """
import os, sys, warnings
warnings.simplefilter("ignore")
from flowvec import Encoder, EngineError
from flowvec.forks import under_way
encoder = Encoder.load(sys.argv[2], provider=sys.argv[1], compute="float32")
child = os.fork()
if child == 0:
    under_way._is_cut = True  # as in a child of a call that took too long
    try:
        encoder.encode("the cat")
    except EngineError as error:
        os._exit(0 if str(error).startswith("this process was forked") else 8)
    os._exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""


@needs_fork
@pytest.mark.parametrize("provider", [CPU, OPENVINO])
def test_a_model_in_such_a_child_says_what_is_wrong(
    python: RunCommand, tiny_dir: Path, provider: str
) -> None:
    if provider not in available_providers():
        pytest.skip(f"{provider} cannot run on this machine")
    done = python(CUT, provider, tiny_dir)
    assert done.returncode == 0, done.stderr
