"""Compares seconds to find the most similar of all pairs of texts, from raw text.

This is Sentence-BERT's own example: 10,000 sentences are 50 million pairs, which took a
cross-encoder 65 hours and a sentence encoder 5 seconds on a GPU (Reimers and Gurevych 2019).
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from flowvec.errors import InputValueError
from flowvec_bench.peers.race import WARM, part_of, sweep
from flowvec_bench.peers.registry import FLOWVEC, PEERS, Peer
from flowvec_bench.peers.runner import Runner, lined_up

__all__ = ["PairRow", "pair_peers", "race_pairs", "shared_pairs"]

# A row that finds a smaller share of the first row's pairs is void.
LEAST_SHARED = 0.95


@dataclass(slots=True)
class PairRow:
    """One peer.

    Attributes:
        name: name in reports.
        batch_size: the best of those tried; None is the library's default.
        by_batch_size: texts per second of every batch size that was tried on a sample.
        seconds: seconds of each round, embedding included.
        ratio: its seconds divided by the first row's, the median over the rounds.
        shared: share of the first row's pairs that it also found.
        versions: versions of the relevant packages.
        error: why there are no figures; None if there are.
    """

    name: str
    batch_size: int | None = None
    by_batch_size: dict[str, float] = field(default_factory=dict)
    seconds: list[float] = field(default_factory=list)
    ratio: float | None = None
    shared: float | None = None
    versions: dict[str, str] = field(default_factory=dict)
    error: str | None = None

    @property
    def median(self) -> float | None:
        """Median seconds of the rounds."""
        return statistics.median(self.seconds) if self.seconds and not self.error else None

    @property
    def void(self) -> bool:
        """Whether it found other pairs than the first row."""
        return self.shared is None or self.shared < LEAST_SHARED


def pair_peers() -> dict[str, Peer]:
    """Peers with a function for this task; flowvec's has no batch size to choose."""
    flowvec = {name: replace(peer, batch_sizes=(None,)) for name, peer in FLOWVEC.items()}
    others = {name: peer for name, peer in PEERS.items() if peer.engine == "sentence-transformers"}
    return flowvec | others


def race_pairs(
    peers: Sequence[Peer],
    models: Mapping[str, Path],
    options: Mapping[str, Any],
    texts: Sequence[str],
    folder: Path,
    *,
    top_k: int = 1000,
    rounds: int = 3,
    on_step: Callable[[str], object] | None = None,
) -> list[PairRow]:
    """Time how long peers take to find the most similar pairs, in interleaved rounds.

    Each first chooses its fastest batch size on a sample of the texts.

    Args:
        peers: the peers; the others are compared with the first.
        models: path of each form of the model, see `Peer.form`.
        options: facts about the model for engines (`max_length`, `dim`, `threads`).
        texts: texts, which are all compared with one another.
        folder: folder for temporary files.
        top_k: number of pairs.
        rounds: timed passes.
        on_step: called with a line of text before each step.

    Raises:
        InputValueError: fewer than two texts, or no peers.
        FlowvecError: the first peer fails.
    """
    if not peers or len(texts) < 2 or rounds < 1:
        raise InputValueError("there must be peers, two texts and a round")
    say = on_step or (lambda _: None)
    sample = part_of(texts)
    whole, part, few = (folder / f"pairs{end}.json" for end in ("", "-part", "-few"))
    for path, items in ((whole, texts), (part, sample), (few, sample[:WARM])):
        path.write_text(json.dumps(list(items)), encoding="utf-8")
    rows = {peer.name: PairRow(peer.name) for peer in peers}
    first: list[list[float]] = []

    def ask(runner: Runner, path: Path) -> dict[str, Any]:
        size = rows[runner.peer.name].batch_size
        return runner.ask(do="pairs", texts=str(path), batch_size=size, top_k=top_k)

    def prepare(runner: Runner) -> None:
        row = rows[runner.peer.name]
        say(f"preparing {row.name}")
        row.batch_size, row.by_batch_size = sweep(runner, part, few, len(sample))
        ask(runner, part)

    def once(runner: Runner) -> None:
        row = rows[runner.peer.name]
        answer = ask(runner, whole)
        row.seconds.append(round(answer["seconds"], 3))
        first.extend(answer["pairs"] if not first else [])
        row.shared = shared_pairs(first, answer["pairs"])

    with lined_up(peers, models, options, say) as lineup:
        lineup.each(prepare)
        for number in range(rounds):
            say(f"round {number + 1} of {rounds}")
            lineup.each(once)
    base = next(iter(rows.values())).seconds
    for name, row in rows.items():
        ratios = [seconds / first for seconds, first in zip(row.seconds, base, strict=False)]
        row.ratio = round(statistics.median(ratios), 3) if ratios else None
        row.error, row.versions = lineup.errors.get(name), lineup.versions.get(name, {})
    return list(rows.values())


def shared_pairs(first: Sequence[Sequence[float]], other: Sequence[Sequence[float]]) -> float:
    """Share of the first row's pairs that the other also found, whatever their scores."""
    pairs = {frozenset((i, j)) for _, i, j in first}
    return len(pairs & {frozenset((i, j)) for _, i, j in other}) / len(pairs) if pairs else 1.0
