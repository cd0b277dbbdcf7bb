"""Compares indexes on the same vectors: recall, queries per second, build time and bytes."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from flowvec.errors import InputValueError
from flowvec.vectors import top_k
from flowvec_bench.peers.registry import Peer
from flowvec_bench.peers.runner import Runner, lined_up

__all__ = ["INDEXES", "MOST", "IndexRow", "least_effort", "race_indexes", "recall_at_10"]

_WORKER = Path(__file__).parents[1] / "workers" / "indexes.py"
K = 10
# The most effort that is tried.
MOST = 4096
# Lists of an IVF that are read; all lists are tried last.
_PROBES = tuple(part * 2**power for power in range(12) for part in (2, 3))
_SINGLE = 500

FLOWVEC = "flowvec, graph"
_FAISS, _USEARCH = ("faiss-cpu==1.15.1", "numpy"), ("usearch==2.26.6", "numpy")
_TURBOVEC = ("turbovec==1.1.2", "numpy")


def _peer(name: str, engine: str, requirements: tuple[str, ...] = (), **options: Any) -> Peer:
    return Peer(name, engine, requirements, options, (None,), "vectors")


# `rescored` are those that need the vectors too, if more than ten rows are scored again.
INDEXES: dict[str, Peer] = {
    "flowvec": _peer(FLOWVEC, "flowvec"),
    # It has no ef: each gives the same.
    "flowvec-scan": _peer("flowvec, scan without ef", "flowvec", index="scan"),
    # Reads the collection that the first one built, in its own process.
    "flowvec-rows": _peer("flowvec, graph, whole rows", "flowvec", rows=True, built_by=FLOWVEC),
    "hnswlib": _peer("hnswlib 0.8", "hnswlib"),
    "faiss": _peer("faiss HNSW", "faiss", _FAISS),
    "faiss-ivfpq": _peer(
        "faiss IVF-PQ fast scan", "faiss-codes", _FAISS,
        factory="IVF{lists},PQ{half}x4fs", probes=True, rescored=True,
    ),
    "faiss-sq8": _peer("faiss SQ8", "faiss-codes", _FAISS, factory="SQ8", rescored=True),
    "usearch": _peer("usearch float32", "usearch", _USEARCH, dtype="f32"),
    "usearch-float16": _peer("usearch float16", "usearch", _USEARCH, dtype="f16"),
    "usearch-int8": _peer("usearch int8", "usearch", _USEARCH, dtype="i8", rescored=True),
    "turbovec": _peer("turbovec 4-bit", "turbovec", _TURBOVEC, bits=4, rescored=True),
    "turbovec-2bit": _peer("turbovec 2-bit", "turbovec", _TURBOVEC, bits=2, rescored=True),
}  # fmt: skip


@dataclass(slots=True)
class IndexRow:
    """One index at one recall.

    Attributes:
        name: of the peer.
        target: the recall to reach.
        build_seconds: median time until all vectors can be searched; flowvec's are then on disk
            with checksums. None for one that reads another's.
        builds: seconds of each build.
        bytes: size on disk, with the vectors if rows are scored again by them.
        open_seconds: time to read it again.
        curve: recall@10 by ef, of the queries that choose the ef.
        probes: lists that an IVF reads; 0 for the others.
        ef: the smallest that reaches the recall, or rows that are scored again; None if none does.
        recall: recall with this ef, of the queries that are timed.
        per_second: queries per second in one call, the median of the rounds.
        ratio: the first index's queries per second divided by this one's, the median over the
            rounds.
        single_p50: median milliseconds of single queries.
        single_p99: the 99th percentile.
        versions: versions of the relevant packages.
        error: why there are no figures; None if there are.
    """

    name: str
    target: float = 0.95
    build_seconds: float | None = None
    builds: list[float] = field(default_factory=list)
    bytes: int | None = None
    open_seconds: float | None = None
    curve: dict[int, float] = field(default_factory=dict)
    probes: int = 0
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


def least_effort(
    recall_with: Callable[[int], float], recall: float, most: int = MOST
) -> int | None:
    """The smallest ef from ten that reaches a recall, within about 2 %; None if none does.

    Args:
        recall_with: gives the recall of an ef; it rises with ef, except for noise. If it does not
            when ef doubles twice above 80, no more is tried. (An index may look deeper than it is
            told, so that the least efs give the same.)
        recall: the recall to reach.
        most: the largest ef.
    """
    low, high, best, flat = K - 1, K, -1.0, 0
    while (reached := recall_with(high)) < recall:
        flat = 0 if reached > best or high <= 8 * K else flat + 1
        if high >= most or flat == 2:
            return None
        low, high, best = high, min(2 * high, most), max(best, reached)
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
    recalls: Sequence[float] = (0.95,),
    m: int = 16,
    ef_construction: int = 200,
    rounds: int = 5,
    builds: int = 1,
    on_step: Callable[[str], object] | None = None,
) -> list[IndexRow]:
    """Build every index, find the least effort for each recall, and time it in interleaved rounds.

    Args:
        peers: from `INDEXES`; the others are compared with the first.
        vectors: float32 (rows, dim), of length one.
        queries: float32 (queries, dim), of length one. Every second one chooses efforts, the others
            are timed.
        folder: folder for temporary files.
        threads: cores for each.
        recalls: recalls of the ten nearest that the timed searches reach.
        m: links per element.
        ef_construction: ef while building.
        rounds: timed passes.
        builds: builds of each index, interleaved; the last is searched.
        on_step: called with a line of text before each step.

    Returns:
        For each recall, a row of each peer.

    Raises:
        InputValueError: fewer than ten vectors, or than two queries.
        FlowvecError: the first peer fails.
    """
    if len(vectors) < K or len(queries) < 2 or not peers or not recalls:
        raise InputValueError("there must be an index, a recall, ten vectors and two queries")
    say = on_step or (lambda _: None)
    exact, _ = top_k(queries, vectors, K, "ip")
    file, chosen, batch, single, neighbours = (
        folder / f"{name}.npy" for name in ("vectors", "chosen", "batch", "single", "neighbours")
    )
    timed = queries[1::2]
    for path, rows in (
        (file, vectors), (chosen, queries[::2]), (batch, timed), (single, timed[:_SINGLE]),
    ):  # fmt: skip
        np.save(path, rows)
    found = [IndexRow(peer.name, recall) for recall in recalls for peer in peers]
    times: defaultdict[tuple[Path, str, float], list[float]] = defaultdict(list)
    lists = max(1, int(4 * math.sqrt(len(vectors))))
    most = min(MOST, len(vectors))

    def rows_of(runner: Runner) -> list[IndexRow]:
        return [row for row in found if row.name == runner.peer.name]

    def search(runner: Runner, ef: int, probes: int, path: Path) -> list[float]:
        save = None if path == single else str(neighbours)
        asked: dict[str, Any] = {"queries": str(path), "ef": ef, "probes": probes, "save": save}
        seconds: list[float] = runner.ask(do="search", **asked)["seconds"]
        return seconds

    def build(runner: Runner) -> None:
        if "built_by" in runner.peer.options:
            return
        say(f"building {runner.peer.name}")
        built = runner.ask(do="build")
        for row in rows_of(runner):
            row.builds.append(round(built["seconds"], 3))
            row.build_seconds, row.bytes = statistics.median(row.builds), built["bytes"]

    def prepare(runner: Runner) -> None:
        say(f"choosing the effort of {runner.peer.name}")
        opened = round(runner.ask(do="open")["seconds"], 3)
        curves: dict[int, dict[int, float]] = {}

        def recall_with(probes: int, ef: int) -> float:
            curve = curves.setdefault(probes, {})
            if ef not in curve:
                search(runner, ef, probes, chosen)
                curve[ef] = round(recall_at_10(np.load(neighbours), exact[::2]), 4)
            return curve[ef]

        tried = [0]
        if runner.peer.options.get("probes"):
            tried = [*(probes for probes in _PROBES if probes < lists), lists]
        for row in rows_of(runner):
            row.open_seconds, least = opened, math.inf
            for probes in tried:
                ef = least_effort(partial(recall_with, probes), row.target, most)
                if ef is None:
                    row.probes = row.probes if row.ef else probes
                    continue
                seconds = min(search(runner, ef, probes, chosen)[0] for _ in range(2))
                if seconds < least:
                    row.probes, row.ef, least = probes, ef, seconds
                elif seconds > 1.5 * least:
                    break
            if row.ef is not None:
                search(runner, row.ef, row.probes, batch)
                row.recall = round(recall_at_10(np.load(neighbours), exact[1::2]), 4)
                if row.bytes and row.ef > K and runner.peer.options.get("rescored"):
                    row.bytes += vectors.nbytes
            row.curve = dict(sorted(curves[row.probes].items()))

    def once(recall: float, path: Path, runner: Runner) -> None:
        for row in rows_of(runner):
            if row.target == recall and row.ef is not None:
                times[path, row.name, recall] += search(runner, row.ef, row.probes, path)

    options: dict[str, Any] = {
        "threads": threads, "m": m, "ef_construction": ef_construction, "lists": lists,
    }  # fmt: skip
    peers = [_with_folder(peer, folder) for peer in peers]
    with lined_up(peers, {"vectors": file}, options, say, worker=_WORKER) as lineup:
        for _ in range(builds):
            lineup.each(build)
        lineup.each(prepare)
        for number in range(rounds):
            say(f"round {number + 1} of {rounds}")
            for recall in recalls:
                lineup.each(partial(once, recall, batch))
                lineup.each(partial(once, recall, single))
    for row in found:
        row.error = lineup.errors.get(row.name)
        row.versions = lineup.versions.get(row.name, {})
        if row.error or not (own := times[batch, row.name, row.target]):
            continue
        row.per_second = round(len(timed) / statistics.median(own), 1)
        base = times[batch, peers[0].name, row.target]
        ratios = [seconds / first for seconds, first in zip(own, base, strict=False)]
        row.ratio = round(statistics.median(ratios), 3) if ratios else None
        percentiles = 1000 * np.percentile(times[single, row.name, row.target], (50, 99))
        row.single_p50, row.single_p99 = (round(float(one), 4) for one in percentiles)
    return found


def _with_folder(peer: Peer, folder: Path) -> Peer:
    subfolder = folder / str(peer.options.get("built_by", peer.name)).replace(" ", "-").replace(
        ",", ""
    )
    subfolder.mkdir(exist_ok=True)
    return replace(peer, options={**peer.options, "folder": str(subfolder)})
