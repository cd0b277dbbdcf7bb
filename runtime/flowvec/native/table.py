"""The file `table.native`: how the native engine computes a static embedder from its graph's table.

A static embedder has a row for each token, and a text's vector is the mean of its tokens' rows. Its
ONNX graph holds the table, so this file says where: the engine maps the graph's file and reads the
table there. It is a safetensors file with the tensors of `steps`, and this in its metadata:

    format          1
    graph           tensors in the graph's file, by name: type, shape, and the first one's offset
    least           the smallest divisor of a mean
    is_weighted     whether the sum is divided by that of the weights, or by the number of tokens
    ignored         a token id that does not count; null for none
    epsilon         what layer normalization adds to the variance
    steps           what is done with the mean: see `flowvec.native.tail`
    is_normalized   whether vectors are divided by their lengths

The graph's tensors are `rows`, int8, float16 or float32 (rows, width), and some of these: `row_of`,
int32 (tokens,), where tokens share rows; `weights`, float32 (tokens,); `positions`, float16 or
float32 (positions, width), which are added to rows by their place in the text; `norm.weight` and
`norm.bias`, float32 (width,), of layer normalization after that.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from flowvec.native.container import Contents, Tensor, mapped, read_file, whole, write_file
from flowvec.native.tail import Step, lengths_of, numbers_of, tensor_shapes

__all__ = ["GRAPH_TYPES", "Stored", "TableWeights"]

_FORMAT = 1
_MOST_TOKENS = 1 << 24
_LANES = 16
# Types of the graph's tensors; those of rows come first, in the order of the library's numbers.
GRAPH_TYPES: dict[str, np.dtype[Any]] = {
    "I8": np.dtype("i1"),
    "F16": np.dtype("<f2"),
    "F32": np.dtype("<f4"),
    "I32": np.dtype("<i4"),
}
_ROW_TYPES = tuple(GRAPH_TYPES)[:3]
_TYPES_OF = {
    "rows": _ROW_TYPES,
    "row_of": ("I32",),
    "weights": ("F32",),
    "positions": ("F16", "F32"),
    "norm.weight": ("F32",),
    "norm.bias": ("F32",),
}


@dataclass(frozen=True, slots=True)
class Stored:
    """Where a tensor is in the graph's file.

    Attributes:
        dtype: a name from `GRAPH_TYPES`.
        shape: its shape.
        offset: of its first byte.
    """

    dtype: str
    shape: tuple[int, ...]
    offset: int

    def as_json(self) -> dict[str, Any]:
        """The place as JSON's types."""
        return {"dtype": self.dtype, "shape": list(self.shape), "offset": self.offset}


@dataclass(frozen=True, slots=True, eq=False)
class TableWeights:
    """A static embedder.

    Attributes:
        stored: where the graph's tensors are.
        steps: what follows the mean.
        is_normalized: whether vectors have length 1.
        is_weighted: whether the sum is divided by that of the weights.
        least: the smallest divisor.
        ignored: a token id that does not count, or None.
        epsilon: of layer normalization.
        tensors: the graph's, by name, and those of the steps; `rows` may begin at any byte.
    """

    stored: Mapping[str, Stored]
    steps: tuple[Step, ...]
    is_normalized: bool
    is_weighted: bool
    least: float
    ignored: int | None
    epsilon: float
    tensors: Mapping[str, Tensor]

    @property
    def hidden(self) -> int:
        """Length of a row."""
        return self.stored["rows"].shape[1]

    @property
    def dim(self) -> int:
        """Length of a text's vector."""
        return lengths_of(self.hidden, self.steps)[-1]

    @property
    def most_tokens(self) -> int:
        """Most tokens of a text."""
        positions = self.stored.get("positions")
        return _MOST_TOKENS if positions is None else positions.shape[0]

    def _tail_shapes(self) -> dict[str, tuple[int, ...]]:
        return tensor_shapes(self.hidden, self.steps)

    def sizes(self) -> list[int]:
        """As the library takes them."""
        rows = self.stored["rows"]
        per_token = self.stored.get("row_of", self.stored.get("weights", rows))
        ignored = -1 if self.ignored is None else self.ignored
        table = [_ROW_TYPES.index(rows.dtype), *rows.shape, per_token.shape[0], self.most_tokens]
        _, memory, result = numbers_of(self.hidden, self.steps)
        tail = [len(self.steps), memory, result, self.dim, self.is_normalized]
        has = [name in self.stored for name in ("row_of", "weights", "positions", "norm.weight")]
        return [*table, ignored, self.is_weighted, *tail, *has]

    def step_numbers(self) -> list[int]:
        """As the library takes them."""
        return numbers_of(self.hidden, self.steps)[0]

    def arrays(self) -> Iterator[Tensor]:
        """The tensors that the library reads, in its order."""
        for name in ("rows", "row_of", "weights"):
            if name in self.tensors:
                yield self.tensors[name]
        for name in ("positions", "norm.weight", "norm.bias", *self._tail_shapes()):
            if name in self.tensors:  # rows are padded
                tensor = self.tensors[name]
                columns = (0, -tensor.shape[-1] % _LANES)
                yield np.pad(tensor, [(0, 0)] * (tensor.ndim - 1) + [columns])

    def write(self, path: Path) -> None:
        """Write the file."""
        facts = {
            "format": _FORMAT,
            "graph": {name: stored.as_json() for name, stored in self.stored.items()},
            "least": self.least,
            "is_weighted": self.is_weighted,
            "ignored": self.ignored,
            "epsilon": self.epsilon,
            "steps": [step.as_json() for step in self.steps],
            "is_normalized": self.is_normalized,
        }
        shapes = {name: ("F32", shape) for name, shape in self._tail_shapes().items()}
        write_file(path, facts, shapes, self.tensors)

    @classmethod
    def read(cls, path: Path, graph: Path) -> TableWeights:
        """Read the file, and map the graph's.

        Raises:
            BundleError: it is damaged, or the graph's file is another.
        """
        data = mapped(graph)
        return read_file(path, lambda contents: _parsed(contents, data))


def _parsed(contents: Contents, graph: mmap.mmap) -> TableWeights:
    """What a file holds.

    Raises:
        ValueError, KeyError, TypeError, RecursionError: something else.
    """
    facts = contents.facts
    if facts["format"] != _FORMAT:
        raise ValueError(f"its format is {facts['format']!r}, and this flowvec reads {_FORMAT}")
    places = facts["graph"]
    if not isinstance(places, dict):
        raise ValueError(f"graph is {places!r}")
    stored = {name: _stored(name, value) for name, value in places.items()}
    width = stored["rows"].shape[1]
    tokens = {stored[name].shape for name in ("row_of", "weights") if name in stored}
    fits = (
        len(tokens) <= 1
        and all(place.shape[-1] == width for name, place in stored.items()
                if name not in ("row_of", "weights"))
        and ("norm.weight" in stored) == ("norm.bias" in stored)
    )  # fmt: skip
    if not fits:
        raise ValueError(f"its tensors do not fit each other: {places}")
    steps = tuple(map(Step.parse, facts["steps"]))
    shapes = {name: ("F32", shape) for name, shape in tensor_shapes(width, steps).items()}
    tensors = contents.tensors(shapes)
    for name, place in stored.items():
        tensors[name] = _in_graph(name, place, graph)
    for name in ("is_normalized", "is_weighted"):
        if not isinstance(facts[name], bool):
            raise ValueError(f"{name} is {facts[name]!r}")
    for name in ("epsilon", "least"):
        if not isinstance(facts[name], float) or not 0 <= facts[name] <= 1:
            raise ValueError(f"{name} is {facts[name]!r}")
    ignored = facts["ignored"]
    if ignored is not None:
        ignored = whole(facts, "ignored", 0, (1 << 31) - 1)
    return TableWeights(
        stored=stored,
        steps=steps,
        is_normalized=facts["is_normalized"],
        is_weighted=facts["is_weighted"],
        least=facts["least"],
        ignored=ignored,
        epsilon=facts["epsilon"],
        tensors=tensors,
    )


def _stored(name: str, value: Mapping[str, Any]) -> Stored:
    shape = tuple(value["shape"])
    stored = Stored(value["dtype"], shape, whole(value, "offset", 0, 1 << 40))
    dimensions = 2 if name in ("rows", "positions") else 1
    sizes = [whole({name: size}, name, 1, _MOST_TOKENS) for size in shape]
    if stored.dtype not in _TYPES_OF[name] or len(sizes) != dimensions:
        raise ValueError(f"{name} is {value!r}")
    return stored


def _in_graph(name: str, place: Stored, graph: mmap.mmap) -> Tensor:
    """A tensor of the graph: `rows` as it is, and the others in memory, as the library reads
    them."""
    count, type_ = math.prod(place.shape), GRAPH_TYPES[place.dtype]
    if place.offset + count * type_.itemsize > len(graph):
        raise ValueError(f"the graph's file ends before the end of {name}")
    if name == "rows":
        return np.frombuffer(graph, np.uint8, count * type_.itemsize, place.offset)
    tensor = np.frombuffer(graph, type_, count, place.offset)
    tensor = tensor.astype(np.int32 if place.dtype == "I32" else np.float32).reshape(place.shape)
    if not np.isfinite(tensor).all():
        raise ValueError(f"{name} has numbers that are not finite")
    return tensor
