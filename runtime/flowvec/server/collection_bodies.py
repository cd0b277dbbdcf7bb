"""Bodies of the collections' routes, and rows as JSON."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Iterator
from typing import Annotated, Any

import msgspec
import numpy as np

from flowvec.collection.hybrid import Fusion
from flowvec.collection.query import SearchOptions
from flowvec.collection.results import Hit, Row
from flowvec.collection.store.rows import Item
from flowvec.server.refusal import Refusal
from flowvec.server.sparse_bodies import Dim, SparseChoice, SparseVector, sparse_as_json
from flowvec.server.vector_bytes import number_rows
from flowvec.sparse.vectors import SparseVectors

__all__ = [
    "ByFilter", "Change", "Get", "List", "NewRow", "NewRows", "NewSparse", "Search", "SearchBatch",
    "SearchSparse", "SearchSparseBatch", "hit_as_json", "options_of", "row_as_json",
    "sparse_field", "sparse_options_of", "vectors_of",
]  # fmt: skip

# Numbers, or float32 in base64, little-endian.
Vector = list[float] | str
Id = int | str

# Rows of one answer.
_MOST_ROWS = 10_000


class _Body(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A body whose misspelt fields are refused."""


class _SearchOptions(_Body):
    """As `Collection.search`.

    `rerank` is the name of a reranker or a multi-vector encoder. True is the first reranker;
    without any, the multi-vector encoder that made the collection's token vectors, or else the
    first one.

    `text_limit` cuts texts of hits, and all texts in the metadata of a hit together, to that many
    characters.
    """

    k: int = 10
    filter: dict[str, Any] | None = None
    hybrid: bool = False
    vector_weight: float | None = None
    sparse_weight: float | None = None
    fusion: Fusion = "weights"
    min_score: float | None = None
    exact: bool = False
    ef: int | None = None
    offset: int = 0
    group_by: str | None = None
    prefix: bool = False
    with_vectors: bool = False
    rerank: bool | str = False
    rerank_from: int = 50
    text_limit: Annotated[int, msgspec.Meta(ge=0)] | None = None


class Search(_SearchOptions):
    """One query: a text, or a vector and perhaps its text.

    `sparse`, of a hybrid search, is the query's sparse vector, or the name of the sparse encoder
    that makes it of the text. Without it the collection's own does, if it has one; false is none.
    """

    query: str | None = None
    vector: Vector | None = None
    text: str | None = None
    sparse: SparseVector | SparseChoice | None = None


class SearchBatch(_SearchOptions):
    """Queries: texts, or vectors and perhaps their texts; `sparse` as in a search for one."""

    queries: list[str] | None = None
    vectors: list[Vector] | None = None
    texts: list[str] | None = None
    sparse: list[SparseVector] | SparseChoice | None = None


class _SparseOptions(_Body):
    """As `Collection.search_sparse`; `text_limit` as in other searches."""

    k: int = 10
    filter: dict[str, Any] | None = None
    min_score: float | None = None
    offset: int = 0
    with_vectors: bool = False
    text_limit: Annotated[int, msgspec.Meta(ge=0)] | None = None


class SearchSparse(_SparseOptions):
    """One query: a text, and perhaps the name of a sparse encoder; or a sparse vector."""

    query: str | None = None
    sparse: SparseVector | SparseChoice | None = None


class SearchSparseBatch(_SparseOptions):
    """Queries: texts, and perhaps the name of a sparse encoder; or sparse vectors."""

    queries: list[str] | None = None
    sparse: list[SparseVector] | SparseChoice | None = None


class NewRow(_Body):
    """A row to add."""

    id: Id
    text: str | None = None
    vector: Vector | None = None
    sparse: SparseVector | None = None
    metadata: dict[str, Any] | None = None


class NewRows(_Body):
    """Rows to add, each with a text that is embedded, or all with vectors.

    All rows have a sparse vector, of `sparse_dim` dimensions, or none has. Then `sparse` says which
    sparse encoder makes them of the texts: a name, or true for the collection's own; false is none.
    Without it, the collection's own makes them for rows without vectors.
    """

    rows: list[NewRow]
    sparse: SparseChoice | None = None
    sparse_dim: Dim | None = None


class NewSparse(_Body):
    """Rows by id, and a sparse vector for each, of `sparse_dim` dimensions."""

    ids: list[Id]
    sparse: list[SparseVector]
    sparse_dim: Dim | None = None


class Get(_Body):
    """Rows by id: a list of ids, or one."""

    ids: list[Id] | Id
    with_vectors: bool = False
    with_sparse: bool = False
    text_limit: Annotated[int, msgspec.Meta(ge=0)] | None = None


class ByFilter(_Body):
    """Rows by id, several or one, or by a filter."""

    ids: list[Id] | Id | None = None
    filter: dict[str, Any] | None = None


class Change(ByFilter, kw_only=True):
    """New values of fields of the metadata."""

    changes: dict[str, Any] | list[dict[str, Any]]


def ids_of(body: object) -> Iterator[object]:
    """The ids of a body: one or a list of them, those of its rows, and those in its filter."""
    ids = getattr(body, "ids", None)
    yield from ids if isinstance(ids, list) else (ids,)
    rows = getattr(body, "rows", None)
    if isinstance(rows, list):
        yield from (getattr(row, "id", None) for row in rows)
    yield from _ids_of_filter(getattr(body, "filter", None))


def _ids_of_filter(part: object, is_id: bool = False) -> Iterator[object]:
    if isinstance(part, dict):
        for key, inner in part.items():
            yield from _ids_of_filter(inner, is_id or key == "$id")
    elif isinstance(part, list):
        for inner in part:
            yield from _ids_of_filter(inner, is_id)
    elif is_id:
        yield part


class List(_Body):
    """A page of rows."""

    filter: dict[str, Any] | None = None
    limit: int = 100
    after: int | None = None
    with_vectors: bool = False
    with_sparse: bool = False

    def __post_init__(self) -> None:
        """Check the limit, which msgspec reports as it does a wrong type."""
        if not 0 <= self.limit <= _MOST_ROWS:
            raise ValueError(f"limit must be from 0 to {_MOST_ROWS:,}, but is {self.limit}")


def options_of(
    body: Search | SearchBatch, queries: int, *, has_sparse: bool = False
) -> SearchOptions:
    """Checked options of a search.

    Args:
        body: of the request.
        queries: how many there are.
        has_sparse: whether the queries have sparse vectors, or can be given them.

    Raises:
        Refusal: the answer would be too large.
        InputTypeError, InputValueError: one is not valid.
    """
    _check_rows(body, queries, max(body.rerank_from, 0) if body.rerank else 0)
    return SearchOptions.checked(
        body.k,
        body.filter,
        min_score=body.min_score,
        hybrid=body.hybrid,
        vector_weight=body.vector_weight,
        sparse_weight=body.sparse_weight,
        has_sparse=has_sparse,
        fusion=body.fusion,
        exact=body.exact,
        ef=body.ef,
        offset=body.offset,
        group_by=body.group_by,
        prefix=body.prefix,
        with_vectors=body.with_vectors,
        is_reranked=bool(body.rerank),
    )


def sparse_options_of(body: SearchSparse | SearchSparseBatch, queries: int) -> dict[str, Any]:
    """Options of a search by sparse vectors alone, which the collection checks.

    Raises:
        Refusal: the answer would be too large.
    """
    _check_rows(body, queries, 1)  # a query costs something without hits, too
    names = ("filter", "min_score", "offset", "with_vectors")
    return {"k": body.k} | {name: getattr(body, name) for name in names}


def _check_rows(body: _SearchOptions | _SparseOptions, queries: int, least: int) -> None:
    """Refuse an answer of too many rows, where each query counts as this many at least."""
    if max(max(body.k, 0) + max(body.offset, 0), least) * queries > _MOST_ROWS:
        raise Refusal(
            "invalid",
            f"an answer has at most {_MOST_ROWS:,} rows: ask for fewer queries at a time, or for "
            "less than this k, offset or rerank_from",
            "k",
        )


def vectors_of(given: Iterable[Vector]) -> list[Any]:
    """Vectors as lists and arrays, which the collection checks.

    Raises:
        Refusal: one is not base64 of float32.
    """
    return [_decoded(vector) if isinstance(vector, str) else vector for vector in given]


def _decoded(vector: str) -> Any:
    try:
        return np.frombuffer(base64.b64decode(vector, validate=True), "<f4")
    except (ValueError, binascii.Error):
        raise Refusal(
            "invalid", "a vector is a list of numbers, or base64 of little-endian float32"
        ) from None


def row_as_json(
    row: Row | Item, *, with_vectors: bool, text_limit: int | None = None
) -> dict[str, Any]:
    """A row of an answer."""
    fields: dict[str, Any] = {"id": row.id, "label": row.label, **_content(row, text_limit)}
    if with_vectors and row.vector is not None:
        fields["vector"] = msgspec.Raw(number_rows(row.vector))
    return fields


def sparse_field(vector: SparseVectors | None) -> dict[str, Any]:
    """The field of a row's sparse vector; null for a row that has none."""
    return {"sparse": None if vector is None else sparse_as_json(vector)}


def hit_as_json(hit: Hit, text_limit: int | None = None) -> dict[str, Any]:
    """A hit of an answer."""
    fields: dict[str, Any] = {"id": hit.id, "score": hit.score, **_content(hit, text_limit)}
    for name in ("search_score", "search_rank", "word_score", "sparse_score"):
        if (value := getattr(hit, name)) is not None:
            fields[name] = value
    if hit.vector is not None:
        fields["vector"] = msgspec.Raw(number_rows(hit.vector))
    return fields


def _content(row: Row | Item | Hit, text_limit: int | None) -> dict[str, Any]:
    """Text and metadata of a row; `is_cut` says that one of them was cut."""
    content = {"text": row.text, "metadata": row.metadata}
    if text_limit is None:
        return content
    text = None if row.text is None else row.text[:text_limit]
    cut = {"text": text, "metadata": _Cutter(text_limit).cut(row.metadata)}
    return cut if cut == content else {**cut, "is_cut": True}


class _Cutter:
    """Cuts values of JSON, so that all their texts and names have so many characters together."""

    def __init__(self, most: int) -> None:
        self._left = most

    def cut(self, value: Any) -> Any:
        """The part of a value for which there is room; each item takes a character too."""
        if isinstance(value, str):
            return self._taken(value)
        if isinstance(value, dict):
            made: dict[str, Any] = {}
            for name, item in value.items():
                if self._left <= 0:
                    break
                made[self._taken(name)] = self.cut(item)
                self._left -= 1
            return made
        if isinstance(value, list):
            items: list[Any] = []
            for item in value:
                if self._left <= 0:
                    break
                items.append(self.cut(item))
                self._left -= 1
            return items
        return value

    def _taken(self, text: str) -> str:
        taken = text[: max(0, self._left)]
        self._left -= len(taken)
        return taken
