"""What the tests of collections share."""

from __future__ import annotations

import numpy as np

from flowvec.collection.store.settings import CollectionSettings

TEXTS = ["the cat sleeps", "a dog runs", "stocks fell", "a man eats bread"]
SETTINGS = CollectionSettings(
    dim=3, metric="cosine", m=16, ef_construction=200, created="now", created_by="a test"
)


def vectors(n: int, dim: int = 8, seed: int = 0) -> np.ndarray:
    """Random vectors, float32 (n, dim)."""
    return np.random.default_rng(seed).standard_normal((n, dim), dtype=np.float32)
