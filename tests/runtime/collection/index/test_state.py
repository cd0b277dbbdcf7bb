"""How a graph grows by rows that are being read."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from flowvec.collection.index.hnsw import Graph
from flowvec.collection.index.state import grow
from flowvec.errors import CollectionError

ROWS = 2000


def blocks(count: int, first: int = 1) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(0)
    for start in range(first, first + count * ROWS, ROWS):
        yield np.arange(start, start + ROWS), rng.normal(size=(ROWS, 32)).astype(np.float32)


def test_grow_adds_all_rows() -> None:
    graph = Graph(32, "ip")
    assert grow(graph, blocks(3)) == 3 * ROWS
    assert graph.labels().tolist() == list(range(1, 3 * ROWS + 1))
    assert grow(graph, iter(())) == 0


def test_grow_adds_nothing_after_reading_has_failed() -> None:
    def failing() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        yield from blocks(2)
        raise OSError("the disk")

    graph = Graph(32, "ip")
    with pytest.raises(OSError, match="the disk"):
        grow(graph, failing())
    # Nobody may search while it grows, so what was begun must be over.
    assert graph.total == 2 * ROWS


def test_grow_stops_reading_when_the_graph_refuses_rows() -> None:
    read: list[int] = []

    def wrong() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for number, block in enumerate([*blocks(1), *blocks(1), *blocks(3, first=ROWS + 1)]):
            read.append(number)
            yield block

    graph = Graph(32, "ip")
    with pytest.raises(CollectionError, match="ascending order"):
        grow(graph, wrong())
    assert len(read) <= 3  # the next one is read while the graph takes one
    assert graph.total == ROWS
