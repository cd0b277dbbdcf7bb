"""Inputs of bulk jobs, and what their outputs hold."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flowvec.bulk import windows
from tests.makers import texts_of, write_jsonl

# Options with which many shards are written.
COMMON: dict[str, Any] = {"out_format": "npy", "rows_per_shard": 24}


@pytest.fixture
def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows so small that a small shard has several."""
    monkeypatch.setattr(windows, "WINDOW", 16)


class StopAfter(threading.Event):
    """Set once a run has finished a number of shards."""

    def __init__(self, folder: Path, shards: int) -> None:
        super().__init__()
        self._folder = folder
        self._shards = shards + self._there()

    def _there(self) -> int:
        journal = self._folder / "_journal.jsonl"
        return journal.read_bytes().count(b"\n") if journal.exists() else 0

    def is_set(self) -> bool:
        return super().is_set() or self._there() >= self._shards


def npy_of(folder: Path) -> tuple[np.ndarray, list[dict[str, Any]]]:
    """Vectors and row maps of all shards."""
    parts = sorted(folder.glob("part-*.npy"))
    lines = [
        json.loads(line)
        for part in parts
        for line in (part.parent / f"{part.stem}.rows.jsonl").read_text().splitlines()
    ]
    return np.concatenate([np.load(part) for part in parts]), lines


def letters_of(folder: Path) -> list[dict[str, Any]]:
    file = folder / "_dead_letter.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    """100 rows, a few of which cannot be embedded."""
    return write_jsonl(
        tmp_path / "rows.jsonl",
        [{"text": None if i % 17 == 3 else t} for i, t in enumerate(texts_of(100))],
    )


@pytest.fixture
def many(tmp_path: Path) -> Path:
    """1,000 rows, a few of which cannot be embedded: more than are in flight at once."""
    texts = texts_of(1000)
    return write_jsonl(
        tmp_path / "many.jsonl",
        [{"text": None if i % 17 == 3 else text} for i, text in enumerate(texts)],
    )
