"""SIGKILL at random moments of a bulk job into a bucket whose connection fails at random.

    python -m tests.faults.bucket_kills --kills 100 --seed 0

The server is moto's, rclone's or SeaweedFS (`--server`). Between it and the job is a proxy that
loses, cuts, delays and refuses a share of the requests. A child runs the job and is killed; others
continue it, until one finishes. Then the prefix must have the same objects as the folder of a local
job that nothing disturbed, byte for byte, and the bucket no unfinished upload. Every third child is
taken for a process of another machine, whose lease has to be watched until it is lost. Every
twelfth kill is a pause instead: the child is stopped, another one finishes the job, and then the
first goes on, and must change nothing.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

from flowvec import Encoder
from flowvec.bulk import encode_files, windows
from tests.faults.bucket_server import KEY, SECRET, Bucket, Server, bucket_server, url_of
from tests.faults.bulk_kills import BUNDLE, OPTIONS, ROWS, make_inputs

FORMATS = ("parquet", "npy")
_PREFIX = "vectors"


@dataclass(frozen=True)
class Job:
    """What a job encodes, and in which pieces it is written.

    Attributes:
        bundle: the model.
        rows: number of texts.
        rows_per_shard: number of texts in a file.
        window: number of texts that are encoded together.
        part_bytes: size of a part of an upload.
    """

    bundle: str | Path = BUNDLE
    rows: int = ROWS
    rows_per_shard: int = 60
    window: int = 16
    part_bytes: int = 2048


# Each shard is uploaded in parts, and a part is as small as the server takes it.
JOBS: dict[Server, Job] = {
    "moto": Job(),
    "rclone": Job(),
    "seaweedfs": Job("mini", 12_600, 4_200, 1_024, 5 << 20),
}


@dataclass
class Result:
    """Counts of a campaign.

    Attributes:
        seed: of the moments.
        kills: children that were killed.
        working: of those, after the job had begun and before it was done.
        pauses: children that were stopped while another one finished the job.
        noticed: of those, which ended with an error because another one had taken their lease.
        finished: jobs that finished.
        resumed: shards that their last runs found there.
        lost: objects that a finished job lacks.
        different: objects with other bytes.
        orphans: objects of no use, and unfinished uploads.
        refused: children that ended with an error although nobody else ran the job.
        named: the lost and different objects, and the orphans.
    """

    seed: int
    kills: int = 0
    working: int = 0
    pauses: int = 0
    noticed: int = 0
    finished: int = 0
    resumed: int = 0
    lost: int = 0
    different: int = 0
    orphans: int = 0
    refused: int = 0
    named: list[str] = field(default_factory=list)

    def compare(self, bucket: Bucket, expected: dict[str, bytes]) -> None:
        """Compare a finished job's objects with the files of an undisturbed one."""
        objects = bucket.objects(_PREFIX)
        self.finished += 1
        lost = sorted(expected.keys() - objects.keys())
        orphans = [*sorted(objects.keys() - expected.keys()), *bucket.uploads(_PREFIX)]
        both = sorted(objects.keys() & expected.keys())
        different = [name for name in both if objects[name] != expected[name]]
        self.lost += len(lost)
        self.orphans += len(orphans)
        self.different += len(different)
        self.named += [*lost, *different, *map(str, orphans)]


def run(job: Job, inputs: list[Path], out: str | Path, out_format: Any) -> int:
    """Do the job, or continue it; how many shards were there."""
    windows.WINDOW = job.window
    options = OPTIONS | {"rows_per_shard": job.rows_per_shard}
    with Encoder.load(job.bundle, provider="cpu", streams=1) as encoder:
        done = encode_files(encoder, inputs, out, out_format=out_format, **options)
    return done.shards_before


def _child(
    job: Job, inputs: list[Path], out: str, out_format: str, *, is_far: bool, says: int
) -> None:
    from flowvec.object_store import lease, s3

    s3.PART_BYTES = job.part_bytes
    lease.LEASE_SECONDS = 6.0
    if is_far:  # nobody on this machine can tell that it has ended
        lease._machine = lambda: f"another machine {os.getpid()}"
    os.environ |= {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET}
    os.write(says, b"b")
    before = run(job, inputs, out, out_format)
    os.write(says, b"e" + str(before).encode())


class _Process:
    """A child, and what it said."""

    def __init__(self, *job: Any, is_far: bool) -> None:
        self._ears, says = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            code = 1
            try:
                os.close(self._ears)
                os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
                _child(*job, is_far=is_far, says=says)
                code = 0
            finally:
                os._exit(code)
        os.close(says)

    def send(self, number: int) -> None:
        os.kill(self._pid, number)

    def wait(self) -> tuple[int, bytes]:
        """Its status, and what it said: b when it begins, e and a number when it ends."""
        _, status = os.waitpid(self._pid, 0)
        with os.fdopen(self._ears, "rb") as file:
            return status, file.read()


def campaign(
    kills: int,
    seed: int,
    folder: Path,
    faults: float = 0.05,
    pauses: float = 1 / 12,
    server: Server = "moto",
) -> Result:
    """Kill children at random moments.

    Args:
        kills: number of kills.
        seed: seed of the moments and of the failures.
        folder: folder to work in.
        faults: share of the requests that fail, 0 to 1.
        pauses: share of the children that are paused instead of killed, 0 to 1.
        server: which server.
    """
    result, rng = Result(seed), random.Random(seed)
    inputs = make_inputs(folder / "inputs", JOBS[server].rows)
    expected = dict(_expected(JOBS[server], inputs, folder))
    with bucket_server(faults, seed, server) as address:
        bucket, url = Bucket(address), url_of(address, _PREFIX)
        seconds, number = 4.0, 0
        while result.kills < kills:
            out_format = FORMATS[number % len(FORMATS)]
            job = (JOBS[server], inputs, url, out_format)
            begun = time.monotonic()
            child = _Process(*job, is_far=rng.random() < 1 / 3)
            time.sleep(rng.uniform(0, 1.1 * seconds))
            if rng.random() < pauses:
                said = _pause(result, child, job)
                status = 0
            else:
                child.send(signal.SIGKILL)
                status, said = child.wait()
            bucket.settle()
            if os.WIFSIGNALED(status):
                result.kills += 1
                result.working += said == b"b"
            elif os.WEXITSTATUS(status):
                result.refused += 1
            if b"e" in said:
                result.resumed += int(said.partition(b"e")[2])
                result.compare(bucket, expected[out_format])
                bucket.delete(_PREFIX)
                number += 1
                seconds = 0.5 * (seconds + min(time.monotonic() - begun, 10.0))
        # The last job is not killed.
        status, said = _Process(*job, is_far=False).wait()
        result.refused += said[:1] != b"b" or b"e" not in said
        result.compare(bucket, expected[out_format])
    return result


def _pause(result: Result, child: _Process, job: tuple[Any, ...]) -> bytes:
    """Stop a child, let another one finish the job, and let the first go on.

    Returns:
        What the other one said.
    """
    child.send(signal.SIGSTOP)
    status, said = _Process(*job, is_far=False).wait()
    result.pauses += 1
    result.refused += status != 0
    child.send(signal.SIGCONT)
    result.noticed += child.wait()[0] != 0
    return said


def _expected(job: Job, inputs: list[Path], folder: Path) -> Iterator[tuple[str, dict[str, bytes]]]:
    """Files of undisturbed local jobs by format; in a child, since what it starts cannot fork."""
    for out_format in FORMATS:
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                run(job, inputs, folder / out_format, out_format)
                code = 0
            finally:
                os._exit(code)
        assert os.waitpid(pid, 0)[1] == 0
        files = (folder / out_format).iterdir()
        yield out_format, {f.name: f.read_bytes() for f in files if f.name != ".lock"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--faults", type=float, default=0.05)
    parser.add_argument("--pauses", type=float, default=1 / 12)
    parser.add_argument("--server", choices=get_args(Server), default="moto")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        result = campaign(
            arguments.kills, arguments.seed, Path(folder), arguments.faults, arguments.pauses,
            arguments.server,
        )  # fmt: skip
    print(result)


if __name__ == "__main__":
    sys.exit(main())
