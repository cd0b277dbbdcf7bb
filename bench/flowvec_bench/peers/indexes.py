"""Compares indexes on the same vectors: recall, queries per second, build time and bytes."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from flowvec.errors import InputValueError
from flowvec.vectors import top_k
from flowvec_bench.peers.registry import Peer
from flowvec_bench.peers.runner import Lineup, Runner, lined_up

__all__ = ["EFS", "INDEXES", "IndexRow", "least_effort", "race_indexes", "recall_at_10"]

_WORKER = Path(__file__).parents[1] / "workers" / "indexes.py"
K = 10
# Steps of about a tenth; the smallest ef is then searched between two of them. With coarser steps,
# an index that just misses the recall would look slow.
EFS = (
    10, 12, 14, 17, 20, 24, 28, 32, 36, 40, 44, 48, 53, 58, 64, 70, 76, 82, 88, 96, 104, 112, 124,
    136, 150, 165, 180, 200, 220, 240, 265, 290, 320, 350, 385, 425, 470, 520, 570, 640,
)  # fmt: skip
_SINGLE = 500

FLOWVEC = "flowvec, graph"
INDEXES: dict[str, Peer] = {
    "flowvec": Peer(FLOWVEC, "flowvec", (), {}, (None,), "vectors"),
    # It has no ef: each gives the same.
    "flowvec-scan": Peer(
        "flowvec, scan without ef", "flowvec", (), {"index": "scan"}, (None,), "vectors"
    ),
    # Reads the collection that the first one built, in its own process.
    "flowvec-rows": Peer(
        "flowvec, graph, whole rows", "flowvec", (), {"rows": True, "built_by": FLOWVEC}, (None,),
        "vectors",
    ),
    "hnswlib": Peer("hnswlib 0.8", "hnswlib", (), {}, (None,), "vectors"),
    "faiss": Peer(
        "faiss HNSW", "faiss", ("faiss-cpu==1.15.0", "numpy"), {}, (None,), "vectors"
    ),
    "usearch": Peer(
        "usearch float32", "usearch", ("usearch==2.26.0", "numpy"), {"dtype": "f32"}, (None,),
        "vectors",
    ),
    "usearch-float16": Peer(
        "usearch float16", "usearch", ("usearch==2.26.0", "numpy"), {"dtype": "f16"}, (None,),
        "vectors",
    ),
}  # fmt: skip


@dataclass(slots=True)
class IndexRow:
    """One index.

    Attributes:
        name: of the peer.
        build_seconds: median time to add all vectors; flowvec's are then on disk with checksums.
            None for one that reads another's.
        builds: seconds of each build.
        bytes: size on disk.
        open_seconds: time to read it again.
        curve: recall@10 by ef.
        ef: the smallest that reaches the recall; None if none does.
        recall: recall with this ef.
        per_second: queries per second in one call, the median of the rounds.
        ratio: the first row's queries per second divided by this one's, the median over the rounds.
        single_p50: median milliseconds of single queries.
        single_p99: the 99th percentile.
        versions: versions of the relevant packages.
        error: why there are no figures; None if there are.
    """

    name: str
    build_seconds: float | None = None
    builds: list[float] = field(default_factory=list)
    bytes: int | None = None
    open_seconds: float | None = None
    curve: dict[int, float] = field(default_factory=dict)
    ef: int | None = None
    recall: float | None = None
    per_second: float | None = None
    ratio: float | None = None
    single_p50: float | None = None
    single_p99: float | None = None
    versions: dict[str, str] = field(default_factory=dict)
    error: str | None = None


def recall_at_10(neighbours: npt.NDArray[np.int64], exact: npt.NDArray[np.int64]) -> float:
    """Share of each query's ten nearest that were found, the mean over the queries."""
    pairs = zip(neighbours.tolist(), exact.tolist(), strict=True)
    return float(np.mean([len({*a} & {*b}) / len(b) for a, b in pairs]))


def least_effort(recall_with: Callable[[int], float], recall: float) -> int | None:
    """The smallest ef that reaches a recall, within about 2 %; None if none does.

    Args:
        recall_with: gives the recall of an ef; it rises with ef, except for noise.
        recall: the recall to reach.
    """
    low = 0
    for high in EFS:
        if recall_with(high) >= recall:
            break
        low = high
    else:
        return None
    while high - low > max(1, high // 50):
        middle = (low + high) // 2
        low, high = (low, middle) if recall_with(middle) >= recall else (middle, high)
    return high


def race_indexes(
    peers: Sequence[Peer],
    vectors: npt.NDArray[np.float32],
    queries: npt.NDArray[np.float32],
    folder: Path,
    threads: int,
    *,
    recall: float = 0.95,
    m: int = 16,
    ef_construction: int = 200,
    rounds: int = 5,
    builds: int = 1,
    on_step: Callable[[str], object] | None = None,
) -> list[IndexRow]:
    """Build every index, find the smallest ef for the recall, and time them in interleaved rounds.

    Args:
        peers: from `INDEXES`; the others are compared with the first.
        vectors: float32 (rows, dim), of length one.
        queries: float32 (queries, dim), of length one.
        folder: folder for temporary files.
        threads: cores for each.
        recall: recall of the ten nearest that the timed searches reach.
        m: links per element.
        ef_construction: ef while building.
        rounds: timed passes.
        builds: builds of each index, interleaved; the last is searched.
        on_step: called with a line of text before each step.

    Raises:
        InputValueError: fewer than ten vectors, or no queries.
        FlowvecError: the first peer fails.
    """
    if len(vectors) < K or not len(queries) or not peers:
        raise InputValueError("there must be an index, ten vectors and a query")
    say = on_step or (lambda _: None)
    exact, _ = top_k(queries, vectors, K, "ip")
    file, batch, single = (folder / f"{name}.npy" for name in ("vectors", "queries", "single"))
    for path, rows in ((file, vectors), (batch, queries), (single, queries[:_SINGLE])):
        np.save(path, rows)
    rows_of = {peer.name: IndexRow(peer.name) for peer in peers}
    times: dict[str, list[float]] = {}
    waits: dict[str, list[float]] = {}

    def search(runner: Runner, ef: int, save: Path | None = None) -> float:
        answer = runner.ask(
            do="search", queries=str(batch), ef=ef, singly=False, save=save and str(save)
        )
        return float(answer["seconds"])

    def build(runner: Runner) -> None:
        if "built_by" in runner.peer.options:
            return
        row = rows_of[runner.peer.name]
        say(f"building {row.name}")
        built = runner.ask(do="build")
        row.builds.append(round(built["seconds"], 3))
        row.build_seconds, row.bytes = statistics.median(row.builds), built["bytes"]

    def prepare(runner: Runner) -> None:
        row = rows_of[runner.peer.name]
        say(f"choosing the ef of {row.name}")
        row.open_seconds = round(runner.ask(do="open")["seconds"], 3)
        neighbours = folder / "neighbours.npy"

        def recall_with(ef: int) -> float:
            if ef not in row.curve:
                search(runner, ef, neighbours)
                row.curve[ef] = round(recall_at_10(np.load(neighbours), exact), 4)
            return row.curve[ef]

        row.ef = least_effort(recall_with, recall)
        row.recall = None if row.ef is None else row.curve[row.ef]
        row.curve = dict(sorted(row.curve.items()))

    def once(runner: Runner) -> None:
        row = rows_of[runner.peer.name]
        if row.ef is not None:
            times.setdefault(row.name, []).append(search(runner, row.ef))

    def singly(runner: Runner) -> None:
        row = rows_of[runner.peer.name]
        if row.ef is not None:
            answer = runner.ask(do="search", queries=str(single), ef=row.ef, singly=True)
            waits.setdefault(row.name, []).extend(answer["waits"])

    options: dict[str, Any] = {
        "threads": threads, "m": m, "ef_construction": ef_construction,
    }  # fmt: skip
    peers = [_with_folder(peer, folder) for peer in peers]
    with lined_up(peers, {"vectors": file}, options, say, worker=_WORKER) as lineup:
        for _ in range(builds):
            lineup.each(build)
        lineup.each(prepare)
        for number in range(rounds):
            say(f"round {number + 1} of {rounds}")
            lineup.each(once)
            lineup.each(singly)
    for name, seconds in waits.items():
        percentiles = 1000 * np.percentile(seconds, (50, 99))
        rows_of[name].single_p50, rows_of[name].single_p99 = (
            round(float(milliseconds), 4) for milliseconds in percentiles
        )
    _finish(rows_of, lineup, times, len(queries))
    return list(rows_of.values())


def _with_folder(peer: Peer, folder: Path) -> Peer:
    subfolder = folder / str(peer.options.get("built_by", peer.name)).replace(" ", "-").replace(
        ",", ""
    )
    subfolder.mkdir(exist_ok=True)
    return replace(peer, options={**peer.options, "folder": str(subfolder)})


def _finish(
    rows: dict[str, IndexRow], lineup: Lineup, times: dict[str, list[float]], queries: int
) -> None:
    base = times.get(lineup.peers[0].name, [])
    for name, row in rows.items():
        row.error = lineup.errors.get(name)
        row.versions = lineup.versions.get(name, {})
        own_times = times.get(name, [])
        if own_times and not row.error:
            row.per_second = round(queries / statistics.median(own_times), 1)
            ratios = [seconds / first for seconds, first in zip(own_times, base, strict=False)]
            row.ratio = round(statistics.median(ratios), 3) if ratios else None
