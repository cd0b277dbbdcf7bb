"""Recall of a graph beside rows with equal and nearly equal vectors.

    python bench/equal_vectors.py --vectors VECTORS.npy --rows 3000 --copies 6000

Without `--vectors`, rows are random. The last 300 vectors of a file are the queries.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import numpy.typing as npt

from flowvec.collection.index.hnsw import EF_SEARCH, Graph
from flowvec.hnsw import Places
from flowvec.vectors import METRICS, Metric, scores

Floats = npt.NDArray[np.float32]
QUERIES, K, STEP = 300, 10, 2048
CASES = (
    (0, 0.0, "last"), (1, 0.0, "first"), (1, 0.0, "mixed"), (1, 0.0, "last"), (300, 0.0, "mixed"),
    (1, 1e-7, "first"), (1, 1e-7, "mixed"), (300, 1e-7, "first"), (300, 1e-7, "last"),
)  # fmt: skip


def unit(rows: npt.NDArray[np.floating]) -> Floats:
    """The rows with length one."""
    return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True), np.float32)


def copies_of(others: Floats, groups: int, apart: float, copies: int, metric: Metric) -> Floats:
    """Rows in groups around points that lie near other rows."""
    rng = np.random.default_rng(1)
    centres = others[rng.permutation(len(others))[:groups]].astype(np.float64)
    lengths = np.linalg.norm(centres, axis=1, keepdims=True)
    centres += 0.3 * lengths * unit(rng.normal(size=centres.shape))
    rows = np.repeat(centres, copies // max(1, groups), axis=0)
    rows = (rows + apart * rng.normal(size=rows.shape)).astype(np.float32)
    return unit(rows) if metric == "cosine" else rows


def measure(others: Floats, queries: Floats, copies: Floats, order: str, metric: Metric) -> str:
    """Recall of the ten nearest, queries without one of them, and times of one core or more."""
    rows = np.concatenate((copies, others) if order == "first" else (others, copies))
    if order == "mixed":
        rows = rows[np.random.default_rng(2).permutation(len(rows))]
    graph, begun = Graph(rows.shape[1], metric), time.process_time()
    for start in range(0, len(rows), STEP):
        part = rows[start : start + STEP]
        graph.add(np.arange(start + 1, start + 1 + len(part)), part)
    built, exact = time.process_time(), scores(queries, rows, metric)
    tenth = np.sort(exact, axis=1)[:, -K][:, None]
    begun_searching = time.process_time()
    labels = np.arange(1, len(rows) + 1)
    found = graph.search(queries, K, EF_SEARCH, labels, Places(None, 0, rows))
    searched = time.process_time()
    assert found is not None
    # Which of equal rows is found does not matter.
    near = np.take_along_axis(exact, found[0] - 1, 1)
    hits = near >= tenth - 1e-5 * np.maximum(1, np.abs(tenth))
    query = (searched - begun_searching) / len(queries) * 1e6
    return (
        f"recall {hits.mean():.4f}, no hit {np.mean(~hits.any(axis=1)):.3f}, "
        f"build {built - begun:.1f} s, query {query:.0f} us"
    )


def main() -> None:
    """Measure all cases."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--vectors")
    parser.add_argument("--rows", type=int, default=3000)
    parser.add_argument("--copies", type=int, default=6000)
    arguments = parser.parse_args()
    rng = np.random.default_rng(0)
    vectors = (
        np.load(arguments.vectors) if arguments.vectors
        else rng.normal(size=(arguments.rows + QUERIES, 48))
    )  # fmt: skip
    vectors = unit(vectors)
    others, queries = vectors[: arguments.rows], vectors[-QUERIES:]
    for metric in METRICS:
        if metric == "ip":
            others = others * rng.lognormal(0, 0.4, size=(len(others), 1)).astype(np.float32)
        for groups, apart, order in CASES:
            copies = copies_of(others, groups, apart, arguments.copies, metric)
            shown = measure(others, queries, copies, order, metric)
            print(f"{metric}, {groups} groups {apart:g} apart, {order}: {shown}", flush=True)


if __name__ == "__main__":
    main()
