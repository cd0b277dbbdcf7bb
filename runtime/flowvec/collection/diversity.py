"""Chooses hits that differ from each other: maximal marginal relevance."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from flowvec.arguments import flag, number
from flowvec.collection.query import SearchOptions
from flowvec.collection.reranking import RERANK_FROM
from flowvec.collection.results import Hit
from flowvec.collection.search_plan import SearchPlan
from flowvec.collection.store.filters import Filter
from flowvec.collection.validation import check_k
from flowvec.encoder.postprocess import normalize
from flowvec.errors import InputValueError
from flowvec.vectors import Metric, scores

__all__ = ["FETCH_K", "LAMBDA_MULT", "Diversity", "most_diverse"]

# How many hits are chosen from, and how much their nearness counts.
FETCH_K = 50
LAMBDA_MULT = 0.5


@dataclass(frozen=True, slots=True)
class Diversity:
    """Checked options of a search by maximal marginal relevance.

    Attributes:
        k: how many hits to choose.
        fetched: how many hits of a search to choose from.
        lambda_mult: weight of the relevance, from 0 to 1.
        with_vectors: whether the chosen hits have their vectors.
    """

    k: int
    fetched: int
    lambda_mult: float
    with_vectors: bool = False

    @classmethod
    def checked(cls, k: int, fetch_k: int, lambda_mult: float, with_vectors: bool) -> Diversity:
        """Check a caller's options.

        Raises:
            InputTypeError, InputValueError: one of them is not valid.
        """
        count, fetched = check_k(k), check_k(fetch_k, "fetch_k")
        weight = number("lambda_mult", lambda_mult)
        if not 0 <= weight <= 1:
            raise InputValueError(f"lambda_mult must be from 0 to 1, but is {lambda_mult}")
        fetched = max(count, fetched) if count else 0
        return cls(count, fetched, weight, flag("with_vectors", with_vectors))

    def plan(
        self,
        query: str | npt.ArrayLike,
        dim: int,
        filter: Filter | None,
        *,
        exact: bool,
        ef: int | None,
    ) -> SearchPlan:
        """The search whose hits are chosen from.

        Args:
            query: a text or a vector.
            dim: length of the collection's vectors.
            filter: as the other options, the caller's.
            exact: compare every row.
            ef: depth of the graph.

        Raises:
            InputTypeError, InputValueError: one of them is not valid.
        """
        options = SearchOptions.checked(self.fetched, filter, exact=exact, ef=ef, with_vectors=True)
        return SearchPlan.checked(
            [query], None, options, name="query", dim=dim, rerank=None, rerank_from=RERANK_FROM
        )

    def __call__(self, hits: Sequence[Hit], metric: Metric) -> list[Hit]:
        """The chosen hits, in the order of choice.

        Args:
            hits: best first, with their vectors.
            metric: the collection's.
        """
        if not hits or not self.k:
            return []
        vectors = np.stack([hit.vector for hit in hits if hit.vector is not None])
        relevance = np.array([hit.score for hit in hits])
        chosen = most_diverse(vectors, relevance, self.k, self.lambda_mult, metric)
        if self.with_vectors:
            return [hits[i] for i in chosen]
        return [replace(hits[i], vector=None) for i in chosen]


def most_diverse(
    vectors: npt.NDArray[np.float32],
    relevance: npt.NDArray[np.float64],
    k: int,
    lambda_mult: float,
    metric: Metric,
) -> list[int]:
    """Rows by maximal marginal relevance (Carbonell and Goldstein, SIGIR 1998), in order of choice.

    The next row is the one with the largest lambda x relevance - (1 - lambda) x redundancy. The
    redundancy is its largest similarity with the rows that were chosen before; the first row has
    none. Of equal rows the first is chosen.

    Args:
        vectors: float32 (rows, dim).
        relevance: scores of the rows with the query by the metric, float64 (rows,).
        k: how many.
        lambda_mult: lambda, from 0 to 1.
        metric: how rows are compared with each other.

    Returns:
        min(k, rows) indices of rows.
    """
    rows = normalize(vectors) if metric == "cosine" else vectors
    gain = lambda_mult * relevance
    redundancy = np.full(len(rows), -math.inf)
    left = np.ones(len(rows), dtype=bool)
    chosen: list[int] = []
    for _ in range(min(k, len(rows))):
        value = gain - (1 - lambda_mult) * redundancy if chosen else relevance
        best = int(np.argmax(np.where(left, value, -math.inf)))
        chosen.append(best)
        left[best] = False
        np.maximum(redundancy, scores(rows[best : best + 1], rows, metric)[0], out=redundancy)
    return chosen
