"""How fast a bulk job writes into a bucket, beside the same job into a folder.

    python bench/bucket_speed.py --texts wiki.txt.xz [--rows 1000000] [--rounds 2] [--server rclone]
        [--precision float16]

The bucket is a server on loopback (moto's, rclone's or SeaweedFS), which shares the processor with
the job.
Each round runs both jobs, one after the other. Memory is the job's own, without mapped files: its
growth is from a quarter of the job's time to its most. Processor time is the job's own too, without
the server's, which is told beside it: on a machine that does not run the store it says how much
slower the bucket is. Needs the extras [cpu], [bench] and [test-buckets].
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from itertools import islice
from pathlib import Path
from typing import get_args

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.faults.bucket_server import KEY, SECRET, Server, bucket_server

from flowvec_bench.texts import natural_sentences

_SENTENCES = 250_000


def main() -> None:
    """Run both jobs in turn, and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--texts", type=Path, required=True)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--server", choices=get_args(Server), default="moto")
    parser.add_argument("--precision", default="float32", help="of the vectors that are written")
    arguments = parser.parse_args()
    server = bucket_server(server=arguments.server)
    most = min(arguments.rows, _SENTENCES)
    sentences = list(islice(natural_sentences(arguments.texts), most))
    with tempfile.TemporaryDirectory(prefix="flowvec-") as folder, server as url:
        texts = Path(folder) / "texts.txt"
        with texts.open("w", encoding="utf-8") as file:
            for row in range(arguments.rows):
                file.write(f"{sentences[row % len(sentences)]} {row // len(sentences)}\n")
        os.environ |= {
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": url,
        }
        for number in range(arguments.rounds):
            for out in (f"{folder}/{number}", f"s3://bucket/{number}"):
                before = _server_seconds()
                seconds, processor, growth = job(texts, out, arguments.precision)
                server_seconds = _server_seconds() - before
                rate = arguments.rows / seconds
                print(f"{out.partition(':')[0]:>10}", f"{seconds:.1f} s, {rate:,.0f} texts/s,",
                      f"{processor:.1f} s of processor time,",
                      f"{server_seconds:.1f} s of the server's,",
                      f"memory grew by {growth:.0f} MiB", flush=True)  # fmt: skip


def _server_seconds() -> float:
    """Processor time of the server's processes so far."""
    times = [process.cpu_times() for process in psutil.Process().children(recursive=True)]
    return sum(each.user + each.system for each in times)


def job(texts: Path, out: str, precision: str) -> tuple[float, float, float]:
    """Seconds of a job, those of processor time, and MiB by which its memory grew."""
    begun, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    program = "from flowvec.cli.main import main; main()"
    command = [sys.executable, "-c", program, "encode", "mini", str(texts), "-o", out,
               "--precision", precision]  # fmt: skip
    memory: list[float] = []
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:  # noqa: S603
        while process.poll() is None:
            found = re.search(r"RssAnon:\s+(\d+)", Path(f"/proc/{process.pid}/status").read_text())
            memory.append(int(found[1]) / 1024 if found else 0.0)
            time.sleep(0.2)
    if process.returncode:
        raise SystemExit(f"the job to {out} ended with {process.returncode}")
    seconds = time.perf_counter() - begun
    first = memory[len(memory) // 4]
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    processor = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return seconds, processor, max(memory) - first


if __name__ == "__main__":
    main()
