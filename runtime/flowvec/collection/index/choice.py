"""What answers a search of so many rows: all vectors, a scan of codes, or the graph."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from flowvec.arguments import choice, whole_number
from flowvec.collection.results import SearchKind
from flowvec.hnsw import has_fast_scan

__all__ = ["DEFAULT", "IndexChoice", "IndexKind"]

IndexKind = Literal["auto", "scan", "graph"]

# Up to this many rows all vectors are compared, in about a millisecond.
_EXACT_BELOW = 10_000
# Up to this many rows a scan answers one query as fast as the graph at the same recall, and many
# queries faster: see bench/log/2026-11-29.md. Without AVX2 it takes 10 to 30 times as long.
_SCAN_BELOW, _SLOW_SCAN_BELOW = 500_000, 50_000
# With a filter that leaves a smaller share of the rows, they are scanned.
_LEAST_SHARE_OF_GRAPH = 1 / 4


@dataclass(frozen=True, slots=True)
class IndexChoice:
    """What a collection was opened with.

    Attributes:
        kind: `scan` has no graph, `graph` no scan, and `auto` has a graph where it is faster.
        exact_below: up to this many rows all vectors are compared.
    """

    kind: IndexKind = "auto"
    exact_below: int = _EXACT_BELOW

    @classmethod
    def checked(cls, kind: object, exact_below: object) -> IndexChoice:
        """The choice of a user, whose None is the default.

        Raises:
            InputValueError, InputTypeError: an unknown kind, or no whole number.
        """
        limit = _EXACT_BELOW if exact_below is None else whole_number("exact_below", exact_below, 0)
        return cls(choice("index", kind, get_args(IndexKind)), limit)

    def scans(self, mask: npt.NDArray[np.bool_]) -> bool:
        """Whether a scan is faster than the graph for a filter, bool (slots,).

        A scan skips most of what the filter excludes. A graph passes through it, and through much
        of it where the rows that the filter leaves are far from the query.
        """
        count = int(np.count_nonzero(mask))
        # Codes are compared eight rows at a time.
        compared = min(len(mask), 8 * count)
        few = count < _LEAST_SHARE_OF_GRAPH * len(mask) and compared <= 2 * _most_scanned()
        return self.kind == "auto" and few

    def of(self, rows: int) -> SearchKind:
        """What answers a search of so many rows."""
        if rows <= self.exact_below:
            return "exact"
        if self.kind == "auto":
            return "scan" if rows <= _most_scanned() else "graph"
        return self.kind


@cache
def _most_scanned() -> int:
    return _SCAN_BELOW if has_fast_scan() else _SLOW_SCAN_BELOW


DEFAULT = IndexChoice()
