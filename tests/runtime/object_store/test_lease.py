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

import pytest

from flowvec.errors import BulkError
from flowvec.object_store import Lease, ObjectStore, lease, open_store

pytest.importorskip("fsspec", reason="needs fsspec")


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectStore]:
    import fsspec

    monkeypatch.setattr(lease, "LEASE_SECONDS", 1.0)
    monkeypatch.setattr(lease, "SETTLE_SECONDS", 0.0)
    fsspec.filesystem("memory").store.clear()
    yield open_store("memory://leases/job")
    fsspec.filesystem("memory").store.clear()


def test_a_second_holder_is_refused_until_the_first_releases(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "LEASE_SECONDS", 12.0)  # the first one must not lose it by a pause
    with Lease(store, "lease") as first:
        first.check()
        with pytest.raises(BulkError, match=f"process .{os.getpid()} on"):
            Lease(store, "lease").acquire()
        first.check()
    assert store.sizes() == {}
    with Lease(store, "lease"):
        pass


def test_a_lease_that_does_not_change_is_taken_over(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
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
def test_a_lease_of_no_valid_time_has_the_usual_one(
    store: ObjectStore, seconds: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "LEASE_SECONDS", 20.0)  # it is renewed long before

    def held(renewals: int) -> bytes:
        return json.dumps({"holder": "x", "seconds": seconds, "renewals": renewals}).encode()

    store.write("lease", held(0))
    renewing = threading.Timer(0.2, store.write, ("lease", held(1)))
    renewing.start()
    with pytest.raises(BulkError, match="being written by"):
        Lease(store, "lease").acquire()
    renewing.join()


def test_an_error_names_what_is_written_and_not_the_lease(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*args: object) -> None:
        raise PermissionError("no")

    monkeypatch.setattr(store._system, "pipe_file", refused, raising=False)
    for out, named in ((None, store.url), ("s3://bucket/v.parquet", "s3://bucket/v.parquet")):
        with pytest.raises(BulkError, match=f"write {named}: access"):
            Lease(store, "_lease.json", out).acquire()


@pytest.mark.campaign(but=1)
@pytest.mark.parametrize("content", [b"", b"[]", b"no JSON"])
def test_a_damaged_lease_is_watched_like_another(store: ObjectStore, content: bytes) -> None:
    store.write("lease", content)
    with Lease(store, "lease") as second:
        second.check()
