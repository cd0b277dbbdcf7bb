"""Inputs of bulk jobs, and what their outputs hold."""

from __future__ import annotations

import json
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flowvec.bulk import saved_batches, windows
from flowvec.object_store import lease
from tests.makers import texts_of, write_jsonl

# Options with which many shards are written.
COMMON: dict[str, Any] = {"out_format": "npy", "rows_per_shard": 24}


@pytest.fixture
def windows_of(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Let a window have another number of rows."""
    return lambda rows: monkeypatch.setattr(windows, "WINDOW", rows)


@pytest.fixture
def small_windows(windows_of: Callable[[int], None]) -> None:
    """Windows so small that a small shard has several."""
    windows_of(16)


@pytest.fixture
def saved_every(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Let batches be written after another number of seconds."""
    return lambda seconds: monkeypatch.setattr(saved_batches, "_SAVE_EVERY", seconds)


@pytest.fixture
def at_once(saved_every: Callable[[float], None]) -> None:
    """Every batch is written when it is computed, as those of a large model are after a while."""
    saved_every(0.0)


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for temporary files, which other tests and processes do not use."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """fsspec's file system in memory, in which a lease is sure at once."""
    fsspec = pytest.importorskip("fsspec", reason="needs fsspec")
    monkeypatch.setattr(lease, "SETTLE_SECONDS", 0.0)
    system = fsspec.filesystem("memory")
    system.store.clear()
    yield system
    system.store.clear()


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
