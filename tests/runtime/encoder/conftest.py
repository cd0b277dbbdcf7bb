"""Makers and fixtures that the tests of encoders share."""

from __future__ import annotations

import numpy as np

WORDS = [
    "the", "cat", "dog", "sleeps", "runs", "stocks", "fell", "rose", "man", "woman",
    "eats", "bread", "red", "blue", "fast", "slow",
]  # fmt: skip


def texts(count: int, seed: int = 0, longest: int = 40) -> list[str]:
    """Texts of fewer than `longest` random words, some of them empty."""
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(WORDS, size=rng.integers(0, longest))) for _ in range(count)]
