"""Fixtures for tests of clusters."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import RunCommand
from tests.faults.bucket_server import bucket_server


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """The address of an S3 server, whose keys clusters that are started later have too."""
    with pytest.MonkeyPatch.context() as patch, bucket_server() as address:
        patch.setenv("AWS_ACCESS_KEY_ID", "a")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "b")
        yield address


@pytest.fixture
def flowvec(tmp_path: Path) -> RunCommand:
    """Run the command line in a process of its own, in an empty folder."""

    def run(*arguments: object, stdin: str | bytes = "") -> subprocess.CompletedProcess[str]:
        data = stdin.encode() if isinstance(stdin, str) else stdin
        done = subprocess.run(
            [
                sys.executable,
                "-c",
                "from flowvec.cli.main import main; main()",
                *map(str, arguments),
            ],
            input=data,
            capture_output=True,
            cwd=tmp_path,
            timeout=900,
            env={**os.environ, "COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"},
        )
        return subprocess.CompletedProcess(
            done.args, done.returncode, done.stdout.decode(), done.stderr.decode()
        )

    return run
