"""A lease has one holder, and is taken over only from one that has ended."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flowvec import object_store
from flowvec.errors import BulkError
from flowvec.object_store import ObjectStore, open_store

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


def test_a_second_holder_is_refused_until_the_first_releases(store: ObjectStore) -> None:
    with Lease(store, "lease", seconds=12.0) as first:  # it must not lose it by a pause
        first.check()
        with pytest.raises(BulkError, match=f"process .{os.getpid()} on"):
            Lease(store, "lease").acquire()
        first.check()
    assert store.sizes() == {}
    with Lease(store, "lease"):
        pass


def test_a_lease_that_does_not_change_is_taken_over(store: ObjectStore) -> None:
    held = json.dumps({"holder": "x", "seconds": 0.5, "pid": 1, "machine": "far", "started": 7})
    store.write("lease", held.encode())
    with Lease(store, "lease") as second:
        second.check()
        # The first one goes on, and writes over it: the second one has lost it then.
        store.write("lease", held.encode())

        def check_for_minutes() -> None:
            for _ in range(6000):
                second.check()
                time.sleep(0.05)

        with pytest.raises(BulkError, match="may have been taken over"):
            check_for_minutes()
    assert store.read("lease") == held.encode()  # the other one's is not deleted


@pytest.mark.process
def test_nobody_waits_for_a_process_of_this_machine_that_has_ended(store: ObjectStore) -> None:
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


class _Slow(ObjectStore):
    """A store whose deletions fail for so long that another process takes the lease."""

    other = b'{"holder": "other"}\n'
    failures = 0

    def _remove(self, name: str) -> None:
        if not self.failures:
            self.failures += 1
            time.sleep(1.0)
            self.write(name, self.other)
            raise ConnectionError("the network failed")
        super()._remove(name)


def test_a_release_that_takes_long_leaves_the_lease_of_the_next_holder(store: ObjectStore) -> None:
    import fsspec

    slow = _Slow(store.url, fsspec.filesystem("memory"), "/leases/job")
    with Lease(slow, "lease"):
        pass
    assert slow.failures == 1
    assert store.read("lease") == slow.other


@pytest.mark.campaign(but=1)
@pytest.mark.parametrize("seconds", [None, "x", [], float("nan"), float("inf"), -1, 0])
def test_a_lease_of_no_valid_time_has_the_usual_one(store: ObjectStore, seconds: object) -> None:
    def held(renewals: int) -> bytes:
        return json.dumps({"holder": "x", "seconds": seconds, "renewals": renewals}).encode()

    store.write("lease", held(0))
    renewing = threading.Timer(0.2, store.write, ("lease", held(1)))
    renewing.start()
    with pytest.raises(BulkError, match="being written by"):
        Lease(store, "lease", seconds=20.0).acquire()  # it is renewed long before
    renewing.join()


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
def test_a_damaged_lease_is_watched_like_another(store: ObjectStore, content: bytes) -> None:
    store.write("lease", content)
    with Lease(store, "lease") as second:
        second.check()
