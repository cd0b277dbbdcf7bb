"""What tests are made of: vectors, texts and files of rows. All are seeded."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from flowvec import SparseVectors
from flowvec.bundle.bundle import record_file

__all__ = [
    "WORDS",
    "contents",
    "sparse_of",
    "texts_of",
    "unit",
    "unit_vectors",
    "vectors",
    "with_added_token",
    "write_jsonl",
]

# The tiny bundle and the shipped model know them all.
WORDS = ["the", "cat", "dog", "sleeps", "runs", "red", "green", "house", "garden", "on", "in"]


def vectors(rows: int, dim: int = 8, seed: int = 0) -> np.ndarray:
    """Random vectors, float32 (rows, dim)."""
    return np.random.default_rng(seed).standard_normal((rows, dim), dtype=np.float32)


def unit(rows: np.ndarray) -> np.ndarray:
    """The rows with length one; a row of zeros stays one of zeros."""
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.divide(rows, norms, where=norms > 0, out=np.zeros_like(rows))


def unit_vectors(rows: int, dim: int, seed: int = 0) -> np.ndarray:
    """Random vectors of length one, float32 (rows, dim)."""
    return unit(vectors(rows, dim, seed))


def texts_of(count: int, seed: int = 0, shortest: int = 1, most: int = 25) -> list[str]:
    """Texts of random words, each of `shortest` to `most`."""
    rng = random.Random(seed)
    return [" ".join(rng.choices(WORDS, k=rng.randint(shortest, most))) for _ in range(count)]


def write_jsonl(path: Path, rows: Iterable[Any]) -> Path:
    """Write one row a line."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def contents(folder: Path) -> dict[str, bytes]:
    """The bytes of each file of a folder but its locks."""
    return {f.name: f.read_bytes() for f in sorted(folder.iterdir()) if f.name[:5] != ".lock"}


def sparse_of(rows: Sequence[Mapping[int, float]], dim: int) -> SparseVectors:
    """Sparse vectors of weights by index."""
    pairs = [pair for row in rows for pair in sorted(row.items())]
    return SparseVectors(
        np.cumsum([0, *map(len, rows)]).astype(np.int64),
        np.array([term for term, _ in pairs], np.int32),
        np.array([weight for _, weight in pairs], np.float32),
        dim,
    )


def with_added_token(bundle: Path, folder: Path, token: str) -> Path:
    """A copy of a bundle whose tokenizer has one more token, and its table no row for it."""
    shutil.copytree(bundle, folder)
    file = folder / "tokenizer.json"
    raw = json.loads(file.read_text(encoding="utf-8"))
    used = [*raw["model"]["vocab"].values(), *(each["id"] for each in raw["added_tokens"])]
    added = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    raw["added_tokens"].append({"id": max(used) + 1, "content": token, **added})
    file.write_text(json.dumps(raw), encoding="utf-8")
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    record = record_file(file)
    manifest["files"][file.name] = {"bytes": record.bytes, "sha256": record.sha256}
    (folder / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    return folder
