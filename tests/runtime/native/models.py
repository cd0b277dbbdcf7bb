"""Random models in 8 bits for the native encoder, with their float form."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from flowvec.native import Weights
from flowvec.native.weights import MOST_OF_PAIRS, shapes_of

Doubles = npt.NDArray[np.float64]
Ids = npt.NDArray[np.int32]

EPSILON = 1e-12


@dataclass
class Model:
    """A random model; the least of these are one layer with one head of 32."""

    layers: int = 2
    hidden: int = 128
    heads: int = 4
    wide: int = 200
    positions: int = 300
    vocabulary: int = 50
    poolings: tuple[str, ...] = ("mean",)
    is_normalized: bool = True
    uncounted: int | None = None
    seed: int = 0
    tensors: dict[str, npt.NDArray[Any]] = field(init=False)

    def __post_init__(self) -> None:
        draw = np.random.default_rng(self.seed)
        sizes = (self.layers, self.hidden, self.wide, self.positions, self.vocabulary)
        shapes = shapes_of(*sizes)
        self.tensors = {}
        for name, (type_, shape) in shapes.items():
            part = name.split(".")[-1]
            if type_ == "I8":
                most = 127 if name == "words.weight" else MOST_OF_PAIRS // 2
                values: npt.NDArray[Any] = draw.integers(-most, most + 1, shape).astype(np.int8)
            elif part == "scale":
                inputs = shapes[name.replace("scale", "weight")][1][1]
                by = 127 if name == "words.scale" else MOST_OF_PAIRS / 2 * inputs**0.5
                values = draw.uniform(0.5, 1.5, shape) / by
                if ".qkv." in name:
                    values[: self.hidden] /= (self.hidden / self.heads) ** 0.5
            elif part == "smoothing":
                values = draw.uniform(0.5, 2, shape)
            else:
                values = draw.standard_normal(shape) * (0.3 if name == "positions" else 0.1)
                values += part == "weight"
            self.tensors[name] = values if type_ == "I8" else values.astype(np.float32)

    def weights(self, **changed: Any) -> Weights:
        """What the library and the file take."""
        facts: dict[str, Any] = {
            "layers": self.layers,
            "heads": self.heads,
            "epsilon": EPSILON,
            "poolings": self.poolings,
            "is_normalized": self.is_normalized,
            "uncounted": self.uncounted,
            "tensors": self.tensors,
        }
        return Weights(**{**facts, **changed})

    def _of(self, name: str) -> Doubles:
        return self.tensors[name].astype(np.float64)

    def _matrix(self, name: str) -> Doubles:
        return self._of(f"{name}.weight") * self._of(f"{name}.scale")[:, None]

    def _product(self, name: str, x: Doubles, norm: str | None = None) -> Doubles:
        if norm is not None:
            x = x / self._of(f"{norm}.smoothing")
        return x @ self._matrix(name).T + self._of(f"{name}.bias")

    def _normal(self, name: str, x: Doubles) -> Doubles:
        x = x - x.mean(1, keepdims=True)
        x /= np.sqrt((x * x).mean(1, keepdims=True) + EPSILON)
        return x * self._of(f"{name}.weight") + self._of(f"{name}.bias")

    def _places(self, ids: Ids) -> npt.NDArray[np.int64]:
        if self.uncounted is None:
            return np.arange(len(ids))
        counted = ids != self.uncounted
        return np.cumsum(counted) * counted

    def states(self, ids: Ids) -> Doubles:
        """The last layer's states of a text, in double precision; nothing is rounded."""
        x = self._matrix("words")[ids] + self._of("positions")[self._places(ids)]
        x, norm = self._normal("embedding_norm", x), "embedding_norm"
        for i in range(self.layers):
            layer = f"layers.{i}"
            q, k, v = (
                part.reshape(len(ids), self.heads, -1).transpose(1, 0, 2)
                for part in np.split(self._product(f"{layer}.qkv", x, norm), 3, axis=1)
            )
            scores = q @ k.transpose(0, 2, 1)
            heavy = np.exp(scores - scores.max(2, keepdims=True))
            mixed = heavy / heavy.sum(2, keepdims=True) @ v
            context = mixed.transpose(1, 0, 2).reshape(len(ids), -1)
            norm = f"{layer}.attention_norm"
            x = self._normal(norm, x + self._product(f"{layer}.attention_out", context))
            active = _gelu(self._product(f"{layer}.up", x, norm))
            norm = f"{layer}.output_norm"
            x = self._normal(norm, x + self._product(f"{layer}.down", active))
        return x

    def vector(self, ids: Ids) -> Doubles:
        """The vector of a text, in double precision."""
        states, count = self.states(ids), len(ids)
        numbers = np.arange(1, count + 1)
        parts = {
            "mean": states.mean(0),
            "cls": states[0],
            "max": states.max(0),
            "mean_sqrt_len": states.sum(0) / count**0.5,
            "weighted_mean": numbers @ states / numbers.sum(),
            "last_token": states[-1],
        }
        vector = np.concatenate([parts[name] for name in self.poolings])
        return vector / np.linalg.norm(vector) if self.is_normalized else vector


def _gelu(x: Doubles) -> Doubles:
    from math import erf

    return x * 0.5 * (1 + np.vectorize(erf)(x / 2**0.5))
