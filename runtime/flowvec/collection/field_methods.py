"""Methods of a Collection that index fields of the metadata."""

from __future__ import annotations

import logging

from flowvec.collection.access import Access
from flowvec.collection.store.field_indexes import checked_path
from flowvec.collection.store.json_field import key_of_path
from flowvec.collection.store.store import Store

__all__ = ["FieldMethods"]

logger = logging.getLogger(__name__)


class FieldMethods:
    """Indexes over fields, which make new filters fast."""

    _store: Store
    _access: Access

    def create_index(self, field: str) -> None:
        """Create an index over a field of the metadata, unless there is one.

        Filters use it for `=`, `in`, `<`, `<=`, `>`, `>=` and `starts with`, and find the same rows
        as without it. It pays for filters that are new or seldom repeated, such as one per tenant:
        rows that meet a repeated filter are remembered anyway. Changes keep it up to date; it takes
        10 to 20 bytes of disk per row besides the value. It is on disk when this returns: for a
        million rows that takes seconds, in which other changes wait.

            >>> with Collection.create("tenants", dim=2) as collection:
            ...     collection.create_index("tenant")
            ...     collection.info().indexed_fields
            ('tenant',)

        Args:
            field: as in a filter: `author.name` is a field in a field.

        Raises:
            InputTypeError, InputValueError: filters cannot use such a field.
            CollectionBusyError: others were writing longer than `write_timeout`.
            CollectionError: the collection is read-only.
        """
        path = checked_path(field)
        with self._access.writing():
            if key_of_path(path) not in self._store.field_indexes.fields():
                logger.info("creating an index over %s", path)
                with self._store.transaction():
                    self._store.field_indexes.create(field)

    def drop_index(self, field: str) -> None:
        """Drop the index over a field, if there is one.

        Args:
            field: as for `create_index`.

        Raises:
            InputTypeError, InputValueError, CollectionError: as for `create_index`.
        """
        checked_path(field)
        with self._access.writing(), self._store.transaction():
            self._store.field_indexes.drop(field)
