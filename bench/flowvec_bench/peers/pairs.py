"""The most alike of all pairs of texts, from raw text: seconds, side by side.

Sentence-BERT's own example: 10,000 sentences are 50 million pairs, which took a cross-encoder 65
hours and an encoder of sentences 5 seconds on a GPU (Reimers and Gurevych 2019).
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flowvec.errors import InputValueError
from flowvec_bench.peers.roster import Peer
from flowvec_bench.peers.runner import Runner, lined_up

__all__ = ["PairRow", "race_pairs", "shared_pairs"]

# A row that finds fewer of the first row's pairs is void.
LEAST_SHARED = 0.95


@dataclass(slots=True)
class PairRow:
    """One peer.

    Attributes:
        name: as it is shown.
        seconds: of each round, embedding included.
        shared: of the first row's pairs, the share that it found too.
        versions: of the packages that matter.
        error: why there are no figures, else None.
    """

    name: str
    seconds: list[float] = field(default_factory=list)
    shared: float | None = None
    versions: dict[str, str] = field(default_factory=dict)
    error: str | None = None

    @property
    def median(self) -> float | None:
        """Seconds at the median of the rounds."""
        return statistics.median(self.seconds) if self.seconds and not self.error else None

    @property
    def void(self) -> bool:
        """Whether it found others than the first row."""
        return self.shared is None or self.shared < LEAST_SHARED


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
    """Let peers find the most alike pairs, in turn, after a few texts to warm up.

    Args:
        peers: the first is what the others are compared with.
        models: where each form of the model lies, see `Peer.form`.
        options: what an engine must know of the model (`max_length`, `dim`, `threads`).
        texts: all of them are compared with one another.
        folder: for files on the way.
        top_k: how many pairs.
        rounds: timed passes.
        on_step: called with a line of text before each step.

    Raises:
        InputValueError: fewer than two texts, or no peers.
        FlowvecError: the first peer fails.
    """
    if not peers or len(texts) < 2 or rounds < 1:
        raise InputValueError("there must be peers, two texts and a round")
    say = on_step or (lambda _: None)
    whole, few = folder / "pairs.json", folder / "pairs-few.json"
    whole.write_text(json.dumps(list(texts)), encoding="utf-8")
    few.write_text(json.dumps(list(texts[:64])), encoding="utf-8")
    rows = {peer.name: PairRow(peer.name) for peer in peers}
    first: list[list[float]] = []

    def once(runner: Runner) -> None:
        row = rows[runner.peer.name]
        if not row.seconds:
            runner.ask(do="pairs", texts=str(few), top_k=top_k)
        answer = runner.ask(do="pairs", texts=str(whole), top_k=top_k)
        row.seconds.append(round(answer["seconds"], 3))
        first.extend(answer["pairs"] if not first else [])
        row.shared = shared_pairs(first, answer["pairs"])

    with lined_up(peers, models, options, say) as lineup:
        for number in range(rounds):
            say(f"round {number + 1} of {rounds}")
            lineup.each(once)
    for name, row in rows.items():
        row.error, row.versions = lineup.errors.get(name), lineup.versions.get(name, {})
    return list(rows.values())


def shared_pairs(first: Sequence[Sequence[float]], other: Sequence[Sequence[float]]) -> float:
    """The share of the first's pairs that the other found as well, whatever their scores."""
    wanted = {frozenset((i, j)) for _, i, j in first}
    return len(wanted & {frozenset((i, j)) for _, i, j in other}) / len(wanted) if wanted else 1.0
