"""How long a collection takes to find rows by their sparse vectors, and what it holds in memory.

    python bench/sparse_collection.py --rows 1000000 --terms 100

Terms are drawn as words occur (Zipf, exponent .9, 30,522 terms), weights are uniform. Prints one
JSON object: seconds to write and for the first search, milliseconds of later searches for queries
of 10, 30 and 60 terms, and of a change with the search after it. Needs the extra [cpu].
"""

from __future__ import annotations

import argparse
import json
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from flowvec import Collection, SparseVectors

_VOCABULARY = 30_522
_EXPONENT = 0.9
_AT_ONCE = 20_000
_QUERIES = 100


class Drawn:
    """Random sparse vectors whose terms are as frequent as words are."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        shares = 1 / np.arange(1, _VOCABULARY + 1) ** _EXPONENT
        self._until = np.cumsum(shares / shares.sum())

    def __call__(self, rows: int, terms: int) -> SparseVectors:
        """So many vectors of so many terms each."""
        drawn = np.searchsorted(self._until, self.random.random((rows, 2 * terms)))
        lists = [self._some(np.unique(row), terms) for row in drawn]
        indices = np.concatenate(lists).astype(np.int32)
        indptr = np.cumsum([0, *map(len, lists)]).astype(np.int64)
        weights = self.random.random(len(indices), np.float32)
        return SparseVectors(indptr, indices, weights, _VOCABULARY)

    def _some(self, distinct: Any, terms: int) -> Any:
        if len(distinct) <= terms:
            return distinct
        return np.sort(self.random.choice(distinct, terms, replace=False))


def main() -> None:
    """Write a collection, search it, change it, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--terms", type=int, default=100)
    arguments = parser.parse_args()
    drawn = Drawn(0)
    with tempfile.TemporaryDirectory(prefix="flowvec-") as name:
        path = Path(name) / "collection"
        figures: dict[str, Any] = {"rows": arguments.rows, "terms": arguments.terms}
        figures["write_s"] = _written(path, drawn, arguments.rows, arguments.terms)
        with Collection.open(path) as collection:
            figures |= _searched(collection, drawn, arguments.terms)
    print(json.dumps(figures, indent=2))


def _written(path: Path, drawn: Drawn, rows: int, terms: int) -> float:
    seconds = 0.0
    with Collection.create(path, dim=8) as collection:
        for first in range(0, rows, _AT_ONCE):
            ids = range(first, min(rows, first + _AT_ONCE))
            sparse = drawn(len(ids), terms)
            vectors = drawn.random.random((len(ids), 8), np.float32)
            seconds += _timed(lambda: collection.add_vectors(ids, vectors, sparse=sparse))  # noqa: B023
    return round(seconds, 1)


def _searched(collection: Collection, drawn: Drawn, terms: int) -> dict[str, Any]:
    first = _timed(lambda: collection.search_sparse(drawn(1, 30)))
    figures: dict[str, Any] = {
        "first_search_s": round(first, 1),
        "memory_mb": round(collection.info().sparse_memory_bytes / 1e6),
        "peak_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3),
    }
    for length in (10, 30, 60):
        queries = [drawn(1, length) for _ in range(_QUERIES)]
        times = [1e3 * _timed(lambda: collection.search_sparse(q)) for q in queries]  # noqa: B023
        figures[f"{length}_terms_p50_ms"] = round(float(np.median(times)), 1)
        figures[f"{length}_terms_p99_ms"] = round(float(np.quantile(times, 0.99)), 1)
    vector, one, query = np.ones((1, 8)), drawn(1, terms), drawn(1, 30)
    changes: dict[str, Callable[[], object]] = {
        "add": lambda: collection.add_vectors(["new"], vector, sparse=one),
        "delete": lambda: collection.delete([5]),
    }
    for name, change in changes.items():
        figures[f"{name}_ms"] = round(1e3 * _timed(change), 1)
        figures[f"search_after_{name}_ms"] = round(
            1e3 * _timed(lambda: collection.search_sparse(query)), 1
        )
    return figures


def _timed(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
