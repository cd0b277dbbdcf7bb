"""Races peers on the same texts: each in its own process, in interleaved rounds."""

from __future__ import annotations

import json
import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from flowvec.errors import InputValueError
from flowvec_bench.peers.registry import Peer
from flowvec_bench.peers.runner import (
    ENCODERS,
    LEAST_COSINE,
    LEAST_COSINE_8_BIT,
    Lineup,
    Reference,
    Results,
    Runner,
    least_cosine,
    lined_up,
)

__all__ = ["LEAST_QUALITY", "WARM", "Race", "Row", "part_of", "race", "sweep", "time_sizes"]

# A row in 8 bits is void if a figure of its quality is below this, as its variant would be refused.
LEAST_QUALITY = 0.9
_LEAST_PART = 256
WARM = 16
# A batch size is timed again if its first time is within this factor of the best.
_NEAR = 1.15


@dataclass(frozen=True, slots=True)
class Row:
    """One row of one kind of texts.

    Attributes:
        name: name of the peer.
        texts: kind of texts.
        batch_size: the best of those tried; None is the library's default.
        texts_per_second: median of the rounds.
        seconds: seconds of each round.
        by_batch_size: texts per second of every batch size that was tried, on a sample of the
            texts; flowvec's are budgets of padded tokens. The library's default is "own".
        min_cosine: the smallest cosine to the vectors of the first row that is not in 8 bits; for
            rerankers, the correlation with its logits.
        ratio: the first row's texts per second divided by this one's, the median over the rounds.
        versions: versions of the relevant packages.
        error: why there are no figures; None if there are.
        least: the smallest `min_cosine` of a row that counts.
        quality: other figures of its results, by name.
        is_rounded: whether it computes in 8 bits, so that its vectors are other ones, and its
            `quality` decides instead of `min_cosine`: all figures must be at least `LEAST_QUALITY`.
    """

    name: str
    texts: str
    batch_size: int | None
    texts_per_second: float | None
    seconds: list[float]
    by_batch_size: dict[str, float]
    min_cosine: float | None
    ratio: float | None
    versions: dict[str, str]
    error: str | None
    least: float = LEAST_COSINE
    quality: dict[str, float] = field(default_factory=dict)
    is_rounded: bool = False

    @property
    def void(self) -> bool:
        """Whether its results differ from the first row's by more than they may."""
        if self.is_rounded:
            return not self.quality or not all(
                value >= LEAST_QUALITY for value in self.quality.values()
            )
        return self.min_cosine is None or not self.min_cosine >= self.least

    @property
    def remark(self) -> str:
        """What a table says of its results; "" if they are those of the first row."""
        if self.is_rounded and not self.quality:
            return "void: too few texts to rank"
        if self.is_rounded:
            return "void: ranks otherwise" if self.void else "8 bits: other vectors"
        return "void: other vectors" if self.void else ""


@dataclass(frozen=True, slots=True)
class Race:
    """The result of `race`: rows by kind of texts, in the order of the peers."""

    kinds: dict[str, int]
    rounds: int
    rows: list[Row]


class _Figures:
    """Measurements so far, by peer and kind of texts."""

    def __init__(self) -> None:
        self.sizes: dict[tuple[str, str], int | None] = {}
        self.swept: dict[tuple[str, str], dict[str, float]] = {}
        self.times: dict[tuple[str, str], list[float]] = {}
        self.quality: dict[tuple[str, str], dict[str, float]] = {}


def race(
    peers: Sequence[Peer],
    models: Mapping[str, Path],
    options: Mapping[str, Any],
    texts: Mapping[str, Sequence[Any]],
    folder: Path,
    *,
    rounds: int = 5,
    on_step: Callable[[str], object] | None = None,
    worker: Path = ENCODERS,
    agreement: Callable[[Results, Results], float] = least_cosine,
    least: float = LEAST_COSINE,
    sample: Callable[[Sequence[Any]], list[Any]] | None = None,
    quality: Callable[[str, Results], dict[str, float]] | None = None,
    is_rounded: Callable[[Peer], bool] = lambda _: False,
) -> Race:
    """Time peers in one run.

    Each first chooses its batch size on a sample of the texts, which also warms it up. Every round
    goes through all peers, so a slow minute of the machine affects all of them.

    Args:
        peers: the peers; the others are compared with the first in speed, and all with the first
            that is not in 8 bits in vectors.
        models: path of each form of the model, see `Peer.form`.
        options: facts about the model for engines (`max_length`, `dim`, `threads`).
        texts: texts by kind.
        folder: folder for temporary files.
        rounds: timed passes.
        on_step: called with a line of text before each step.
        worker: the program that serves a peer.
        agreement: how near two peers' results are; 1 is equal.
        least: the smallest agreement of a row that counts; rows in 8 bits may have less.
        sample: draws the texts on which batch sizes are chosen; None is `part_of`.
        quality: other figures of a peer's results, from the kind of texts and the results.
        is_rounded: which peers compute in 8 bits, and count by these figures.

    Raises:
        InputValueError: no peers, no texts or no rounds.
        FlowvecError: the first peer fails.
    """
    if not peers or not texts or not all(texts.values()) or rounds < 1:
        raise InputValueError("there must be peers, texts and rounds")
    say = on_step or (lambda _: None)
    part_of_kind = part_of if sample is None else sample
    files: dict[str, tuple[Path, Path, Path]] = {}
    for kind, items in texts.items():
        whole, part, few = (folder / f"{kind}{end}.json" for end in ("", "-part", "-few"))
        whole.write_text(json.dumps(list(items)), encoding="utf-8")
        part.write_text(json.dumps(part_of_kind(items)), encoding="utf-8")
        few.write_text(json.dumps(part_of_kind(items)[:WARM]), encoding="utf-8")
        files[kind] = (whole, part, few)
    figures = _Figures()
    references = {kind: Reference(agreement) for kind in texts}
    are_8_bit: set[str] = set()

    def prepare(runner: Runner) -> None:
        say(f"preparing {runner.peer.name}")
        if runner.is_8_bit:
            are_8_bit.add(runner.peer.name)
        for kind, (whole, part, few) in files.items():
            key = (runner.peer.name, kind)
            count = len(part_of_kind(texts[kind]))
            figures.sizes[key], figures.swept[key] = sweep(runner, part, few, count)
            vectors = runner.vectors(whole, figures.sizes[key])
            references[kind].add(runner, vectors)
            if quality is not None:
                figures.quality[key] = quality(kind, vectors)

    def once(runner: Runner) -> None:
        for kind, (whole, _, _) in files.items():
            key = (runner.peer.name, kind)
            figures.times.setdefault(key, []).append(runner.encode(whole, figures.sizes[key]))

    with lined_up(peers, models, options, say, worker) as lineup:
        lineup.each(prepare)
        for reference in references.values():
            reference.finish()
        for number in range(rounds):
            say(f"round {number + 1} of {rounds}")
            lineup.each(once)
    rows = [
        replace(
            _row(peer, kind, len(texts[kind]), lineup, figures),
            min_cosine=references[kind].agreements.get(peer.name),
            least=min(least, LEAST_COSINE_8_BIT) if peer.name in are_8_bit else least,
            is_rounded=is_rounded(peer),
        )
        for kind in texts
        for peer in peers
    ]
    return Race({kind: len(items) for kind, items in texts.items()}, rounds, rows)


def part_of(texts: Sequence[str]) -> list[str]:
    """Sample for choosing batch sizes: two batches of the largest size, from the whole input."""
    count = min(len(texts), max(len(texts) // 8, _LEAST_PART))
    return random.Random(0).sample(list(texts), count)


def sweep(
    runner: Runner, texts: Path, few: Path, count: int
) -> tuple[int | None, dict[str, float]]:
    """The batch size for the race, and texts per second of all that were tried.

    Args:
        runner: the peer's process.
        texts: a file of texts, `part_of` those of the race.
        few: a file of some of them, for the first run of each size.
        count: number of texts.

    Raises:
        PeerError: the peer fails.
    """
    sizes = runner.peer.batch_sizes
    if len(sizes) == 1:
        return sizes[0], {}

    def seconds(size: int | None) -> float:
        runner.encode(few, size)  # the first run of a batch size may compile
        return runner.encode(texts, size)

    times = time_sizes(sizes, seconds)
    rates = {"own" if size is None else str(size): round(count / t, 1) for size, t in times.items()}
    # If the library has a default, it is used, and the others are only shown.
    return (None if None in times else min(times, key=lambda size: times[size])), rates


def time_sizes(
    sizes: Sequence[int | None], seconds: Callable[[int | None], float]
) -> dict[int | None, float]:
    """Time each batch size once, and those near the best twice; the better time counts."""
    times = {size: seconds(size) for size in sizes}
    limit = _NEAR * min(times.values())
    for size in [size for size, t in times.items() if t <= limit]:
        times[size] = min(times[size], seconds(size))
    return times


def _row(peer: Peer, kind: str, count: int, lineup: Lineup, figures: _Figures) -> Row:
    key = (peer.name, kind)
    error = lineup.errors.get(peer.name)
    seconds = [] if error else figures.times.get(key, [])
    base = figures.times.get((lineup.peers[0].name, kind), [])
    ratios = [time / first for time, first in zip(seconds, base, strict=False)]
    return Row(
        name=peer.name,
        texts=kind,
        batch_size=figures.sizes.get(key),
        texts_per_second=count / statistics.median(seconds) if seconds else None,
        seconds=[round(second, 4) for second in seconds],
        by_batch_size=figures.swept.get(key, {}),
        min_cosine=None,
        ratio=statistics.median(ratios) if ratios else None,
        versions=lineup.versions.get(peer.name, {}),
        error=error,
        quality=figures.quality.get(key, {}),
    )
