"""Campaigns of kills in short; `python -m tests.faults.bucket_kills` and
`python -m tests.faults.bucket_conversions` run the long ones.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.faults import bucket_conversions, bucket_kills
from tests.faults.bucket_server import Server, program

pytest.importorskip("s3fs", reason="needs the extra [s3]")
pytest.importorskip("moto", reason="needs the extra [test-buckets]")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="SIGKILL and fork are POSIX's")
@pytest.mark.parametrize("server", ["moto", "rclone"])
def test_a_job_that_was_killed_leaves_the_objects_of_one_that_was_not(
    tmp_path: Path, server: Server
) -> None:
    if server == "rclone" and program("rclone") is None:
        pytest.skip("needs the extra [test-buckets]")
    seed = int(os.environ.get("FLOWVEC_SEED", "1"))
    result = bucket_kills.campaign(6, seed, tmp_path, server=server)
    assert result.kills == 6
    assert result.finished > 0
    assert (result.lost, result.different, result.orphans, result.refused) == (0, 0, 0, 0)


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="this system has no fork")
@pytest.mark.parametrize("server", ["moto", "rclone"])
def test_a_conversion_that_was_killed_leaves_a_whole_target_or_none(
    tmp_path: Path, server: Server
) -> None:
    if server == "rclone" and program("rclone") is None:
        pytest.skip("needs the extra [test-buckets]")
    seed = int(os.environ.get("FLOWVEC_SEED", "1"))
    result = bucket_conversions.campaign(8, seed, tmp_path, server=server)
    assert result.kills == 8
    assert (result.mixed, result.orphans, result.refused) == (0, 0, 0), result.named
