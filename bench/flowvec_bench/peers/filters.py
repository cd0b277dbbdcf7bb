"""Compares filtered searches of collections: recall and waits, while rows are written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from flowvec.errors import InputValueError
from flowvec_bench.peers.filter_data import Case, FilterData
from flowvec_bench.peers.registry import Peer
from flowvec_bench.peers.runner import Runner, lined_up

__all__ = ["COLLECTIONS", "CaseRow", "FilterRow", "race_filters", "recall_of"]

_WORKER = Path(__file__).parents[1] / "workers" / "filters.py"
_SHOWN = ("flowvec", "hnswlib", "lancedb", "chromadb", "qdrant-client")

COLLECTIONS: dict[str, Peer] = {
    "flowvec": Peer("flowvec", "flowvec", (), {}, (None,), "rows"),
    "lancedb": Peer("LanceDB", "lancedb", ("lancedb==0.40.0", "numpy"), {}, (None,), "rows"),
    "chroma": Peer("Chroma", "chroma", ("chromadb==1.5.9",), {}, (None,), "rows"),
    "qdrant": Peer(
        "Qdrant, local mode", "qdrant", ("qdrant-client==1.20.0",), {}, (None,), "rows"
    ),
}  # fmt: skip


@dataclass(slots=True)
class CaseRow:
    """One collection's figures for one case. Waits are in milliseconds.

    Attributes:
        case: the case's name.
        recall: recall@10.
        effort: number of the setting that was chosen, 0 for the fastest.
        first: wait of the first search with this filter, before the timed ones.
        p50: median wait of a search.
        p99: the 99th percentile.
        queries: queries that were answered; fewer than all if the time was over.
        writes_per_second: rows that were written beside them.
        write_p50: median wait of a write.
    """

    case: str
    recall: float
    effort: int
    first: float
    p50: float
    p99: float
    queries: int
    writes_per_second: float
    write_p50: float | None


@dataclass(slots=True)
class FilterRow:
    """One collection.

    Attributes:
        name: of the peer.
        build_seconds: time to add all rows and make the indexes.
        efforts: how many settings it has.
        resident_mib: resident memory of its process at the end; None where it is not known.
        cases: figures of each case.
        versions: versions of the relevant packages.
        error: why there are no (more) figures; None if there are.
    """

    name: str
    build_seconds: float | None = None
    efforts: int = 1
    resident_mib: int | None = None
    cases: list[CaseRow] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)
    error: str | None = None


def recall_of(ids: npt.NDArray[np.int64], exact: npt.NDArray[np.int64]) -> float:
    """Share of the true neighbours that were found, the mean over the queries; -1 is none."""
    shares = []
    for found, true in zip(ids.tolist(), exact.tolist(), strict=True):
        wanted = {*true} - {-1}
        shares.append(len({*found} & wanted) / len(wanted) if wanted else 1.0)
    return float(np.mean(shares))


def race_filters(
    peers: Sequence[Peer],
    data: FilterData,
    cases: Sequence[Case],
    folder: Path,
    *,
    recall: float = 0.95,
    tried: int = 40,
    rate: float = 60.0,
    writes: float = 15.0,
    most_seconds: float = 60.0,
    on_step: Callable[[str], object] | None = None,
) -> list[FilterRow]:
    """Build every collection, and time it in each case, one after another.

    In each case a collection uses the fastest of its settings that reaches the recall on the last
    queries, or its last setting. The other queries are timed: they run one after another, while
    another thread adds rows.

    Args:
        peers: from `COLLECTIONS`.
        data: rows and queries.
        cases: from `cases_of`.
        folder: folder for temporary files.
        recall: recall of the ten nearest to reach.
        tried: how many of the queries choose the setting.
        rate: timed queries per second; 0 is as many as there can be.
        writes: rows that are added per second meanwhile.
        most_seconds: a case ends after so long, with the queries that were answered.
        on_step: called with a line of text before each step.

    Raises:
        InputValueError: there is no peer, or no query is left to be timed.
        FlowvecError: the first peer fails.
    """
    if not peers or not 0 < tried < len(data.queries):
        raise InputValueError(f"there must be a collection and more than {tried} queries")
    say = on_step or (lambda _: None)
    rows = {peer.name: FilterRow(peer.name) for peer in peers}
    np.save(folder / "tried.npy", data.queries[-tried:])
    np.save(folder / "timed.npy", data.queries[:-tried])

    def build(runner: Runner) -> None:
        say(f"building {runner.peer.name}")
        built = runner.ask(do="build")
        row = rows[runner.peer.name]
        row.build_seconds, row.efforts = round(built["seconds"], 1), built["efforts"]

    def time_case(runner: Runner, case: Case, exact: npt.NDArray[np.int64]) -> None:
        row, first = rows[runner.peer.name], 0.0

        def search(
            part: str, effort: int, rate: float, writes: float
        ) -> tuple[dict[str, Any], float]:
            those = slice(-tried, None) if part == "tried" else slice(0, -tried)
            answer = runner.ask(
                do="search", queries=str(folder / f"{part}.npy"), filters=case.filters[those],
                effort=effort, rate=rate, writes=writes, most_seconds=most_seconds,
                save=str(folder / "ids.npy"),
            )  # fmt: skip
            ids = np.load(folder / "ids.npy")
            return answer, recall_of(ids, exact[those][: len(ids)])

        for effort in range(row.efforts):
            answer, reached = search("tried", effort, 0.0, 0.0)
            first = first or answer["waits"][0]
            if reached >= recall:
                break
        answer, reached = search("timed", effort, rate, writes)
        row.resident_mib = answer["resident_mib"]
        row.cases.append(_figures(case.name, reached, effort, first, answer))

    peers = [_with_folder(peer, folder) for peer in peers]
    with lined_up(peers, {"rows": data.folder}, {}, say, worker=_WORKER) as lineup:
        lineup.each(build)
        for case in cases:
            say(f"searching: {case.name}")
            lineup.each(partial(time_case, case=case, exact=data.nearest(case)))
    for name, row in rows.items():
        row.error = lineup.errors.get(name)
        versions = lineup.versions.get(name, {})
        row.versions = {key: versions[key] for key in _SHOWN if key in versions}
    return list(rows.values())


def _figures(
    case: str, recall: float, effort: int, first: float, answer: dict[str, Any]
) -> CaseRow:
    waits, writes = answer["waits"], answer["writes"]
    p50, p99 = 1000 * np.percentile(waits, (50, 99))
    return CaseRow(
        case=case,
        recall=round(recall, 4),
        effort=effort,
        first=round(1000 * first, 3),
        p50=round(float(p50), 3),
        p99=round(float(p99), 3),
        queries=len(waits),
        writes_per_second=round(len(writes) / answer["seconds"], 1),
        write_p50=round(1000 * float(np.median(writes)), 3) if writes else None,
    )


def _with_folder(peer: Peer, folder: Path) -> Peer:
    own = folder / peer.engine
    own.mkdir(exist_ok=True)
    return replace(peer, options={**peer.options, "folder": str(own)})
