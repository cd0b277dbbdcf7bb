"""Indexes over fields of rows' metadata: SQLite's indexes over expressions.

SQLite keeps them up to date with every change. It uses one where a filter holds the same
expressions; see `JsonField.indexed`.
"""

from __future__ import annotations

import binascii

from flowvec.collection.store.filter_columns import COLUMNS
from flowvec.collection.store.json_field import JsonField, key_of_path, path_of
from flowvec.collection.store.sqlite import Database
from flowvec.errors import InputTypeError, InputValueError

__all__ = ["FieldIndexes", "checked_path", "name_of"]

# SQLite compares names without case, and fields differ by it: so paths are written in hexadecimal.
_PREFIX = "field_"


class FieldIndexes:
    """The indexes of one collection."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def fields(self) -> list[str]:
        """The fields that have an index, as filters write them, in order."""
        with self._database.translated():
            rows = self._database.connection.execute(
                "SELECT name FROM sqlite_master WHERE type = 'index' AND tbl_name = 'items' "
                "AND substr(name, 1, ?) = ?",
                (len(_PREFIX), _PREFIX),
            ).fetchall()
        names = [_path_in(str(name)) for (name,) in rows]
        return sorted(key_of_path(path) for path in names if path is not None)

    def create(self, field: str) -> None:
        """Create an index unless there is one; inside a transaction."""
        path = checked_path(field)
        self._database.connection.execute(
            f"CREATE INDEX IF NOT EXISTS {name_of(path)} ON items ({JsonField(path).indexed})"
        )

    def drop(self, field: str) -> None:
        """Drop an index if there is one; inside a transaction."""
        path = checked_path(field)
        self._database.connection.execute(f"DROP INDEX IF EXISTS {name_of(path)}")


def checked_path(field: object) -> str:
    """The path of a field that can have an index.

    Raises:
        InputTypeError: it is not a text.
        InputValueError: it is not a field of the metadata, or filters cannot reach it.
    """
    if not isinstance(field, str):
        raise InputTypeError(f"a field is a text, not {type(field).__name__}")
    if field in COLUMNS:
        raise InputValueError(f"{field!r} is not a field of the metadata, which alone has indexes")
    return path_of(field)


def name_of(path: str) -> str:
    """The name of the index over a path."""
    return _PREFIX + path.encode().hex()


def _path_in(name: str) -> str | None:
    try:
        return binascii.unhexlify(name.removeprefix(_PREFIX)).decode()
    except ValueError:  # the index of somebody else
        return None
