"""Safetensors files with one key of metadata, `flowvec`: facts that no tensor shows, as JSON."""

from __future__ import annotations

import json
import math
import mmap
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from flowvec.errors import BundleError

__all__ = [
    "Contents",
    "Shapes",
    "Tensor",
    "dimension",
    "mapped",
    "read_file",
    "whole",
    "write_file",
]

_MAX_HEADER_BYTES = 1 << 20
_TYPES: dict[str, np.dtype[Any]] = {"F32": np.dtype("<f4"), "I8": np.dtype("i1")}

Tensor = npt.NDArray[Any]
# Types and shapes of tensors, by name, in their order.
Shapes = Mapping[str, tuple[str, tuple[int, ...]]]
T = TypeVar("T")


class Contents:
    """What a file holds.

    Attributes:
        facts: what is in its metadata.
        header: type, shape and place of each tensor, by name; not checked.
    """

    def __init__(self, data: mmap.mmap) -> None:
        """Read the header.

        Raises:
            ValueError, KeyError, TypeError, RecursionError: it is something else.
        """
        length = int.from_bytes(data[:8], "little")
        if len(data) < 8 or not 2 <= length <= min(_MAX_HEADER_BYTES, len(data) - 8):
            raise ValueError("its header has an impossible length")
        self.header = _object(data[8 : 8 + length].decode())
        self.facts = _object(self.header.pop("__metadata__")["flowvec"])
        self._data, self._start = data, 8 + length

    def tensors(self, expected: Shapes) -> dict[str, Tensor]:
        """The tensors, which stay in the file; they must be all that it has.

        Raises:
            ValueError, KeyError, TypeError: they are not, or not in this order.
        """
        tensors: dict[str, Tensor] = {}
        end = 0
        for name, (type_, shape) in expected.items():
            begin, end = end, end + math.prod(shape) * _TYPES[type_].itemsize
            wanted = {"dtype": type_, "shape": list(shape), "data_offsets": [begin, end]}
            if self.header[name] != wanted:
                raise ValueError(f"{name} is {self.header[name]}, and not {wanted}")
            if self._start + end > len(self._data):
                raise ValueError(f"it ends before the end of {name}")
            count, place = math.prod(shape), self._start + begin
            tensor = np.frombuffer(self._data, _TYPES[type_], count, place).reshape(shape)
            if type_ == "F32" and not np.isfinite(tensor).all():
                raise ValueError(f"{name} has numbers that are not finite")
            tensors[name] = tensor
        if self.header.keys() != expected.keys() or self._start + end != len(self._data):
            raise ValueError("it has more than its tensors")
        return tensors


def _object(text: str) -> dict[str, Any]:
    value = json.loads(text)
    if not isinstance(value, dict):
        raise ValueError(f"{value!r} is not a JSON object")
    return value


def mapped(path: Path) -> mmap.mmap:
    """A file, mapped into memory to be read.

    Raises:
        BundleError: it cannot be read.
    """
    try:
        with path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:  # an empty file cannot be mapped
        raise BundleError(f"cannot read {path}: {error}") from None


def read_file(path: Path, parse: Callable[[Contents], T]) -> T:
    """Read a file, mapped into memory.

    Args:
        path: the file.
        parse: makes something of its contents; ValueError, KeyError, TypeError and RecursionError
            say that the file is another.

    Raises:
        BundleError: it is damaged, or another file.
    """
    data = mapped(path)
    try:
        return parse(Contents(data))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise BundleError(f"{path} is not a file of native weights: {error}") from None


def write_file(
    path: Path, facts: Mapping[str, Any], shapes: Shapes, tensors: Mapping[str, Tensor]
) -> None:
    """Write a file that `read_file` reads."""
    header: dict[str, Any] = {"__metadata__": {"flowvec": json.dumps(facts)}}
    end = 0
    for name, (type_, shape) in shapes.items():
        begin, end = end, end + math.prod(shape) * _TYPES[type_].itemsize
        header[name] = {"dtype": type_, "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-(8 + len(text)) % 64)  # tensors begin at a cache line
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name, (type_, shape) in shapes.items():
            tensor = tensors[name]
            assert tensor.shape == shape, (name, tensor.shape, shape)
            file.write(np.ascontiguousarray(tensor, _TYPES[type_]).tobytes())


def whole(facts: Mapping[str, Any], name: str, least: int, most: int) -> int:
    """A whole number of the facts.

    Raises:
        ValueError, KeyError: it is not one, or out of range.
    """
    value = facts[name]
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"{name} is {value!r}")
    return value


def dimension(header: Mapping[str, Any], name: str, axis: int) -> int:
    """A dimension of a matrix.

    Raises:
        ValueError, KeyError, TypeError: there is no such matrix.
    """
    shape = header[name]["shape"]
    if not isinstance(shape, list) or len(shape) != 2:
        raise ValueError(f"{name} has the shape {shape!r}")
    return whole({name: shape[axis]}, name, 1, 1 << 24)
