"""A collection's table `meta`: settings under a checksum, rows counted, states numbered.

States are numbered, so that what is kept in memory can be compared with them.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from flowvec.collection.store.sqlite import Database
from flowvec.errors import CorruptCollectionError

__all__ = ["LAYOUT_VERSIONS", "Counts", "MetaTable"]

# From 2 on rows are counted and states numbered, and vectors may be float16. A file of version 1
# becomes one of version 2 with its first change, so that no older flowvec changes it uncounted.
LAYOUT_VERSION = 2
LAYOUT_VERSIONS = (1, 2)

# Keys that say what the vectors are; a checksum covers them.
_SETTINGS = (
    "dim", "metric", "vector_dtype", "M", "ef_construction", "model", "fingerprint", "compute",
    "created", "created_by",
)  # fmt: skip
_STATE = "SELECT value FROM meta WHERE key = 'state'"
_SETTINGS_CHECKSUM = "settings checksum"


@dataclass(frozen=True, slots=True)
class Counts:
    """How many rows there are, and what else is counted as they come and go.

    Attributes:
        rows: how many there are.
        deletions: how many were ever deleted or replaced.
        state: the state's number.
        id_sum: of all rows, as `rows.id_sum` has it; None in a file that did not keep it.
    """

    rows: int
    deletions: int
    state: int
    id_sum: int | None = None


class MetaTable(Database):
    """A database with a table of keys and values."""

    def version(self) -> int:
        """Of the file's layout, which is `PRAGMA user_version`; 0 where there are no tables."""
        with self._translated():
            return int(self._db.execute("PRAGMA user_version").fetchall()[0][0])

    def begin_meta(self, settings: Mapping[str, str]) -> None:
        """Fill the table of a new file; inside a transaction."""
        self.write_meta(_count_keys(Counts(0, 0, 0, 0)))
        self.write_settings(settings)
        self._db.execute(f"PRAGMA user_version={LAYOUT_VERSION}")

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
        settings = {key: value for key, value in self.read_meta().items() if key in _SETTINGS}
        self.write_meta({_SETTINGS_CHECKSUM: _digest_of(settings)})

    def settings(self) -> dict[str, str]:
        """What the vectors are.

        Raises:
            CorruptCollectionError: the keys do not match their checksum.
        """
        meta = self.read_meta()
        settings = {key: value for key, value in meta.items() if key in _SETTINGS}
        # Version 1 has none.
        expected = meta.get(_SETTINGS_CHECKSUM, _digest_of(settings) if self.version() == 1 else "")
        if expected != _digest_of(settings):
            raise CorruptCollectionError(
                f"{self._path} is damaged: its table meta does not match its checksum"
            )
        return settings

    def forget_meta(self, keys: Iterable[str]) -> None:
        """Drop keys; call it inside a transaction."""
        self._db.executemany("DELETE FROM meta WHERE key = ?", ((key,) for key in keys))

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
            kept = int(meta["id_sum"]) if "id_sum" in meta else None
            return Counts(int(meta["rows"]), int(meta["deletions"]), int(meta["state"]), kept)
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
            found = self._db.execute(_STATE).fetchall()
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise self._ours(error) from error
        return self._number_of(found)

    def newest_state(self) -> int:
        """`state` of what was committed last, at a third of a transaction's cost."""
        return self._number_of(self.newest(_STATE))

    def _number_of(self, found: list[tuple[Any, ...]]) -> int:
        if not found:
            return 0
        try:
            return int(found[0][0])
        except (TypeError, ValueError):
            raise CorruptCollectionError(
                f"{self._path}: the number of its state is damaged: {found[0][0]!r}"
            ) from None

    def touch(self) -> None:
        """Number a new state, of which other things than rows are new; inside a transaction."""
        self.count_change(0, 0)

    def count_change(self, added: int, gone: int, id_sum: int = 0) -> None:
        """Count rows that are added and gone, and number the new state; inside a transaction.

        `id_sum` is by how much theirs changes.
        """
        before = self.counts()
        after = Counts(
            before.rows + added - gone,
            before.deletions + gone,
            before.state + 1,
            None if before.id_sum is None else before.id_sum + id_sum,
        )
        self.write_meta(_count_keys(after))
        if not before.state:
            self.write_settings({})
            self._db.execute(f"PRAGMA user_version={LAYOUT_VERSION}")


def _digest_of(settings: Mapping[str, str]) -> str:
    framed = json.dumps(sorted(settings.items()))
    return hashlib.blake2b(framed.encode(), digest_size=16).hexdigest()


def _count_keys(counts: Counts) -> dict[str, str]:
    return {key: str(value) for key, value in asdict(counts).items() if value is not None}
