"""Random models in 8 bits for the native encoder, with their float form."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from flowvec.native import Weights
from flowvec.native.tail import Step, tensor_shapes
from flowvec.native.weights import MOST_OF_PAIRS, shapes_of

Doubles = npt.NDArray[np.float64]
Ids = npt.NDArray[np.int32]

EPSILON = 1e-12
# Every operation, behind a pooled vector of 64; not all lengths are multiples of 16.
STEPS = (
    Step("constant", (), 64),
    Step("subtract", (0, 1), 64),
    Step("product", (2,), 100),
    Step("tanh", (3,), 100),
    Step("product", (4, 3), 100),
    Step("part", (5,), 37, begin=21),
    Step("exp", (6,), 37),
    Step("sigmoid", (6,), 37),
    Step("divide", (8, 7), 37),
    Step("multiply", (9, 6), 37),
    Step("join", (10, 5), 137),
    Step("relu", (11,), 137),
    Step("add", (12, 11), 137),
)


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
    steps: tuple[Step, ...] = ()
    is_normalized: bool = True
    has_distances: bool = False
    has_types: bool = False
    weighted_words: int = 0
    uncounted: int | None = None
    seed: int = 0
    tensors: dict[str, npt.NDArray[Any]] = field(init=False)

    def __post_init__(self) -> None:
        draw = np.random.default_rng(self.seed)
        sizes = (self.layers, self.hidden, self.wide, self.positions, self.vocabulary)
        others = tensor_shapes(len(self.poolings) * self.hidden, self.steps)
        most = self.positions - (self.uncounted is not None)
        if self.has_distances:
            others["relative"] = (self.heads, 2 * most - 1)
        if self.has_types:
            others["second_type"] = (self.hidden,)
        shapes = shapes_of(*sizes, self.weighted_words, others)
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
                size = {"positions": 0.3, "relative": 1.0}.get(name, 0.1)
                values = draw.standard_normal(shape) * size
                values += part == "weight"
            self.tensors[name] = values if type_ == "I8" else values.astype(np.float32)

    def weights(self, **changed: Any) -> Weights:
        """What the library and the file take."""
        facts: dict[str, Any] = {
            "layers": self.layers,
            "heads": self.heads,
            "epsilon": EPSILON,
            "poolings": self.poolings,
            "steps": self.steps,
            "is_normalized": self.is_normalized,
            "uncounted": self.uncounted,
            "logs": 1 if self.weighted_words else None,
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

    def states(
        self, ids: Ids, attended: int | None = None, types: npt.NDArray[np.uint8] | None = None
    ) -> Doubles:
        """The last layer's states of a text, in double precision; nothing is rounded."""
        x = self._matrix("words")[ids] + self._of("positions")[self._places(ids)]
        if types is not None:
            x += types[:, None] * self._of("second_type")
        x, norm = self._normal("embedding_norm", x), "embedding_norm"
        for i in range(self.layers):
            layer = f"layers.{i}"
            q, k, v = (
                part.reshape(len(ids), self.heads, -1).transpose(1, 0, 2)
                for part in np.split(self._product(f"{layer}.qkv", x, norm), 3, axis=1)
            )
            scores = q @ k.transpose(0, 2, 1)
            if self.has_distances:
                place = np.arange(len(ids))
                distance = place - place[:, None]
                relative = self._of("relative")
                scores += relative[:, relative.shape[1] // 2 + distance]
            if attended is not None:
                scores[:, :, attended:] = -np.inf
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
        return self.finished(np.concatenate([parts[name] for name in self.poolings]))

    def word_weights(self, ids: Ids) -> Doubles:
        """The weights of words in a text."""
        norm = f"layers.{self.layers - 1}.output_norm"
        active = _gelu(self._product("head.dense", self.states(ids), norm))
        logits = self._product("head.words", self._normal("head.norm", active), "head.norm")
        return np.log1p(np.maximum(logits.max(0), 0))

    def finished(self, pooled: Doubles) -> Doubles:
        """What follows the pooling."""
        vectors = [pooled]
        for number, step in enumerate(self.steps):
            tensor = self.tensors.get(f"tail.{number}", np.zeros(0)).astype(np.float64)
            vectors.append(_result(step, tensor, *(vectors[n] for n in step.operands)))
        vector = vectors[-1]
        return vector / np.linalg.norm(vector) if self.is_normalized else vector


def _result(step: Step, tensor: Doubles, *given: Doubles) -> Doubles:
    made: dict[str, Callable[[], Doubles]] = {
        "constant": lambda: tensor,
        "product": lambda: given[0] @ tensor + sum(given[1:]),
        "add": lambda: given[0] + given[1],
        "subtract": lambda: given[0] - given[1],
        "multiply": lambda: given[0] * given[1],
        "divide": lambda: given[0] / given[1],
        "relu": lambda: np.maximum(given[0], 0),
        "tanh": lambda: np.tanh(given[0]),
        "exp": lambda: np.exp(given[0]),
        "sigmoid": lambda: 1 / (1 + np.exp(-given[0])),
        "part": lambda: given[0][step.begin : step.begin + step.length],
        "join": lambda: np.concatenate(given),
    }
    return made[step.operation]()


def _gelu(x: Doubles) -> Doubles:
    from math import erf

    return x * 0.5 * (1 + np.vectorize(erf)(x / 2**0.5))
