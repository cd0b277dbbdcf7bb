"""A lease: an object with which one process at a time has the right to write below a URL.

The holder writes the object again every few seconds. A process that wants the lease watches the
object: if it changes, its holder lives, and the process is refused; if it does not change for as
long as the object says, its holder is dead, and the process takes the lease over. Only times
between two observations of one process are compared, so clocks need not agree. If the holder was a
process of the same machine that has ended, nobody waits.

A holder that was stopped for longer, and then goes on, finds the lease lost before its next write.
"""

from __future__ import annotations

import json
import math
import os
import platform
import threading
import time
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any

from flowvec.errors import BulkError
from flowvec.object_store.retries import PATIENCE
from flowvec.object_store.store import ConflictError, ObjectStore

__all__ = ["Lease"]

# A lease is lost if its object does not change for so many seconds; and how often it changes.
LEASE_SECONDS = 30.0
_RENEWALS = 4  # in this time
# Where the store has no conditional writes: how long a new lease is watched before it counts.
SETTLE_SECONDS = 2.0


class Lease:
    """The right to write; `with` acquires and releases it."""

    def __init__(
        self,
        store: ObjectStore,
        name: str,
        out: str | None = None,
        *,
        seconds: float | None = None,
        settle_seconds: float | None = None,
    ) -> None:
        """Name the object, without touching it.

        Args:
            store: where it is.
            name: its name.
            out: what it gives the right to write, for messages; None is the store's URL.
            seconds: the lease is lost if its object does not change for this long; None is 30.
            settle_seconds: how long a new lease is watched where the store has no conditional
                writes; None is 2.
        """
        self._out = store.url if out is None else out
        store.called[name] = self._out  # users know what they write, not this object
        self._store = store
        self._name = name
        self._seconds = LEASE_SECONDS if seconds is None else seconds
        self._settle_seconds = SETTLE_SECONDS if settle_seconds is None else settle_seconds
        self._about = {"holder": uuid.uuid4().hex, **_this_process(), "seconds": self._seconds}
        self._renewals = 0
        self._tag = ""
        self._renewed = 0.0  # when the last renewal was sent, on this process's clock
        self._is_lost = False
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Lease:
        self.acquire()
        return self

    def __exit__(self, *exc: object) -> None:
        self.release()

    def acquire(self) -> None:
        """Wait until the lease is free or lost, and take it.

        Raises:
            BulkError: another process has it, or the store cannot be reached.
        """
        while True:
            sent = time.monotonic()
            try:
                self._tag = self._store.create(self._name, self._content())
            except ConflictError:
                if not self._take_over():
                    continue  # it was released meanwhile
            else:
                self._renewed = sent
            break
        if not self._store.has_conditions:
            self._settle()
        self._thread = threading.Thread(target=self._renew, name="flowvec-lease", daemon=True)
        self._thread.start()

    @property
    def holder(self) -> str:
        """What tells this lease apart from those of other processes."""
        return str(self._about["holder"])

    @property
    def is_held(self) -> bool:
        """Whether this process has taken it, and not ended it."""
        return self._thread is not None

    @property
    def is_lost(self) -> bool:
        """Whether another process has taken it."""
        return self._is_lost

    def is_taken(self) -> bool:
        """Whether any process has the lease, dead or alive."""
        return self._store.read(self._name) is not None

    def is_held_by(self, holder: str) -> bool:
        """Whether the object says that another process has the lease.

        Args:
            holder: the `holder` of that process's lease.
        """
        there = self._store.read(self._name)
        return there is not None and _read(there).get("holder") == holder

    def check(self) -> None:
        """Check that this process still has the lease; call it before each write.

        If the store could not be reached for a while, it waits for the next renewal, which fails if
        another process has the lease.

        Raises:
            BulkError: another process may have taken it.
        """
        until = time.monotonic() + PATIENCE
        while self._is_overdue() and not self._is_lost and time.monotonic() < until:
            self._ended.wait(0.05)
        self._check_time()

    def _check_time(self) -> None:
        """`check` without waiting for a renewal."""
        if self._is_lost or self._is_overdue():
            raise BulkError(
                f"{self._out} may have been taken over by another process, because this one "
                f"could not renew its lease in time; {self._store.again}"
            )

    def _is_overdue(self) -> bool:
        return time.monotonic() - self._renewed > self._seconds * 0.8

    def abandon(self) -> None:
        """End without deleting the object, as a kill does: the next process takes it over."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def release(self) -> None:
        """Delete the object, if it is still this process's. Twice is harmless."""
        if self._thread is None:
            return
        self.abandon()
        with suppress(BulkError):  # others take it over in a moment
            if self.is_held_by(self.holder):
                # Nobody renews it now. What is tried for longer would delete the next one's lease.
                self._store.delete([self._name], self._check_time)

    def _content(self) -> bytes:
        # The number of renewals makes each content, and so each tag, another one.
        return (json.dumps({**self._about, "renewals": self._renewals}) + "\n").encode()

    def _take_over(self) -> bool:
        """Watch another process's lease, and take it over once it is lost.

        Returns:
            Whether it was taken; False if it is gone.

        Raises:
            BulkError: its holder lives.
        """
        first = self._store.read_tagged(self._name)
        if first is None:
            return False
        holder = _read(first[0])
        seconds = self._seconds
        with suppress(ValueError, TypeError):
            said = float(holder["seconds"]) if "seconds" in holder else seconds
            if 0.0 < said < math.inf:
                seconds = said
        until = time.monotonic() + seconds
        while time.monotonic() < until and not _has_ended(holder):
            time.sleep(seconds / (4 * _RENEWALS))
            there = self._store.read_tagged(self._name)
            if there is None:
                return False
            if there[1] != first[1]:
                raise BulkError(
                    f"{self._out} is being written by another process "
                    f"({holder.get('pid')} on {holder.get('host')})"
                )
        sent = time.monotonic()
        try:
            self._tag = self._store.replace(self._name, self._content(), first[1])
        except ConflictError:
            raise BulkError(f"{self._out} is being written by another process") from None
        self._renewed = sent
        return True

    def _settle(self) -> None:
        """Watch a lease that another process may have taken at the same moment.

        Raises:
            BulkError: another process has it.
        """
        time.sleep(self._settle_seconds)
        there = self._store.read(self._name)
        if there != self._content():
            raise BulkError(f"{self._out} is being written by another process")

    def _renew(self) -> None:
        while not self._ended.wait(self._seconds / _RENEWALS):
            self._renewals += 1
            sent = time.monotonic()
            try:
                self._tag = self._store.replace(self._name, self._content(), self._tag)
            except ConflictError:
                self._is_lost = True
                return
            except BulkError:  # the store cannot be reached; `check` notices when it is too late
                self._renewals -= 1
                with suppress(Exception):
                    there = self._store.read_tagged(self._name)
                    # An attempt whose answer was lost may have been written.
                    if there is not None and _read(there[0]).get("holder") == self._about["holder"]:
                        self._tag = there[1]
                        self._renewals = int(_read(there[0])["renewals"])
            else:
                self._renewed = sent


def _read(content: bytes) -> dict[str, Any]:
    try:
        about = json.loads(content)
    except ValueError:
        return {}
    return about if isinstance(about, dict) else {}


def _this_process() -> dict[str, Any]:
    pid = os.getpid()
    return {"host": platform.node(), "machine": _machine(), "pid": pid,
            "started": _started(pid)}  # fmt: skip


def _machine() -> str | None:
    """What tells apart machines, their starts, and containers with their own process numbers."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return None


def _started(pid: int) -> int | None:
    """When a process started, in ticks since the machine did; None if it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in ("Z", "X") else int(fields[19])


def _has_ended(holder: dict[str, Any]) -> bool:
    """Whether a holder is a process of this machine that has ended."""
    machine, pid, started = (holder.get(name) for name in ("machine", "pid", "started"))
    if machine is None or started is None or not isinstance(pid, int) or machine != _machine():
        return False
    return bool(_started(pid) != started)
