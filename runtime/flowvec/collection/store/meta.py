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

__all__ = ["LAYOUT_VERSION", "Counts", "MetaTable"]

LAYOUT_VERSION = 1

_STATE = "SELECT value FROM meta WHERE key = 'state'"
_SETTINGS_CHECKSUM = "settings checksum"


@dataclass(frozen=True, slots=True)
class Counts:
    """Figures that are kept up to date as rows come and go.

    Attributes:
        rows: rows in the collection.
        deletions: rows that were ever deleted or replaced.
        state: the state's number.
        id_sum: checksum over all ids (`rows.id_sum`).
    """

    rows: int
    deletions: int
    state: int
    id_sum: int


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
        self._database.connection.execute(f"PRAGMA user_version={LAYOUT_VERSION:d}")

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
        if meta.get(_SETTINGS_CHECKSUM) != _checksum_of(settings):
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
        """The counts.

        Raises:
            CorruptCollectionError: a count is missing, or is not a number.
        """
        meta = self.read()
        try:
            return Counts(*(int(meta[key]) for key in Counts.__slots__))
        except (KeyError, ValueError) as error:
            raise CorruptCollectionError(
                f"{self._database.path}: its count of rows is damaged: {error!r}"
            ) from None

    def state(self) -> int:
        """The number of the state that this thread reads. It rises with every change.

        Raises:
            CorruptCollectionError: it is missing, or is not a number.
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
        try:
            return int(rows[0][0])
        except (IndexError, TypeError, ValueError) as error:
            raise CorruptCollectionError(
                f"{self._database.path}: the number of its state is damaged: {error}"
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
            before.id_sum + id_sum,
        )
        self.write(_counts_as_meta(after))


def _checksum_of(settings: Mapping[str, str]) -> str:
    framed = json.dumps(sorted(settings.items()))
    return hashlib.blake2b(framed.encode(), digest_size=16).hexdigest()


def _counts_as_meta(counts: Counts) -> dict[str, str]:
    # `asdict` copies, which takes longer than the statement.
    return {key: str(getattr(counts, key)) for key in counts.__slots__}
