"""The output of a bulk job that writes into a collection."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy.typing as npt

from flowvec.bulk.journal import Folder
from flowvec.bulk.outputs import FolderTarget
from flowvec.bulk.part_files import ShardSettings, ShardWriter, Written, taken
from flowvec.collection.collection import Collection
from flowvec.collection.parquet import json_value
from flowvec.collection.store.settings import VectorDtype
from flowvec.collection.store.store import FILE
from flowvec.compat import override
from flowvec.encoder.encoder import Encoder
from flowvec.errors import InputValueError
from flowvec.texts.inventory import Survey
from flowvec.texts.window import Columns, Window

__all__ = ["CollectionTarget", "open_collection"]


def open_collection(path: Path, encoder: Encoder, precision: str) -> Collection:
    """Open a collection, or create it.

    Raises:
        InputValueError: it cannot hold vectors of this precision.
        CollectionError: the folder holds something else.
        FingerprintMismatchError: its vectors were made by another model.
    """
    if precision not in ("float32", "float16"):
        raise InputValueError(f"a collection holds float32 or float16, not {precision}")
    if (path / FILE).exists() and not Collection.is_unmade(path):
        return Collection.open(path, encoder=encoder)
    return Collection.create(path, encoder=encoder, vector_dtype=cast(VectorDtype, precision))


class CollectionTarget(FolderTarget):
    """A collection; the folder holds the job's manifest, journal and dead letters.

    Rows with the same ids are replaced, so a shard that is done twice is stored once.
    """

    def __init__(
        self,
        collection: Collection,
        folder: Folder,
        known: Survey,
        rows_per_shard: int,
        described: dict[str, Any],
        *,
        resume: bool,
    ) -> None:
        """Start a job, or continue one; see `FolderTarget`."""
        super().__init__(folder, known, rows_per_shard, "collection", described, resume=resume)
        self._collection = collection

    @override
    def open_shard(self, shard: int, settings: ShardSettings) -> ShardWriter:
        return _CollectionShard(self._collection, settings)

    @override
    def file_name(self, shard: int) -> str:
        return ""  # a shard has no file of its own

    @override
    def complete(self, stop: threading.Event | None = None) -> None:
        super().complete()  # all rows are written, even if the graph is not built
        self._collection.prepare(stop)  # so that the first search need not


class _CollectionShard:
    def __init__(self, collection: Collection, settings: ShardSettings) -> None:
        self._collection = collection
        self._fields = settings.fields
        self._rows = 0

    @property
    def rows(self) -> int:
        return self._rows

    def write(self, window: Window, kept: Sequence[int] | None, vectors: npt.NDArray[Any]) -> None:
        if not len(vectors):
            return
        places = range(len(window.texts)) if kept is None else kept
        ids = window.ids(self._fields)
        names = self._fields.beside_id
        columns = {name: _plain(taken(window, name, kept), window.columns[name]) for name in names}
        metadata = None
        if names:
            metadata = [{n: columns[n][i] for n in names} for i in range(len(places))]
        self._collection.add_vectors(
            [ids[i] for i in places], vectors, [window.texts[i] for i in places], metadata
        )
        self._rows += len(vectors)

    def finish(self, columns: Columns) -> Written:
        return Written(0, "", None)  # added rows are on disk already

    def abandon(self) -> None:
        pass  # a later run replaces the rows, since the journal does not list the shard


def _plain(values: Any, kind: str) -> list[Any]:
    """Values that JSON can hold; Arrow's times and dates become text."""
    if not isinstance(values, list):
        return [json_value(value) for value in values.to_pylist()]
    if kind == "json":
        return [None if value is None else json.loads(value) for value in values]
    return values
