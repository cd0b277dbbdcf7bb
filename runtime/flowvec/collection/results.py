"""What a Collection gives: what an `add` did, a search's hits, and its own figures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from flowvec.collection.store.rows import Id
from flowvec.vectors import Metric

__all__ = ["Added", "CollectionInfo", "Hit"]


@dataclass(frozen=True, slots=True)
class Added:
    """What an `add` did.

    Attributes:
        rows: rows that were written; of equal ids in one call the last one.
        replaced: of those, rows that replaced one of the same id.
        truncated: texts that were longer than the model's limit, and were cut.
    """

    rows: int
    replaced: int
    truncated: int


@dataclass(frozen=True, slots=True)
class Hit:
    """One search result.

    Attributes:
        id: the id that the row was added under.
        score: higher is better: cosine, inner product, or minus the Euclidean distance.
        text: the row's text, if it has one.
        metadata: the row's metadata, if it has any.
    """

    id: Id
    score: float
    text: str | None
    metadata: dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class CollectionInfo:
    """What a collection is.

    Attributes:
        path: its directory.
        rows: rows in it.
        dim: length of its vectors.
        metric: `cosine`, `ip` or `l2`.
        model: name or directory of the bundle that it was created with.
        fingerprint: that bundle's fingerprint; None for a collection of plain vectors.
        compute: compute type that its first vectors were made with.
        search: `exact` or `hnsw`.
        graph_rows: rows in the graph that is held in memory, deleted ones included; while none is
            held, rows in the newest file of it.
        vector_dtype: how vectors are stored.
        ef_search: how far the graph is searched.
        recall: of the ten nearest, as `tune_recall` measured it; None before.
        bytes: size of the directory on disk.
        created: when, ISO 8601.
        created_by: version of flowvec.
    """

    path: str
    rows: int
    dim: int
    metric: Metric
    model: str | None
    fingerprint: str | None
    compute: str | None
    search: str
    graph_rows: int
    vector_dtype: str
    ef_search: int
    recall: float | None
    bytes: int
    created: str
    created_by: str
