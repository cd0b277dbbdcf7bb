"""A collection as a map: each row a point, near rows near each other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from flowvec.arguments import whole_number
from flowvec.collection.collection import Collection
from flowvec.projection.layout import edges_of, layouts
from flowvec.projection.principal import principal_axes

__all__ = ["MAP_ROWS", "MapFrame", "map_frames"]

Floats = npt.NDArray[np.float32]
Labels = npt.NDArray[np.int64]

# Most points of a map.
MAP_ROWS = 100_000
# Axes are those of a sample, at most so many rows and numbers: 64 MiB of float32.
_AXES_ROWS = 20_000
_AXES_NUMBERS = 1 << 24
_NEIGHBOURS = 15
# In a sample of a larger collection, so many are asked for that this many are in the sample.
_MOST_ASKED = 200
# Vectors that are searched or projected at a time.
_BLOCK = 512
_ROUNDS = 300
_ROUNDS_OF_MANY = 200
_MANY = 20_000
# A frame is shown after so many rounds.
_SHOWN = 10

Stage = Literal["axes", "neighbours", "layout", "done"]


@dataclass(frozen=True, slots=True, eq=False)
class MapFrame:
    """A state of a map that is being made.

    Attributes:
        stage: what is being done; `axes` are principal axes.
        progress: 0 to 1 of all of it.
        total: rows of the collection.
        labels: rows of the points, int64 (points,), ascending.
        positions: float32 (points, 2).
        shares: share of the variance on each of the two principal axes.
    """

    stage: Stage
    progress: float
    total: int
    labels: Labels
    positions: Floats
    shares: tuple[float, ...]


def map_frames(
    collection: Collection, *, rows: int = MAP_ROWS, seed: int = 0
) -> Iterator[MapFrame]:
    """Lay out a collection's rows: first on two principal axes, then by their neighbours.

        >>> from flowvec.projection import map_frames
        >>> with Collection.create("mapped", dim=3) as collection:
        ...     collection.add_vectors(range(3), [[1, 0, 0], [0, 1, 0], [0, 0, 1]])
        ...     *_, frame = map_frames(collection)
        ...     frame.stage, frame.positions.shape
        Added(rows=3, replaced=0, truncated=0)
        ('done', (3, 2))

    Each frame shows the map as it is by then; whoever stops reading them stops the work. The same
    rows, seed and graph give the same map on one machine. Memory is some 100 bytes a point besides
    64 MiB.

    Args:
        collection: open; it may be searched and changed meanwhile.
        rows: most points. Of a larger collection they are a sample.
        seed: of the sample and the layout.

    Raises:
        InputTypeError, InputValueError: an argument is not valid.
        CollectionError: the collection is closed or damaged.
    """
    whole_number("rows", rows, least=1, most=MAP_ROWS)
    whole_number("seed", seed, least=0)
    with collection._access.reading():
        everything = collection._store.labels()
    chosen = _sampled(everything, rows, seed)
    chosen, positions, shares = _on_axes(collection, chosen, seed)

    def frame(stage: Stage, progress: float, now: Floats) -> MapFrame:
        return MapFrame(stage, progress, len(everything), chosen, now, shares)

    yield frame("axes", 0.02, positions)
    neighbours = np.full((len(chosen), _NEIGHBOURS), -1, np.int64)
    distances = np.zeros((len(chosen), _NEIGHBOURS), np.float32)
    for end in _neighbours(collection, chosen, len(everything), neighbours, distances):
        yield frame("neighbours", 0.02 + 0.38 * end / max(1, len(chosen)), positions)
    edges = edges_of(len(chosen), neighbours, distances)
    rounds = _ROUNDS if len(chosen) <= _MANY else _ROUNDS_OF_MANY
    for number, now in enumerate(layouts(positions, edges, rounds=rounds, seed=seed), 1):
        positions = now
        if number % _SHOWN == 0:
            yield frame("layout", 0.4 + 0.6 * number / rounds, positions)
    yield frame("done", 1.0, positions)


def _sampled(labels: Labels, most: int, seed: int) -> Labels:
    if len(labels) <= most:
        return labels
    return np.sort(np.random.default_rng(seed).choice(labels, most, replace=False))


def _on_axes(
    collection: Collection, labels: Labels, seed: int
) -> tuple[Labels, Floats, tuple[float, ...]]:
    """Those rows that exist, their positions on the principal axes, and the axes' shares."""
    most = max(2, min(_AXES_ROWS, _AXES_NUMBERS // collection._dim))
    _, sample = _vectors(collection, _sampled(labels, most, seed))
    axes = principal_axes(sample)
    kept: list[Labels] = [labels[:0]]
    positions: list[Floats] = [np.empty((0, 2), np.float32)]
    for start in range(0, len(labels), _BLOCK):
        known, vectors = _vectors(collection, labels[start : start + _BLOCK])
        kept.append(known)
        positions.append(axes.project(vectors))
    return np.concatenate(kept), np.concatenate(positions), axes.shares


def _vectors(collection: Collection, labels: Labels) -> tuple[Labels, Floats]:
    with collection._access.reading():
        return collection._index.vectors_of(labels)


def _neighbours(
    collection: Collection, labels: Labels, total: int, neighbours: Labels, distances: Floats
) -> Iterator[int]:
    """Fill in the neighbours of each row, by the collection's own search.

    Yields how many rows are done, after each block.
    """
    asked = (_NEIGHBOURS + 1) * total // max(1, len(labels))
    asked = min(asked, _MOST_ASKED)
    for start in range(0, len(labels), _BLOCK):
        with collection._access.reading():
            block = labels[start : start + _BLOCK]
            known, vectors = collection._index.vectors_of(block)
            nearest = collection._index.search(vectors, asked)
        rows = np.searchsorted(labels, known)
        points = np.searchsorted(labels, nearest.labels)
        points = np.minimum(points, len(labels) - 1)
        is_usable = (labels[points] == nearest.labels) & (points != rows[:, None])
        # The usable ones come first, in their order.
        order = np.argsort(~is_usable, axis=1, kind="stable")[:, :_NEIGHBOURS]
        width = order.shape[1]
        taken = np.take_along_axis(points, order, 1)
        neighbours[rows, :width] = np.where(np.take_along_axis(is_usable, order, 1), taken, -1)
        # Scores fall as distances rise, whatever the metric.
        distances[rows, :width] = -np.take_along_axis(nearest.scores, order, 1)
        yield start + len(block)
