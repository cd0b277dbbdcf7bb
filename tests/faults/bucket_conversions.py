"""SIGKILL at random moments of conversions to a bucket whose connection fails at random.

    python -m tests.faults.bucket_conversions --kills 100 --seed 0 --server rclone

The server is behind a proxy that loses, cuts, delays and refuses a share of the requests. A
child converts one of two jobs to the same target, in turn, and is killed. What is there then must
be nothing, or the whole output of the one job or of the other: byte for byte, or row for row where
a format has other bytes each time. The next child converts to it again; when one finishes, its
output must be there, and nothing else: no lease, no unfinished upload. Every third child is taken
for a process of another machine, whose lease has to be watched until it is lost.
"""

from __future__ import annotations

import argparse
import importlib
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.faults.bucket_server import KEY, SECRET, Bucket, Server, bucket_server, url_of
from tests.job_folders import write_job
from tests.makers import unit_vectors

FORMATS = ("parquet", "faiss", "pgvector")
_PREFIX = "made"
_LEASES = (".out.converting", "out/_converting.json")

_CHILD = """
import os, sys
import pyarrow.parquet, s3fs  # so that no kill comes while they are loaded
from flowvec.convert import convert
from flowvec.object_store import lease, s3
source, target, to, is_far = sys.argv[1:]
s3.PART_BYTES = 2048
lease.LEASE_SECONDS = 6.0
if is_far == "True":
    lease._machine = lambda: f"another machine {os.getpid()}"
print("begun", flush=True)
convert(source, target, to, overwrite=True)
os._exit(0)  # closing the libraries takes longer than a conversion
"""


@dataclass
class Result:
    """Counts of a campaign.

    Attributes:
        seed: of the moments.
        kills: children that were killed after they had begun.
        finished: conversions that finished.
        absent: kills after which there was no target.
        old: kills after which the target was that of an earlier conversion.
        new: kills after which it was already the new one.
        mixed: kills, or conversions that finished, after which it was something else.
        orphans: leases and unfinished uploads beside a finished one.
        refused: children that ended with an error.
        named: what was mixed, left or refused.
    """

    seed: int
    kills: int = 0
    finished: int = 0
    absent: int = 0
    old: int = 0
    new: int = 0
    mixed: int = 0
    orphans: int = 0
    refused: int = 0
    named: list[str] = field(default_factory=list)


def campaign(
    kills: int,
    seed: int,
    folder: Path,
    faults: float = 0.05,
    server: Server = "moto",
    formats: Sequence[str] = FORMATS,
) -> Result:
    """Kill children at random moments.

    Args:
        kills: number of kills.
        seed: seed of the moments and of the failures.
        folder: folder to work in.
        faults: share of the requests that fail, 0 to 1.
        server: which server.
        formats: formats of the conversions, twelve children each in turn.
    """
    result, rng = Result(seed), random.Random(seed)
    jobs = [write_job(folder / f"job{i}", unit_vectors(300 + 100 * i, 8)) for i in range(2)]
    with bucket_server(0.0, seed, server) as address:
        outputs = {
            (i, to): _output(jobs[i], address, f"expected-{i}-{to}", to)
            for i in range(2)
            for to in formats
        }
    with bucket_server(faults, seed, server) as address:
        bucket, url = Bucket(address), url_of(address, f"{_PREFIX}/out")
        seconds = 5.0
        for number in range(100 * kills):
            if result.kills >= kills:
                break
            to = formats[number // 12 % len(formats)]
            if number % 12 == 0:
                bucket.delete(_PREFIX)
                before = None
            one = rng.randrange(2) if before is None else 1 - before
            child = _begin(jobs[one], url, to, is_far=rng.random() < 1 / 3)
            begun = time.monotonic()
            try:
                child.wait(timeout=rng.uniform(0, 1.1 * seconds))
            except subprocess.TimeoutExpired:
                child.send_signal(signal.SIGKILL)
            said = (child.communicate()[1] or "").strip()
            bucket.settle()
            objects = bucket.objects(_PREFIX)
            target = {name: c for name, c in objects.items() if name not in _LEASES}
            content = _content(target, to)
            new, old = outputs[one, to], None if before is None else outputs[before, to]
            if child.returncode == 0:
                result.finished += 1
                seconds = 0.8 * seconds + 0.2 * (time.monotonic() - begun)
                left = [*(objects.keys() - target.keys()), *bucket.uploads(_PREFIX)]
                result.orphans += len(left)
                result.named += left
                is_right = content == new
            elif child.returncode == -signal.SIGKILL:
                result.kills += 1
                is_absent = not _is_target(target, to)
                result.absent += is_absent
                result.old += content == old
                result.new += content == new
                is_right = is_absent or content in (new, old)
            else:
                result.refused += 1
                result.named.append(said)
                is_right = not _is_target(target, to) or content in (new, old)
            if not is_right:
                result.mixed += 1
                result.named.append(f"{to}: {sorted(target)}")
            if not _is_target(target, to):
                before = None
            elif content == new:
                before = one
    return result


def _content(objects: dict[str, bytes], to: str) -> dict[str, Any]:
    """What must be equal: the bytes of all objects, except where each conversion gives others.

    An index of hnswlib has the same vectors and another graph each time, and the files of a Lance
    dataset have other names; so their rows are read.
    """
    if to not in ("hnswlib", "lance") or not _is_target(objects, to):
        return dict(objects)
    with tempfile.TemporaryDirectory() as name:
        for path, content in objects.items():
            (Path(name) / path).parent.mkdir(parents=True, exist_ok=True)
            (Path(name) / path).write_bytes(content)
        try:
            if to == "lance":
                table = importlib.import_module("lance").dataset(f"{name}/out").to_table()
                return {"objects": len(objects), "rows": table.to_pylist()}
            index = importlib.import_module("hnswlib").Index("cosine", 8)
            index.load_index(f"{name}/out/index.bin")
            labels = sorted(index.get_ids_list())
            rows = index.get_items(labels, return_type="list")
        except (OSError, RuntimeError, ValueError) as error:
            return {"damaged": str(error)}
    return objects | {"out/index.bin": (labels, rows)}


def _is_target(objects: dict[str, bytes], to: str) -> bool:
    if to == "lance":
        return any(re.fullmatch(r"out/_versions/.*\.manifest", name) for name in objects)
    return ("out" if to == "parquet" else "out/flowvec.json") in objects


def _begin(job: Path, url: str, to: str, *, is_far: bool) -> subprocess.Popen[str]:
    """A child that has begun to convert."""
    words = [sys.executable, "-c", _CHILD, str(job), url, to, str(is_far)]
    keys = {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET}
    child = subprocess.Popen(
        words, env=os.environ | keys, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "begun\n", child.communicate()[1]
    return child


def _output(job: Path, address: str, prefix: str, to: Any) -> dict[str, Any]:
    """The content of a conversion that nothing disturbed."""
    child = _begin(job, url_of(address, f"{prefix}/out"), to, is_far=False)
    assert child.wait() == 0, child.communicate()[1]
    return _content(Bucket(address).objects(prefix), to)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--faults", type=float, default=0.05)
    parser.add_argument("--server", choices=("moto", "rclone"), default="moto")
    parser.add_argument("--formats", nargs="+", default=FORMATS, help="of `flowvec convert`")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        result = campaign(
            given.kills, given.seed, Path(folder), given.faults, given.server, given.formats
        )
    print(result)


if __name__ == "__main__":
    sys.exit(main())
