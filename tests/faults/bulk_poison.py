"""Rows that cannot be embedded, among others that can: each is named, and no other row is lost.

    python -m tests.faults.bulk_poison --jobs 1000 --seed 0

A job reads a few files of one format, plain or compressed, in which each row is good, or one of the
kinds that cannot be embedded, by chance. Then every good row must have its id, its kept field and
its own vector, in order; every other one must be a dead letter with the number of its row and the
code of what is wrong with it; and there must be nothing else. Two jobs run at once in the process,
with limits of their own, and read the same format.
"""

from __future__ import annotations

import argparse
import bz2
import csv
import gzip
import io
import json
import lzma
import random
import tempfile
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet

from flowvec import Encoder
from flowvec.bulk import encode_files, windows
from flowvec.texts import lines as lines_module

BUNDLE = Path(__file__).resolve().parents[1] / "data" / "bundles" / "tiny"
FORMATS = ("jsonl", "csv", "txt", "parquet")
_WORDS = ["the", "cat", "dog", "sleeps", "runs", "red", "green", "house", "garden", "on", "in"]
_LIMITS = (26_000, 50_000)  # bytes of a text, of the jobs that run at once
_LONG = "the cat " * 3000  # more tokens than any model of the tests takes, and fewer bytes
_WIDE = "the" + " " * 30_000 + "cat"  # two tokens, and more bytes than one of the jobs takes
_LARGE = "z" * (_LIMITS[-1] + 1)
_LARGE_LINES = ("x" * 70 + '",\n') * (_LIMITS[-1] // 73 + 1)
_BLOCK = 997  # so that records lie across the borders of blocks
_COMPRESSORS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes, ".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress,
    ".zst": lambda data: pyarrow.compress(data, "zstd", asbytes=True),
}  # fmt: skip


@dataclass
class Result:
    """Counts of a campaign.

    Attributes:
        seed: of the inputs.
        jobs: that were run.
        rows: that went in.
        good: of those, such as can be embedded.
        codes: of the others, how many of each kind.
        wrong: what was not as it must be.
    """

    seed: int
    jobs: int = 0
    rows: int = 0
    good: int = 0
    codes: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class _Row:
    """A row as it is written; `code` is None for a good row and `blank` for a blank line."""

    written: Any
    code: str | None = None
    text: str = ""


def _sized(rng: random.Random, text: str, limit: int) -> tuple[str, str]:
    """A text that is allowed, and one that is too large."""
    if len(_WIDE) > limit:
        return text, rng.choice([_WIDE, _LARGE])
    return _WIDE if rng.random() < 0.05 else text, _LARGE


def _json_row(rng: random.Random, key: int, text: str, limit: int) -> _Row:
    """Most are good; the others are of all kinds."""
    text, large = _sized(rng, text, limit)
    good = {"id": key, "text": text, "n": key % 7}
    if rng.random() < 0.75:
        return _Row(json.dumps(good, ensure_ascii=rng.random() < 0.5).encode(), None, text)

    def with_(**changed: Any) -> bytes:
        return json.dumps(good | changed).encode()

    kinds: dict[str, list[bytes]] = {
        "null": [with_(text=None)],
        "nan": [with_(text=float("nan"))],
        "not_text": [with_(text=3), with_(text=True), with_(text=["a"]), with_(text={"a": "b"})],
        "invalid_utf8": [b'{"text": "\xff"}', with_()[:-1] + b', "else": "\xc3"}', b"\xfe"],
        "malformed": [
            with_()[:-1],
            b"[1]",
            b"3",
            b"{",
            with_() + with_(),
            with_() + b"x",
            b"{'a'",
            b"null",
            b"null " + with_(),
            with_() + b" null",
            with_()[:-1] + b', "else": ' + b"[" * 2000 + b"]" * 2000 + b"}",
        ],
        "missing_field": [json.dumps({"id": key, "n": 1}).encode()],
        "bad_id": [with_(id=None), with_(id=1.5), with_(id=[1]), with_(id=True), b'{"text": "a"}'],
        "bad_field": [with_(n="seven"), with_(n=[7]), with_(n=1 << 70), with_(n=True)],
        "too_large": [with_(text=large), with_(text=_LARGE_LINES)],
        "too_long": [with_(text=_LONG)],
        "blank": [b"", b"  "],
    }
    code = rng.choice(list(kinds))
    return _Row(rng.choice(kinds[code]), code, _LONG)


def _csv_row(rng: random.Random, key: int, text: str, limit: int) -> _Row:
    text, large = _sized(rng, text, limit)

    def record(*values: Any) -> bytes:
        line = io.StringIO()
        csv.writer(line).writerow(values)
        return line.getvalue().removesuffix("\r\n").encode()

    if rng.random() < 0.75:
        text = text.replace(" ", rng.choice([" ", "\n", ",", '"']), 1)
        return _Row(record(key, text, key % 7), None, text)
    kinds = {
        "malformed": [record(key), record(key, text, 1, 2), b'"x"y,a,b'],
        "invalid_utf8": [b"1,\xff,2", b"\xff,a,2", b"1,a,\xff"],
        "too_large": [record(key, large, 1), record(key, _LARGE_LINES, 1)],
        "too_long": [record(key, _LONG, 1)],
    }
    code = rng.choice(list(kinds))
    return _Row(rng.choice(kinds[code]), code, _LONG)


def _txt_row(rng: random.Random, key: int, text: str, limit: int) -> _Row:
    text, large = _sized(rng, text, limit)
    if rng.random() < 0.75:
        return _Row(text.encode(), None, text)
    code, line = rng.choice(
        [("invalid_utf8", b"a \xff"), ("too_large", large.encode()), ("too_long", _LONG.encode())]
    )
    return _Row(line, code, _LONG)


def _parquet_row(rng: random.Random, key: int, text: str, limit: int) -> _Row:
    text, large = _sized(rng, text, limit)
    if rng.random() < 0.75:
        return _Row((text.encode(), key, key % 7), None, text)
    kinds = {
        "null": (None, key, 1),
        "invalid_utf8": (b"\xff", key, 1),
        "too_large": (large.encode(), key, 1),
        "too_long": (_LONG.encode(), key, 1),
        "bad_id": (b"a", None, 1),
    }
    code = rng.choice(list(kinds))
    return _Row(kinds[code], code, _LONG)


_ROWS = {"jsonl": _json_row, "csv": _csv_row, "txt": _txt_row, "parquet": _parquet_row}


def _write(rng: random.Random, path: Path, rows: list[_Row]) -> Path:
    if path.suffix == ".parquet":
        texts, keys, numbers = zip(*(row.written for row in rows), strict=True)
        raw = pyarrow.array(texts, pyarrow.binary())
        table = {
            "text": raw if rng.random() < 0.5 else raw.view(pyarrow.string()),
            "id": pyarrow.array(keys, pyarrow.int64()),
            "n": pyarrow.array(numbers, pyarrow.int64()),
        }
        size = rng.randint(1, 50)
        pyarrow.parquet.write_table(pyarrow.table(table), path, row_group_size=size)
        return path
    lines = [row.written for row in rows]
    if path.suffix == ".csv":
        lines.insert(0, b"id,text,n")
    end = rng.choice([b"\n", b"\r\n"]) if path.suffix == ".csv" else b"\n"
    data = end.join(lines) + (end if rng.random() < 0.5 or not lines[-1] else b"")
    suffix = rng.choice(list(_COMPRESSORS))
    path = path.with_name(path.name + suffix)
    path.write_bytes(_COMPRESSORS[suffix](data))
    return path


def _job(seed: str, pair: int, limit: int, encoder: Encoder, folder: Path) -> Result:
    """One job, into a folder that it makes."""
    rng, result = random.Random(seed), Result(0, jobs=1)
    folder.mkdir()
    kind = random.Random(pair).choice(FORMATS)  # both jobs of a pair read one format
    files: dict[str, list[_Row]] = {}
    key = 0
    for number in range(rng.randint(1, 3)):
        rows: list[_Row] = []
        for place in range(rng.randint(8, 90)):
            text = " ".join(rng.choices(_WORDS, k=rng.randint(1, 9)))
            row = _ROWS[kind](rng, key, text, limit)
            # The type of a field is that of most rows, and there are few rows here.
            while place < 4 and number == 0 and row.code is not None:
                row = _ROWS[kind](rng, key, text, limit)
            rows.append(row)
            key += 1
        files[str(_write(rng, folder / f"{number}.{kind}", rows))] = rows
    has_fields = kind != "txt"
    done = encode_files(
        encoder, list(files), folder / "out", truncation="error", dedupe=rng.random() < 0.5,
        id_field="id" if has_fields else None, keep=["n"] if has_fields else [],
        rows_per_shard=rng.randint(1, 120), max_text_bytes=limit,
    )  # fmt: skip
    placed = [(s, place, row) for s, rows in files.items() for place, row in enumerate(rows)]
    good = [(key, row) for key, (_, _, row) in enumerate(placed) if row.code is None]
    bad = [(s, p, row.code) for s, p, row in placed if row.code not in (None, "blank")]
    letters_file = folder / "out" / "_dead_letter.jsonl"
    lines = letters_file.read_text().splitlines() if letters_file.exists() else []
    dead_letters = [(x["source"], x["row"], x["code"]) for x in map(json.loads, lines)]
    table = pyarrow.concat_tables(
        [pyarrow.parquet.read_table(part) for part in sorted((folder / "out").glob("*.parquet"))]
    )
    ids = [str(key) if kind == "csv" else key for key, _ in good]
    numbers = [str(key % 7) if kind == "csv" else key % 7 for key, _ in good]
    vectors = np.array(table["vector"].to_pylist(), dtype=np.float32).reshape(-1, encoder.dim)
    expected = encoder.encode([row.text for _, row in good]) if good else vectors[:0]
    checks = {
        "dead letters": dead_letters == bad,
        "ids": table["id"].to_pylist() == ids,
        "kept fields": not has_fields or table["n"].to_pylist() == numbers,
        "vectors": vectors.shape == expected.shape and np.allclose(vectors, expected, atol=1e-5),
        "counts": (done.rows, done.dead_letters, done.rows_in)
        == (len(good), len(bad), len(good) + len(bad)),
    }
    result.wrong = [f"job {seed} ({kind}): {what}" for what, ok in checks.items() if not ok]
    result.rows, result.good = len(good) + len(bad), len(good)
    result.codes.update(str(code) for _, _, code in bad)
    return result


def campaign(jobs: int, seed: int, folder: Path) -> Result:
    """Run a number of jobs.

    Args:
        jobs: how many, of which two run at once.
        seed: of the inputs.
        folder: to work in.
    """
    result = Result(seed)
    before = windows.WINDOW, lines_module._BLOCK, csv.field_size_limit()
    windows.WINDOW = 16  # so that a small shard has several
    lines_module._BLOCK = _BLOCK
    try:
        with (
            Encoder.load(BUNDLE, provider="cpu", streams=2) as encoder,
            ThreadPoolExecutor(len(_LIMITS)) as jobs_at_once,
        ):
            for first in range(0, jobs, len(_LIMITS)):
                names = [f"{seed}-{first + i}" for i in range(len(_LIMITS))]
                for counts in jobs_at_once.map(
                    _job,
                    names,
                    [seed + first] * 2,
                    _LIMITS,
                    [encoder] * 2,
                    [folder / name for name in names],
                ):
                    result.jobs += 1
                    result.rows += counts.rows
                    result.good += counts.good
                    result.codes += counts.codes
                    result.wrong += counts.wrong
    finally:
        windows.WINDOW, lines_module._BLOCK = before[:2]
    if csv.field_size_limit() != before[2]:
        result.wrong.append("the csv module's own limit is another one")
    return result


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        print(campaign(given.jobs, given.seed, Path(name)))
