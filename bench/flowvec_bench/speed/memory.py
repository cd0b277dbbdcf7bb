"""Measures the growth of resident memory over a long stream of texts of mixed lengths."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
import psutil

from flowvec import Encoder
from flowvec.errors import InputValueError
from flowvec_bench.speed.mixed_texts import mixed_texts

__all__ = ["Memory", "growth", "measure_memory"]

_STEPS = 100


@dataclass(frozen=True, slots=True)
class Memory:
    """The result of `measure_memory`.

    Attributes:
        texts: number of encoded texts.
        warm: number of texts after which growth is counted.
        resident: pairs of a number of texts and this process's bytes in RAM after them.
        grown: largest bytes after the warm-up, minus the bytes at its end.
        slope: bytes per thousand texts, by least squares after the warm-up.
    """

    texts: int
    warm: int
    resident: list[tuple[int, int]]
    grown: int
    slope: float


def measure_memory(
    encoder: Encoder,
    count: int,
    seed: int = 0,
    warm: int = 20_000,
    on_texts: Callable[[int], object] | None = None,
) -> Memory:
    """Stream texts of 1 to 400 words through an Encoder and watch the process's memory.

    Args:
        encoder: the Encoder.
        count: number of texts; they are generated on the fly, so their memory does not count.
        seed: seed of the texts.
        warm: texts after which the growth is counted.
        on_texts: called with the number of texts since the last call.

    Raises:
        InputValueError: there are not at least two texts beyond the warm-up.
    """
    if not 0 <= warm < count - 1:
        raise InputValueError(
            f"of {count} texts, {warm} cannot be the warm-up: at least two must follow it"
        )
    process = psutil.Process(os.getpid())
    every = max(1, count // _STEPS)
    resident = []
    texts = islice(mixed_texts(seed), count)
    for done, _ in enumerate(encoder.stream(texts), start=1):
        if done in (warm, count) or done % every == 0:
            resident.append((done, int(process.memory_info().rss)))
            if on_texts is not None:
                on_texts(done - (resident[-2][0] if len(resident) > 1 else 0))
    grown, slope = growth(resident, warm)
    return Memory(count, warm, resident, grown, slope)


def growth(resident: Sequence[tuple[int, int]], warm: int) -> tuple[int, float]:
    """Growth and slope of memory after the warm-up, see `Memory`."""
    later = [(done, size) for done, size in resident if done >= warm]
    texts, sizes = np.array(later, dtype=np.float64).T
    slope = float(np.polyfit(texts / 1000, sizes, 1)[0]) if len(later) > 1 else 0.0
    return int(sizes.max() - sizes[0]), slope
