"""SIGKILL at random moments of a bulk job, and what the finished job leaves: the same bytes.

    python -m tests.faults.bulk_kills --kills 200 --seed 0

A child runs a job over several files with rows that cannot be embedded among them, and is killed at
a random moment. Others go on with the job, and are killed in turn, until one comes to its end. Then
the folder must hold byte for byte what a job left that nobody disturbed.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flowvec import Encoder
from flowvec.bulk import encode_files
from flowvec.bulk import windows as reading

BUNDLE = Path(__file__).resolve().parents[1] / "data" / "bundles" / "tiny"
ROWS = 900
OPTIONS: dict[str, Any] = {"id_field": "id", "keep": ["kind"], "rows_per_shard": 60}
_WINDOW = 16


@dataclass
class Result:
    """Counts of a campaign.

    Attributes:
        seed: of the moments.
        kills: children that were killed.
        working: of those, after the job had begun and before it was done.
        finished: jobs that came to their end after kills.
        resumed: shards that their last runs found there.
        different: of the finished ones, those that left other bytes.
        refused: children that ended with an error.
    """

    seed: int
    kills: int = 0
    working: int = 0
    finished: int = 0
    resumed: int = 0
    different: int = 0
    refused: int = 0


def make_inputs(folder: Path) -> list[Path]:
    """Two files of lines, one compressed, with rows that cannot be embedded."""
    rng = random.Random(0)
    words = ["the", "cat", "dog", "sleeps", "runs", "red", "green", "house", "garden", "on", "in"]
    lines = []
    for i in range(ROWS):
        text: Any = " ".join(rng.choices(words, k=rng.randint(1, 20)))
        if i % 23 == 5:
            text = rng.choice([None, 7, ["nested"], float("nan")])
        lines.append(json.dumps({"id": f"row {i}", "text": text, "kind": i % 3}).encode())
        if i % 41 == 7:
            lines[-1] = b"\xff" + lines[-1]
    folder.mkdir()
    (folder / "a.jsonl").write_bytes(b"\n".join(lines[:500]) + b"\n")
    with gzip.open(folder / "b.jsonl.gz", "wb") as file:
        file.write(b"\n".join(lines[500:]))
    return [folder / "a.jsonl", folder / "b.jsonl.gz"]


def run(inputs: list[Path], out: Path, out_format: str) -> int:
    """Do the job, or go on with it; how many shards were there."""
    reading.WINDOW = _WINDOW  # so that a small shard has several
    with Encoder.load(BUNDLE, provider="cpu", streams=2) as encoder:
        done = encode_files(encoder, inputs, out, out_format=out_format, **OPTIONS)  # type: ignore[arg-type]
    return done.shards_before


def hashes(folder: Path) -> dict[str, str]:
    """SHA-256 of all files of a folder by name."""
    return {
        file.name: hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(folder.iterdir())
        if not file.name.startswith(".lock")
    }


def _child(inputs: list[Path], out: Path, out_format: str, says: int) -> None:
    os.write(says, b"b")
    before = run(inputs, out, out_format)
    os.write(says, b"e" + str(before).encode())


def campaign(kills: int, seed: int, folder: Path, out_formats: tuple[str, ...]) -> Result:
    """Kill so many children.

    Args:
        kills: how many.
        seed: of the moments.
        folder: to work in.
        out_formats: of the shards, in turn.
    """
    result, rng = Result(seed), random.Random(seed)
    inputs = make_inputs(folder / "inputs")
    expected, seconds = {}, 0.0
    for out_format in out_formats:
        begun = time.monotonic()
        run(inputs, folder / out_format, out_format)
        seconds = time.monotonic() - begun
        expected[out_format] = hashes(folder / out_format)
    out_format, number = out_formats[0], 0
    out = folder / "out"
    while result.kills < kills:
        ears, says = os.pipe()
        process = os.fork()
        if process == 0:
            code = 1
            try:
                os.close(ears)
                _child(inputs, out, out_format, says)
                code = 0
            finally:
                os._exit(code)
        os.close(says)
        time.sleep(rng.uniform(0, 0.8 * seconds))
        os.kill(process, signal.SIGKILL)
        _, status = os.waitpid(process, 0)
        with os.fdopen(ears, "rb") as file:
            said = file.read()
        if os.WIFSIGNALED(status):
            result.kills += 1
            result.working += said == b"b"
        elif os.WEXITSTATUS(status):
            result.refused += 1
        if b"e" in said:
            result.finished += 1
            result.resumed += int(said.partition(b"e")[2])
            result.different += hashes(out) != expected[out_format]
            shutil.rmtree(out)
            number += 1
            out_format = out_formats[number % len(out_formats)]
    # The last job comes to its end undisturbed: on a busy machine none may have before.
    result.resumed += run(inputs, out, out_format)
    result.finished += 1
    result.different += hashes(out) != expected[out_format]
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        print(campaign(arguments.kills, arguments.seed, Path(folder), ("parquet", "npy")))


if __name__ == "__main__":
    sys.exit(main())
