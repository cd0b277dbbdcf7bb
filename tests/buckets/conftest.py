"""A bucket of a real S3 server on loopback, moto's."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from tests.faults.bucket_server import Bucket, bucket_server

_NUMBERS = itertools.count()


@pytest.fixture(scope="session")
def server() -> Iterator[str]:
    """The server's address."""
    with bucket_server() as address:
        yield address


@pytest.fixture(scope="session")
def bucket(server: str) -> Bucket:
    """The server's bucket."""
    return Bucket(server)


@pytest.fixture(autouse=True)
def _credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")


@pytest.fixture
def prefix() -> str:
    """A prefix of its own for each test."""
    return f"test-{next(_NUMBERS)}"
