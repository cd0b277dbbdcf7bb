"""The file `model.native`: an encoder's weights in 8 bits, as the native encoder reads them.

It is a safetensors file: the length of a JSON header (8 bytes, little-endian), the header, and the
tensors, one after the other. The header's `__metadata__` has one key, `flowvec`, which holds the
JSON text of an object with these fields:

    format          1
    layers, heads   sizes that no tensor shows
    epsilon         what layer normalization adds to the variance
    activation      `gelu`, with the normal distribution's function
    poolings        how token vectors become one vector, concatenated
    steps           what is done with it then: see `flowvec.native.tail`
    is_normalized   whether vectors are divided by their lengths
    uncounted       a token id that has no position, as RoBERTa's padding; null for none
    logs            how often log(1 + x) is taken of the weights of words; null without them

Matrices are int8, with a row for each output, and a float32 scale for each row. Numbers 2i and
2i + 1 of a row have positive parts that sum to at most 128, and negative ones too. A query's matrix
and bias hold the factor 1 / sqrt(size of a head). `smoothing` divides the channels of a layer
normalization's output before it is rounded; the matrices that read it are multiplied by it. The
first row of `positions` belongs to the token that is not counted, if there is one.

Some models have `relative`, which is added to the score of a query and a key by their distance in
tokens: a row for each head, from the distance 1 - n to n - 1; n is the most tokens of a text.
Models that read pairs may have `second_type`, which is added to the second text's tokens. Those
that give a weight to each word have a dense layer with GELU, `head.dense`, a normalization,
`head.norm`, and a product, `head.words`; a word's weight is that of the token where it is largest,
if it is above 0. They pool nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import numpy as np

from flowvec.native.container import Contents, Tensor, dimension, read_file, whole, write_file
from flowvec.native.tail import Step, lengths_of, numbers_of, tensor_shapes

__all__ = ["MOST_OF_PAIRS", "POOLINGS", "Weights", "shapes_of"]

# In the order of the library's numbers.
POOLINGS = ("mean", "cls", "max", "mean_sqrt_len", "weighted_mean", "last_token")
# The largest sum of two weights of a sign, for inputs 2i and 2i + 1: processors without VNNI
# add two products in 16 bits.
MOST_OF_PAIRS = 128
_FORMAT = 1
_MOST_LAYERS = 128
_BLOCK = 16  # keys whose scores the library computes together


def shapes_of(
    layers: int,
    hidden: int,
    wide: int,
    positions: int,
    vocabulary: int,
    weighted_words: int = 0,
    others: Mapping[str, tuple[int, ...]] = MappingProxyType({}),
) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Types and shapes of the tensors of a model, by name; those of float32 come first.

    Args:
        layers: transformer layers.
        hidden: length of a token's vector.
        wide: of a layer's activations.
        positions: rows of the table.
        vocabulary: rows of the table of words.
        weighted_words: words that get weights.
        others: shapes of what not every model has.
    """
    floats: dict[str, tuple[int, ...]] = {"positions": (positions, hidden)}
    bytes_: dict[str, tuple[int, ...]] = {}

    def matrix(name: str, columns: int, inputs: int, *, has_bias: bool = True) -> None:
        bytes_[f"{name}.weight"] = (columns, inputs)
        floats[f"{name}.scale"] = (columns,)
        if has_bias:
            floats[f"{name}.bias"] = (columns,)

    def norm(name: str) -> None:
        for part in ("weight", "bias", "smoothing"):
            floats[f"{name}.{part}"] = (hidden,)

    matrix("words", vocabulary, hidden, has_bias=False)
    norm("embedding_norm")
    for i in range(layers):
        layer = f"layers.{i}"
        matrix(f"{layer}.qkv", 3 * hidden, hidden)
        matrix(f"{layer}.attention_out", hidden, hidden)
        norm(f"{layer}.attention_norm")
        matrix(f"{layer}.up", wide, hidden)
        matrix(f"{layer}.down", hidden, wide)
        norm(f"{layer}.output_norm")
    if weighted_words:
        matrix("head.dense", hidden, hidden)
        norm("head.norm")
        matrix("head.words", weighted_words, hidden)
    floats |= others
    return {
        **{name: ("F32", shape) for name, shape in floats.items()},
        **{name: ("I8", shape) for name, shape in bytes_.items()},
    }


@dataclass(frozen=True, slots=True, eq=False)
class Weights:
    """An encoder's weights.

    Attributes:
        layers: transformer layers.
        heads: attention heads.
        epsilon: what layer normalization adds to the variance.
        poolings: names from `POOLINGS`.
        steps: what follows the pooling.
        is_normalized: whether vectors have length 1.
        uncounted: a token id that has no position, or None.
        logs: how often log(1 + x) is taken of the weights of words; None if words have none.
        tensors: as `shapes_of` lists them.
    """

    layers: int
    heads: int
    epsilon: float
    poolings: tuple[str, ...]
    steps: tuple[Step, ...]
    is_normalized: bool
    uncounted: int | None
    logs: int | None
    tensors: Mapping[str, Tensor]

    @property
    def hidden(self) -> int:
        """Length of a token's vector."""
        return int(self.tensors["positions"].shape[1])

    @property
    def dim(self) -> int:
        """Length of a text's vector."""
        return self._weighted_words or lengths_of(self._pooled, self.steps)[-1]

    @property
    def _weighted_words(self) -> int:
        return 0 if self.logs is None else len(self.tensors["head.words.weight"])

    @property
    def _pooled(self) -> int:
        return len(self.poolings) * self.hidden

    @property
    def most_tokens(self) -> int:
        """Most tokens of a text."""
        return len(self.tensors["positions"]) - (self.uncounted is not None)

    def sizes(self) -> list[int]:
        """As the library takes them."""
        wide, words = self.tensors["layers.0.up.weight"], self.tensors["words.weight"]
        positions = len(self.tensors["positions"])
        sizes = [self.layers, self.hidden, self.heads, len(wide), positions, len(words)]
        uncounted = -1 if self.uncounted is None else self.uncounted
        _, memory, result = numbers_of(self._pooled, self.steps)
        length = lengths_of(self._pooled, self.steps)[-1]
        tail = [len(self.steps), memory, result, length, self.is_normalized]
        reach = 2 * (positions + _BLOCK - 1) if "relative" in self.tensors else 0
        has_types = "second_type" in self.tensors
        head = [self._weighted_words, self.logs or 0]
        return [*sizes, uncounted, len(self.poolings), *tail, reach, has_types, *head]

    def step_numbers(self) -> list[int]:
        """As the library takes them."""
        return numbers_of(self._pooled, self.steps)[0]

    def pooling_numbers(self) -> list[int]:
        """As the library takes them."""
        return [POOLINGS.index(name) for name in self.poolings]

    def arrays(self) -> Iterator[Tensor]:
        """The tensors that the library reads, in its order."""
        if "relative" in self.tensors:
            # Scores are in powers of two. Blocks of keys may begin and end beyond all distances.
            half = len(self.tensors["positions"]) + _BLOCK - 1
            around = (half - self.most_tokens + 1, half - self.most_tokens)
            relative = self.tensors["relative"] * np.float32(math.log2(math.e))
            yield np.pad(relative, [(0, 0), around])
        if "second_type" in self.tensors:
            yield self.tensors["second_type"]
        yield from self._of("words", "weight", "scale")
        yield self.tensors["positions"]
        yield from self._norm("embedding_norm")
        for i in range(self.layers):
            layer = f"layers.{i}"
            yield from self._of(f"{layer}.qkv", "weight", "scale", "bias")
            yield from self._of(f"{layer}.attention_out", "weight", "scale", "bias")
            yield from self._norm(f"{layer}.attention_norm")
            yield from self._of(f"{layer}.up", "weight", "scale", "bias")
            yield from self._of(f"{layer}.down", "weight", "scale", "bias")
            yield from self._norm(f"{layer}.output_norm")
        if self.logs is not None:
            yield from self._of("head.dense", "weight", "scale", "bias")
            yield from self._norm("head.norm")
            yield from self._of("head.words", "weight", "scale", "bias")
        for name in tensor_shapes(self._pooled, self.steps):
            tensor = self.tensors[name]
            columns = (0, -tensor.shape[-1] % 16)  # rows are padded
            yield np.pad(tensor, [(0, 0)] * (tensor.ndim - 1) + [columns])

    def _of(self, name: str, *parts: str) -> Iterator[Tensor]:
        for part in parts:
            yield self.tensors[f"{name}.{part}"]

    def _norm(self, name: str) -> Iterator[Tensor]:
        weight, bias, smoothing = self._of(name, "weight", "bias", "smoothing")
        yield from (weight, bias, weight / smoothing, bias / smoothing)

    def write(self, path: Path) -> None:
        """Write the file."""
        others = tensor_shapes(self._pooled, self.steps)
        if "relative" in self.tensors:
            others["relative"] = (self.heads, 2 * self.most_tokens - 1)
        if "second_type" in self.tensors:
            others["second_type"] = (self.hidden,)
        sizes = (*self._other_sizes(), self._weighted_words)
        names = shapes_of(self.layers, self.hidden, *sizes, others)
        facts = {
            "format": _FORMAT,
            "layers": self.layers,
            "heads": self.heads,
            "epsilon": self.epsilon,
            "activation": "gelu",
            "poolings": list(self.poolings),
            "steps": [step.as_json() for step in self.steps],
            "is_normalized": self.is_normalized,
            "uncounted": self.uncounted,
            "logs": self.logs,
        }
        write_file(path, facts, names, self.tensors)

    def _other_sizes(self) -> tuple[int, int, int]:
        return (
            len(self.tensors["layers.0.up.weight"]),
            len(self.tensors["positions"]),
            len(self.tensors["words.weight"]),
        )

    @classmethod
    def read(cls, path: Path) -> Weights:
        """Read the file; the tensors stay in it, and are mapped into memory.

        Raises:
            BundleError: it is damaged, or not such a file.
        """
        return read_file(path, _parsed)


def _parsed(contents: Contents) -> Weights:
    """What a file holds.

    Raises:
        ValueError, KeyError, TypeError, RecursionError: something else.
    """
    header, facts = contents.header, contents.facts
    if facts["format"] != _FORMAT:
        raise ValueError(f"its format is {facts['format']!r}, and this flowvec reads {_FORMAT}")
    layers, heads = whole(facts, "layers", 1, _MOST_LAYERS), whole(facts, "heads", 1, 1 << 16)
    hidden = dimension(header, "positions", 1)
    poolings = facts["poolings"]
    if not isinstance(poolings, list) or not poolings or not set(poolings) <= set(POOLINGS):
        raise ValueError(f"its poolings are {poolings!r}")
    steps = tuple(map(Step.parse, facts["steps"]))
    logs = facts["logs"]
    if logs is not None:
        logs = whole(facts, "logs", 0, 4)
    others = tensor_shapes(len(poolings) * hidden, steps)
    if "relative" in header:
        most = dimension(header, "positions", 0) - (facts["uncounted"] is not None)
        others["relative"] = (heads, 2 * whole({"": most}, "", 1, 1 << 24) - 1)
    if "second_type" in header:
        others["second_type"] = (hidden,)
    expected = shapes_of(
        layers,
        hidden,
        dimension(header, "layers.0.up.weight", 0),
        dimension(header, "positions", 0),
        dimension(header, "words.weight", 0),
        0 if logs is None else dimension(header, "head.words.weight", 0),
        others,
    )
    if header.keys() != expected.keys():
        raise ValueError(f"its tensors are not those of {layers} layers and {len(steps)} steps")
    tensors = contents.tensors(expected)
    for name, tensor in tensors.items():
        if name.endswith(".smoothing") and not (tensor > 0).all():
            raise ValueError(f"{name} has numbers that are not above 0")
    if facts["activation"] != "gelu":
        raise ValueError(f"its activation is {facts['activation']!r}")
    epsilon = facts["epsilon"]
    if not isinstance(epsilon, float) or not 0 <= epsilon < 1:
        raise ValueError(f"its epsilon is {epsilon!r}")
    if not isinstance(facts["is_normalized"], bool):
        raise ValueError(f"is_normalized is {facts['is_normalized']!r}")
    uncounted = facts["uncounted"]
    if uncounted is not None:
        uncounted = whole(facts, "uncounted", 0, len(tensors["words.weight"]) - 1)
    return Weights(
        layers=layers,
        heads=heads,
        epsilon=epsilon,
        poolings=tuple(poolings),
        steps=steps,
        is_normalized=facts["is_normalized"],
        uncounted=uncounted,
        logs=logs,
        tensors=tensors,
    )
