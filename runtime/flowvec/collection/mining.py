"""Searches in memory, without a collection: the most similar pairs, and the nearest of a corpus.

Scores are computed in blocks of bounded size, or only those that codes do not rule out.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from flowvec.arguments import whole_number
from flowvec.collection.validation import check_score
from flowvec.encoder.argument import check_encoder
from flowvec.encoder.encoder import Encoder
from flowvec.encoder.postprocess import normalize
from flowvec.errors import InputTypeError, InputValueError
from flowvec.hnsw import Codes, Frame, PairScan, Places, has_fast_scan
from flowvec.machine import available_cores
from flowvec.progress import bar, hidden
from flowvec.sequences import python_values
from flowvec.vectors import top_k as nearest

__all__ = ["Pair", "best_pairs", "most_similar_pairs", "semantic_search"]

Floats = npt.NDArray[np.float32]
Indices = npt.NDArray[np.int64]
TextsOrVectors = Iterable[str] | npt.ArrayLike

_BLOCK_ELEMENTS = 1 << 23  # scores held at once: 32 MiB of float32

# Pairs are scanned, with the help of codes, if there are so many rows, and if few pairs are among
# the best: this share of all, or those with a high score. See bench/log/2026-11-29.md.
_LEAST_SCANNED, _MOST_FOUND, _HIGH_FLOOR = 2000, 1 / 1500, 0.5
# If a larger share of a step's scores may be among the best, products of matrices are faster.
_MOST_COMPUTED = 1 / 16
# Numbers of pairs that are scanned, or of rows that are encoded, in one step: about 100 ms. Ctrl-C
# waits for a step.
_SCANNED_NUMBERS, _ENCODED_NUMBERS = 1 << 33, 1 << 23
# The rows nearest to queries are scanned, too, if there are so many of both, and if few are wanted:
# this share of the rows. See bench/log/2026-11-30.md.
_LEAST_QUERIES, _LEAST_ROWS, _MOST_NEAREST = 500, 4000, 1 / 1000
# For fewer queries, codes with a basis take longer to make than they save.
_LEAST_FITTED = 8000
# How many standard deviations an estimate may be wrong: about one of 10^15 is more.
_REACH = 8
# More queries in one step would wait for one core, which rounds them.
_MOST_QUERIES = 8192
_MOST_DIMENSIONS = 1 << 20  # that codes can have
_SILENT_SECONDS = 2.0  # until a bar is shown


@dataclass(frozen=True, slots=True)
class Pair:
    """Two items and the cosine of their vectors; `left` is the smaller index.

    >>> pair = most_similar_pairs([[1.0, 0.0], [0.0, 1.0], [2.0, 0.0]], top_k=1)[0]
    >>> pair.left, pair.right, pair.score
    (0, 2, 1.0)
    """

    score: float
    left: int
    right: int


def most_similar_pairs(
    items: TextsOrVectors,
    *,
    encoder: Encoder | None = None,
    top_k: int = 1000,
    threshold: float | None = None,
    show_progress_bar: bool | None = None,
) -> list[Pair]:
    """The most similar of all pairs of items: exactly, with scores in float32.

    10,000 items are 50 million pairs. Memory does not grow with their number. From 2,000 items on,
    codes of the vectors tell of most pairs that their cosine is too low, where the processor has
    AVX2 or ARM's dot products; the others are computed.

        >>> texts = ["A man is eating.", "Stocks fell.", "A man eats."]
        >>> [(p.left, p.right) for p in most_similar_pairs(texts, encoder=Encoder.load("mini"))]
        [(0, 2), (0, 1), (1, 2)]

    Args:
        items: texts, or vectors float32 (items, dim), normalized or not.
        encoder: embeds texts.
        top_k: how many pairs, over all items.
        threshold: least cosine of a pair; None means no limit.
        show_progress_bar: None shows one after 2 seconds on a terminal or in a notebook; False
            shows nothing.

    Returns:
        Pairs, the most similar first; equal scores in the order of their indices.

    Raises:
        InputTypeError: the items are neither texts nor numbers.
        InputValueError: texts without an encoder, vectors with NaN or infinity, or a negative
            `top_k`.
    """
    top_k = whole_number("top_k", top_k, 0, most=None)
    rows = _unit_vectors("items", items, encoder)
    floor = check_score(threshold, "threshold")
    floor = -np.inf if floor is None else floor
    with hidden(show_progress_bar is False):
        return [] if top_k == 0 else best_pairs(rows, top_k, floor)


def best_pairs(
    rows: Floats, top_k: int, floor: float, *, most_elements: int = _BLOCK_ELEMENTS
) -> list[Pair]:
    """The `top_k` pairs of rows with the largest dot product, of those that reach a floor.

    Args:
        rows: of length 1 or 0, float32 (items, dim).
        top_k: how many pairs, at least 1.
        floor: least dot product.
        most_elements: scores held at once.
    """
    best = _BestPairs(top_k, floor)
    with bar("comparing", _pairs(rows, 0, len(rows)), "pairs", after=_SILENT_SECONDS) as shown:
        first = _scan(rows, best, shown) if _is_scan_worth_it(rows, top_k, floor) else 0
        _compare(rows, first, best, most_elements, shown)
    return [
        Pair(score, left, right)
        for score, (left, right) in zip(best.scores.tolist(), best.pairs.tolist(), strict=True)
    ]


class _BestPairs:
    """The best of the pairs so far, best first."""

    def __init__(self, top_k: int, floor: float) -> None:
        self.top_k, self.floor = top_k, floor
        self.scores = np.empty(0, dtype=np.float32)
        self.pairs = np.empty((0, 2), dtype=np.int64)

    @property
    def is_full(self) -> bool:
        return len(self.scores) == self.top_k

    def add(self, scores: Floats, pairs: Indices) -> None:
        """Take pairs of later rows; of equal scores, earlier pairs stay."""
        scores = np.concatenate((self.scores, scores))
        pairs = np.concatenate((self.pairs, pairs))
        kept = np.argsort(-scores, kind="stable")[: self.top_k]
        self.scores, self.pairs = scores[kept], pairs[kept]
        if self.is_full:
            self.floor = max(self.floor, float(self.scores[-1]))


def _pairs(rows: Floats, first: int, last: int) -> int:
    """How many pairs of one of some rows with a later row there are."""
    return (last - first) * (2 * len(rows) - first - last - 1) // 2


def _is_scan_worth_it(rows: Floats, top_k: int, floor: float) -> bool:
    """Whether few pairs are likely to be among the best, so that codes rule out the others."""
    are_few = top_k <= _MOST_FOUND * _pairs(rows, 0, len(rows)) or floor >= _HIGH_FLOOR
    return len(rows) >= _LEAST_SCANNED and are_few and _can_be_scanned(rows)


def _can_be_scanned(rows: Floats) -> bool:
    return 0 < rows.shape[1] <= _MOST_DIMENSIONS and has_fast_scan()


def _scan(rows: Floats, best: _BestPairs, shown: Any) -> int:
    """Find the best pairs by codes, as long as that is fast; returns the first row that is left."""
    scan = PairScan(rows, available_cores())
    step = max(1, _SCANNED_NUMBERS * available_cores() // rows.size)
    for first in range(0, len(rows), step):
        last = min(first + step, len(rows))
        pairs = _pairs(rows, first, last)
        found = scan.best(first, last, best.top_k, best.floor, int(_MOST_COMPUTED * pairs) + 1)
        if found is None:
            return first
        best.add(*found)
        shown.update(pairs)
    return len(rows)


def _compare(rows: Floats, start: int, best: _BestPairs, most_elements: int, shown: Any) -> None:
    """Compute the scores of all pairs of a row from `start` on with a later one."""
    step = max(1, most_elements // max(len(rows), 1))
    for first in range(start, len(rows) - 1, step):
        block: Floats = rows[first : first + step] @ rows[first + 1 :].T
        # Row i of the block is item first + i, column j is item first + 1 + j: i <= j are pairs.
        for i in range(1, len(block)):
            block[i, :i] = -np.inf
        found = _best(block.ravel(), best.top_k, best.floor, strictly=best.is_full)
        left, right = np.divmod(found, block.shape[1])
        best.add(block.ravel()[found], np.stack((left + first, right + first + 1), axis=1))
        shown.update(_pairs(rows, first, first + len(block)))


def _best(scores: Floats, k: int, floor: float, *, strictly: bool) -> Indices:
    """Indices of the k largest that are not below the floor, ascending; ties by index."""
    able = (scores > floor) if strictly else (scores >= floor) & (scores > -np.inf)
    chosen = np.flatnonzero(able)
    if len(chosen) > k:
        values = scores[chosen]
        least = np.partition(values, len(values) - k)[len(values) - k]
        above = chosen[values > least]
        equal = chosen[values == least][: k - len(above)]
        chosen = np.sort(np.concatenate((above, equal)))
    return chosen.astype(np.int64)


def semantic_search(
    queries: str | TextsOrVectors,
    corpus: TextsOrVectors,
    *,
    encoder: Encoder | None = None,
    top_k: int = 10,
) -> list[list[dict[str, Any]]]:
    """The texts of a corpus nearest to each query, as sentence-transformers returns them.

    Scores are computed in float32. With 500 queries or more, and a corpus of 4,000 rows or more of
    which at most a thousandth is wanted, codes of its vectors rule out most rows first, where the
    processor has AVX2 or ARM's dot products. They miss a row only if its estimate is wrong by more
    than 8 standard deviations, about once in 10^15 scores.

        >>> corpus = ["A man is eating.", "Stocks fell."]
        >>> hits, = semantic_search("markets", corpus, encoder=Encoder.load("mini"), top_k=1)
        >>> corpus[hits[0]["corpus_id"]]
        'Stocks fell.'

    Args:
        queries: texts or a single text, or vectors float32 (queries, dim) or (dim,).
        corpus: texts, or vectors float32 (rows, dim).
        encoder: embeds texts: queries by `encode_query`, the corpus by `encode_document`.
        top_k: how many for each query.

    Returns:
        For each query a list of `{"corpus_id": row, "score": cosine}`, best first, with
        min(top_k, rows) entries.

    Raises:
        InputTypeError, InputValueError: as `most_similar_pairs`, or lengths that differ.
    """
    top_k = whole_number("top_k", top_k, 0, most=None)
    left = _unit_vectors("queries", queries, encoder, query=True)
    right = _unit_vectors("corpus", corpus, encoder)
    if len(left) and len(right) and left.shape[1] != right.shape[1]:
        raise InputValueError(
            f"queries have {left.shape[1]} dimensions, and the corpus has {right.shape[1]}"
        )
    if not len(right):
        return [[] for _ in left]
    rows, scores = _nearest(left, right, top_k)
    return [
        [{"corpus_id": row, "score": score} for row, score in zip(r, s, strict=True)]
        for r, s in zip(rows.tolist(), scores.tolist(), strict=True)
    ]


def _nearest(queries: Floats, rows: Floats, top_k: int) -> tuple[Indices, Floats]:
    """The nearest rows of each query and their scores, (queries, min(top_k, rows))."""
    are_few = 0 < top_k <= _MOST_NEAREST * len(rows)
    are_many = len(queries) >= _LEAST_QUERIES and len(rows) >= _LEAST_ROWS
    if not (are_few and are_many and _can_be_scanned(rows)):
        return nearest(queries, rows, top_k, "cosine")
    rows, threads = np.ascontiguousarray(rows), available_cores()
    codes = Codes(rows.shape[1], squared=False)
    fitted = Frame.fit if len(queries) >= _LEAST_FITTED else Frame.at_random
    codes.begin(fitted(rows))
    step = _ENCODED_NUMBERS // rows.shape[1] + 1
    for first in range(0, len(rows), step):
        codes.add(rows[first : first + step], threads)
    places = Places(None, 0, rows)
    step = min(_MOST_QUERIES, _SCANNED_NUMBERS * threads // rows.size + 1)
    parts = [
        codes.search(
            queries[first : first + step], top_k, places, last=len(rows), reach=_REACH,
            threads=threads,
        )
        for first in range(0, len(queries), step)
    ]  # fmt: skip
    return np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])


def _unit_vectors(
    name: str, items: object, encoder: Encoder | None, *, query: bool = False
) -> Floats:
    """Vectors of length one, float32 (items, dim)."""
    if isinstance(items, str):
        if not query:
            raise InputTypeError(f"{name} must be a list, not a single str")
        items = [items]
    if len(getattr(items, "shape", ())) == 2 and hasattr(items, "to_numpy"):
        items = items.to_numpy()  # a DataFrame, whose values are its columns
    # Columns of pandas and other libraries have no fixed type: a list shows what they hold.
    if not isinstance(items, Iterable):
        raise InputTypeError(f"{name} must be a list, not {type(items).__name__}")
    listed = items if isinstance(items, np.ndarray) else list(python_values(items))
    if any(isinstance(item, str) for item in listed[:1]):
        if encoder is None:
            raise InputValueError(f"{name} are texts: give an encoder to embed them")
        check_encoder(encoder)
        embed = encoder.encode_query if query else encoder.encode_document
        return normalize(embed(cast(list[str], listed)))
    try:
        rows = np.asarray(listed, dtype=np.float32)
    except (OverflowError, TypeError, ValueError) as error:
        raise InputTypeError(f"{name} are neither texts nor vectors: {error}") from None
    if query and rows.ndim == 1 and rows.size:
        rows = rows[None]
    if rows.ndim == 1 and not rows.size:
        rows = rows.reshape(0, 0)
    if rows.ndim != 2:
        raise InputValueError(f"{name} must be texts, or vectors (items, dim), not {rows.shape}")
    bad = np.flatnonzero(~np.isfinite(rows).all(axis=1))
    if len(bad):
        raise InputValueError(f"row {bad[0]} of {name} holds NaN or infinity")
    return normalize(rows)
