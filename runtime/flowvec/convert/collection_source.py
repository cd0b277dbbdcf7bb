"""A collection as a source: one state of it, while others may write."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from flowvec.arrow import imported_arrow
from flowvec.bundle.bundle import absolute_path
from flowvec.collection.store.rows import Item
from flowvec.collection.store.store import FILE, Store
from flowvec.compat import override
from flowvec.convert.source import Source, SourceInfo, block_rows, vector_field
from flowvec.errors import ConvertError
from flowvec.vectors import Metric

__all__ = ["CollectionSource"]

logger = logging.getLogger(__name__)

# Numbers of over 64 bits do not survive being cast to SQLite's integers.
_KINDS = (
    "SELECT count(*), coalesce(sum(id_is_int), 0), "
    "coalesce(sum(id_is_int AND CAST(CAST(id AS INTEGER) AS TEXT) <> id), 0) FROM items"
)


class CollectionSource(Source):
    """Rows of a collection in the order in which they were added, with their checksums checked."""

    def __init__(self, path: str, metric: Metric | None) -> None:
        """Open the collection, at the state of this moment.

        Args:
            path: its directory.
            metric: how the vectors are compared; None is the collection's own.

        Raises:
            CollectionError: it cannot be opened.
            ConvertError: it has no rows.
        """
        pa = imported_arrow()
        folder = absolute_path(Path(path))
        self._store = Store(folder / FILE)
        self._state = self._store.reading()
        self._state.__enter__()
        try:
            settings = self._store.settings
            database = self._store.database
            with database.translated():
                rows, numbers, large = database.connection.execute(_KINDS).fetchone()
            if not rows:
                raise ConvertError(f"{folder} holds no vectors")
            self._is_number = rows == numbers and not large
            self._is_mixed = bool(numbers) and not self._is_number
        except BaseException:
            self.close()
            raise
        if settings.sparse_dim is not None:
            logger.warning(
                "%s: its sparse vectors are not converted; Collection.to_parquet writes them",
                folder,
            )
        about = {"model": settings.model, "fingerprint": settings.fingerprint,
                 "compute": settings.compute, "metric": metric or settings.metric}  # fmt: skip
        self.info = SourceInfo(
            name=str(folder),
            rows=rows,
            dim=settings.dim,
            dtype=settings.vector_dtype,
            metric=metric or settings.metric,
            about={name: value for name, value in about.items() if value is not None},
            has_unique_ids=True,
        )
        kinds = [("id", pa.int64() if self._is_number else pa.string())]
        kinds += [("id_is_int", pa.bool_())] if self._is_mixed else []
        kinds += [("text", pa.string()), ("metadata", pa.string())]
        fields = [pa.field(name, kind) for name, kind in kinds]
        self.schema = pa.schema([*fields, vector_field(settings.dim, settings.vector_dtype)])

    @override
    def blocks(self) -> Iterator[Any]:
        after, most = 0, block_rows(self.info.dim)
        while items := self._store.page(after, most=most):
            yield self._block(items)
            after = items[-1].label

    def _block(self, items: list[Item]) -> Any:
        pa = imported_arrow()
        ids = [item.id for item in items]
        columns = [pa.array(ids if self._is_number else list(map(str, ids)))]
        if self._is_mixed:
            columns.append(pa.array([isinstance(key, int) for key in ids]))
        columns.append(pa.array([item.text for item in items], pa.string()))
        written = [None if i.metadata is None else json.dumps(i.metadata) for i in items]
        columns.append(pa.array(written, pa.string()))
        flat = np.stack([item.vector for item in items]).astype(self.info.dtype).reshape(-1)
        kind = self.schema.field("vector").type
        columns.append(pa.FixedSizeListArray.from_arrays(pa.array(flat), type=kind))
        return pa.record_batch(columns, schema=self.schema)

    @override
    def close(self) -> None:
        try:
            self._state.__exit__(None, None, None)
        finally:
            self._store.close()
