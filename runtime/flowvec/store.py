"""The truth of a collection: one SQLite file.

SQLite runs in WAL mode with synchronous=FULL, so a returned commit has reached the disk. Every row
carries a checksum over its id, text, metadata and vector, since SQLite itself notices few flipped
bits. `PRAGMA user_version` is the version of this layout.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from flowvec.errors import CollectionError, CorruptCollectionError, InputTypeError, InputValueError

__all__ = ["FILE", "Id", "Item", "Snapshot", "Store", "check_ids", "encode_metadata"]

FILE = "collection.sqlite"
LAYOUT_VERSION = 1
_MAX_VARIABLES = 900  # SQLite's oldest limit on parameters in one statement is 999
_READ_ROWS = 4096
_MAX_ID_BITS = 1024
_MAX_METADATA_DEPTH = 100

Id = str | int

_SCHEMA = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE items (
    label     INTEGER PRIMARY KEY AUTOINCREMENT,
    id        TEXT NOT NULL,
    id_is_int INTEGER NOT NULL,
    text      TEXT,
    metadata  TEXT,
    vector    BLOB NOT NULL,
    checksum  BLOB NOT NULL,
    UNIQUE (id, id_is_int)
);
CREATE TABLE snapshots (
    n               INTEGER PRIMARY KEY,
    file            TEXT NOT NULL,
    bytes           INTEGER NOT NULL,
    sha256          TEXT NOT NULL,
    max_label       INTEGER NOT NULL,
    count           INTEGER NOT NULL,
    M               INTEGER NOT NULL,
    ef_construction INTEGER NOT NULL,
    created         TEXT NOT NULL
);
"""


@dataclass(frozen=True, slots=True)
class Item:
    """One row: vector is float32 (dim,) as it was given."""

    label: int
    id: Id
    text: str | None
    metadata: dict[str, Any] | None
    vector: npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A record of a graph file: which rows it holds and what its bytes must be."""

    n: int
    file: str
    bytes: int
    sha256: str
    max_label: int
    count: int
    m: int
    ef_construction: int
    created: str


def check_ids(ids: Iterable[object]) -> list[Id]:
    """Check ids before any work: any text, or any whole number of up to 1,024 bits.

    Raises:
        InputValueError: an id is neither str nor int (a bool is no int here), or is out of range.
    """
    checked: list[Id] = []
    for i, item in enumerate(ids):
        if isinstance(item, str):
            try:
                item.encode()
            except UnicodeEncodeError:
                raise InputValueError(f"id {i} holds a lone surrogate: {item!r}") from None
            checked.append(str(item))
        elif isinstance(item, int | np.integer) and not isinstance(item, bool):
            number = int(item)
            if number.bit_length() > _MAX_ID_BITS:
                raise InputValueError(f"id {i} is a number of more than {_MAX_ID_BITS} bits")
            checked.append(number)
        else:
            raise InputValueError(f"id {i} is {type(item).__name__}; ids are str or int")
    return checked


def encode_metadata(metadata: object, index: int) -> str | None:
    """One item's metadata as canonical JSON.

    Raises:
        InputTypeError: it is no dict with text keys, or holds what JSON cannot.
        InputValueError: it holds NaN or infinity, or refers to itself.
    """
    if metadata is None:
        return None
    if not isinstance(metadata, dict):
        raise InputTypeError(f"metadata {index} must be a dict with text keys, or None")
    _check_json(metadata, index)
    try:
        return json.dumps(metadata, allow_nan=False, sort_keys=True)
    except TypeError as error:
        raise InputTypeError(f"metadata {index} is no JSON: {error}") from None
    except (ValueError, RecursionError) as error:
        raise InputValueError(f"metadata {index} is no JSON: {error}") from None


def _check_json(metadata: dict[Any, Any], index: int) -> None:
    """Refuse what json would change (keys that are no texts) or could not read back (depth)."""
    level: list[Any] = [metadata]
    for _ in range(_MAX_METADATA_DEPTH):
        below: list[Any] = []
        for value in level:
            if isinstance(value, dict):
                if not all(isinstance(key, str) for key in value):
                    raise InputTypeError(f"metadata {index} must have text keys at every level")
                below.extend(value.values())
            elif isinstance(value, list | tuple):
                below.extend(value)
        level = [value for value in below if isinstance(value, dict | list | tuple)]
        if not level:
            return
    raise InputValueError(f"metadata {index} is nested deeper than {_MAX_METADATA_DEPTH} levels")


def _key(item: Id) -> tuple[str, int]:
    """An id as it is stored: 1 and "1" are two ids, and ints may be of any size."""
    return (str(item), 1) if isinstance(item, int) else (item, 0)


def _checksum(key: tuple[str, int], text: str | None, metadata: str | None, vector: bytes) -> bytes:
    """BLAKE2b-128 over a row, each field framed by its length so that none can run into another."""
    digest = hashlib.blake2b(digest_size=16)
    for part in (key[0], str(key[1]), text, metadata):
        data = b"" if part is None else part.encode("utf-8", "surrogatepass")
        digest.update(f"{-1 if part is None else len(data)}:".encode())
        digest.update(data)
    digest.update(vector)
    return digest.digest()


class Store:
    """The SQLite file of a collection. Callers serialise access; `Collection` holds the lock."""

    def __init__(self, path: Path, *, create: dict[str, str] | None = None) -> None:
        """Open the file, or make it with its tables and the keys and values of `create`.

        Raises:
            CollectionError: it is missing, exists already, or is of another layout version.
            CorruptCollectionError: it is no database.
        """
        if create is not None and path.exists():
            raise CollectionError(f"{path} exists already")
        if create is None and not path.is_file():
            raise CollectionError(f"{path.parent} is no collection: it has no {FILE}")
        self._path = path
        with self._translated():
            self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=FULL")
        if create is not None:
            # One transaction: a kill leaves a file without tables, or a whole collection.
            with self.transaction():
                for statement in _SCHEMA.split(";"):
                    self._db.execute(statement)
                self.write_meta(create)
                self._db.execute(f"PRAGMA user_version={LAYOUT_VERSION}")
        with self._translated():
            version = int(self._db.execute("PRAGMA user_version").fetchone()[0])
        if version != LAYOUT_VERSION:
            self._db.close()
            raise CollectionError(
                f"{path} has layout version {version}; this flowvec reads {LAYOUT_VERSION}"
            )

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.OperationalError, sqlite3.IntegrityError) as error:
            raise CollectionError(f"{self._path}: {error}") from error
        except sqlite3.DatabaseError as error:
            raise CorruptCollectionError(f"{self._path} is damaged: {error}") from error

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All or nothing: committed and on disk when the block has ended without an error."""
        with self._translated():
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise

    @contextmanager
    def reading(self) -> Iterator[None]:
        """One state of the file for all reads of the block, whatever other processes commit."""
        with self._translated():
            self._db.execute("BEGIN")
        try:
            yield
        finally:
            with self._translated():
                self._db.execute("ROLLBACK")

    def data_version(self) -> int:
        """A number that changes when another connection has committed something."""
        with self._translated():
            self._db.execute("SELECT 1 FROM meta LIMIT 1").fetchone()
            return int(self._db.execute("PRAGMA data_version").fetchone()[0])

    def close(self) -> None:
        """Close the file; SQLite folds its write-ahead log into it."""
        with self._translated():
            self._db.close()

    # --- meta -----------------------------------------------------------------------------------

    def read_meta(self) -> dict[str, str]:
        """All keys and values of the table meta."""
        with self._translated():
            return dict(self._db.execute("SELECT key, value FROM meta"))

    def write_meta(self, values: dict[str, str]) -> None:
        """Set keys; call it inside a transaction."""
        self._db.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", values.items())

    # --- items ----------------------------------------------------------------------------------

    def upsert(
        self,
        ids: Sequence[Id],
        vectors: npt.NDArray[np.float32],
        texts: Sequence[str | None],
        metadata: Sequence[str | None],
    ) -> tuple[list[int], list[int]]:
        """Write rows under new labels, replacing rows of the same id; inside a transaction.

        Ids must be distinct. Returns the new labels and the labels that they replaced.
        """
        replaced = [label for _, label in self.labels_of(ids)]
        self._delete_labels(replaced)
        labels: list[int] = []
        for item, vector, text, meta in zip(ids, vectors, texts, metadata, strict=True):
            key, blob = _key(item), vector.astype("<f4").tobytes()
            cursor = self._db.execute(
                "INSERT INTO items (id, id_is_int, text, metadata, vector, checksum)"
                " VALUES (?, ?, ?, ?, ?, ?)",
                (*key, text, meta, blob, _checksum(key, text, meta, blob)),
            )
            labels.append(int(cursor.lastrowid or 0))
        return labels, replaced

    def delete(self, ids: Sequence[Id]) -> list[int]:
        """Delete rows by id, unknown ids ignored; inside a transaction. Returns their labels."""
        labels = [label for _, label in self.labels_of(ids)]
        self._delete_labels(labels)
        return labels

    def _delete_labels(self, labels: Sequence[int]) -> None:
        self._db.executemany("DELETE FROM items WHERE label = ?", ((label,) for label in labels))

    def labels_of(self, ids: Sequence[Id]) -> list[tuple[Id, int]]:
        """(id, label) of those ids that exist."""
        found: list[tuple[Id, int]] = []
        with self._translated():
            for item in dict.fromkeys(ids):
                row = self._db.execute(
                    "SELECT label FROM items WHERE id = ? AND id_is_int = ?", _key(item)
                ).fetchone()
                if row is not None:
                    found.append((item, int(row[0])))
        return found

    def read(self, labels: Sequence[int]) -> dict[int, Item]:
        """Rows by label, checked against their checksums.

        Raises:
            CorruptCollectionError: a row does not match its checksum.
        """
        items: dict[int, Item] = {}
        for start in range(0, len(labels), _MAX_VARIABLES):
            part = labels[start : start + _MAX_VARIABLES]
            marks = ",".join("?" * len(part))
            with self._translated():
                rows = self._db.execute(
                    f"SELECT * FROM items WHERE label IN ({marks})",  # noqa: S608 - only marks
                    [int(label) for label in part],
                ).fetchall()
            for row in rows:
                item = self._item(row)
                items[item.label] = item
        return items

    def scan(self, after: int = 0) -> Iterator[list[Item]]:
        """All rows with a label above `after`, in order of label, a few thousand at a time."""
        while True:
            with self._translated():
                rows = self._db.execute(
                    "SELECT * FROM items WHERE label > ? ORDER BY label LIMIT ?",
                    (after, _READ_ROWS),
                ).fetchall()
            if not rows:
                return
            items = [self._item(row) for row in rows]
            yield items
            after = items[-1].label

    def labels(self) -> npt.NDArray[np.int64]:
        """The labels of all rows, ascending, int64 (rows,)."""
        with self._translated():
            rows = self._db.execute("SELECT label FROM items ORDER BY label").fetchall()
        return np.fromiter((row[0] for row in rows), dtype=np.int64, count=len(rows))

    def count(self) -> int:
        """Number of rows."""
        with self._translated():
            return int(self._db.execute("SELECT COUNT(*) FROM items").fetchone()[0])

    def _item(self, row: tuple[Any, ...]) -> Item:
        label, id_text, id_is_int, text, metadata, blob, checksum = row
        try:
            intact = _checksum((id_text, id_is_int), text, metadata, blob) == checksum
            item: Id = int(id_text) if id_is_int else id_text
            parsed = None if metadata is None else json.loads(metadata)
            vector = np.frombuffer(blob, dtype="<f4").astype(np.float32, copy=False)
        except (TypeError, ValueError, AttributeError):
            intact = False
        if not intact:
            raise CorruptCollectionError(f"{self._path}: row {label} does not match its checksum")
        return Item(label, item, text, parsed, vector)

    # --- snapshots ------------------------------------------------------------------------------

    def snapshots(self) -> list[Snapshot]:
        """Records of graph files, newest first."""
        with self._translated():
            rows = self._db.execute("SELECT * FROM snapshots ORDER BY n DESC").fetchall()
        return [Snapshot(*row) for row in rows]

    def add_snapshot(self, snapshot: Snapshot) -> None:
        """Record a graph file; inside a transaction."""
        self._db.execute(
            "INSERT INTO snapshots VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                snapshot.n,
                snapshot.file,
                snapshot.bytes,
                snapshot.sha256,
                snapshot.max_label,
                snapshot.count,
                snapshot.m,
                snapshot.ef_construction,
                snapshot.created,
            ),
        )

    def forget_snapshots(self, numbers: Iterable[int]) -> None:
        """Drop records; inside a transaction."""
        self._db.executemany("DELETE FROM snapshots WHERE n = ?", ((n,) for n in numbers))
