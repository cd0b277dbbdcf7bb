"""The table `meta` of a collection: settings under a checksum, counts of rows, the state's number.

Every change gets a new state number, which shows whether memory and file are the same state.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from flowvec.collection.store.settings import SETTING_KEYS, CollectionSettings
from flowvec.collection.store.sqlite import Database
from flowvec.errors import CorruptCollectionError

__all__ = [
    "FULL_TEXT_VERSION",
    "LAYOUT_VERSIONS",
    "SPARSE_VERSION",
    "TOKEN_VERSION",
    "Counts",
    "MetaTable",
]

# Version 2 counts rows, numbers states and allows float16 vectors. The first change to a file of
# version 1 makes it version 2, so that an older flowvec cannot change it without counting.
# Version 3 had full-text indexes by trigrams.
# Version 4 has sparse vectors, which an older flowvec would not delete with their rows. A file
# becomes version 4 when it gets the first.
# Version 5 has token vectors for reranking, in the same manner.
# Version 6 has a full-text index over folded texts, which an older flowvec could not keep up to
# date. A file becomes version 6 when it gets one.
LAYOUT_VERSION = 2
SPARSE_VERSION = 4
TOKEN_VERSION = 5
FULL_TEXT_VERSION = 6
LAYOUT_VERSIONS = (1, 2, 3, 4, 5, 6)

_STATE = "SELECT value FROM meta WHERE key = 'state'"
_SETTINGS_CHECKSUM = "settings checksum"


@dataclass(frozen=True, slots=True)
class Counts:
    """Figures that are kept up to date as rows come and go.

    Attributes:
        rows: rows in the collection.
        deletions: rows that were ever deleted or replaced.
        state: the state's number.
        id_sum: checksum over all ids (`rows.id_sum`); None in a file of version 1.
    """

    rows: int
    deletions: int
    state: int
    id_sum: int | None = None


class MetaTable:
    """Keys and values of one collection."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._settings: CollectionSettings | None = None

    @property
    def version(self) -> int:
        """Version of the file's layout, `PRAGMA user_version`; 0 for a file without tables."""
        with self._database.translated():
            return int(self._database.connection.execute("PRAGMA user_version").fetchall()[0][0])

    def fill(self, settings: CollectionSettings) -> None:
        """Fill the table of a new file; inside a transaction."""
        self.write(_counts_as_meta(Counts(0, 0, 0, 0)))
        self.write_settings(settings.as_meta())
        self._set_version()

    def read(self) -> dict[str, str]:
        """All keys and values."""
        with self._database.translated():
            return dict(self._database.connection.execute("SELECT key, value FROM meta"))

    def write(self, values: Mapping[str, str]) -> None:
        """Set keys; inside a transaction."""
        self._database.connection.executemany(
            "INSERT OR REPLACE INTO meta VALUES (?, ?)", values.items()
        )

    def remove(self, keys: Iterable[str]) -> None:
        """Remove keys; inside a transaction."""
        self._database.connection.executemany(
            "DELETE FROM meta WHERE key = ?", ((key,) for key in keys)
        )

    def require_version(self, version: int) -> None:
        """Make this the file's version, unless it is higher already; inside a transaction."""
        if not self.counts().state:  # version 1
            self.touch()
        self._set_version(version)

    def _set_version(self, version: int = LAYOUT_VERSION) -> None:
        if self.version < version:
            self._database.connection.execute(f"PRAGMA user_version={version:d}")

    def number(self, key: str) -> int:
        """The number of a key; 0 if it is not set.

        Raises:
            CorruptCollectionError: it is not a number.
        """
        with self._database.translated():
            rows = self._database.connection.execute(
                "SELECT value FROM meta WHERE key = ?", (key,)
            ).fetchall()
        try:
            return int(rows[0][0]) if rows else 0
        except (TypeError, ValueError):
            raise CorruptCollectionError(
                f"{self._database.path}: its table meta is damaged: {key} is {rows[0][0]!r}"
            ) from None

    # --- settings -------------------------------------------------------------------------------

    @property
    def settings(self) -> CollectionSettings:
        """The settings. Not inside a transaction that changes them: see `read_settings`.

        Raises:
            CorruptCollectionError: the keys are damaged.
        """
        settings = self._settings
        if settings is None or settings.fingerprint is None:
            # The first texts that are added decide the model, in this process or in another.
            with self._database.reading():
                self._settings = settings = self.read_settings()
        return settings

    def is_known_model(self, fingerprint: str) -> bool:
        """Whether settings that were read before have this fingerprint, which never changes."""
        return self._settings is not None and self._settings.fingerprint == fingerprint

    def read_settings(self) -> CollectionSettings:
        """The settings as this thread's connection reads them now.

        Raises:
            CorruptCollectionError: the keys do not match their checksum, or are not valid.
        """
        meta = self.read()
        settings = {key: meta[key] for key in SETTING_KEYS.values() if key in meta}
        checksum = _checksum_of(settings)
        # Version 1 has no checksum.
        if meta.get(_SETTINGS_CHECKSUM, checksum if self.version == 1 else "") != checksum:
            raise CorruptCollectionError(
                f"{self._database.path} is damaged: its table meta does not match its checksum"
            )
        return self.parse_settings(settings)

    def parse_settings(self, meta: Mapping[str, str]) -> CollectionSettings:
        """Settings from keys and values, without a check of their checksum.

        Raises:
            CorruptCollectionError: they are not valid.
        """
        try:
            return CollectionSettings.parse(meta)
        except ValueError as error:
            raise CorruptCollectionError(
                f"{self._database.path}: its table meta is damaged: {error}"
            ) from None

    def write_settings(self, values: Mapping[str, str]) -> None:
        """Set keys of the settings and their checksum; inside a transaction."""
        self.write(values)
        meta = self.read()
        settings = {key: meta[key] for key in SETTING_KEYS.values() if key in meta}
        self.write({_SETTINGS_CHECKSUM: _checksum_of(settings)})

    # --- counts and states ----------------------------------------------------------------------

    def counts(self) -> Counts:
        """The counts; a file of version 1 has none, and its rows are counted now.

        Raises:
            CorruptCollectionError: a count is not a number.
        """
        meta = self.read()
        if "rows" not in meta:
            with self._database.translated():
                rows = self._database.connection.execute("SELECT COUNT(*) FROM items").fetchall()
            return Counts(int(rows[0][0]), 0, 0)
        try:
            id_sum = int(meta["id_sum"]) if "id_sum" in meta else None
            return Counts(int(meta["rows"]), int(meta["deletions"]), int(meta["state"]), id_sum)
        except (KeyError, ValueError) as error:
            raise CorruptCollectionError(
                f"{self._database.path}: its count of rows is damaged: {error!r}"
            ) from None

    def state(self) -> int:
        """The number of the state that this thread reads. It rises with every change.

        Raises:
            CorruptCollectionError: it is not a number.
        """
        # On the path of every search: `translated` would cost as much as the statement.
        try:
            rows = self._database.connection.execute(_STATE).fetchall()
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise self._database.translate(error) from error
        return self._state_of(rows)

    def newest_state(self) -> int:
        """The number of the state that was committed last; a third of the cost of `reading`."""
        return self._state_of(self._database.newest(_STATE))

    def _state_of(self, rows: list[tuple[Any, ...]]) -> int:
        if not rows:
            return 0
        try:
            return int(rows[0][0])
        except (TypeError, ValueError):
            raise CorruptCollectionError(
                f"{self._database.path}: the number of its state is damaged: {rows[0][0]!r}"
            ) from None

    def touch(self) -> None:
        """Number a new state whose rows are the same; inside a transaction."""
        self.count_change(0, 0)

    def count_change(self, added: int, deleted: int, id_sum: int = 0) -> None:
        """Count rows that are added and deleted, and number the new state; in a transaction.

        Args:
            added: rows that are added.
            deleted: rows that are deleted or replaced.
            id_sum: how much the checksum over all ids changes.
        """
        before = self.counts()
        after = Counts(
            before.rows + added - deleted,
            before.deletions + deleted,
            before.state + 1,
            None if before.id_sum is None else before.id_sum + id_sum,
        )
        self.write(_counts_as_meta(after))
        if not before.state:
            self.write_settings({})
            self._set_version()


def _checksum_of(settings: Mapping[str, str]) -> str:
    framed = json.dumps(sorted(settings.items()))
    return hashlib.blake2b(framed.encode(), digest_size=16).hexdigest()


def _counts_as_meta(counts: Counts) -> dict[str, str]:
    # `asdict` copies, which takes longer than the statement.
    values = ((key, getattr(counts, key)) for key in counts.__slots__)
    return {key: str(value) for key, value in values if value is not None}
