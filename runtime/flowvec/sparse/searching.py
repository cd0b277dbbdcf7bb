"""Exact search over sparse rows, a block of rows at a time.

Of a block, only the weights at tokens of the queries are read, and turned into lists of rows by
token. A query then adds up the lists of its tokens. Sums are in float64 and in the order of tokens,
so a score does not depend on the block.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["DEFAULT_BLOCK_ROWS", "Csr", "dot_products", "search_blocks"]

# Scores of a query over a block take 8 bytes each.
DEFAULT_BLOCK_ROWS = 1 << 16
# Up to so many dimensions, tables of all of them are fast and small.
_MOST_TABLE = 1 << 24

# indptr int64 (rows + 1,), indices int32 (weights,), values float32 (weights,).
Csr = tuple[npt.NDArray[np.int64], npt.NDArray[np.int32], npt.NDArray[np.float32]]
Hits = tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]


def search_blocks(
    documents: Csr, queries: Csr, dim: int, top_k: int, block_rows: int
) -> list[Hits]:
    """For each query the documents with the largest dot product above zero, and their scores.

    Args:
        documents: sparse rows.
        queries: sparse rows of as many dimensions.
        dim: dimensions of both.
        top_k: most hits of a query.
        block_rows: documents that are compared at once.

    Returns:
        Row numbers, int64, and scores, float64, of each query; best first, then by row number.
    """
    documents, queries, dim = _with_few_dimensions(documents, queries, dim)
    indptr, indices, values = documents
    starts, terms, weights = queries
    best: list[Hits] = [(np.empty(0, np.int64), np.empty(0, np.float64))] * (len(starts) - 1)
    wanted = np.zeros(dim, dtype=bool)
    wanted[terms] = True
    for first in range(0, len(indptr) - 1, block_rows):
        bounds = indptr[first : first + block_rows + 1]
        rows, offsets, factors = _postings(
            bounds, indices[bounds[0] : bounds[-1]], values[bounds[0] : bounds[-1]], wanted
        )
        for query in range(len(best)):
            part = slice(starts[query], starts[query + 1])
            scores = _scores(terms[part], weights[part], rows, offsets, factors, len(bounds) - 1)
            best[query] = _merged(best[query], scores, first, top_k)
    return best


def dot_products(documents: Csr, queries: Csr, dim: int) -> npt.NDArray[np.float32]:
    """Dot product of every query with every document, float32 (queries, documents)."""
    documents, queries, dim = _with_few_dimensions(documents, queries, dim)
    indptr, indices, values = documents
    starts, terms, weights = queries
    wanted = np.zeros(dim, dtype=bool)
    wanted[terms] = True
    postings = _postings(indptr, indices, values, wanted)
    out = np.empty((len(starts) - 1, len(indptr) - 1), dtype=np.float32)
    for query, row in enumerate(out):
        part = slice(starts[query], starts[query + 1])
        row[:] = _scores(terms[part], weights[part], *postings, len(row))
    return out


def _with_few_dimensions(documents: Csr, queries: Csr, dim: int) -> tuple[Csr, Csr, int]:
    """The same rows with the queries' tokens alone, where a table of all tokens would be too large.

    Hashed tokens have up to 2^31 numbers. All other tokens become the last one, which no query has.
    """
    if dim <= _MOST_TABLE:
        return documents, queries, dim
    indptr, indices, values = documents
    starts, terms, weights = queries
    known, numbers = np.unique(terms, return_inverse=True)
    places = np.searchsorted(known, indices)
    shared = np.flatnonzero(places < len(known))
    others = shared[known[places[shared]] != indices[shared]]
    places[others] = len(known)
    return (
        (indptr, places.astype(np.int32), values),
        (starts, numbers.astype(np.int32), weights),
        len(known) + 1,
    )


def _postings(
    bounds: npt.NDArray[np.int64],
    indices: npt.NDArray[np.int32],
    values: npt.NDArray[np.float32],
    wanted: npt.NDArray[np.bool_],
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.float32]]:
    """Rows of a block by token, where each token's begin, and their weights."""
    chosen = np.flatnonzero(wanted[indices])
    tokens = indices[chosen]
    order = np.argsort(tokens, kind="stable")
    places = chosen[order]
    rows = np.searchsorted(bounds - bounds[0], places, side="right") - 1
    offsets = np.zeros(len(wanted) + 1, dtype=np.int64)
    np.cumsum(np.bincount(tokens, minlength=len(wanted)), out=offsets[1:])
    return rows.astype(np.int64), offsets, values[places]


def _scores(
    terms: npt.NDArray[np.int32],
    weights: npt.NDArray[np.float32],
    rows: npt.NDArray[np.int64],
    offsets: npt.NDArray[np.int64],
    factors: npt.NDArray[np.float32],
    count: int,
) -> npt.NDArray[np.float64]:
    """Dot products of a query with all rows of a block, float64 (count,)."""
    scores = np.zeros(count, dtype=np.float64)
    for term, weight in zip(terms.tolist(), weights.tolist(), strict=True):
        part = slice(offsets[term], offsets[term + 1])
        # A row has a token once, so no row is twice in a list.
        scores[rows[part]] += weight * factors[part].astype(np.float64)
    return scores


def _merged(best: Hits, scores: npt.NDArray[np.float64], first: int, top_k: int) -> Hits:
    """The best of earlier blocks and of the block that begins at row `first`."""
    found = np.flatnonzero(scores > 0)
    if len(found) > top_k:
        # Rows that are as good as the last one stay: which of them remain is decided by number.
        least = np.partition(scores[found], len(found) - top_k)[len(found) - top_k]
        found = found[scores[found] >= least]
    rows = np.concatenate([best[0], found + first])
    together = np.concatenate([best[1], scores[found]])
    order = np.lexsort((rows, -together))[:top_k]
    return rows[order], together[order]
