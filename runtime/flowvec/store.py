"""The truth of a collection: rows, settings and records of graph files in one SQLite file.

Every row carries a checksum over its id, text, metadata and vector, since SQLite itself notices few
flipped bits, and the rows are counted, so that none can vanish unseen. States are numbered, so that
what is kept in memory can be compared with them. `PRAGMA user_version` is the version of this
layout.
"""

from __future__ import annotations

import hashlib
import json
import logging
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from flowvec.database import Database
from flowvec.errors import CollectionError, CorruptCollectionError
from flowvec.filters import Condition
from flowvec.rows import Id, Item, checksum, key_of

__all__ = ["FILE", "LAYOUT_VERSIONS", "Counts", "Snapshot", "Store", "UnmadeError"]

logger = logging.getLogger("flowvec.store")

FILE = "collection.sqlite"
# From 2 on rows are counted and states numbered, and vectors may be float16. A file of version 1
# becomes one of version 2 with its first change, so that no older flowvec changes it uncounted.
LAYOUT_VERSION = 2
LAYOUT_VERSIONS = (1, 2)
# Above it something other than flowvec has numbered the rows.
_LAST_LABEL = 1 << 62
_MAX_VARIABLES = 900  # SQLite's oldest limit on parameters in one statement is 999
_READ_ROWS = 4096
# Keys of the table meta that say what the vectors are; a checksum covers them.
SETTINGS = (
    "dim", "metric", "vector_dtype", "M", "ef_construction", "model", "fingerprint", "compute",
    "created", "created_by",
)  # fmt: skip
_SETTINGS_CHECKSUM = "settings checksum"

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

# The index reads texts from the rows; triggers let any version of flowvec keep it.
_WORDS = (
    "CREATE VIRTUAL TABLE words USING fts5(text, content='items', content_rowid='label', "
    "tokenize='porter unicode61 remove_diacritics 2')",
    "CREATE TRIGGER words_of_new AFTER INSERT ON items BEGIN "
    "INSERT INTO words(rowid, text) VALUES (new.label, new.text); END",
    "CREATE TRIGGER words_of_old AFTER DELETE ON items BEGIN "
    "INSERT INTO words(words, rowid, text) VALUES ('delete', old.label, old.text); END",
    "INSERT INTO words(words) VALUES ('rebuild')",
)


_PARTS_OF_WORDS = ("words", "words_of_new", "words_of_old")


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


@dataclass(frozen=True, slots=True)
class Counts:
    """How many rows there are, how many were ever deleted or replaced, and the state's number."""

    rows: int
    deletions: int
    state: int


class Store(Database):
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
                    self.write_meta(_count_keys(Counts(0, 0, 0)))
                    self.write_settings(create)
                    self._db.execute(f"PRAGMA user_version={LAYOUT_VERSION}")
            with self._translated():
                version = int(self._db.execute("PRAGMA user_version").fetchall()[0][0])
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

    # --- meta -----------------------------------------------------------------------------------

    def read_meta(self) -> dict[str, str]:
        """All keys and values of the table meta."""
        with self._translated():
            return dict(self._db.execute("SELECT key, value FROM meta"))

    def write_meta(self, values: Mapping[str, str]) -> None:
        """Set keys; call it inside a transaction."""
        self._db.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", values.items())

    def write_settings(self, values: Mapping[str, str]) -> None:
        """Set keys that say what the vectors are, under a checksum; inside a transaction."""
        self.write_meta(values)
        settings = {key: value for key, value in self.read_meta().items() if key in SETTINGS}
        self.write_meta({_SETTINGS_CHECKSUM: _digest_of(settings)})

    def settings(self) -> dict[str, str]:
        """What the vectors are.

        Raises:
            CorruptCollectionError: the keys do not match their checksum.
        """
        meta = self.read_meta()
        settings = {key: value for key, value in meta.items() if key in SETTINGS}
        with self._translated():
            version = int(self._db.execute("PRAGMA user_version").fetchone()[0])
        # Version 1 has none.
        expected = meta.get(_SETTINGS_CHECKSUM, _digest_of(settings) if version == 1 else "")
        if expected != _digest_of(settings):
            raise CorruptCollectionError(
                f"{self._path} is damaged: its table meta does not match its checksum"
            )
        return settings

    def forget_meta(self, keys: Iterable[str]) -> None:
        """Drop keys; call it inside a transaction."""
        self._db.executemany("DELETE FROM meta WHERE key = ?", ((key,) for key in keys))

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
        replaced = [label for _, label in self.labels_of(ids)]
        self._count_change(len(ids), len(replaced))
        self._delete_labels(replaced)
        first = max(self._last_label(), self._tried) + 1
        labels = list(range(first, first + len(ids)))
        self._tried = first + len(ids) - 1
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
        labels = [label for _, label in self.labels_of(ids)]
        if labels:
            self._count_change(0, len(labels))
            self._delete_labels(labels)
        return labels

    def touch(self) -> None:
        """Number a new state, of which other things than rows are new; inside a transaction."""
        self._count_change(0, 0)

    def _count_change(self, added: int, gone: int) -> None:
        before = self.counts()
        after = Counts(before.rows + added - gone, before.deletions + gone, before.state + 1)
        self.write_meta(_count_keys(after))
        if not before.state:
            self.write_settings({})
            self._db.execute(f"PRAGMA user_version={LAYOUT_VERSION}")

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
        where = "1" if condition is None else condition.sql
        parameters = () if condition is None else condition.parameters
        with self._translated():
            rows = self._db.execute(
                # Of a caller's filter this holds its shape alone; all else are parameters.
                f"SELECT label FROM items WHERE label > ? AND {where} ORDER BY label",  # noqa: S608
                (after, *parameters),
            ).fetchall()
        if condition is None and after == 0:
            self._require(len(rows))
        return np.fromiter((row[0] for row in rows), dtype=np.int64, count=len(rows))

    def newest_label(self) -> int:
        """The highest label of a row, 0 where there are none."""
        with self._translated():
            return int(self._db.execute("SELECT max(label) FROM items").fetchall()[0][0] or 0)

    def ids_of(self, labels: Sequence[int]) -> dict[int, Id]:
        """Ids by label, of rows that are checked against their checksums."""
        return {label: item.id for label, item in self.read(labels).items()}

    def ids(self, after: int = 0) -> Iterator[tuple[int, Id]]:
        """(label, id) of the rows with a label above `after`, not checked against their checksums.

        Raises:
            CorruptCollectionError: what should be a number is none.
        """
        with self._translated():
            for label, text, is_int in self._db.execute(
                "SELECT label, id, id_is_int FROM items WHERE label > ? ORDER BY label", (after,)
            ):
                try:
                    yield label, int(text) if is_int else text
                except (TypeError, ValueError):
                    raise CorruptCollectionError(
                        f"{self._path} is damaged: row {label} has no id"
                    ) from None

    def counts(self) -> Counts:
        """What was counted as rows came and went; a store that did not count yet counts now.

        Raises:
            CorruptCollectionError: the figures are no numbers.
        """
        meta = self.read_meta()
        if "rows" not in meta:
            with self._translated():
                found = self._db.execute("SELECT COUNT(*) FROM items").fetchall()
            return Counts(int(found[0][0]), 0, 0)
        try:
            return Counts(int(meta["rows"]), int(meta["deletions"]), int(meta["state"]))
        except (KeyError, ValueError) as error:
            raise CorruptCollectionError(
                f"{self._path}: its count of rows is damaged: {error!r}"
            ) from None

    def state(self) -> int:
        """The number of the state that is read: it rises with every change.

        Raises:
            CorruptCollectionError: it is no number.
        """
        try:
            found = self._db.execute("SELECT value FROM meta WHERE key = 'state'").fetchall()
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise self._ours(error) from error
        if not found:
            return 0
        try:
            return int(found[0][0])
        except (TypeError, ValueError):
            raise CorruptCollectionError(
                f"{self._path}: the number of its state is damaged: {found[0][0]!r}"
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

    # --- words ----------------------------------------------------------------------------------

    def has_words(self) -> bool:
        """Whether there is a full-text index, which changes keep."""
        return self._parts_of_words() == len(_PARTS_OF_WORDS)

    def has_part_of_words(self) -> bool:
        """Whether there is a full-text index, or what is left of one."""
        return self._parts_of_words() > 0

    def _parts_of_words(self) -> int:
        marks = ", ".join("?" * len(_PARTS_OF_WORDS))
        with self._translated():
            found = self._db.execute(
                f"SELECT count(*) FROM sqlite_master WHERE name IN ({marks})",  # noqa: S608 - marks
                _PARTS_OF_WORDS,
            ).fetchone()
        return int(found[0])

    def index_words(self) -> None:
        """Make the full-text index, and let every later change keep it; inside a transaction.

        What there is of one is made anew.
        """
        _, *triggers = _PARTS_OF_WORDS
        for trigger in triggers:
            self._db.execute(f"DROP TRIGGER IF EXISTS {trigger}")
        self._db.execute("DROP TABLE IF EXISTS words")
        for statement in _WORDS:
            self._db.execute(statement)

    def find_words(
        self, expression: str, limit: int, condition: Condition | None = None
    ) -> list[int]:
        """Labels of the rows whose texts match best by BM25, best first.

        Args:
            expression: as `hybrid.match_expression` gives.
            limit: at most so many.
            condition: of their metadata.
        """
        where = "1" if condition is None else condition.sql
        parameters = () if condition is None else condition.parameters
        with self._translated():
            rows = self._db.execute(
                "SELECT words.rowid FROM words JOIN items ON items.label = words.rowid "  # noqa: S608
                f"WHERE words MATCH ? AND {where} ORDER BY words.rank, words.rowid LIMIT ?",
                (expression, *parameters, limit),
            ).fetchall()
        return [int(row[0]) for row in rows]

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
        if self.has_words():
            if problem := self._problem_of_words():
                yield f"{FILE}: {problem}"
        elif self._parts_of_words():
            yield f"{FILE}: its full-text index is not whole; compacting makes it anew"
        dim = int(self.read_meta().get("dim", 0))
        after, seen = 0, 0
        while rows := self._raw_page(after):
            for row in rows:
                try:
                    item = self._item(row)
                except CorruptCollectionError:
                    yield f"{FILE}: row {row[0]}{_named(row)} does not match its checksum"
                    continue
                if len(item.vector) != dim or not np.isfinite(item.vector).all():
                    yield f"{FILE}: row {row[0]} has no vector of {dim} finite numbers"
            seen += len(rows)
            after = rows[-1][0]
        if seen != (expected := self.counts().rows):
            yield f"{FILE}: it holds {seen} rows where {expected} were written"

    def _problem_of_words(self) -> str | None:
        if not self.is_writable:
            return None  # it cannot be asked, and all that it was made of was checked
        try:
            # Compares every word with the rows. To SQLite it is a change, so it needs its turn.
            self._writer.execute("INSERT INTO words(words, rank) VALUES('integrity-check', 1)")
        except sqlite3.OperationalError as error:  # another handle is writing
            logger.warning("the full-text index was not checked: %s", error)
        except sqlite3.DatabaseError as error:
            return (
                f"its full-text index does not match its rows; compacting makes it anew ({error})"
            )
        return None

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


def _named(row: tuple[Any, ...]) -> str:
    """Its id as it is stored, which may be what is damaged."""
    _, item, is_int, *_ = row
    if not isinstance(item, bytes):
        return ""
    text = item.decode("utf-8", "replace")
    return f" (id {text if is_int == 1 else repr(text)})"


def _digest_of(settings: Mapping[str, str]) -> str:
    framed = json.dumps(sorted(settings.items()))
    return hashlib.blake2b(framed.encode(), digest_size=16).hexdigest()


def _count_keys(counts: Counts) -> dict[str, str]:
    return {
        "rows": str(counts.rows),
        "deletions": str(counts.deletions),
        "state": str(counts.state),
    }
