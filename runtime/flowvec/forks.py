"""A fork waits until no thread is inside an engine.

A child has only the thread that forked. What other threads of the parent held inside an engine,
such as its locks and its counts of workers, stays held there for ever: a session that the child
opens would wait for it.
"""

from __future__ import annotations

# These take locks before a fork that calls may need. Functions that are registered later
# are called earlier: ours must be, so that nobody waits for such a lock whom the fork waits for.
import concurrent.futures.thread
import logging
import os
import threading
import time
from types import TracebackType

from flowvec.errors import EngineError

__all__ = ["UnderWay", "under_way"]

logger = logging.getLogger(__name__)

_ = concurrent.futures.thread

# Seconds in which an engine's own threads come to rest after its last call.
_REST = 0.002


class UnderWay:
    """Calls into engines that are under way: `with` it around each. A call must end by
    itself, without waiting for another thread.

    A thread never waits for itself: one that is in a call, for example in a signal's handler, forks
    at once, and one that forks may call.
    """

    def __init__(self, patience: float = 30.0) -> None:
        """No call is under way.

        Args:
            patience: seconds for which a fork waits for calls, and a call for forks.
        """
        self._patience = patience
        # Of an RLock: a signal's handler may fork on a thread that holds it.
        self._changed = threading.Condition(threading.RLock())
        # Nested calls of each thread. Only the thread itself changes its number, without the lock:
        # it writes the number before it looks for forks, and a fork is written before it looks for
        # calls, so that one of them sees the other.
        self._calls: dict[int, int] = {}
        self._forks: dict[int, int] = {}  # of each thread
        self._ended = 0.0  # when the last call ended, by `time.monotonic`
        self._is_cut = False  # this process was forked in the middle of a call

    def __enter__(self) -> None:
        """A call begins; it waits for forks that have begun.

        Raises:
            EngineError: this process was forked while another thread was in a call.
        """
        me, calls = threading.get_ident(), self._calls
        if me in calls:
            calls[me] += 1
            return
        calls[me] = 1
        if self._forks or self._is_cut:
            self._begin_later(me)

    def _begin_later(self, me: int) -> None:
        if self._is_cut:
            del self._calls[me]
            raise EngineError(
                f"this process was forked while another thread computed for over "
                f"{self._patience:.0f} s: models do not work in it. Fork when "
                'nothing computes, or start processes with multiprocessing\'s "spawn"'
            )
        if me not in self._forks:
            with self._changed:
                del self._calls[me]
                self._changed.notify_all()
                self._changed.wait_for(lambda: not self._forks, self._patience)
                self._calls[me] = 1

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """The call is over."""
        self._ended = time.monotonic()
        _count_down(self._calls, threading.get_ident())
        if self._forks:
            with self._changed:
                self._changed.notify_all()

    def _has_others(self) -> bool:
        """Whether another thread is in a call."""
        return not self._calls.keys() <= {threading.get_ident()}

    def before_fork(self) -> None:
        """Let no other thread begin a call, and wait until those that are under way are over."""
        me = threading.get_ident()
        with self._changed:
            self._forks[me] = self._forks.get(me, 0) + 1
            is_quiet = self._changed.wait_for(lambda: not self._has_others(), self._patience)
        if not is_quiet:
            logger.warning(
                "forked while another thread computes for over %.0f s: models will not work in "
                "the child",
                self._patience,
            )
        rest = self._ended + _REST - time.monotonic()
        if rest > 0:
            time.sleep(rest)

    def after_in_parent(self) -> None:
        """Let calls begin again."""
        with self._changed:
            _count_down(self._forks, threading.get_ident())
            self._changed.notify_all()

    def after_in_child(self) -> None:
        """Forget the threads of the parent."""
        me = threading.get_ident()
        self._is_cut = self._is_cut or self._has_others()
        self._changed = threading.Condition(threading.RLock())
        self._calls = {me: self._calls[me]} if me in self._calls else {}
        self._forks = {}


def _count_down(counts: dict[int, int], key: int) -> None:
    left = counts.get(key, 0) - 1
    if left > 0:
        counts[key] = left
    else:
        counts.pop(key, None)


under_way = UnderWay()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=under_way.before_fork,
        after_in_parent=under_way.after_in_parent,
        after_in_child=under_way.after_in_child,
    )
