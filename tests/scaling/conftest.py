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


@pytest.fixture(autouse=True, scope="session")
def _environment() -> Iterator[None]:
    """What the processes of a cluster have from its start.

    Keys of the S3 server; and the tests' own priority: Ray gives its workers a low one, with which
    they wait for all that runs beside them.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_worker_niceness", "0")
        patch.setenv("AWS_ACCESS_KEY_ID", "a")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "b")
        yield


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """The address of an S3 server."""
    with bucket_server() as address:
        yield address


@pytest.fixture(scope="module")
def cluster() -> None:
    """A cluster for all modules, which ends with this process: to start one takes seconds."""
    import ray

    if not ray.is_initialized():
        ray.init(num_cpus=3, include_dashboard=False, log_to_driver=False)


@pytest.fixture
def flowvec_process(tmp_path: Path) -> RunCommand:
    """Run the command line in a process of its own, in an empty folder, on the same cluster.

    `flowvec` runs it in this one, which is connected already.
    """
    import ray

    cluster = {}
    if ray.is_initialized():
        cluster["RAY_ADDRESS"] = ray.get_runtime_context().gcs_address

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
            env={**os.environ, **cluster, "COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"},
        )
        return subprocess.CompletedProcess(
            done.args, done.returncode, done.stdout.decode(), done.stderr.decode()
        )

    return run
