"""The native encoder by itself: its library, and random models in 8 bits with their float form."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from ctypes import byref, c_float, c_int, c_int64, c_size_t, c_void_p
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int32]


@dataclass
class Shape:
    """Sizes of a BERT model."""

    layers: int = 2
    hidden: int = 128
    heads: int = 4
    wide: int = 200
    positions: int = 300
    vocabulary: int = 50


@dataclass
class Weights:
    """A product's weights in 8 bits, a row for each output, with the scale of each row."""

    rows: npt.NDArray[np.int8]
    scales: Floats
    biases: Floats

    @property
    def floats(self) -> npt.NDArray[np.float64]:
        return self.rows.astype(np.float64) * self.scales[:, None]


@dataclass
class Layer:
    attention_in: Weights
    attention_out: Weights
    attention_norm: Floats
    wide: Weights
    narrow: Weights
    output_norm: Floats


@dataclass
class Model:
    """A random model. A norm has four rows: weights and biases, and those of the smoothed copy."""

    shape: Shape
    seed: int = 0
    words: Floats = field(init=False)
    places: Floats = field(init=False)
    norm: Floats = field(init=False)
    layers: list[Layer] = field(init=False)

    def __post_init__(self) -> None:
        shape, draw = self.shape, np.random.default_rng(self.seed)

        def floats(*size: int, scale: float = 1.0) -> Floats:
            return (draw.standard_normal(size) * scale).astype(np.float32)

        def norm() -> Floats:
            both = np.stack([1 + floats(shape.hidden, scale=0.2), floats(shape.hidden, scale=0.2)])
            return np.concatenate([both, both])

        def weights(columns: int, inputs: int) -> Weights:
            rows = draw.integers(-127, 128, (columns, inputs)).astype(np.int8)
            scales = (draw.uniform(0.5, 1.5, columns) / 127 / inputs**0.5).astype(np.float32)
            return Weights(rows, scales, floats(columns, scale=0.1))

        self.words = floats(shape.vocabulary, shape.hidden)
        self.places = floats(shape.positions, shape.hidden, scale=0.3)
        self.norm = norm()
        self.layers = [
            Layer(
                weights(3 * shape.hidden, shape.hidden),
                weights(shape.hidden, shape.hidden),
                norm(),
                weights(shape.wide, shape.hidden),
                weights(shape.hidden, shape.wide),
                norm(),
            )
            for _ in range(shape.layers)
        ]

    def arrays(self) -> Iterator[npt.NDArray[Any]]:
        """What the library reads, in its order."""
        yield from (self.words, self.places, *self.norm)
        for layer in self.layers:
            for one in (layer.attention_in, layer.attention_out):
                yield from (one.rows, one.scales, one.biases)
            yield from layer.attention_norm
            for one in (layer.wide, layer.narrow):
                yield from (one.rows, one.scales, one.biases)
            yield from layer.output_norm

    def states(self, ids: Ids) -> npt.NDArray[np.float64]:
        """The states of the last layer of a text, in double precision; activations stay floats."""
        size = self.shape.hidden // self.shape.heads
        x = _normal((self.words[ids] + self.places[: len(ids)]).astype(np.float64), self.norm)
        for layer in self.layers:
            parts = x @ layer.attention_in.floats.T + layer.attention_in.biases
            q, k, v = (
                part.reshape(len(ids), self.shape.heads, size).transpose(1, 0, 2)
                for part in np.split(parts, 3, axis=1)
            )
            scores = q @ k.transpose(0, 2, 1) / size**0.5
            heavy = np.exp(scores - scores.max(2, keepdims=True))
            mixed = heavy / heavy.sum(2, keepdims=True) @ v
            context = mixed.transpose(1, 0, 2).reshape(len(ids), -1)
            out = context @ layer.attention_out.floats.T + layer.attention_out.biases
            x = _normal(x + out, layer.attention_norm)
            active = _gelu(x @ layer.wide.floats.T + layer.wide.biases)
            out = active @ layer.narrow.floats.T + layer.narrow.biases
            x = _normal(x + out, layer.output_norm)
        return x


EPSILON = 1e-12


def _normal(x: npt.NDArray[np.float64], norm: Floats) -> npt.NDArray[np.float64]:
    x = x - x.mean(1, keepdims=True)
    return x / np.sqrt((x * x).mean(1, keepdims=True) + EPSILON) * norm[0] + norm[1]


def _gelu(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    from scipy.special import ndtr

    return np.asarray(x * ndtr(x), np.float64)


class Library:
    """The compiled library."""

    def __init__(self, path: Path) -> None:
        self.functions: Any = ctypes.CDLL(str(path))
        self.functions.flowvec_encoder_set.restype = ctypes.c_char_p
        self.functions.flowvec_encoder_error.restype = ctypes.c_char_p
        self.functions.flowvec_encoder_free.argtypes = [c_void_p]
        self.functions.flowvec_encoder_workspace_free.argtypes = [c_void_p]

    def sets(self) -> dict[str, int]:
        """Numbers of the instruction sets that this processor has, by name."""
        found, number, runs = {}, 0, c_int()
        while name := self.functions.flowvec_encoder_set(c_size_t(number), byref(runs)):
            if runs.value:
                found[name.decode()] = number
            number += 1
        return found

    def check(self, status: int) -> None:
        if status:
            raise ValueError(self.functions.flowvec_encoder_error().decode())


class Encoder:
    """A model in the library, for one instruction set."""

    def __init__(self, library: Library, model: Model, name: str, **sizes: int) -> None:
        self.library, self.hidden = library, model.shape.hidden
        self._arrays = [np.ascontiguousarray(array) for array in model.arrays()]  # it keeps them
        addresses = (c_void_p * len(self._arrays))(*(array.ctypes.data for array in self._arrays))
        shape = {**vars(model.shape), **sizes}
        numbers = (ctypes.c_int32 * len(shape))(*shape.values())
        self.handle = c_void_p()
        library.check(
            library.functions.flowvec_encoder_create(
                numbers, c_float(EPSILON), c_size_t(library.sets()[name]), addresses,
                byref(self.handle),
            )
        )  # fmt: skip

    def __del__(self) -> None:
        self.library.functions.flowvec_encoder_free(self.handle)

    def states(self, texts: Sequence[Ids]) -> list[Floats]:
        """The states of the last layer of each text."""
        functions, workspace = self.library.functions, c_void_p()
        self.library.check(functions.flowvec_encoder_workspace(byref(workspace)))
        starts = np.cumsum([0, *map(len, texts)], dtype=np.int64)
        ids = np.ascontiguousarray(np.concatenate(texts), np.int32)
        states = np.empty((len(ids), self.hidden), np.float32)
        try:
            self.library.check(
                functions.flowvec_encoder_states(
                    self.handle, workspace, c_void_p(ids.ctypes.data),
                    c_void_p(starts.ctypes.data), c_int64(len(texts)),
                    c_void_p(states.ctypes.data),
                )
            )  # fmt: skip
        finally:
            functions.flowvec_encoder_workspace_free(workspace)
        return np.split(states, starts[1:-1])
