"""A collection as a source: one state of it, while others may write."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import starmap
from pathlib import Path
from typing import Any

import numpy as np

from flowvec.arrow import imported_arrow
from flowvec.bundle.bundle import absolute_path
from flowvec.collection.parquet import sparse_columns, sparse_fields
from flowvec.collection.store.rows import Item
from flowvec.collection.store.store import FILE, Store
from flowvec.compat import override
from flowvec.convert.source import Source, SourceInfo, block_rows, vector_field
from flowvec.sparse.vectors import SparseVectors
from flowvec.vectors import Metric

__all__ = ["CollectionSource"]

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
            self._is_number = bool(rows) and rows == numbers and not large
            self._is_mixed = bool(numbers) and not self._is_number
        except BaseException:
            self.close()
            raise
        about = {"model": settings.model, "fingerprint": settings.fingerprint,
                 "compute": settings.compute, "metric": metric or settings.metric}  # fmt: skip
        if settings.sparse_dim is not None:
            about |= {"sparse_dim": str(settings.sparse_dim), "sparse_model": settings.sparse_model,
                      "sparse_fingerprint": settings.sparse_fingerprint}  # fmt: skip
        self.info = SourceInfo(
            name=str(folder),
            rows=rows,
            dim=settings.dim,
            dtype=settings.vector_dtype,
            metric=metric or settings.metric,
            about={name: value for name, value in about.items() if value is not None},
            has_unique_ids=True,
            sparse_dim=settings.sparse_dim,
        )
        kinds = [("id", pa.int64() if self._is_number else pa.string())]
        kinds += [("id_is_int", pa.bool_())] if self._is_mixed else []
        kinds += [("text", pa.string()), ("metadata", pa.string())]
        fields = [pa.field(name, kind) for name, kind in kinds]
        fields.append(vector_field(settings.dim, settings.vector_dtype))
        if settings.sparse_dim is not None:
            fields += starmap(pa.field, sparse_fields())
        self.schema = pa.schema(fields)

    @override
    def blocks(self) -> Iterator[Any]:
        after, most = 0, block_rows(self.info.dim)
        sparse_rows = 0
        while items := self._store.page(after, most=most):
            labels = [item.label for item in items]
            sparse = self._store.sparse.read(labels)
            sparse_rows += len(sparse)
            yield self._block(items, [sparse.get(label) for label in labels])
            after = labels[-1]
        self._store.sparse.require(sparse_rows)

    def _block(self, items: list[Item], sparse: list[SparseVectors | None]) -> Any:
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
        if self.info.sparse_dim is not None:
            columns += sparse_columns(sparse)
        return pa.record_batch(columns, schema=self.schema)

    @override
    def close(self) -> None:
        try:
            self._state.__exit__(None, None, None)
        finally:
            self._store.close()
