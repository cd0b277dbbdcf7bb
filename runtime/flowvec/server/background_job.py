"""Long work beside requests: on one thread of low priority, which can be stopped."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from flowvec.errors import FlowvecError
from flowvec.spelled import json_message

__all__ = ["BackgroundJob"]

logger = logging.getLogger(__name__)

T = TypeVar("T")

# One job works at a time in a process, so that memory and processor time have a bound.
_TURN = threading.Lock()
# Seconds between looks at whether a job that waits for its turn was stopped.
_PATIENCE = 0.1
_NICE = 10
# After each step a job rests for this share of the step's time, so that Python's lock is free.
_REST = 0.1
_LONGEST_REST = 0.05


class BackgroundJob(Generic[T]):
    """Work that gives a state after each step; the last one is kept.

    Attributes:
        version: rises with every state.
    """

    def __init__(self, work: Callable[[], Iterator[T]], name: str) -> None:
        """Start it on a thread of this name."""
        self.version = 0
        self._work = work
        self._state: T | None = None
        self._failure = ""
        self._is_stopped = threading.Event()
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def state(self) -> T | None:
        """The last state; None before the first step has ended."""
        return self._state

    @property
    def failure(self) -> str:
        """Why it ended early; "" if it has not."""
        return self._failure

    @property
    def is_running(self) -> bool:
        """Whether there are steps to come."""
        return self._thread.is_alive()

    def wait_for_state(self, timeout: float) -> None:
        """Wait, at most so many seconds, for the first state or the end."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._state is not None or self._failure or self._is_stopped.is_set(),
                timeout,
            )

    def stop(self) -> None:
        """End it after the step that runs, and wait for that."""
        self._is_stopped.set()
        with self._changed:
            self._changed.notify_all()
        self._thread.join()

    def _run(self) -> None:
        if sys.platform == "linux":  # a priority for each thread, which its own threads inherit
            with contextlib.suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
        while not _TURN.acquire(timeout=_PATIENCE):
            if self._is_stopped.is_set():
                return
        try:
            self._step()
        except FlowvecError as error:
            self._fail(json_message(error))
        except Exception:
            logger.exception("%s failed", self._thread.name)
            self._fail("internal error; the server's log says more")
        finally:
            _TURN.release()

    def _step(self) -> None:
        began = time.perf_counter()
        for state in self._work():
            if self._is_stopped.is_set():
                return
            with self._changed:
                self._state = state
                self.version += 1
                self._changed.notify_all()
            spent = time.perf_counter() - began
            self._is_stopped.wait(min(_LONGEST_REST, _REST * spent))
            began = time.perf_counter()

    def _fail(self, why: str) -> None:
        with self._changed:
            self._failure = why
            self._changed.notify_all()
