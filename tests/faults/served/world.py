"""What callers send, and what must come back: texts whose vectors and scores are known before."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from flowvec import Encoder, Reranker
from tests.makers import WORDS, unit

__all__ = ["RERANKER", "World"]

RERANKER = Path(__file__).resolve().parents[2] / "data" / "bundles" / "reranker"
_TEXTS = 24
_WORDS = [
    *WORDS, "a", "river", "winter", "music", "bread", "stone", "letter", "market", "window",
    "engine", "doctor", "island", "summer", "history", "paper", "bridge", "forest", "singer",
    "war", "sugar", "king", "planet", "ship", "school", "money", "rain", "horse", "number",
    "copper",
]  # fmt: skip
# Vectors of different texts differ by more than this, and an answer's from its own by less.
NEAR = 1e-4


@dataclass(frozen=True, slots=True)
class World:
    """Texts of callers.

    Attributes:
        texts: of each caller; no two are equal.
        vectors: float32 (callers, texts, dim), as the model gives them.
        scores: of each caller's first text with each of its texts, (callers, texts), from 0 to 1.
        tokens: token ids of each caller's first text.
    """

    texts: list[list[str]]
    vectors: np.ndarray
    scores: np.ndarray
    tokens: list[list[int]]

    @classmethod
    def make(cls, callers: int, seed: int) -> World:
        """Compute what must come back."""
        draw = random.Random(seed)
        # mini knows no order of words, so no two texts have the same ones.
        bags: dict[tuple[str, ...], None] = {}
        while len(bags) < callers * _TEXTS:
            bags[tuple(sorted(draw.sample(_WORDS, draw.randint(3, 9))))] = None
        flat_texts = [" ".join(draw.sample(bag, len(bag))) for bag in bags]
        texts = [flat_texts[i : i + _TEXTS] for i in range(0, len(flat_texts), _TEXTS)]
        with Encoder.load("mini", provider="cpu") as encoder:
            assert not encoder.query_prompt
            assert not encoder.document_prompt
            flat = encoder.encode(flat_texts)
            tokens = encoder.tokenize([own[0] for own in texts]).ids
        with Reranker.load(RERANKER, provider="cpu") as reranker:
            pairs = [(own[0], text) for own in texts for text in own]
            scores = reranker.predict(pairs, activation="sigmoid")
        lengths = np.linalg.norm(flat, axis=1)
        assert np.allclose(lengths, 1, atol=1e-3), "mini's vectors have length one"
        cosines = flat @ flat.T
        np.fill_diagonal(cosines, 0)
        assert cosines.max() < 1 - NEAR, "two texts have nearly equal vectors"
        shape = (callers, _TEXTS)
        return cls(texts, flat.reshape(*shape, -1), scores.reshape(shape), tokens)

    def vectors_of(self, caller: int, which: list[int], dim: int | None = None) -> np.ndarray:
        """Vectors of some texts of a caller, cut and of length one."""
        return unit(self.vectors[caller, which, :dim])

    def difference(self, caller: int, which: list[int], given: Any, dim: int | None = None) -> str:
        """What is wrong with the vectors of an answer; "" if nothing is."""
        expected = self.vectors_of(caller, which, dim)
        array = np.asarray(given, np.float32)
        if array.shape != expected.shape:
            return f"{array.shape} instead of {expected.shape}"
        for row, wanted in zip(array, expected, strict=True):
            if np.abs(row - wanted).max() > NEAR:
                others = unit(self.vectors[:, :, :dim].reshape(-1, len(row)))
                nearest = int(np.argmax(others @ row))
                is_other = np.abs(others[nearest] - row).max() < NEAR
                owner = nearest // _TEXTS
                return f"vector of a text of caller {owner}" if is_other else "vector of nobody"
        return ""
