"""Places the rows of a store at the records of a vectors file, some of which may be damaged."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from flowvec.collection.index.vector_file import VectorFile, VectorFileError

__all__ = ["placed_labels"]

Labels = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


def placed_labels(file: VectorFile, n: int, live: Labels | None) -> tuple[Labels, Mask]:
    """Labels of a file's records and whether their rows are in the store, by slot.

    Only if the labels do not fit the store, all records are read and checked. The labels of damaged
    ones follow from their neighbours'.

    Args:
        file: the vectors file.
        n: how many of its records are valid.
        live: labels of the rows in the store, ascending; None is all of the file.

    Raises:
        VectorFileError: the file is too short, or lacks a row of the store.
    """
    labels = file.labels(n)
    ascending = not n or (labels[0] > 0 and bool((np.diff(labels) > 0).all()))
    if live is None:
        if not ascending:
            raise VectorFileError(f"{file.path} is damaged: its labels do not ascend")
        return labels, np.ones(n, np.bool_)
    if ascending:
        placed = _live_slots(labels, live)
        if placed is not None:
            return labels, placed
    is_bad = np.zeros(n, np.bool_)
    is_bad[file.damaged(0, n)] = True
    kept = labels[~is_bad]
    if len(kept) and (kept[0] <= 0 or (np.diff(kept) <= 0).any()):
        raise VectorFileError(f"{file.path} is damaged: its labels do not ascend")
    edges = np.flatnonzero(np.diff(is_bad, prepend=False, append=False))
    for start, end in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
        _place_run(labels, start, end, live)
    placed = _live_slots(labels, live)
    if placed is None:
        raise VectorFileError(f"{file.path} is damaged: it lacks rows")
    return labels, placed


def _place_run(labels: Labels, start: int, end: int, live: Labels) -> None:
    """Give damaged records, from `start` to before `end`, labels between their neighbours'.

    The store's rows come first. What remains was deleted: it repeats the label before it, so that
    a search for the label finds the row.
    """
    before = labels[start - 1] if start else 0
    rows = live[np.searchsorted(live, before, "right") :]
    if end < len(labels):
        rows = rows[: np.searchsorted(rows, labels[end])]
    rows = rows[: end - start]
    labels[start : start + len(rows)] = rows
    labels[start + len(rows) : end] = rows[-1] if len(rows) else before


def _live_slots(labels: Labels, live: Labels) -> Mask | None:
    """Which slots hold rows of the store; None if a row that belongs to one of them has none."""
    if np.array_equal(labels, live):  # usual, and much faster
        return np.ones(len(labels), np.bool_)
    is_live = np.zeros(len(labels), np.bool_)
    if len(labels):
        live = live[: np.searchsorted(live, labels[-1], "right")]
        slots = np.searchsorted(labels, live)
        if (labels[slots] != live).any():
            return None
        is_live[slots] = True
    return is_live
