"""Searches against brute force: any rows, k, filter, deletions and replacements.

    python -m tests.faults.searches --cases 20000 --seed 0

Every search must give exactly min(k, eligible) hits, best first, none twice, none deleted or left
out by the filter, each with its true score. Where it is exact, and in a scan, which computes the
scores of all of so few rows, these are the best there are. A graph may miss some: what it finds is
counted. Cases are drawn by Hypothesis, which shrinks what
fails.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from flowvec import Collection

DIM = 4
MOST = 48
# How collections are opened that are searched in one way.
_OPTIONS: dict[str, Any] = {
    "exact": {},
    "scan": {"index": "scan", "exact_below": 3},
    "graph": {"index": "graph", "exact_below": 3},
}

FILTERS = st.one_of(
    st.none(),
    st.builds(lambda n: {"n": {"<": n}}, st.integers(0, MOST)),
    st.builds(lambda g: {"g": g}, st.integers(0, 5)),
    st.builds(lambda g, n: {"not": {"g": g}, "n": {">=": n}}, st.integers(0, 5), st.integers(0, 9)),
    st.builds(lambda gs: {"or": [{"g": g} for g in gs]}, st.lists(st.integers(0, 5), max_size=3)),
)


@dataclass(frozen=True)
class Case:
    """One collection, and what is done to it."""

    rows: int
    values: int  # of the whole numbers that vectors consist of: few numbers make many equal vectors
    metric: str
    kind: str
    deleted: list[int]
    replaced: list[int]
    reopened: bool
    searches: list[tuple[int, Any, str]] = field(default_factory=list)


CASES = st.builds(
    Case,
    rows=st.integers(0, MOST),
    values=st.integers(1, 40),
    metric=st.sampled_from(["cosine", "ip", "l2"]),
    kind=st.sampled_from([*_OPTIONS]),
    deleted=st.lists(st.integers(0, MOST), max_size=MOST),
    replaced=st.lists(st.integers(0, MOST), max_size=12, unique=True),
    reopened=st.booleans(),
    searches=st.lists(
        st.tuples(st.integers(1, MOST + 5), FILTERS, st.sampled_from(["rows", "ids", "batch"])),
        min_size=1, max_size=4,
    ),
)  # fmt: skip


def metadata_of(i: int) -> dict[str, int]:
    return {"n": i, "g": i % 6}


def eligible(i: int, wanted: Any) -> bool:
    """What `FILTERS` mean, in Python."""
    if wanted is None:
        return True
    fields = metadata_of(i)
    for key, value in wanted.items():
        if key == "not":
            if eligible(i, value):
                return False
        elif key == "or":
            if not any(eligible(i, one) for one in value):
                return False
        elif isinstance(value, dict):
            ((operator, bound),) = value.items()
            if not (fields[key] < bound if operator == "<" else fields[key] >= bound):
                return False
        elif fields[key] != value:
            return False
    return True


def score(query: np.ndarray, row: np.ndarray, metric: str) -> float:
    a, b = query.astype(np.float64), row.astype(np.float64)
    if metric == "l2":
        return -float(np.linalg.norm(a - b))
    if metric == "cosine":
        norms = float(np.linalg.norm(a) * np.linalg.norm(b))
        return float(a @ b) / norms if norms else 0.0
    return float(a @ b)


def check(case: Case, folder: Path, counts: Counter[str]) -> None:
    """Play a case."""
    options = _OPTIONS[case.kind]
    rng = np.random.default_rng([case.rows, case.values])

    def draw(count: int) -> np.ndarray:
        return rng.integers(-case.values, case.values + 1, size=(count, DIM)).astype(np.float32)

    live: dict[int, np.ndarray] = {}
    with ExitStack() as stack:
        collection = stack.enter_context(
            Collection.create(folder, dim=DIM, metric=case.metric, **options)  # type: ignore[arg-type]
        )
        rows = draw(case.rows)
        collection.add_vectors(
            range(case.rows), rows, metadata=[*map(metadata_of, range(case.rows))]
        )
        live.update(enumerate(rows))
        if case.rows > 3:
            collection.search(rows[0])  # a graph that later changes must be followed by
        gone = set(case.deleted) & live.keys()
        assert collection.delete(case.deleted) == len(gone)
        for i in gone:
            del live[i]
        new = draw(len(case.replaced))
        collection.add_vectors(case.replaced, new, metadata=[*map(metadata_of, case.replaced)])
        live.update(zip(case.replaced, new, strict=True))
        if case.reopened:
            collection.close()
            collection = stack.enter_context(Collection.open(folder, **options))
        assert len(collection) == len(live)
        for k, wanted, way in case.searches:
            query = draw(1)[0]
            hits = _search(collection, query, k, wanted, way)
            _judge(case, live, query, k, wanted, hits, counts)


def _search(
    collection: Collection, query: np.ndarray, k: int, wanted: Any, way: str
) -> list[tuple[int, float]]:
    if way == "ids":
        ids, scores = collection.search_ids(query[None], k, filter=wanted)
        return [(int(i), float(s)) for i, s in zip(ids[0], scores[0], strict=True)]
    if way == "batch":
        other, hits = collection.search_batch(np.stack((-query, query)), k, filter=wanted)
        assert len(other) == len(hits)
    else:
        hits = collection.search(query, k, filter=wanted)
    assert all(hit.metadata == metadata_of(int(hit.id)) for hit in hits)
    return [(int(hit.id), hit.score) for hit in hits]


def _judge(
    case: Case, live: dict[int, np.ndarray], query: np.ndarray, k: int, wanted: Any,
    hits: list[tuple[int, float]], counts: Counter[str],
) -> None:  # fmt: skip
    able = [i for i in live if eligible(i, wanted)]
    ids = [i for i, _ in hits]
    assert len(hits) == min(k, len(able)), f"{len(hits)} hits of {min(k, len(able))}"
    assert len(set(ids)) == len(ids), "a row twice"
    assert set(ids) <= set(able), "a row that is gone or not eligible"
    scores = [s for _, s in hits]
    assert scores == sorted(scores, reverse=True), "not best first"
    best = sorted((score(query, live[i], case.metric) for i in able), reverse=True)[: len(hits)]
    room = 1e-4 * max(1.0, max(map(abs, best), default=0.0))
    for i, s in hits:
        assert abs(s - score(query, live[i], case.metric)) <= room, "another row's score"
    right = sum(abs(a - b) <= room for a, b in zip(scores, best, strict=True))
    kind = case.kind if len(live) > 3 else "exact"
    counts[f"{kind} searches"] += 1
    counts[f"{kind} hits"] += len(hits)
    counts[f"{kind} hits as good as the best"] += right
    assert kind == "graph" or right == len(hits), "not the best"


def campaign(cases: int, start: int, folder: Path) -> Counter[str]:
    """Play a number of cases, each in a new folder."""
    counts: Counter[str] = Counter()

    @seed(start)
    @settings(
        max_examples=cases, deadline=None, database=None,
        phases=(Phase.generate, Phase.shrink), suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(CASES)
    def play(case: Case) -> None:
        counts["cases"] += 1
        with tempfile.TemporaryDirectory(dir=folder) as own_folder:
            check(case, Path(own_folder) / "c", counts)

    play()
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cases", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="flowvec-") as temporary:
        counts = campaign(arguments.cases, arguments.seed, Path(temporary))
    print(json.dumps({"seed": arguments.seed, **counts,
                      "seconds": round(time.perf_counter() - begun),
                      "when": datetime.now(UTC).date().isoformat()}))  # fmt: skip


if __name__ == "__main__":
    main()
