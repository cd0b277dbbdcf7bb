"""The nearest rows by an HNSW graph, and by other means among those that it does not hold."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from flowvec.collection.index.hnsw import EF_SEARCH, Graph
from flowvec.collection.index.vector_table import VectorTable
from flowvec.hnsw import Places
from flowvec.vectors import merge_best

__all__ = [
    "GraphHits",
    "candidates",
    "eligible_slots",
    "search_graph",
    "search_rest",
]

Floats = npt.NDArray[np.float32]
Labels = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

# With a filter the graph returns more rows than k: k / (share of eligible rows), times the first
# number, plus the second.
_OVER_FETCH = 1.5
_OVER_FETCH_LEAST = 16
# Most candidates fetched at once when filtering (64 MiB).
_MAX_FETCHED = 1 << 22
# The unit of these costs is an eligible row that is copied and compared.
_COST_OF_CANDIDATE = 8.0
_COST_OF_SLOT = 0.3


def candidates(k: int, eligible: int, slots: int, share: float) -> int | None:
    """How many candidates to ask of the graph so that k are eligible; None: compare exactly.

    Measured with rows of 384 dimensions, a core of an AMD EPYC (Zen 3), one query: the graph takes
    1.3 to 2 us for a candidate of 40,000 rows, and 3 us of a million; copying and comparing
    eligible rows takes .15 us a row if they are few, .45 us if many; comparing all, .13 us a row.

    Args:
        k: how many rows are wanted.
        eligible: how many rows may be found.
        slots: how many rows an exact search looks at.
        share: which share of the query's neighbours is probably eligible.
    """
    wanted = int(k / share * _OVER_FETCH) + _OVER_FETCH_LEAST
    exact = min(float(eligible), _COST_OF_SLOT * slots)
    return None if wanted * _COST_OF_CANDIDATE >= exact else wanted


@dataclass(frozen=True, slots=True)
class GraphHits:
    """What a graph found: the k nearest eligible rows of the first slots.

    Attributes:
        in_graph: how many slots those are.
        labels: int64 (queries, k).
        scores: float32 (queries, k).
        is_done: for which queries it found k, bool (queries,).
        places: the vectors that it compared, which are not checked yet.
    """

    in_graph: int
    labels: Labels
    scores: Floats
    is_done: Mask
    places: Places


def eligible_slots(table: VectorTable, mask: Mask | None) -> Mask:
    """Which slots may be found, bool (slots,)."""
    return table.live if mask is None else table.live & mask


def search_graph(
    table: VectorTable,
    graph: Graph,
    in_graph: int,
    queries: Floats,
    k: int,
    mask: Mask | None,
    ef: int = EF_SEARCH,
    *,
    most_fetched: int = _MAX_FETCHED,
) -> GraphHits | None:
    """The k nearest rows of a table's first slots, by a graph that nobody changes meanwhile.

    With a filter, the graph returns more rows than k, and those that are not eligible are left out.
    Where too few are left, because eligible rows are far from the query, it is asked for more while
    that is cheaper than an exact search.

    Args:
        table: the rows.
        graph: holds the rows of the first slots, and perhaps deleted ones.
        in_graph: how many slots those are.
        queries: float32 (queries, dim), as the metric compares them.
        k: how many; fewer are found if fewer are eligible.
        mask: slots that may be found, bool (slots,); None is all.
        ef: search depth in the graph.
        most_fetched: candidates fetched at once.

    Returns:
        None if an exact search is cheaper for all queries.
    """
    eligible, older = eligible_slots(table, mask), table.count
    if mask is not None or in_graph < table.slots:
        older = int(np.count_nonzero(eligible[:in_graph]))
    k = min(k, older)
    wanted: int | None = k
    if wanted and older < len(graph):
        wanted = candidates(k, older, in_graph, older / len(graph))
    if not wanted or not len(queries):
        return None
    step = max(1, most_fetched // max(wanted, ef))
    places = table.places()
    parts = [
        _search_slots_of(
            graph, table, places, queries[start : start + step], k, eligible, in_graph, older,
            wanted, ef,
        )
        for start in range(0, len(queries), step)
    ]  # fmt: skip
    if len(parts) == 1:
        return GraphHits(in_graph, *parts[0], places)
    labels, scores, is_done = (np.concatenate(part) for part in zip(*parts, strict=True))
    return GraphHits(in_graph, labels, scores, is_done, places)


def search_rest(
    table: VectorTable,
    queries: Floats,
    k: int,
    mask: Mask | None,
    hits: GraphHits | None,
    *,
    exact: bool = True,
) -> tuple[Labels, Floats]:
    """The k nearest rows: what a graph found, and the best of the slots that it does not hold.

    Args:
        table: all rows, in the state that the graph was searched in.
        queries: float32 (queries, dim), as the metric compares them.
        k: how many; fewer are returned if fewer are eligible.
        mask: slots that may be found, bool (slots,); None is all.
        hits: what the graph found; None looks at all rows.
        exact: compare the vectors of these rows instead of scanning codes.

    Returns:
        Labels int64 and scores float32, (queries, min(k, eligible)), best first.

    Raises:
        VectorFileError: as for `VectorTable.search`.
    """
    search = table.search if exact else table.scan
    if hits is None or not table.are_good(hits.places):
        return search(queries, k, mask)
    if hits.in_graph == table.slots and hits.is_done.all():
        return hits.labels, hits.scores
    k = min(k, int(np.count_nonzero(eligible_slots(table, mask))))
    best, scores = np.empty((len(queries), k), np.int64), np.empty((len(queries), k), np.float32)
    done, rest = np.flatnonzero(hits.is_done), np.flatnonzero(~hits.is_done)
    if len(done):
        found = hits.labels[done], hits.scores[done]
        if hits.in_graph < table.slots:
            recent = search(queries[done], k, mask, hits.in_graph)
            found = merge_best(*found, *recent, k)
        best[done], scores[done] = found
    if len(rest):
        best[rest], scores[rest] = search(queries[rest], k, mask)
    return best, scores


def _search_slots_of(
    graph: Graph,
    table: VectorTable,
    places: Places,
    queries: Floats,
    k: int,
    eligible: Mask,
    in_graph: int,
    older: int,
    wanted: int,
    ef: int,
) -> tuple[Labels, Floats, Mask]:
    """The k nearest eligible rows of the first slots, and for which queries the graph found k."""
    labels, scores = np.zeros((len(queries), k), np.int64), np.zeros((len(queries), k), np.float32)
    is_done = np.zeros(len(queries), np.bool_)
    while True:
        pending = np.flatnonzero(~is_done)
        nearest = graph.search(queries[pending], min(wanted, len(graph)), ef, table.labels, places)
        if nearest is None:
            return labels, scores, is_done
        # Each label that the graph returns is one of those that it was given.
        slots = np.searchsorted(table.labels, nearest[0])
        is_eligible = eligible[slots]
        if in_graph < table.slots:
            is_eligible &= slots < in_graph
        are_enough = is_eligible.shape[1] >= k and is_eligible.all()
        if are_enough and len(pending) == len(queries):
            return nearest[0][:, :k], nearest[1][:, :k], ~is_done
        counts = is_eligible.sum(axis=1)
        enough = counts >= k
        # A stable sort moves the eligible rows to the front and keeps their order.
        first = np.argsort(~is_eligible[enough], axis=1, kind="stable")[:, :k]
        labels[pending[enough]] = np.take_along_axis(nearest[0][enough], first, 1)
        scores[pending[enough]] = np.take_along_axis(nearest[1][enough], first, 1)
        is_done[pending[enough]] = True
        before = is_eligible.shape[1]
        if is_done.all() or before >= len(graph):
            return labels, scores, is_done
        share = max(float(counts[~enough].min()), 0.5) / before
        again = candidates(k, older, in_graph, share)
        if again is None or again <= before:
            return labels, scores, is_done
        wanted = again
