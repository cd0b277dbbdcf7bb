"""What a request cost: for logs and traces."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

__all__ = ["Spent", "Stage"]

# Stages that are kept of one request; a stream has any number.
_MOST_STAGES = 300


@dataclass(frozen=True, slots=True)
class Stage:
    """A part of the work; times are those of `time.perf_counter`.

    Attributes:
        name: `tokenize`, `queue` or `compute`.
        model: which computed.
        start: when it began.
        end: when it ended.
    """

    name: str
    model: str
    start: float
    end: float


@dataclass(slots=True, eq=False)
class Spent:
    """What models did for one request.

    Attributes:
        model: the last one.
        items: texts or pairs.
        tokens: their tokens.
        replaced: how many of them had lone surrogates, which became U+FFFD.
        dim: length of a vector; None without vectors.
        seconds: of each stage, summed up.
        stages: the first of them, in order.
        attributes: what a trace says besides.
    """

    model: str = ""
    items: int = 0
    tokens: int = 0
    replaced: int = 0
    dim: int | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    stages: list[Stage] = field(default_factory=list)
    attributes: dict[str, Any] = field(default_factory=dict)

    def add(self, stages: list[Stage]) -> None:
        """Count stages that are done."""
        for stage in stages:
            before = self.seconds.get(stage.name, 0.0)
            self.seconds[stage.name] = before + stage.end - stage.start
        if len(self.stages) < _MOST_STAGES:
            self.stages += stages
