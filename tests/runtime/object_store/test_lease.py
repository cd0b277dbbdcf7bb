"""A lease has one holder, and is taken over only from one that has ended."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator

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


def test_a_second_holder_is_refused_until_the_first_releases(store: ObjectStore) -> None:
    with Lease(store, "lease") as first:
        first.check()
        with pytest.raises(BulkError, match=f"being written by another process .{os.getpid()} on"):
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
        lost = threading.Event()
        for _ in range(200):
            if second._is_lost:
                break
            lost.wait(0.05)
        with pytest.raises(BulkError, match="may have been taken over"):
            second.check()
    assert store.read("lease") == held.encode()  # the other one's is not deleted


def test_nobody_waits_for_a_process_of_this_machine_that_has_ended(store: ObjectStore) -> None:
    if lease._machine() is None:
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


@pytest.mark.parametrize("content", [b"", b"[]", b"no JSON"])
def test_a_damaged_lease_is_watched_like_another(store: ObjectStore, content: bytes) -> None:
    store.write("lease", content)
    with Lease(store, "lease") as second:
        second.check()
