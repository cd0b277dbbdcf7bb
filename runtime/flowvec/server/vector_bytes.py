"""Vectors as the bytes of a JSON answer: base64, or numbers that are formatted in one call."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt
import orjson

from flowvec.sparse.vectors import SparseVectors

__all__ = [
    "Encoding", "base64_rows", "number_rows", "openai_data", "pieces", "sparse_pieces",
    "sparse_rows", "token_rows",
]  # fmt: skip

Encoding = Literal["float", "base64"]
Vectors = npt.NDArray[Any]

# Numbers that are formatted at a time: about a millisecond, in which nothing else is answered.
_BLOCK = 1 << 17
# Weights of sparse vectors likewise, which are formatted one by one.
_SPARSE_BLOCK = 1 << 12

_encode = msgspec.json.Encoder().encode


class _Item(msgspec.Struct):
    """An item of the list `data` of OpenAI's answer; msgspec writes bytes as base64."""

    object: str
    index: int
    embedding: memoryview


def _little_endian(vectors: Vectors) -> Vectors:
    return np.ascontiguousarray(vectors, vectors.dtype.newbyteorder("<"))


def base64_rows(vectors: Vectors) -> bytes:
    """The bytes of each row in base64, as a JSON list; numbers of several bytes are
    little-endian."""
    return _encode([row.data for row in _little_endian(vectors)])


def number_rows(vectors: Vectors) -> bytes:
    """Rows as a JSON list of lists; a float32 has the fewest digits that give it back."""
    return orjson.dumps(np.ascontiguousarray(vectors), option=orjson.OPT_SERIALIZE_NUMPY)


def pieces(vectors: Vectors) -> Iterator[tuple[int, Vectors]]:
    """Rows in blocks that are formatted at a time, each with the number of its first row."""
    step = max(1, _BLOCK // max(1, vectors.shape[1]))
    for start in range(0, len(vectors), step):
        yield start, vectors[start : start + step]


def openai_data(vectors: Vectors, first: int, encoding: Encoding) -> bytes:
    """Items of the list `data` of OpenAI's answer, without brackets.

    Args:
        vectors: one or more rows.
        first: index of the first row.
        encoding: of each row.
    """
    if encoding == "base64":
        rows = enumerate(_little_endian(vectors), first)
        return _encode([_Item("embedding", index, row.data) for index, row in rows])[1:-1]
    # Numbers hold no bracket, so rows can be told apart in what was formatted as a whole.
    lists = number_rows(vectors)[2:-2].split(b"],[")
    return b",".join(
        [
            b'{"object":"embedding","index":%d,"embedding":[%b]}' % item
            for item in enumerate(lists, first)
        ]
    )


def token_rows(vectors: Vectors) -> bytes:
    """The vectors of a text's tokens as a JSON list of lists; a text may have none."""
    return number_rows(vectors) if len(vectors) else b"[]"


def sparse_pieces(vectors: SparseVectors) -> Iterator[SparseVectors]:
    """Sparse vectors in blocks that are formatted at a time; one of many weights is not split."""
    start = 0
    while start < len(vectors):
        most = vectors.indptr[start] + _SPARSE_BLOCK
        stop = int(np.searchsorted(vectors.indptr, most, side="right")) - 1
        stop = max(stop, start + 1)
        yield vectors[start:stop]
        start = stop


def sparse_rows(vectors: SparseVectors) -> bytes:
    """Sparse vectors as JSON lists of objects with `index` and `value`, joined by commas; at least
    one. A value has the fewest digits that give its float32 back."""
    indices = _numbers(vectors.indices)
    values = _numbers(vectors.values)
    items = [b'{"index":%b,"value":%b}' % item for item in zip(indices, values, strict=True)]
    bounds = vectors.indptr.tolist()
    return b",".join([b"[%b]" % b",".join(items[a:b]) for a, b in pairwise(bounds)])


def _numbers(array: Vectors) -> list[bytes]:
    """Each number as JSON."""
    return number_rows(array)[1:-1].split(b",") if len(array) else []
