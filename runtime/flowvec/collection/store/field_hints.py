"""Says that a filter found nothing because no row has its field, which may be misspelt."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from difflib import get_close_matches
from typing import Any

from flowvec.collection.store.filter_columns import COLUMNS
from flowvec.collection.store.filters import Condition
from flowvec.collection.store.json_field import JsonField, field_names, path_of
from flowvec.collection.store.sqlite import Database

__all__ = ["FieldHints"]

logger = logging.getLogger(__name__)

# Rows whose fields are looked at for a similar name.
_ROWS = 1000
_DEPTH = 4


class FieldHints:
    """Warns once of each field that no row has, for one open collection."""

    def __init__(self, database: Database) -> None:
        self._database = database
        # Fields that some row has had, and those that were named.
        self._known: set[str] = set()

    def after_nothing(self, condition: Condition | None) -> None:
        """Look at the fields of a condition that no row has met; inside `reading` or not."""
        for key in condition.fields if condition is not None else ():
            if key in self._known or not self._has_rows():
                continue
            self._known.add(key)
            if not self._has_rows(f"WHERE {JsonField(path_of(key)).type} IS NOT NULL"):
                closest = get_close_matches(key, [*self._names(), *COLUMNS], 1)
                logger.warning(
                    "%s: no row has the field %r, which a filter asks for%s",
                    self._database.path.parent,
                    key,
                    f"; did you mean {closest[0]!r}?" if closest else "",
                )

    def _has_rows(self, where: str = "") -> bool:
        with self._database.reading(), self._database.translated():
            rows = self._database.connection.execute(f"SELECT 1 FROM items {where} LIMIT 1")  # noqa: S608 - quoted
            return rows.fetchone() is not None

    def _names(self) -> list[str]:
        """Fields of the first rows, as filters name them."""
        with self._database.reading(), self._database.translated():
            rows = self._database.connection.execute(
                "SELECT metadata FROM items WHERE metadata IS NOT NULL ORDER BY label LIMIT ?",
                (_ROWS,),
            ).fetchall()
        return sorted({name for (metadata,) in rows for name in _names_in(json.loads(metadata))})


def _names_in(value: Any, above: str = "", depth: int = 0) -> Iterator[str]:
    if isinstance(value, dict) and depth < _DEPTH:
        for name, part in value.items():
            key = above + (name.replace(".", "\\.") if len(field_names(name)) > 1 else name)
            yield key
            yield from _names_in(part, f"{key}.", depth + 1)
