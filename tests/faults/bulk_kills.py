"""SIGKILL at random moments of a bulk job, and what the finished job leaves: the same output.

    python -m tests.faults.bulk_kills --kills 200 --seed 0

A child runs a job over several files with rows that cannot be embedded among them, and is killed at
a random moment. Others continue the job, and are killed in turn, until one finishes. Then the
output must be the same as that of a job that was not killed: the same bytes of a folder, or the
same rows of a collection, and the same dead letters.
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

import numpy as np

from flowvec import Collection, Encoder
from flowvec.bulk import encode_files, windows

BUNDLE = Path(__file__).resolve().parents[1] / "data" / "bundles" / "tiny"
ROWS = 900
OPTIONS: dict[str, Any] = {"id_field": "id", "keep": ["kind"], "rows_per_shard": 60}
FORMATS = ("parquet", "npy", "collection", "compared")
_WINDOW = 16


@dataclass
class Result:
    """Counts of a campaign.

    Attributes:
        seed: of the moments.
        kills: children that were killed.
        working: of those, after the job had begun and before it was done.
        finished: jobs that finished after kills.
        resumed: shards (of `compared`: rows) that their last runs found there.
        different: of the finished ones, those with another output.
        refused: children that ended with an error.
    """

    seed: int
    kills: int = 0
    working: int = 0
    finished: int = 0
    resumed: int = 0
    different: int = 0
    refused: int = 0


def make_inputs(folder: Path, rows: int = ROWS) -> list[Path]:
    """Two files of lines, one compressed, with rows that cannot be embedded."""
    rng = random.Random(0)
    words = ["the", "cat", "dog", "sleeps", "runs", "red", "green", "house", "garden", "on", "in"]
    lines = []
    for i in range(rows):
        text: Any = " ".join(rng.choices(words, k=rng.randint(1, 20)))
        if i % 23 == 5:
            text = rng.choice([None, 7, ["nested"], float("nan")])
        lines.append(json.dumps({"id": f"row {i}", "text": text, "kind": i % 3}).encode())
        if i % 41 == 7:
            lines[-1] = b"\xff" + lines[-1]
    folder.mkdir()
    (folder / "a.jsonl").write_bytes(b"\n".join(lines[: rows // 2]) + b"\n")
    with gzip.open(folder / "b.jsonl.gz", "wb") as file:
        file.write(b"\n".join(lines[rows // 2 :]))
    return [folder / "a.jsonl", folder / "b.jsonl.gz"]


def run(inputs: list[Path], out: Path, out_format: str) -> int:
    """Do the job, or continue it; how many shards (of `compared`: rows) were there.

    `compared` is a collection without a journal.
    """
    windows.WINDOW = _WINDOW  # so that a small shard has several
    options: dict[str, Any] = {**OPTIONS, "out_format": out_format}
    if out_format == "compared":
        options |= {"out_format": "collection", "skip_unchanged": True}
    with Encoder.load(BUNDLE, provider="cpu", streams=2) as encoder:
        done = encode_files(encoder, inputs, out, **options)
    return done.unchanged if out_format == "compared" else done.shards_before


def is_same(out: Path, expected: Path, out_format: str) -> bool:
    """Whether an output equals the one of a job that was not killed."""
    if out_format in ("parquet", "npy"):
        return hashes(out) == hashes(expected)
    dead_letters = [_letters_of(path, out_format).read_bytes() for path in (out, expected)]
    rows = []
    for path in (out, expected):
        with Collection.open(path) as collection:
            if collection.verify():
                return False
            rows.append({item.id: item for item in collection.rows()})
    return dead_letters[0] == dead_letters[1] and rows[0].keys() == rows[1].keys() and all(
        item.text == rows[1][key].text
        and item.metadata == rows[1][key].metadata
        # Which rows share a batch depends on the kills, and so do a vector's last digits.
        and np.allclose(item.vector, rows[1][key].vector, atol=1e-5)
        for key, item in rows[0].items()
    )  # fmt: skip


def _letters_of(out: Path, out_format: str) -> Path:
    if out_format == "compared":
        return out.with_name(f"{out.name}.dead_letter.jsonl")
    return out.with_name(f"{out.name}.job") / "_dead_letter.jsonl"


def remove(out: Path) -> None:
    """Remove an output, and what is beside it."""
    for path in (out, out.with_name(f"{out.name}.job")):
        if path.exists():
            shutil.rmtree(path)
    out.with_name(f"{out.name}.dead_letter.jsonl").unlink(missing_ok=True)


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
    """Kill children at random moments.

    Args:
        kills: number of kills.
        seed: seed of the moments.
        folder: folder to work in.
        out_formats: formats of the output, in turn.
    """
    result, rng = Result(seed), random.Random(seed)
    inputs = make_inputs(folder / "inputs")
    seconds = 0.0
    for out_format in out_formats:
        begun = time.monotonic()
        run(inputs, folder / out_format, out_format)
        seconds = time.monotonic() - begun
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
        with os.fdopen(ears, "rb") as file:
            said = file.read(1)
            time.sleep(rng.uniform(0, 0.8 * seconds))
            os.kill(process, signal.SIGKILL)
            _, status = os.waitpid(process, 0)
            said += file.read()
        if os.WIFSIGNALED(status):
            result.kills += 1
            result.working += said == b"b"
        elif os.WEXITSTATUS(status):
            result.refused += 1
        if b"e" in said:
            result.finished += 1
            result.resumed += int(said.partition(b"e")[2])
            result.different += not is_same(out, folder / out_format, out_format)
            remove(out)
            number += 1
            out_format = out_formats[number % len(out_formats)]
    # The last job is not killed: on a busy machine no other may have finished.
    result.resumed += run(inputs, out, out_format)
    result.finished += 1
    result.different += not is_same(out, folder / out_format, out_format)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        print(campaign(arguments.kills, arguments.seed, Path(folder), FORMATS))


if __name__ == "__main__":
    sys.exit(main())
