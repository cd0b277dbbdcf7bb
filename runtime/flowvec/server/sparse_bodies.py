"""Sparse vectors in the bodies of the collections' routes, and in their answers."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Annotated, Any

import msgspec
import numpy as np

from flowvec.server.refusal import Refusal
from flowvec.server.vector_bytes import number_rows
from flowvec.sparse.checking import checked_sparse
from flowvec.sparse.vectors import SparseVectors

__all__ = ["MOST_DIM", "Dim", "SparseChoice", "SparseVector", "sparse_as_json", "sparse_vectors"]

# Dimensions of sparse vectors, of which a collection keeps the number.
MOST_DIM = (1 << 31) - 1

Dim = Annotated[int, msgspec.Meta(ge=1, le=MOST_DIM)]
# The name of a sparse encoder, or true for the collection's own; false for none.
SparseChoice = bool | str


class SparseVector(msgspec.Struct, forbid_unknown_fields=True):
    """A sparse vector: distinct indices in any order, and a weight for each."""

    indices: list[Annotated[int, msgspec.Meta(ge=0, lt=MOST_DIM)]]
    values: list[float]


def sparse_vectors(
    given: Sequence[SparseVector], dim: int, most_terms: int, field: str
) -> SparseVectors:
    """Sparse vectors of a body, (vectors, dim).

    Args:
        given: the vectors.
        dim: their dimensions.
        most_terms: most indices of one of them.
        field: which field of the body they are, for messages.

    Raises:
        Refusal: one has too many indices, an index twice, or not a value for each.
        InputValueError: an index is not below `dim`, or a value is too large for float32.
    """
    lengths = [len(vector.indices) for vector in given]
    for place, vector in enumerate(given):
        if lengths[place] != len(vector.values):
            raise Refusal(
                "invalid",
                f"sparse vector {place} has {lengths[place]} indices and {len(vector.values)} "
                "values",
                field,
            )
        if lengths[place] > most_terms:
            raise Refusal(
                "too_large",
                f"sparse vector {place} has {lengths[place]:,} indices, and at most "
                f"{most_terms:,} are taken",
                field,
            )
    count = sum(lengths)
    indices = np.fromiter(chain.from_iterable(v.indices for v in given), np.int32, count)
    weights = np.fromiter(chain.from_iterable(v.values for v in given), np.float64, count)
    with np.errstate(over="ignore"):  # an infinity is reported with its row
        values = weights.astype(np.float32)
    rows = np.repeat(np.arange(len(given)), np.array(lengths, np.int64))
    order = np.lexsort((indices, rows))
    indices = indices[order]
    twice = np.flatnonzero((np.diff(indices) == 0) & (np.diff(rows) == 0))
    if len(twice):
        row = rows[twice[0]]
        raise Refusal(
            "invalid", f"sparse vector {row} has the index {indices[twice[0]]} twice", field
        )
    indptr = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])
    vectors = SparseVectors(indptr, indices, values[order], dim)
    return checked_sparse(field, vectors)


def sparse_as_json(vector: SparseVectors) -> dict[str, Any]:
    """One sparse vector of an answer."""
    return {
        "indices": msgspec.Raw(number_rows(vector.indices)),
        "values": msgspec.Raw(number_rows(vector.values)),
    }
