"""What the methods of a Collection return."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from flowvec.collection.store.rows import Id
from flowvec.collection.store.settings import TokenDtype
from flowvec.vectors import Metric

__all__ = ["Added", "CollectionInfo", "Hit", "Row", "SearchKind", "TokenVectorsSize"]

# What answers a search.
SearchKind = Literal["exact", "scan", "graph"]


@dataclass(frozen=True, slots=True)
class Added:
    """What an `add` did.

        >>> with Collection.create("added", dim=2) as collection:
        ...     collection.add_vectors(["a", "b", "a"], [[1, 0], [0, 1], [1, 1]])
        Added(rows=2, replaced=0, truncated=0)

    Attributes:
        rows: rows that were written. Of rows with equal ids in one call, only the last is.
        replaced: how many of them replaced a row with the same id.
        truncated: texts that were longer than the model's `max_length`, and were cut.
    """

    rows: int
    replaced: int
    truncated: int


@dataclass(frozen=True, slots=True)
class Hit:
    """One search result.

        >>> with Collection.create("hits", dim=2) as collection:
        ...     collection.add_vectors(["a"], [[1, 0]], ["a text"], [{"year": 2024}])
        ...     collection.search([2, 0])
        Added(rows=1, replaced=0, truncated=0)
        [Hit(id='a', score=1.0, text='a text', metadata={'year': 2024}, search_score=None)]

    Attributes:
        id: the row's id.
        score: higher is better: cosine, inner product, or minus the Euclidean distance; or a
            reranker's score.
        text: the row's text, or None.
        metadata: the row's metadata, or None.
        search_score: the score before reranking; None without a reranker.
        vector: float32 (dim,), as it was given; None without `with_vectors`. Hits are compared and
            printed without it and what follows.
        word_score: the part of a hybrid search's score that the words gave; the vectors gave the
            rest. None for other searches.
        search_rank: the place before reranking, from 1; None without a reranker.
        sparse_score: the part of a hybrid search's score that the sparse vector gave; None for
            searches without one.
    """

    id: Id
    score: float
    text: str | None
    metadata: dict[str, Any] | None
    search_score: float | None = None
    vector: npt.NDArray[np.float32] | None = field(default=None, compare=False, repr=False)
    word_score: float | None = field(default=None, compare=False, repr=False)
    search_rank: int | None = field(default=None, compare=False, repr=False)
    sparse_score: float | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a page of `Collection.list`.

        >>> with Collection.create("listed", dim=2) as collection:
        ...     collection.add_vectors(["a"], [[1, 0]], ["a text"], [{"year": 2024}])
        ...     collection.list(limit=1)
        Added(rows=1, replaced=0, truncated=0)
        [Row(label=1, id='a', text='a text', metadata={'year': 2024}, vector=None)]

    Attributes:
        label: the row's number, which rises with every row that is added; `list(after=)` takes it.
        id: the row's id.
        text: the row's text, or None.
        metadata: the row's metadata, or None.
        vector: float32 (dim,), as it was given; None without `with_vectors`. Rows are compared
            without it.
    """

    label: int
    id: Id
    text: str | None
    metadata: dict[str, Any] | None
    vector: npt.NDArray[np.float32] | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class CollectionInfo:
    """A collection's settings and figures.

        >>> with Collection.create("informed", dim=2, metric="ip") as collection:
        ...     info = collection.info()
        >>> info.rows, info.metric, info.search
        (0, 'ip', 'exact')

    Attributes:
        path: its directory.
        rows: how many rows it has.
        dim: length of its vectors.
        metric: `cosine`, `ip` or `l2`.
        model: name or directory of the bundle that made the vectors.
        fingerprint: that bundle's fingerprint; None for a collection of plain vectors.
        compute: compute type that made the first vectors.
        search: what answers searches: `exact`, `scan` or `graph`; see `Collection.open`.
        graph_rows: rows in the graph in memory, deleted ones included; without one, rows in its
            newest file. 0 if searches do not use a graph.
        vector_dtype: how vectors are stored.
        full_text: tokenizer of the full-text index, `unicode61` or `trigram`; None without one.
        indexed_fields: fields of the metadata that have an index, by `create_index`.
        ef_search: search depth in the graph.
        recall: the recall of the ten nearest that `tune_recall` measured; None before that.
        bytes: size of the directory on disk.
        memory_bytes: memory of this handle's filters, and of what is not in the files of vectors,
            codes and the graph; 0 before the first search. Row ids come on top.
        mapped_bytes: size of the vectors, codes and graph that are mapped from files. Processes
            share them, and the system can take their memory back; of the graph, until they
            change it.
        created: when, ISO 8601.
        created_by: version of flowvec.
        sparse_dim: dimensions of the sparse vectors; None before the first one.
        sparse_rows: how many rows have a sparse vector.
        sparse_model: name or directory of the bundle that made them; None if it is not known.
        sparse_memory_bytes: memory of this handle's inverted file; 0 before the first search by
            sparse vectors. It is not in `memory_bytes`.
        token_model: name or directory of the bundle that made token vectors; None without any.
        token_dtype: how they are stored, `float16` or `signs`; None without any.
        token_rows: how many rows have token vectors.
        token_bytes: their size on disk.
        is_prepared: whether this object has in memory what searches need: vectors, and codes or the
            graph of all rows. Until then, rows are compared exactly or scanned; `prepare` waits for
            it.
    """

    path: str
    rows: int
    dim: int
    metric: Metric
    model: str | None
    fingerprint: str | None
    compute: str | None
    search: SearchKind
    graph_rows: int
    vector_dtype: str
    full_text: str | None
    indexed_fields: tuple[str, ...]
    ef_search: int
    recall: float | None
    bytes: int
    memory_bytes: int
    mapped_bytes: int
    created: str
    created_by: str
    sparse_dim: int | None = None
    sparse_rows: int = 0
    sparse_model: str | None = None
    sparse_memory_bytes: int = 0
    token_model: str | None = None
    token_dtype: str | None = None
    token_rows: int = 0
    token_bytes: int = 0
    is_prepared: bool = False


@dataclass(frozen=True, slots=True)
class TokenVectorsSize:
    """What token vectors will take on disk, estimated from a sample.

        >>> with Collection.create("to be sized", dim=2) as collection:
        ...     collection.token_vectors_size(MultiVectorEncoder.load("my-colbert"))
        TokenVectorsSize(rows=0, tokens_per_row=0.0, bytes=0, dtype='float16')

    Attributes:
        rows: rows that have a text and no token vectors.
        tokens_per_row: vectors of a row, on average.
        bytes: size of the token vectors of all these rows.
        dtype: how they would be stored.
    """

    rows: int
    tokens_per_row: float
    bytes: int
    dtype: TokenDtype
