"""A collection's SQLite file: its rows, settings, full-text index and records of graph files.

Every row has a checksum over its id, text, metadata and vector, since SQLite itself detects few
flipped bits. The rows are counted, so that a lost row is detected too.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from flowvec.collection.store.deletions import Deletions
from flowvec.collection.store.field_hints import FieldHints
from flowvec.collection.store.field_indexes import FieldIndexes
from flowvec.collection.store.file_systems import MOUNTS, warn_of_network
from flowvec.collection.store.filters import Condition
from flowvec.collection.store.full_text import FullText
from flowvec.collection.store.json_field import JsonField, path_of
from flowvec.collection.store.meta import LAYOUT_VERSION, MetaTable
from flowvec.collection.store.metadata_changes import MetadataChanges
from flowvec.collection.store.rows import Id, Item, Rows, checksum, id_sum, key_of
from flowvec.collection.store.settings import CollectionSettings
from flowvec.collection.store.snapshot_table import SnapshotTable
from flowvec.collection.store.sparse_table import SparseTable
from flowvec.collection.store.sqlite import Database
from flowvec.collection.store.token_table import TokenTable
from flowvec.errors import CollectionError, CorruptCollectionError

__all__ = ["FILE", "Store", "UnfinishedError"]

FILE = "collection.sqlite"
# flowvec never assigns a higher label.
_LAST_LABEL = 1 << 62
Labels = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]

_MAX_VARIABLES = 900  # SQLite's oldest limit on parameters in one statement is 999
_READ_ROWS = 4096

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
CREATE TABLE deletions (n INTEGER PRIMARY KEY, labels BLOB NOT NULL);
CREATE TABLE metadata_changes (n INTEGER PRIMARY KEY, labels BLOB);
CREATE TABLE sparse_vectors (
    n        INTEGER PRIMARY KEY AUTOINCREMENT,
    label    INTEGER NOT NULL UNIQUE,
    weights  BLOB NOT NULL,
    checksum BLOB NOT NULL
);
CREATE TABLE token_vectors (
    label    INTEGER PRIMARY KEY,
    text     BLOB NOT NULL,
    vectors  BLOB NOT NULL,
    checksum BLOB NOT NULL
);
"""

# Texts as bytes: damaged ones may not be UTF-8, and the checksum is over bytes.
_ROWS_OF = (
    "SELECT label, CAST(id AS BLOB), id_is_int, CAST(text AS BLOB), CAST(metadata AS BLOB), "
    "vector, checksum FROM items"
)


class UnfinishedError(CollectionError):
    """The file has no tables, because its creation was killed. It holds no data."""


class Store:
    """The SQLite file of a collection. Reads see one state within `reading`.

    Attributes:
        database: its connections.
        meta: its settings and counts.
        full_text: its full-text index.
        snapshots: its records of graph files.
        field_indexes: its indexes over fields of the metadata.
        field_hints: warns of filters' fields that no row has.
        metadata_changes: which rows' metadata changed.
        deletions: which rows were deleted last.
        sparse: sparse vectors of rows.
        tokens: token vectors of rows.
        dtype: how vectors are stored.
    """

    def __init__(
        self, path: Path, *, create: CollectionSettings | None = None, mounts: Path = MOUNTS
    ) -> None:
        """Open the file, or create it with its tables and these settings.

        Args:
            path: the file.
            create: the settings of a new one.
            mounts: the system's list of mounts.

        Raises:
            CollectionError: it is missing, exists already, or is of another layout version.
            CorruptCollectionError: it is not a database, or its settings are damaged.
        """
        self._path = path
        self.database = Database(path, create=create is not None)
        self.meta = MetaTable(self.database)
        self.full_text = FullText(self.database)
        self.snapshots = SnapshotTable(self.database)
        self.field_indexes = FieldIndexes(self.database)
        self.field_hints = FieldHints(self.database)
        self.metadata_changes = MetadataChanges(self.database, self.meta)
        self.deletions = Deletions(self.database, self.meta)
        self.sparse = SparseTable(self.database, self.meta)
        self.tokens = TokenTable(self.database, self.meta)
        try:
            if create is not None:
                # One transaction: a kill leaves a file without tables, or a whole collection.
                with self.transaction():
                    if self._has_tables():
                        raise CollectionError(f"{path} exists already")
                    for statement in _SCHEMA.split(";"):
                        self._connection.execute(statement)
                    self.meta.fill(create)
            version = self.meta.version
            if version == 0 and not self._has_tables():
                raise UnfinishedError(
                    f"{path.parent} is not a collection: its creation was interrupted. "
                    "Create it again."
                )
            if version != LAYOUT_VERSION:
                raise CollectionError(
                    f"{path} has layout version {version}; this flowvec reads {LAYOUT_VERSION}: it "
                    "was made by a newer one"
                )
            is_half = self.meta.read().get("vector_dtype") == "float16"
        except BaseException:
            self.close()
            raise
        if self.database.is_writable:
            warn_of_network(path.parent, mounts)
        self.dtype = np.dtype("<f2" if is_half else "<f4")
        # The highest label that this object has assigned, also in transactions that failed.
        self._last_tried = 0

    @property
    def _connection(self) -> sqlite3.Connection:
        return self.database.connection

    def _has_tables(self) -> bool:
        with self.database.translated():
            row = self._connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
            return bool(row[0])

    @property
    def settings(self) -> CollectionSettings:
        """The collection's settings."""
        return self.meta.settings

    def transaction(self) -> AbstractContextManager[None]:
        """Commit all changes of the block, or none if it raises. On disk when the block ends."""
        return self.database.transaction()

    def reading(self) -> AbstractContextManager[None]:
        """All reads of this thread in the block see one state of the file."""
        return self.database.reading()

    def close(self) -> None:
        """Close the file, after reads of other threads that have begun. Twice is harmless."""
        self.database.close()

    # --- items ----------------------------------------------------------------------------------

    def upsert(
        self,
        ids: Sequence[Id],
        vectors: Floats,
        texts: Sequence[str | None],
        metadata: Sequence[str | None],
    ) -> tuple[list[int], list[int]]:
        """Write rows under new labels, replacing rows of the same id; inside a transaction.

        A label is never used twice, even if its transaction failed: a graph may contain it.

        Args:
            ids: distinct ids.
            vectors: float32 (rows, dim).
            texts: one for each row.
            metadata: one for each row, as JSON.

        Returns:
            The new labels, ascending, and the labels of the rows that were replaced.
        """
        existing = self.labels_of(ids)
        replaced = [label for _, label in existing]
        first = max(self._last_label(), self._last_tried) + 1
        labels = list(range(first, first + len(ids)))
        self._last_tried = first + len(ids) - 1
        new = zip(ids, labels, strict=True)
        self.meta.count_change(len(ids), len(replaced), _sum_of(new) - _sum_of(existing))
        self._delete_labels(replaced)
        self._connection.executemany(
            "INSERT INTO items (label, id, id_is_int, text, metadata, vector, checksum)"
            " VALUES (?, ?, ?, ?, ?, ?, ?)",
            self._fields(labels, ids, vectors, texts, metadata),
        )
        return labels, replaced

    def _fields(
        self,
        labels: Sequence[int],
        ids: Sequence[Id],
        vectors: Floats,
        texts: Sequence[str | None],
        metadata: Sequence[str | None],
    ) -> Iterator[tuple[Any, ...]]:
        stored = vectors.astype(self.dtype, copy=False)
        for label, item, vector, text, meta in zip(
            labels, ids, stored, texts, metadata, strict=True
        ):
            key, blob = key_of(item), vector.tobytes()
            digest = checksum(
                key[0].encode(),
                key[1],
                None if text is None else text.encode(),
                None if meta is None else meta.encode(),
                blob,
            )
            yield label, *key, text, meta, blob, digest

    def _last_label(self) -> int:
        """The highest label that was ever committed."""
        with self.database.translated():
            rows = self._connection.execute(
                "SELECT max(seq) FROM sqlite_sequence WHERE name = 'items' "
                "UNION ALL SELECT max(label) FROM items"
            ).fetchall()
        last = max(row[0] or 0 for row in rows)
        if not (isinstance(last, int) and 0 <= last < _LAST_LABEL):
            raise CorruptCollectionError(f"{self._path} is damaged: its last label is {last!r}")
        return last

    def delete(self, ids: Sequence[Id]) -> list[int]:
        """Delete rows by id and return their labels; unknown ids are ignored. In a transaction."""
        return self.delete_rows(self.labels_of(ids))

    def delete_rows(self, existing: Sequence[tuple[Id, int]]) -> list[int]:
        """Delete rows that exist, by (id, label), and return their labels; in a transaction."""
        labels = [label for _, label in existing]
        if labels:
            self.meta.count_change(0, len(labels), -_sum_of(existing))
            self._delete_labels(labels)
        return labels

    def replace_metadata(self, items: Sequence[Item], metadata: Sequence[str | None]) -> None:
        """Replace the metadata of rows, which keep their labels; in a transaction.

        The caller numbers the new state. Which rows meet a filter may change, though no row is
        added or deleted.

        Args:
            items: the rows as they are.
            metadata: the new metadata of each, as JSON.
        """
        if not items:
            return
        rows = Rows.of(items)
        labels = [item.label for item in items]
        fields = self._fields(labels, rows.ids, rows.vectors, rows.texts, metadata)
        self._connection.executemany(
            "UPDATE items SET metadata = ?, checksum = ? WHERE label = ?",
            ((meta, digest, label) for label, _, _, _, meta, _, digest in fields),
        )
        self.metadata_changes.add(labels)

    def _delete_labels(self, labels: Sequence[int]) -> None:
        self._connection.executemany(
            "DELETE FROM items WHERE label = ?", ((label,) for label in labels)
        )
        self.sparse.delete(labels)
        self.tokens.delete(labels)
        self.deletions.add(labels)

    def labels_of(self, ids: Sequence[Id]) -> list[tuple[Id, int]]:
        """(id, label) of the ids that exist."""
        pairs: list[tuple[Id, int]] = []
        with self.database.translated():
            for item in dict.fromkeys(ids):
                row = self._connection.execute(
                    "SELECT label FROM items WHERE id = ? AND id_is_int = ?", key_of(item)
                ).fetchone()
                if row is not None:
                    pairs.append((item, int(row[0])))
        return pairs

    def read(self, labels: Sequence[int]) -> dict[int, Item]:
        """Rows by label, checked against their checksums.

        Raises:
            CorruptCollectionError: a row does not match its checksum.
        """
        items = [self._item(row) for rows in self._raw_rows(labels) for row in rows]
        return {item.label: item for item in items}

    def vectors(self, labels: Sequence[int] | None = None) -> Iterator[tuple[Labels, Floats]]:
        """Labels int64 (rows,) and vectors float32 (rows, dim), a few thousand rows at a time.

        Rows are checked against their checksums, and nothing else of them is read.

        Args:
            labels: ascending; those without a row are left out. None is all rows.

        Raises:
            CorruptCollectionError: a row does not match its checksum, or a scan of all rows (inside
                `reading`) finds fewer or more than were counted.
        """
        if labels is not None:
            yield from (self._vectors(rows) for rows in self._raw_rows(labels) if rows)
            return
        after = seen = 0
        while rows := self._raw_page(after):
            yield self._vectors(rows)
            seen += len(rows)
            after = rows[-1][0]
        self._require(seen)

    def _raw_rows(self, labels: Sequence[int]) -> Iterator[list[tuple[Any, ...]]]:
        for start in range(0, len(labels), _MAX_VARIABLES):
            part = labels[start : start + _MAX_VARIABLES]
            marks = ",".join("?" * len(part))
            with self.database.translated():
                rows = self._connection.execute(
                    f"{_ROWS_OF} WHERE label IN ({marks}) ORDER BY label",
                    [int(label) for label in part],
                ).fetchall()
            yield rows

    def page(
        self, after: int = 0, condition: Condition | None = None, most: int = _READ_ROWS
    ) -> list[Item]:
        """The next rows with a label above `after`, at most a few thousand, in order of label.

        Args:
            after: a label.
            condition: only rows that meet it; None is all.
            most: at most so many rows.
        """
        return [self._item(row) for row in self._raw_page(after, condition, most)]

    def _raw_page(
        self, after: int, condition: Condition | None = None, most: int = _READ_ROWS
    ) -> list[tuple[Any, ...]]:
        where, values = (condition.sql, condition.parameters) if condition else ("1", ())
        with self.database.translated():
            return self._connection.execute(
                f"{_ROWS_OF} WHERE label > ? AND {where} ORDER BY label LIMIT ?",
                (after, *values, min(most, _READ_ROWS)),
            ).fetchall()

    def count_where(self, condition: Condition) -> int:
        """How many rows meet a condition."""
        statement = f"SELECT count(*) FROM items WHERE {condition.sql}"  # noqa: S608 - parameters
        with self.database.translated():
            return int(self._connection.execute(statement, condition.parameters).fetchall()[0][0])

    def intact(self) -> Iterator[Item]:
        """All rows that can be read and match their checksums; others are skipped."""
        after, last = 0, self.newest_label()
        while after < last:
            try:
                rows = self._raw_page(after)
                after_this = rows[-1][0] if rows else last
            except CollectionError:  # a damaged page; rows on other pages can be read one by one
                rows = [row for label in range(after + 1, after + 1 + _READ_ROWS)
                        for row in self._raw_row(label)]  # fmt: skip
                after_this = after + _READ_ROWS
            after = after_this
            for row in rows:
                with suppress(CorruptCollectionError):
                    yield self._item(row)

    def _raw_row(self, label: int) -> list[tuple[Any, ...]]:
        with suppress(CollectionError), self.database.translated():
            return self._connection.execute(f"{_ROWS_OF} WHERE label = ?", (label,)).fetchall()
        return []

    def labels(self, condition: Condition | None = None, after: int = 0) -> Labels:
        """Labels of rows, ascending, int64 (rows,).

        Args:
            condition: only rows that meet it; None is all.
            after: only labels above this one.

        Raises:
            CorruptCollectionError: all rows are read, and some are missing.
        """
        # For all rows SQLite reads its index over ids, a fiftieth of the table's size.
        parts, parameters = list[str](), list[Any]()
        if after:  # else SQLite would rather look at all rows than use an index over a field
            parts, parameters = ["label > ?"], [after]
        if condition is not None:
            # The SQL holds only the shape of a caller's filter; its values are parameters.
            parts.append(condition.sql)
            parameters += condition.parameters
        where = f" WHERE {' AND '.join(parts)}" if parts else ""
        # One text of all labels is read four times as fast as a row for each.
        with self.database.translated():
            (listed,) = self._connection.execute(
                f"SELECT group_concat(label) FROM items{where}",  # noqa: S608 - see above
                parameters,
            ).fetchone()
        labels = np.fromstring(listed, np.int64, sep=",") if listed else np.empty(0, np.int64)
        if not parts:
            self._require(len(labels))
        labels.sort()
        return labels

    def existing(self, labels: Labels) -> Labels:
        """Those of some labels that have rows, ascending."""
        listed = "SELECT value FROM json_each(?)"
        with self.database.translated():
            rows = self._connection.execute(
                f"SELECT label FROM items WHERE label IN ({listed}) ORDER BY label",  # noqa: S608
                (json.dumps(labels.tolist()),),
            ).fetchall()
        return np.fromiter((row[0] for row in rows), dtype=np.int64, count=len(rows))

    def meeting(self, condition: Condition, labels: Labels) -> Labels:
        """Those of some labels whose rows meet a condition, ascending."""
        # A list is one parameter, and a condition may have hundreds.
        listed = "SELECT value FROM json_each(?)"
        statement = f"SELECT label FROM items WHERE label IN ({listed}) AND {condition.sql}"  # noqa: S608 - parameters
        with self.database.translated():
            rows = self._connection.execute(
                statement, (json.dumps(labels.tolist()), *condition.parameters)
            ).fetchall()
        return np.sort(np.fromiter((row[0] for row in rows), dtype=np.int64, count=len(rows)))

    def newest_label(self) -> int:
        """The highest label of a row; 0 if there are no rows."""
        with self.database.translated():
            return int(
                self._connection.execute("SELECT max(label) FROM items").fetchall()[0][0] or 0
            )

    def field_values(
        self, key: str, labels: npt.NDArray[np.int64], most: int = 200
    ) -> dict[int, str | int | float | bool]:
        """Values of a field of the metadata, by label; not checked against checksums.

        Args:
            key: the field, as in filters.
            labels: of rows.
            most: texts are cut to this many characters.

        Raises:
            InputValueError: the name cannot be used.
        """
        field = JsonField(path_of(key))
        # No parameter but the labels: the path is quoted. Texts may be long, so SQLite cuts them.
        # SQLite rounds whole numbers of more than 63 bits; in a list they stay as they are.
        value = (
            f"CASE {field.type} WHEN 'integer' THEN json_extract(metadata, {field.literal}, "
            f"{field.literal}) ELSE substr({field.value}, 1, {int(most)}) END"
        )
        statement = (
            f"SELECT label, {field.type}, {value} FROM items "  # noqa: S608
            f"WHERE label IN (SELECT value FROM json_each(?)) AND {field.type} "
            "IN ('text', 'integer', 'real', 'true', 'false')"
        )
        values: dict[int, str | int | float | bool] = {}
        for start in range(0, len(labels), _READ_ROWS):
            listed = str(labels[start : start + _READ_ROWS].tolist())
            with self.database.translated():
                rows = self._connection.execute(statement, (listed,)).fetchall()
            values |= {label: _scalar(kind, value) for label, kind, value in rows}
        return values

    def ids_of(self, labels: Sequence[int]) -> dict[int, Id]:
        """Ids by label, from rows that match their checksums."""
        return {label: item.id for label, item in self.read(labels).items()}

    def ids(self) -> dict[int, Id]:
        """Ids of all rows by label.

        They are read from SQLite's index over ids, without the rows and their checksums, and
        checked by the checksum over all ids.

        Raises:
            CorruptCollectionError: they do not match it.
        """
        with self.database.translated():
            rows = self._connection.execute("SELECT label, id, id_is_int FROM items").fetchall()
        if id_sum(rows) != self.meta.counts().id_sum:
            raise CorruptCollectionError(
                f"{self._path} is damaged: its index over ids does not match its checksum"
            )
        try:
            return {label: int(text) if is_int else text for label, text, is_int in rows}
        except (TypeError, ValueError) as error:
            raise CorruptCollectionError(
                f"{self._path} is damaged: a row has no valid id: {error}"
            ) from None

    def ids_where(self, condition: Condition | None) -> list[tuple[Id, int]]:
        """(id, label) of the rows that meet a condition, in order of label; None is all.

        Raises:
            CorruptCollectionError: ids do not match their checksums.
        """
        if condition is None:
            return [(item, label) for label, item in sorted(self.ids().items())]
        labels = self.labels(condition).tolist()
        # A row's checksum takes reading the whole row: for many rows reading all ids is faster.
        by_label = self.ids_of(labels) if len(labels) <= _READ_ROWS else self.ids()
        return [(by_label[label], label) for label in labels]

    def count(self) -> int:
        """Number of rows.

        Raises:
            CorruptCollectionError: there are more or fewer rows than were counted.
        """
        with self.reading(), self.database.translated():
            rows = self._connection.execute("SELECT COUNT(*) FROM items").fetchall()
            count = int(rows[0][0])
            self._require(count)
        return count

    def _require(self, count: int) -> None:
        expected = self.meta.counts().rows
        if count != expected:
            raise CorruptCollectionError(
                f"{self._path} is damaged: it holds {count} rows, but {expected} were written"
            )

    def _item(self, row: tuple[Any, ...]) -> Item:
        label, item, is_int, text, metadata, blob, expected = row
        try:
            intact = checksum(item, is_int, text, metadata, blob) == expected
            name: Id = int(item) if is_int else item.decode()
            words = None if text is None else text.decode()
            parsed = None if metadata is None else json.loads(metadata)
            vector = np.frombuffer(blob, dtype=self.dtype).astype(np.float32, copy=False)
        except (TypeError, ValueError, AttributeError):
            intact = False
        if not intact:
            raise self._damaged(label)
        return Item(label, name, words, parsed, vector)

    def _vectors(self, rows: Sequence[tuple[Any, ...]]) -> tuple[Labels, Floats]:
        # This may be in a transaction that changes the settings, which then are not to be kept.
        size = self.meta.read_settings().dim * self.dtype.itemsize
        for label, item, is_int, text, metadata, blob, expected in rows:
            try:
                intact = checksum(item, is_int, text, metadata, blob) == expected
                intact = intact and len(blob) == size
            except (TypeError, ValueError):
                intact = False
            if not intact:
                raise self._damaged(label)
        vectors = np.frombuffer(b"".join(row[5] for row in rows), self.dtype)
        vectors = vectors.astype(np.float32, copy=False).reshape(len(rows), -1)
        return np.asarray([row[0] for row in rows], np.int64), vectors

    def _damaged(self, label: int) -> CorruptCollectionError:
        return CorruptCollectionError(f"{self._path}: row {label} does not match its checksum")

    # --- checks ---------------------------------------------------------------------------------

    def problems(self) -> Iterator[str]:
        """What is wrong with the file and its rows, one message each.

        Raises:
            CorruptCollectionError: too much is damaged to go on.
        """
        with self.database.translated():
            for (line,) in self._connection.execute("PRAGMA integrity_check").fetchall():
                if line != "ok":
                    yield f"{FILE}: {line}"
        if problem := self.full_text.problem():
            yield f"{FILE}: {problem}"
        dim = int(self.meta.read().get("dim", 0))
        after, seen, intact, ids = 0, 0, 0, 0
        while rows := self._raw_page(after):
            for row in rows:
                try:
                    item = self._item(row)
                except CorruptCollectionError:
                    yield f"{FILE}: row {row[0]}{_named(row)} does not match its checksum"
                    continue
                intact, ids = intact + 1, ids + _sum_of([(item.id, item.label)])
                if len(item.vector) != dim or not np.isfinite(item.vector).all():
                    yield f"{FILE}: row {row[0]} has a vector that is not {dim} finite numbers"
            seen += len(rows)
            after = rows[-1][0]
        expected = self.meta.counts()
        if seen != expected.rows:
            yield f"{FILE}: it holds {seen} rows, but {expected.rows} were written"
        elif intact == seen and expected.id_sum != ids:
            yield f"{FILE}: the checksum over all ids does not match its rows"
        yield from self.sparse.problems()
        yield from self.tokens.problems()


def _scalar(kind: str, value: str) -> str | int | float | bool:
    """A value of JSON from its type and SQLite's text."""
    if kind == "text":
        return value
    if kind in ("true", "false"):
        return kind == "true"
    return int(json.loads(value)[0]) if kind == "integer" else float(value)


def _sum_of(ids: Iterable[tuple[Id, int]]) -> int:
    """The `id_sum` of ids and labels."""
    return id_sum((label, *key_of(item)) for item, label in ids)


def _named(row: tuple[Any, ...]) -> str:
    """The row's id as it is stored, which may itself be damaged."""
    _, item, is_int, *_ = row
    if not isinstance(item, bytes):
        return ""
    text = item.decode("utf-8", "replace")
    return f" (id {text if is_int == 1 else repr(text)})"
