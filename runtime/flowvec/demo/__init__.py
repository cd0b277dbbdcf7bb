"""Data of `flowvec demo`: short Wikipedia passages, and queries that each match one of them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib import resources
from typing import Any

__all__ = ["Pair", "Passage", "load_pairs", "load_passages"]


@dataclass(frozen=True, slots=True)
class Passage:
    """An opening paragraph of an English Wikipedia article (see NOTICE.md)."""

    id: int
    title: str
    text: str


@dataclass(frozen=True, slots=True)
class Pair:
    """A query and the id of the passage that answers it."""

    query: str
    passage: int


def load_passages() -> list[Passage]:
    """All passages of the demo."""
    return [Passage(**row) for row in _rows("passages.jsonl")]


def load_pairs() -> list[Pair]:
    """Hand-written queries, each with its passage."""
    return [Pair(**row) for row in _rows("pairs.jsonl")]


def _rows(name: str) -> list[dict[str, Any]]:
    text = (resources.files("flowvec.demo") / name).read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]
