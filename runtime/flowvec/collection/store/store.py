"""The truth of a collection: rows, settings and records of graph files in one SQLite file.

Every row carries a checksum over its id, text, metadata and vector, since SQLite itself notices few
flipped bits, and the rows are counted, so that none can vanish unseen.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from flowvec.collection.store.filters import Condition
from flowvec.collection.store.full_text import FullText
from flowvec.collection.store.metadata import LAYOUT_VERSIONS, MetaTable
from flowvec.collection.store.rows import Id, Item, checksum, id_sum, key_of
from flowvec.errors import CollectionError, CorruptCollectionError

__all__ = ["FILE", "Snapshot", "Store", "UnmadeError"]

FILE = "collection.sqlite"
# Above it something other than flowvec has numbered the rows.
_LAST_LABEL = 1 << 62
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
"""

# Texts as bytes, whose checksum may show that they are no UTF-8 any more.
_ROWS_OF = (
    "SELECT label, CAST(id AS BLOB), id_is_int, CAST(text AS BLOB), CAST(metadata AS BLOB), "
    "vector, checksum FROM items"
)


class UnmadeError(CollectionError):
    """The file has no tables: a kill during its making leaves that, and nothing is lost with it."""


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


class Store(MetaTable, FullText):
    """The SQLite file of a collection. Reads see one state within `reading`."""

    def __init__(self, path: Path, *, create: dict[str, str] | None = None) -> None:
        """Open the file, or make it with its tables and the keys and values of `create`.

        Raises:
            CollectionError: it is missing, exists already, or is of another layout version.
            CorruptCollectionError: it is no database.
        """
        super().__init__(path, create=create is not None)
        try:
            if create is not None:
                # One transaction: a kill leaves a file without tables, or a whole collection.
                with self.transaction():
                    for statement in _SCHEMA.split(";"):
                        self._db.execute(statement)
                    self.begin_meta(create)
            version = self.version()
            if version == 0 and not self._has_tables():
                raise UnmadeError(
                    f"{path.parent} is no collection yet: its making was interrupted; make it again"
                )
            if version not in LAYOUT_VERSIONS:
                raise CollectionError(
                    f"{path} has layout version {version}; this flowvec reads "
                    f"{' and '.join(map(str, LAYOUT_VERSIONS))}"
                )
            in_half = self.read_meta().get("vector_dtype") == "float16"
        except BaseException:
            self.close()
            raise
        self._dtype = np.dtype("<f2" if in_half else "<f4")
        # The highest label that was ever tried here, in transactions that failed as well.
        self._tried = 0

    def _has_tables(self) -> bool:
        with self._translated():
            return bool(self._db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0])

    # --- items ----------------------------------------------------------------------------------

    def upsert(
        self,
        ids: Sequence[Id],
        vectors: npt.NDArray[np.float32],
        texts: Sequence[str | None],
        metadata: Sequence[str | None],
    ) -> tuple[list[int], list[int]]:
        """Write rows under new labels, replacing rows of the same id; inside a transaction.

        Ids must be distinct. Returns the new labels, ascending, and the labels that they replaced.
        No label is ever given twice, not even one whose transaction failed: a graph may know it.
        """
        there = self.labels_of(ids)
        replaced = [label for _, label in there]
        first = max(self._last_label(), self._tried) + 1
        labels = list(range(first, first + len(ids)))
        self._tried = first + len(ids) - 1
        new = zip(ids, labels, strict=True)
        self.count_change(len(ids), len(replaced), _sum_of(new) - _sum_of(there))
        self._delete_labels(replaced)
        self._db.executemany(
            "INSERT INTO items (label, id, id_is_int, text, metadata, vector, checksum)"
            " VALUES (?, ?, ?, ?, ?, ?, ?)",
            self._fields(labels, ids, vectors, texts, metadata),
        )
        return labels, replaced

    def _fields(
        self,
        labels: Sequence[int],
        ids: Sequence[Id],
        vectors: npt.NDArray[np.float32],
        texts: Sequence[str | None],
        metadata: Sequence[str | None],
    ) -> Iterator[tuple[Any, ...]]:
        stored = vectors.astype(self._dtype, copy=False)
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
        """The highest label that was ever given and committed."""
        with self._translated():
            found = self._db.execute(
                "SELECT max(seq) FROM sqlite_sequence WHERE name = 'items' "
                "UNION ALL SELECT max(label) FROM items"
            ).fetchall()
        last = max(row[0] or 0 for row in found)
        if not (isinstance(last, int) and 0 <= last < _LAST_LABEL):
            raise CorruptCollectionError(f"{self._path} is damaged: its last label is {last!r}")
        return last

    def delete(self, ids: Sequence[Id]) -> list[int]:
        """Delete rows by id, unknown ids ignored; inside a transaction. Returns their labels."""
        there = self.labels_of(ids)
        labels = [label for _, label in there]
        if labels:
            self.count_change(0, len(labels), -_sum_of(there))
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
                    "SELECT label FROM items WHERE id = ? AND id_is_int = ?", key_of(item)
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
                    f"{_ROWS_OF} WHERE label IN ({marks})",
                    [int(label) for label in part],
                ).fetchall()
            for row in rows:
                item = self._item(row)
                items[item.label] = item
        return items

    def page(self, after: int = 0) -> list[Item]:
        """The next few thousand rows with a label above `after`, in order of label."""
        return [self._item(row) for row in self._raw_page(after)]

    def _raw_page(self, after: int) -> list[tuple[Any, ...]]:
        with self._translated():
            return self._db.execute(
                f"{_ROWS_OF} WHERE label > ? ORDER BY label LIMIT ?", (after, _READ_ROWS)
            ).fetchall()

    def intact(self) -> Iterator[Item]:
        """All rows that can be read and match their checksums, whatever has become of the rest."""
        after, last = 0, self.newest_label()
        while after < last:
            try:
                rows = self._raw_page(after)
                after_this = rows[-1][0] if rows else last
            except CollectionError:  # a page of the file: what it does not hold can still be read
                rows = [row for label in range(after + 1, after + 1 + _READ_ROWS)
                        for row in self._raw_row(label)]  # fmt: skip
                after_this = after + _READ_ROWS
            after = after_this
            for row in rows:
                with suppress(CorruptCollectionError):
                    yield self._item(row)

    def _raw_row(self, label: int) -> list[tuple[Any, ...]]:
        with suppress(CollectionError), self._translated():
            return self._db.execute(f"{_ROWS_OF} WHERE label = ?", (label,)).fetchall()
        return []

    def scan(self, after: int = 0) -> Iterator[list[Item]]:
        """All rows with a label above `after`, in order of label, a few thousand at a time.

        Raises:
            CorruptCollectionError: a row does not match its checksum, or of a scan of all rows,
                made while `reading`, some are missing.
        """
        whole, seen = after == 0, 0
        while items := self.page(after):
            yield items
            seen += len(items)
            after = items[-1].label
        if whole:
            self._require(seen)

    def labels(self, condition: Condition | None = None, after: int = 0) -> npt.NDArray[np.int64]:
        """Labels above `after`, ascending, int64 (rows,); those that meet a condition alone.

        Raises:
            CorruptCollectionError: of all rows, some are missing.
        """
        # Of all rows the index over ids is read, which is a fiftieth of the table beside it.
        statement, parameters = "SELECT label FROM items", tuple[Any, ...]()
        if condition is not None or after:
            # Of a caller's filter this holds its shape alone; all else are parameters.
            where, values = (condition.sql, condition.parameters) if condition else ("1", ())
            statement = f"{statement} WHERE label > ? AND {where}"
            parameters = (after, *values)
        with self._translated():
            rows = self._db.execute(statement, parameters).fetchall()
        if not parameters:
            self._require(len(rows))
        found = np.fromiter((row[0] for row in rows), dtype=np.int64, count=len(rows))
        found.sort()
        return found

    def newest_label(self) -> int:
        """The highest label of a row, 0 where there are none."""
        with self._translated():
            return int(self._db.execute("SELECT max(label) FROM items").fetchall()[0][0] or 0)

    def ids_of(self, labels: Sequence[int]) -> dict[int, Id]:
        """Ids by label, of rows that are checked against their checksums."""
        return {label: item.id for label, item in self.read(labels).items()}

    def ids(self) -> dict[int, Id]:
        """Ids of all rows by label.

        They come from the index over ids, without the rows and their checksums; a sum that is kept
        over all of them says whether they are those that were written.

        Raises:
            CorruptCollectionError: they are not.
        """
        with self._translated():
            rows = self._db.execute("SELECT label, id, id_is_int FROM items").fetchall()
        expected = self.counts().id_sum
        if expected is not None and id_sum(rows) != expected:
            raise CorruptCollectionError(
                f"{self._path} is damaged: its index over ids does not match its checksum"
            )
        try:
            return {label: int(text) if is_int else text for label, text, is_int in rows}
        except (TypeError, ValueError) as error:
            raise CorruptCollectionError(
                f"{self._path} is damaged: a row has no id: {error}"
            ) from None

    def count(self) -> int:
        """Number of rows.

        Raises:
            CorruptCollectionError: there are more or fewer than were counted.
        """
        with self.reading(), self._translated():
            found = int(self._db.execute("SELECT COUNT(*) FROM items").fetchall()[0][0])
            self._require(found)
        return found

    def _require(self, found: int) -> None:
        expected = self.counts().rows
        if found != expected:
            raise CorruptCollectionError(
                f"{self._path} is damaged: it holds {found} rows where {expected} were written"
            )

    def _item(self, row: tuple[Any, ...]) -> Item:
        label, item, is_int, text, metadata, blob, expected = row
        try:
            intact = checksum(item, is_int, text, metadata, blob) == expected
            name: Id = int(item) if is_int else item.decode()
            words = None if text is None else text.decode()
            parsed = None if metadata is None else json.loads(metadata)
            vector = np.frombuffer(blob, dtype=self._dtype).astype(np.float32, copy=False)
        except (TypeError, ValueError, AttributeError):
            intact = False
        if not intact:
            raise CorruptCollectionError(f"{self._path}: row {label} does not match its checksum")
        return Item(label, name, words, parsed, vector)

    # --- checks ---------------------------------------------------------------------------------

    def problems(self) -> Iterator[str]:
        """What is wrong with the file and its rows, in words; nothing where all is well.

        Raises:
            CorruptCollectionError: so much that no more can be said.
        """
        with self._translated():
            for (line,) in self._db.execute("PRAGMA integrity_check").fetchall():
                if line != "ok":
                    yield f"{FILE}: {line}"
        if problem := self.problem_of_words():
            yield f"{FILE}: {problem}"
        dim = int(self.read_meta().get("dim", 0))
        after, seen, intact, found = 0, 0, 0, 0
        while rows := self._raw_page(after):
            for row in rows:
                try:
                    item = self._item(row)
                except CorruptCollectionError:
                    yield f"{FILE}: row {row[0]}{_named(row)} does not match its checksum"
                    continue
                intact, found = intact + 1, found + _sum_of([(item.id, item.label)])
                if len(item.vector) != dim or not np.isfinite(item.vector).all():
                    yield f"{FILE}: row {row[0]} has no vector of {dim} finite numbers"
            seen += len(rows)
            after = rows[-1][0]
        expected = self.counts()
        if seen != expected.rows:
            yield f"{FILE}: it holds {seen} rows where {expected.rows} were written"
        elif intact == seen and expected.id_sum not in (None, found):
            yield f"{FILE}: the checksum over all ids does not match its rows"

    # --- snapshots ------------------------------------------------------------------------------

    def snapshots(self) -> list[Snapshot]:
        """Records of graph files, newest first."""
        with self._translated():
            rows = self._db.execute("SELECT * FROM snapshots ORDER BY n DESC").fetchall()
        return [Snapshot(*row) for row in rows]

    def add_snapshot(self, snapshot: Snapshot, newest: int) -> None:
        """Record a graph file; inside a transaction.

        Args:
            snapshot: its record.
            newest: the highest label that the graph knows, which may be one whose transaction
                failed: no row may be given it later.
        """
        self._db.execute(
            "UPDATE sqlite_sequence SET seq = max(seq, ?) WHERE name = 'items'", (newest,)
        )
        marks = ", ".join("?" * len(astuple(snapshot)))
        self._db.execute(
            f"INSERT INTO snapshots VALUES ({marks})",  # noqa: S608 - only marks
            astuple(snapshot),
        )

    def forget_snapshots(self, numbers: Iterable[int]) -> None:
        """Drop records; inside a transaction."""
        self._db.executemany("DELETE FROM snapshots WHERE n = ?", ((n,) for n in numbers))


def _sum_of(ids: Iterable[tuple[Id, int]]) -> int:
    """The `id_sum` of ids and labels."""
    return id_sum((label, *key_of(item)) for item, label in ids)


def _named(row: tuple[Any, ...]) -> str:
    """Its id as it is stored, which may be what is damaged."""
    _, item, is_int, *_ = row
    if not isinstance(item, bytes):
        return ""
    text = item.decode("utf-8", "replace")
    return f" (id {text if is_int == 1 else repr(text)})"
