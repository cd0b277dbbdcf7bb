"""Changes of a store as the index follows them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from flowvec.collection.store.rows import Id

__all__ = ["Change", "StateChange", "merged"]


@dataclass(frozen=True, slots=True)
class Change:
    """What one change does.

    Attributes:
        deleted: labels of rows that are deleted or replaced.
        labels: labels of new rows, ascending, int64 (rows,).
        vectors: their vectors, float32 (rows, dim), as the metric compares them.
        ids: their ids.
        ef_search: the new search depth; None keeps it.
    """

    deleted: Sequence[int]
    labels: npt.NDArray[np.int64]
    vectors: npt.NDArray[np.float32]
    ids: Sequence[Id]
    ef_search: int | None = None


@dataclass(frozen=True, slots=True)
class StateChange:
    """What a transaction does, and the numbers of the states before and after it.

    The other attributes are those of `Change`. No row is in both `deleted` and `labels`.

    Attributes:
        before: the number of the state before it.
        state: the number of the state after it.
        deletions: how many deletions the store counted; rows that came and went are among them.
    """

    before: int
    state: int
    deletions: int
    deleted: Sequence[int]
    labels: npt.NDArray[np.int64]
    vectors: npt.NDArray[np.float32]
    ids: Sequence[Id]
    ef_search: int | None = None


def merged(changes: Sequence[Change], before: int, state: int) -> StateChange:
    """The changes of one transaction, in order, as one.

    A row that one change adds and a later one deletes is in neither list.
    """
    count = sum(len(change.deleted) for change in changes)
    if len(changes) == 1:
        (only,) = changes
        return StateChange(
            before, state, count, only.deleted, only.labels, only.vectors, only.ids, only.ef_search
        )
    labels = np.concatenate([change.labels for change in changes])
    vectors = np.concatenate([change.vectors for change in changes])
    ids = [item for change in changes for item in change.ids]
    deleted = {label for change in changes for label in change.deleted}
    gone = deleted.intersection(labels.tolist())
    if gone:
        kept = [i for i, label in enumerate(labels.tolist()) if label not in gone]
        labels, vectors, ids = labels[kept], vectors[kept], [ids[i] for i in kept]
    depths = [change.ef_search for change in changes if change.ef_search is not None]
    depth = depths[-1] if depths else None
    return StateChange(before, state, count, sorted(deleted - gone), labels, vectors, ids, depth)
