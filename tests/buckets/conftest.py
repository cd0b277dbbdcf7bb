"""A bucket of a real S3 server on loopback: moto's, and for the essential tests rclone's too."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from tests.faults.bucket_server import KEY, SECRET, Bucket, Server, bucket_server, program

_NUMBERS = itertools.count()

# For tests of what every store must keep; the others run on moto's server.
on_both_servers = pytest.mark.parametrize("server", ["moto", "rclone"], indirect=True)


@pytest.fixture(scope="session")
def server(request: pytest.FixtureRequest) -> Iterator[str]:
    """The server's address. Its parameter is which server, see `on_both_servers`."""
    which: Server = getattr(request, "param", "moto")
    if which == "rclone" and program("rclone") is None:
        pytest.skip("needs the extra [test-buckets]")
    with bucket_server(server=which) as address:
        yield address


@pytest.fixture(scope="session")
def bucket(server: str) -> Bucket:
    """The server's bucket."""
    return Bucket(server)


@pytest.fixture(autouse=True)
def _credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)


@pytest.fixture
def prefix() -> str:
    """A prefix of its own for each test."""
    return f"test-{next(_NUMBERS)}"
