"""Fixtures for tests of clusters."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.faults.bucket_server import bucket_server


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """The address of an S3 server, whose keys clusters that are started later have too."""
    with pytest.MonkeyPatch.context() as patch, bucket_server() as address:
        patch.setenv("AWS_ACCESS_KEY_ID", "a")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "b")
        yield address
