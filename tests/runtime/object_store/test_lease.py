"""A lease has one holder, and is taken over only from one that has ended."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from flowvec import object_store
from flowvec.errors import BulkError
from flowvec.object_store import ObjectStore, lease, open_store
from tests.waiting import wait_until

pytest.importorskip("fsspec", reason="needs fsspec")


class Lease(object_store.Lease):
    """A lease that is lost after a second."""

    def __init__(
        self, store: ObjectStore, name: str, out: str | None = None, seconds: float = 1.0
    ) -> None:
        super().__init__(store, name, out, seconds=seconds, settle_seconds=0.0)


@pytest.fixture
def store() -> Iterator[ObjectStore]:
    import fsspec

    fsspec.filesystem("memory").store.clear()
    yield open_store("memory://leases/job")
    fsspec.filesystem("memory").store.clear()


class Clock:
    """Time that passes in `sleep` alone, so that no lease is lost because a thread is slow.

    Attributes:
        meanwhile: called within each `sleep`, with the time.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self.meanwhile: Callable[[float], object] = lambda _: None

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.meanwhile(self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of leases."""
    clock = Clock()
    monkeypatch.setattr(lease, "time", clock)
    return clock


def test_a_second_holder_is_refused_until_the_first_releases(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "_RENEWALS", 1000)  # the second one waits for the next
    with Lease(store, "lease", seconds=300.0) as first:  # it must not lose it by a pause
        first.check()
        with pytest.raises(BulkError, match=f"process .{os.getpid()} on"):
            Lease(store, "lease").acquire()
        first.check()
    assert store.sizes() == {}
    with Lease(store, "lease"):
        pass


def test_a_lease_that_does_not_change_is_taken_over(store: ObjectStore, clock: Clock) -> None:
    held = json.dumps({"holder": "x", "seconds": 60.0, "pid": 1, "machine": "far", "started": 7})
    store.write("lease", held.encode())
    with Lease(store, "lease") as second:
        assert clock.now >= 60.0
        second.check()
        # The first one goes on, and writes over it: the second one has lost it then.
        store.write("lease", held.encode())
        wait_until(lambda: second.is_lost)
        with pytest.raises(BulkError, match="may have been taken over"):
            second.check()
    assert store.read("lease") == held.encode()  # the other one's is not deleted


@pytest.mark.process
def test_nobody_waits_for_a_process_of_this_machine_that_has_ended(
    store: ObjectStore, clock: Clock
) -> None:
    if not Path("/proc/self/ns/pid").exists():
        pytest.skip("needs /proc")
    code = (
        "import json; from flowvec.object_store.lease import _this_process; "
        "print(json.dumps(_this_process()))"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout
    dead = {**json.loads(said), "holder": "x", "seconds": 1e9}
    store.write("lease", json.dumps(dead).encode())
    with Lease(store, "lease") as second:
        second.check()
    assert clock.now == 0.0


class _Slow(ObjectStore):
    """A store whose deletions fail for so long that another process takes the lease."""

    other = b'{"holder": "other"}\n'
    failures = 0
    clock: Clock

    def _remove(self, name: str) -> None:
        if not self.failures:
            self.failures += 1
            self.clock.sleep(1.0)
            self.write(name, self.other)
            raise ConnectionError("the network failed")
        super()._remove(name)


def test_a_release_that_takes_long_leaves_the_lease_of_the_next_holder(
    store: ObjectStore, clock: Clock
) -> None:
    import fsspec

    slow = _Slow(store.url, fsspec.filesystem("memory"), "/leases/job")
    slow.clock = clock
    with Lease(slow, "lease"):
        pass
    assert slow.failures == 1
    assert store.read("lease") == slow.other


@pytest.mark.campaign(but=1)
@pytest.mark.parametrize("seconds", [None, "x", [], float("nan"), float("inf"), -1, 0])
def test_a_lease_of_no_valid_time_has_the_usual_one(
    store: ObjectStore, clock: Clock, seconds: object
) -> None:
    def held(renewals: int) -> bytes:
        return json.dumps({"holder": "x", "seconds": seconds, "renewals": renewals}).encode()

    store.write("lease", held(0))
    clock.meanwhile = lambda now: now > 18.0 and store.write("lease", held(1))
    with pytest.raises(BulkError, match="being written by"):
        Lease(store, "lease", seconds=20.0).acquire()


class _Refusing:
    """A file system in which nothing can be written."""

    def __init__(self, system: Any) -> None:
        self._system = system

    def pipe_file(self, *_: object) -> None:
        raise PermissionError("no")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._system, name)


def test_an_error_names_what_is_written_and_not_the_lease(store: ObjectStore) -> None:
    import fsspec

    store = ObjectStore(store.url, _Refusing(fsspec.filesystem("memory")), "/leases/job")
    for out, named in ((None, store.url), ("s3://bucket/v.parquet", "s3://bucket/v.parquet")):
        with pytest.raises(BulkError, match=f"write {named}: access"):
            Lease(store, "_lease.json", out).acquire()


@pytest.mark.campaign(but=1)
@pytest.mark.parametrize("content", [b"", b"[]", b"no JSON"])
def test_a_damaged_lease_is_watched_like_another(
    store: ObjectStore, clock: Clock, content: bytes
) -> None:
    store.write("lease", content)
    with Lease(store, "lease") as second:
        second.check()
    assert clock.now >= 1.0
