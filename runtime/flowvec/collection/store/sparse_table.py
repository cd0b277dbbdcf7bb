"""Sparse vectors of a collection's rows, beside their dense ones.

Each has a checksum, and they are counted, so that a damaged and a lost one are both detected.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from flowvec.collection.store.meta import MetaTable
from flowvec.collection.store.row_tables import count_without, labels_without, lines_without_row
from flowvec.collection.store.sqlite import Database
from flowvec.errors import CorruptCollectionError, InputValueError
from flowvec.sparse.vectors import SparseVectors

__all__ = ["SparsePage", "SparseTable"]

Labels = npt.NDArray[np.int64]

_ROWS = "sparse_rows"
_READ_ROWS = 4096
# A row's weights, in ascending order of terms.
_ENTRY = np.dtype([("term", "<i4"), ("weight", "<f4")])

_SELECT = "SELECT n, label, weights, checksum FROM sparse_vectors"
_LISTED = "SELECT value FROM json_each(?)"


@dataclass(frozen=True, slots=True, eq=False)
class SparsePage:
    """Some sparse vectors.

    Attributes:
        last: the highest `n` of them.
        labels: of their rows, int64 (rows,).
        vectors: one for each label.
    """

    last: int
    labels: Labels
    vectors: SparseVectors


class SparseTable:
    """The table `sparse_vectors` of one collection.

    Its number `n` rises with every vector that is written, so that other processes find new ones.
    """

    def __init__(self, database: Database, meta: MetaTable) -> None:
        self._database, self._meta = database, meta

    @property
    def dim(self) -> int | None:
        """Terms of the vocabulary; None before the first sparse vector."""
        return self._meta.number("sparse_dim") or None

    @property
    def count(self) -> int:
        """How many rows have a sparse vector, as they were counted."""
        return self._meta.number(_ROWS)

    def put(self, labels: Sequence[int], vectors: SparseVectors) -> None:
        """Write sparse vectors of rows that exist, replacing theirs; inside a transaction.

        Raises:
            InputValueError: the collection's have another number of dimensions.
        """
        if not labels:
            return
        dim = self.dim
        if dim is None:
            self._meta.write_settings({"sparse_dim": str(vectors.dim)})
        elif dim != vectors.dim:
            raise InputValueError(
                f"the sparse vectors have {vectors.dim} dimensions, and those of the collection "
                f"have {dim}"
            )
        replaced = self._delete(labels)
        self._database.connection.executemany(
            "INSERT INTO sparse_vectors (label, weights, checksum) VALUES (?, ?, ?)",
            (
                (label, weights, _checksum(label, weights))
                for label, weights in zip(labels, _blobs(vectors), strict=True)
            ),
        )
        self._meta.write({_ROWS: str(self.count - replaced + len(labels))})

    def delete(self, labels: Sequence[int]) -> None:
        """Delete the sparse vectors of rows, where they have one; inside a transaction."""
        if labels and self.dim is not None:
            deleted = self._delete(labels)
            if deleted:
                self._meta.write({_ROWS: str(self.count - deleted)})

    def _delete(self, labels: Sequence[int]) -> int:
        done = self._database.connection.executemany(
            "DELETE FROM sparse_vectors WHERE label = ?", ((label,) for label in labels)
        )
        return max(0, done.rowcount)

    def newest(self) -> int:
        """The highest `n` in the state that this thread reads; 0 without sparse vectors."""
        with self._database.translated():
            rows = self._database.connection.execute("SELECT max(n) FROM sparse_vectors").fetchall()
        return int(rows[0][0] or 0)

    def labels(self) -> Labels:
        """Labels of all rows that have a sparse vector, ascending, int64 (rows,)."""
        with self._database.translated():
            # One text of all labels is read four times as fast as a row for each.
            ((listed,),) = self._database.connection.execute(
                "SELECT group_concat(label) FROM sparse_vectors"
            ).fetchall()
        labels = np.fromstring(listed, np.int64, sep=",") if listed else np.empty(0, np.int64)
        labels.sort()
        return labels

    def missing(self, after: int, most: int) -> list[int]:
        """The next labels above one of rows that have a text and no sparse vector, ascending."""
        return labels_without(self._database, "sparse_vectors", after, most)

    def lacking(self) -> int:
        """How many rows have a text and no sparse vector; 0 before the first one."""
        return 0 if self.dim is None else count_without(self._database, "sparse_vectors")

    def read(self, labels: Sequence[int]) -> dict[int, SparseVectors]:
        """The sparse vectors of rows, by label; rows without one are left out.

        Raises:
            CorruptCollectionError: one does not match its checksum.
        """
        found: dict[int, SparseVectors] = {}
        for start in range(0, len(labels), _READ_ROWS):
            part = [int(label) for label in labels[start : start + _READ_ROWS]]
            page = self._page(f"WHERE label IN ({_LISTED})", json.dumps(part))
            if page is not None:
                found |= zip(page.labels.tolist(), page.vectors, strict=True)
        return found

    def pages(self, after: int = 0) -> Iterator[SparsePage]:
        """All sparse vectors that were written after one, a few thousand at a time.

        Inside `reading`, so that all are of one state.

        Args:
            after: an `n`.

        Raises:
            CorruptCollectionError: one does not match its checksum.
        """
        while True:
            page = self._page("WHERE n > ? ORDER BY n LIMIT ?", after, _READ_ROWS)
            if page is None:
                return
            yield page
            after = page.last

    def _page(self, where: str, *parameters: object) -> SparsePage | None:
        with self._database.translated():
            rows = self._database.connection.execute(f"{_SELECT} {where}", parameters).fetchall()
        if not rows:
            return None
        for row in rows:
            if not _is_intact(row):
                raise CorruptCollectionError(
                    f"{self._database.path}: the sparse vector of row {row[1]} does not match its "
                    "checksum"
                )
        labels = np.fromiter((row[1] for row in rows), np.int64, len(rows))
        return SparsePage(rows[-1][0], labels, _vectors([row[2] for row in rows], self.dim or 0))

    def require(self, count: int) -> None:
        """Check how many sparse vectors were found.

        Raises:
            CorruptCollectionError: another number was written.
        """
        if count != self.count:
            raise CorruptCollectionError(
                f"{self._database.path} is damaged: it holds {count} sparse vectors, but "
                f"{self.count} were written"
            )

    def intact(self, labels: Sequence[int]) -> dict[int, SparseVectors]:
        """As `read`, without those that are damaged."""
        found: dict[int, SparseVectors] = {}
        for label in labels:
            try:
                found |= self.read([label])
            except CorruptCollectionError:
                continue
        return found

    def problems(self) -> Iterator[str]:
        """What is wrong with the sparse vectors, one message each; inside `reading`.

        Raises:
            CorruptCollectionError: too much is damaged to go on.
        """
        dim = self.dim
        if dim is None:
            return
        name, after, seen = self._database.path.name, 0, 0
        while rows := self._raw_page(after):
            for row in rows:
                if not _is_intact(row):
                    yield f"{name}: the sparse vector of row {row[1]} does not match its checksum"
                elif not _is_valid(row[2], dim):
                    yield f"{name}: row {row[1]} has a sparse vector that is not valid"
            seen, after = seen + len(rows), rows[-1][0]
        if seen != self.count:
            yield f"{name}: it holds {seen} sparse vectors, but {self.count} were written"
        if lost := lines_without_row(self._database, "sparse_vectors"):
            yield f"{name}: {lost} sparse vectors belong to no row"

    def _raw_page(self, after: int) -> list[tuple[Any, ...]]:
        with self._database.translated():
            return self._database.connection.execute(
                f"{_SELECT} WHERE n > ? ORDER BY n LIMIT ?", (after, _READ_ROWS)
            ).fetchall()


def _checksum(label: int, weights: bytes) -> bytes:
    """BLAKE2b-128 over a row's label and its weights."""
    return hashlib.blake2b(b"%d:" % label + weights, digest_size=16).digest()


def _is_intact(row: tuple[Any, ...]) -> bool:
    _, label, weights, checksum = row
    try:
        return len(weights) % _ENTRY.itemsize == 0 and _checksum(label, weights) == checksum
    except TypeError:  # a value of another type
        return False


def _is_valid(weights: bytes, dim: int) -> bool:
    entries = np.frombuffer(weights, _ENTRY)
    terms = entries["term"]
    is_ordered = bool((np.diff(terms) > 0).all()) and (not len(terms) or terms[0] >= 0)
    in_range = not len(terms) or terms[-1] < dim
    return bool(is_ordered and in_range and np.isfinite(entries["weight"]).all())


def _blobs(vectors: SparseVectors) -> Iterable[bytes]:
    entries = np.empty(len(vectors.values), _ENTRY)
    entries["term"], entries["weight"] = vectors.indices, vectors.values
    written = entries.tobytes()
    bounds = (vectors.indptr * _ENTRY.itemsize).tolist()
    return (written[bounds[i] : bounds[i + 1]] for i in range(len(vectors)))


def _vectors(blobs: Sequence[bytes], dim: int) -> SparseVectors:
    lengths = np.fromiter(map(len, blobs), np.int64, len(blobs)) // _ENTRY.itemsize
    entries = np.frombuffer(b"".join(blobs), _ENTRY)
    return SparseVectors(
        np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)]),
        entries["term"].astype(np.int32),
        entries["weight"].astype(np.float32),
        dim,
    )
