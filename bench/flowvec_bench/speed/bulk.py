"""Compares bulk jobs with `Encoder.encode` of the same texts in memory, and measures their memory.

Each pass has its own process. A job's memory is read from outside, several times per second.
"""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from flowvec import Encoder
from flowvec.bulk import RayWorkers, encode_files
from flowvec.bulk.ray_workers import connected_ray

__all__ = ["MODES", "BulkRow", "Resident", "grown", "measure_bulk"]

MODES = {
    "memory": "Encoder.encode, in memory",
    "parquet": "encode_files, Parquet shards",
    "npy": "encode_files, .npy shards",
    "ray": "encode_files on Ray, Parquet shards",
}
# Seconds between two readings of the memory; finding Ray's workers takes longer.
_EVERY = 0.2
_EVERY_ON_RAY = 1.0


@dataclass(frozen=True, slots=True)
class Resident:
    """Memory at a moment.

    Attributes:
        seconds: time since encoding began; negative before.
        rows: rows that were done.
        bytes: bytes in RAM that belong to the process, without pages of files.
    """

    seconds: float
    rows: int
    bytes: int


@dataclass
class BulkRow:
    """Figures of one mode.

    Attributes:
        mode: a key of `MODES`.
        rows: texts.
        seconds: seconds of each pass, from the first text to the last vector (on disk, for a job),
            without loading and the survey of a job.
        survey_seconds: seconds of the survey in each pass.
        megabytes: size of a job's output.
        resident: memory of a job in its last pass.
        provider: the provider that ran the model.
        compute: its compute type.
        proof: how far its vectors are from the bundle's reference vectors.
    """

    mode: str
    rows: int
    seconds: list[float] = field(default_factory=list)
    survey_seconds: list[float] = field(default_factory=list)
    megabytes: float = 0.0
    resident: list[Resident] = field(default_factory=list)
    provider: str = ""
    compute: str = ""
    proof: str = ""

    @property
    def rate(self) -> float:
        """Median rows per second."""
        return self.rows / statistics.median(self.seconds)

    def share_of(self, other: BulkRow) -> float:
        """Speed relative to another mode: the median of the ratios of the rounds."""
        return statistics.median(b / a for a, b in zip(self.seconds, other.seconds, strict=True))


def grown(resident: list[Resident], warm: int) -> int:
    """Growth of memory after `warm` rows, in bytes: the largest value minus the first one."""
    later = [reading.bytes for reading in resident if reading.rows >= warm]
    return max(later) - later[0] if later else 0


def measure_bulk(
    model: str,
    file: Path,
    rows: int,
    folder: Path,
    *,
    rounds: int,
    ray_workers: int = 0,
    on_step: Callable[[str], object] | None = None,
) -> list[BulkRow]:
    """Time all modes, in interleaved rounds.

    Args:
        model: what `Encoder.load` takes.
        file: a jsonl file with the field `text`.
        rows: number of its rows.
        folder: folder for temporary files.
        rounds: passes of each mode.
        ray_workers: also use Ray on this machine, with this many workers; 0 does not.
        on_step: called with a line of text before each pass.
    """
    rows_by_mode = {mode: BulkRow(mode, rows) for mode in MODES if mode != "ray" or ray_workers}
    for number in range(rounds):
        for mode, row in rows_by_mode.items():
            if on_step is not None:
                on_step(f"round {number + 1}: {MODES[mode]}")
            answer, row.resident = _watched(model, file, mode, folder / "out", ray_workers)
            row.seconds.append(answer["seconds"])
            row.survey_seconds.append(answer["survey_seconds"])
            row.provider, row.compute = answer["provider"], answer["compute"]
            row.proof = answer["proof"]
            row.megabytes = sum(f.stat().st_size for f in folder.glob("out/*")) / 1e6
            shutil.rmtree(folder / "out", ignore_errors=True)
    return list(rows_by_mode.values())


def _watched(
    model: str, file: Path, mode: str, out: Path, ray_workers: int
) -> tuple[dict[str, Any], list[Resident]]:
    """Run one pass in its own process, and watch its memory; on Ray, that of the workers."""
    command = [sys.executable, "-m", "flowvec_bench.speed.bulk", model, str(file), mode, str(out)]
    command.append(str(ray_workers))
    progress = out.with_name("progress")
    progress.write_text("")
    process = subprocess.Popen([*command, str(progress)], stdout=subprocess.PIPE, text=True)  # noqa: S603
    watched = psutil.Process(process.pid)
    resident: list[Resident] = []
    while process.poll() is None:
        lines = progress.read_text().splitlines()
        rows, seconds = json.loads(lines[-1]) if lines else (0, -1.0)
        try:
            used = _workers_of(watched) if mode == "ray" else _private_bytes(watched)
        except psutil.NoSuchProcess:
            break
        resident.append(Resident(seconds, rows, used))
        time.sleep(_EVERY_ON_RAY if mode == "ray" else _EVERY)
    output = (process.stdout or sys.stdin).read()
    if process.wait():
        raise RuntimeError(f"the pass {mode} failed")
    return json.loads(output.splitlines()[-1]), [r for r in resident if r.seconds >= 0]


def _private_bytes(process: psutil.Process) -> int:
    """Bytes in RAM that belong to a process, without pages of files."""
    memory = process.memory_info()
    return int(memory.rss - memory.shared)


def _workers_of(process: psutil.Process) -> int:
    """The same, summed over the Encoders that Ray started below a process."""
    total = 0
    for child in process.children(recursive=True):
        try:
            if "_ShardEncoder" in " ".join(child.cmdline()):
                total += _private_bytes(child)
        except psutil.NoSuchProcess:
            continue
    return total


def _work(model: str, file: Path, mode: str, out: Path, ray_workers: int, progress: Path) -> None:
    """One pass, in its own process."""
    with Encoder.load(model) as encoder:
        encoder.warmup()
        if mode == "memory":
            texts = [json.loads(line)["text"] for line in file.open(encoding="utf-8")]
            started = time.perf_counter()
            encoder.encode(texts, show_progress_bar=False)
            seconds, survey_seconds = time.perf_counter() - started, 0.0
        else:
            workers = None
            if mode == "ray":  # the cluster starts before the job
                workers = RayWorkers(ray_workers)
                connected_ray(workers)
            with progress.open("a", buffering=1) as lines:
                done = encode_files(
                    encoder,
                    file,
                    out,
                    out_format="npy" if mode == "npy" else "parquet",
                    workers=workers,
                    on_progress=lambda p: lines.write(f"{json.dumps([p.rows, p.seconds])}\n"),
                )
            seconds, survey_seconds = done.seconds, done.survey_seconds
        info = encoder.info()
    print(
        json.dumps(
            {
                "seconds": seconds,
                "survey_seconds": survey_seconds,
                "provider": info.provider,
                "compute": info.compute,
                "proof": info.proof,
            }
        )
    )


if __name__ == "__main__":
    _work(
        sys.argv[1], Path(sys.argv[2]), sys.argv[3], Path(sys.argv[4]), int(sys.argv[5]),
        Path(sys.argv[6]),
    )  # fmt: skip
