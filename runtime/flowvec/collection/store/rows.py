"""A collection's row: what an id and metadata may be, and the checksum over all of it."""

from __future__ import annotations

import hashlib
import json
import re
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import numpy as np
import numpy.typing as npt

from flowvec.collection.store.values import storable
from flowvec.errors import InputTypeError, InputValueError
from flowvec.sparse.vectors import SparseVectors
from flowvec.spelled import Spelled, kind_of
from flowvec.texts.unicode import place_of_surrogate

__all__ = [
    "Id",
    "Item",
    "Rows",
    "check_ids",
    "checksum",
    "encode_metadata",
    "id_sum",
    "key_of",
    "without",
]

_MAX_ID_BITS = 1024
# A lone surrogate, which UTF-8 cannot encode.
_SURROGATE = re.compile("[\ud800-\udfff]")

Id = str | int


@dataclass(frozen=True, slots=True)
class Item:
    """One row of a collection.

        >>> with Collection.create("items", dim=2) as collection:
        ...     collection.add_vectors(["a"], [[1, 2]], ["a text"])
        ...     item, = collection.get(["a"])
        Added(rows=1, replaced=0, truncated=0)
        >>> item.text, item.vector.tolist()
        ('a text', [1.0, 2.0])

    Attributes:
        label: the row's number, which rises with every row that is added.
        id: the row's id.
        text: the row's text, or None.
        metadata: the row's metadata, or None.
        vector: float32 (dim,), as it was given.
    """

    label: int
    id: Id
    text: str | None
    metadata: dict[str, Any] | None
    vector: npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows to add to a collection: ids, vectors float32 (rows, dim), texts, metadata.

    `sparse` has their sparse vectors, each of one row; None where a row has none, or all.
    `place_of` names a row by its index, for messages: the file that it is read from, and its number
    there.
    """

    ids: list[Id]
    vectors: npt.NDArray[np.float32]
    texts: list[str | None]
    metadata: list[dict[str, Any] | None]
    sparse: list[SparseVectors | None] | None = None
    place_of: Callable[[int], str] | None = None

    @classmethod
    def of(cls, items: Sequence[Item], sparse: Mapping[int, SparseVectors] | None = None) -> Rows:
        """Rows of items, of which there is at least one, and sparse vectors by their labels."""
        return cls(
            [item.id for item in items],
            np.stack([item.vector for item in items]),
            [item.text for item in items],
            [item.metadata for item in items],
            None if sparse is None else [sparse.get(item.label) for item in items],
        )


def without(labels: npt.NDArray[np.int64], others: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Distinct labels without other distinct labels, in their order.

    numpy's `setdiff1d` first looks for duplicates, which takes seconds for a million labels.
    """
    return labels[~np.isin(labels, others, assume_unique=True)]


def check_ids(ids: Iterable[object]) -> list[Id]:
    """Check ids: strings, whole numbers of up to 1,024 bits, and UUIDs, which become texts.

    Raises:
        InputTypeError: an id is none of these (a bool is not an int here).
        InputValueError: an id is out of range.
    """
    checked: list[Id] = []
    for i, item in enumerate(ids):
        if isinstance(item, str):
            try:
                item.encode()
            except UnicodeEncodeError:
                raise InputValueError(f"id {i} holds a lone surrogate: {item!r}") from None
            checked.append(str.__str__(item))  # an enum's value, not its name
        elif isinstance(item, int | np.integer) and not isinstance(item, bool):
            number = int(item)
            if number.bit_length() > _MAX_ID_BITS:
                raise InputValueError(f"id {i} is a number of more than {_MAX_ID_BITS} bits")
            checked.append(number)
        elif isinstance(item, UUID):
            checked.append(str(item))
        else:
            raise InputTypeError(
                f"id {i} is ",
                kind_of(item),
                Spelled("; ids are str or int", "; ids are texts or whole numbers"),
            )
    return checked


def encode_metadata(metadata: object, index: Id, *, nan_is_null: bool = False) -> str | None:
    """One item's metadata as canonical JSON; `values` says what it may hold.

    Args:
        metadata: a dict with text keys, or None.
        index: its number, or the row's id, for messages.
        nan_is_null: as for `storable`.

    Raises:
        InputTypeError: it is not a dict with text keys, or holds values that JSON cannot.
        InputValueError: it holds NaN, infinity or a lone surrogate, or refers to itself.
    """
    if metadata is None:
        return None
    if not isinstance(metadata, Mapping):
        raise InputTypeError(f"metadata {index} must be a dict with text keys, or None")
    plain = storable(metadata, f"metadata {index}", nan_is_null=nan_is_null)
    try:
        # Unescaped, since older versions of SQLite do not find a field whose name is escaped.
        written = json.dumps(plain, allow_nan=False, sort_keys=True, ensure_ascii=False)
    except ValueError as error:  # an int of too many digits
        raise InputValueError(f"metadata {index} cannot be written as JSON: {error}") from None
    if _SURROGATE.search(written):
        raise InputValueError(
            f"metadata {index}, field {place_of_surrogate(plain)}, holds a lone surrogate, which "
            "UTF-8 cannot encode"
        )
    return written


def key_of(item: Id) -> tuple[str, int]:
    """An id as it is stored, (text, whether it is a number): 1 and "1" are two ids."""
    return (str(item), 1) if isinstance(item, int) else (item, 0)


def id_sum(rows: Iterable[tuple[int, str, int]]) -> int:
    """A checksum over labels and stored ids that does not depend on their order.

    It is a sum, so that it can be updated as rows come and go.
    """
    return sum(zlib.crc32(f"{label} {is_int} {text}".encode()) for label, text, is_int in rows)


def checksum(
    item: bytes, is_int: object, text: bytes | None, metadata: bytes | None, vector: bytes
) -> bytes:
    """BLAKE2b-128 over a row as it is stored.

    Each field is preceded by its length, so that fields cannot run into each other.
    """
    kind = str(is_int).encode()
    fields = (_field(item), _field(kind), _field(text), _field(metadata))
    return hashlib.blake2b(b"%b%b%b%b%b" % (*fields, vector), digest_size=16).digest()


def _field(content: bytes | None) -> bytes:
    return b"-1:" if content is None else b"%d:%b" % (len(content), content)
