"""Outputs of a bulk job that writes into a collection.

`CollectionTarget` keeps a journal, and continues by shards. `ComparedTarget` keeps none: it leaves
out rows that the collection already has, so the same job again only adds what is missing.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy.typing as npt

from flowvec.bulk.journal import Folder
from flowvec.bulk.outputs import FolderTarget, Target
from flowvec.bulk.pruning import Pruning
from flowvec.bulk.shard_files import ShardSettings, ShardWriter, Written, field_values
from flowvec.bulk.splitting import PART_FIELDS, Splitting, stale_parts
from flowvec.collection.collection import Collection
from flowvec.collection.creation import is_collection
from flowvec.collection.parquet import json_value
from flowvec.collection.refused_rows import naming_row
from flowvec.collection.store.rows import Id, Item, Rows
from flowvec.collection.store.settings import VECTOR_DTYPES, VectorDtype
from flowvec.compat import override
from flowvec.encoder.encoder import Encoder
from flowvec.errors import InputTypeError, InputValueError
from flowvec.texts.inventory import Survey
from flowvec.texts.unicode import replace_surrogates, without_surrogates
from flowvec.texts.window import DEAD_LETTERS, Columns, Fields, Window

__all__ = ["ADVICE", "CollectionTarget", "ComparedTarget", "check_precision", "open_collection"]


# What to do about a collection that another job has filled.
ADVICE = (
    "Give --skip-unchanged to add these files without a journal, or --restart to forget that job; "
    "its rows stay in the collection"
)
# Types of values that JSON holds; NaN and infinity are refused when rows are read.
_PLAIN = frozenset((str, int, float, bool, type(None)))


def check_precision(precision: str) -> None:
    """Refuse a type that vectors of a collection cannot have.

    Raises:
        InputValueError: it is not float32 or float16.
    """
    if precision not in VECTOR_DTYPES:
        raise InputValueError(f"a collection holds {' or '.join(VECTOR_DTYPES)}, not {precision}")


def open_collection(path: Path, encoder: Encoder, precision: str) -> Collection:
    """Open a collection, or create it.

    Raises:
        InputValueError: it cannot hold vectors of this precision.
        CollectionError: the folder holds something else.
        FingerprintMismatchError: its vectors were made by another model.
    """
    check_precision(precision)
    if is_collection(path):
        return Collection.open(path, encoder=encoder)
    return Collection.create(path, encoder=encoder, vector_dtype=cast(VectorDtype, precision))


class CollectionTarget(FolderTarget):
    """A collection; the folder holds the job's manifest, journal and dead letters.

    Rows with the same ids are replaced, so a shard that is done twice is stored once.
    """

    _advice = ADVICE

    def __init__(
        self,
        collection: Collection,
        folder: Folder,
        survey: Survey,
        rows_per_shard: int,
        described: dict[str, Any],
        *,
        resume: bool,
    ) -> None:
        """Start a job, or continue one.

        The arguments are those of `FolderTarget`, and the open collection.
        """
        super().__init__(folder, survey, rows_per_shard, "collection", described, resume=resume)
        self._collection = collection

    @override
    def open_shard(self, shard: int, settings: ShardSettings) -> ShardWriter:
        return _CollectionShard(self._collection, settings, self)

    @override
    def file_name(self, shard: int) -> str:
        return ""  # a shard has no file

    @override
    def complete(self, stop: threading.Event | None = None) -> None:
        super().complete()  # all rows are written, even if the graph is not built
        prepare_index(self._collection, stop)


class ComparedTarget(Target):
    """A collection without a journal: rows that it already has are left out.

    A row is left out if the collection has its id with the same text and the same kept fields. Dead
    letters are in a file beside the collection.
    """

    def __init__(
        self,
        path: Path,
        encoder: Encoder,
        precision: str,
        fields: Fields,
        survey: Survey,
        *,
        prune: bool = False,
        splitting: Splitting | None = None,
    ) -> None:
        """Open the collection, if there is one. If not, it is created when a row can be added.

        Args:
            path: its directory.
            encoder: the model of the vectors.
            precision: type of the vectors of a new collection, `float32` or `float16`.
            fields: the fields that are read.
            survey: the inputs.
            prune: whether to delete rows whose ids the inputs do not have.
            splitting: how texts are split into chunks; None does not.

        Raises:
            InputValueError: a collection cannot hold vectors of this precision.
            CollectionError: the folder holds something else.
            FingerprintMismatchError: its vectors were made by another model.
        """
        super().__init__(path)
        check_precision(precision)
        self._open = partial(open_collection, path, encoder, precision)
        self._collection = self._open() if is_collection(path) else None
        self._fields = fields
        self._encoder = encoder
        self._splitting = splitting
        self._pruning = None
        if prune:
            self._pruning = Pruning(self._collection, are_split=splitting is not None)
        # Standard input is read once, so an id can come again. Its first row may not be written
        # yet when the second is compared, so that one is always written.
        self._changed: set[Id] | None = set() if survey.rows is None else None

    @override
    def spans(self) -> Iterator[tuple[int, int | None]]:
        yield 0, None

    @override
    def open_shard(self, shard: int, settings: ShardSettings) -> ShardWriter:
        if self._collection is None:
            self._collection = self._open()
        return _CollectionShard(self._collection, settings, self)

    @override
    def file_name(self, shard: int) -> str:
        return ""

    @override
    def dead_letters_path(self, shard: int) -> Path:
        return self.path.with_name(self.path.name + DEAD_LETTERS)

    @override
    def note(self, window: Window) -> None:
        if self._pruning is not None:
            self._pruning.see(window, self._fields)

    @override
    def leave_out(self, window: Window) -> None:
        if self._splitting is not None:
            self._splitting.split(self._encoder, window, self._fields)
            if self._collection is not None:
                window.stale = stale_parts(self._collection, window)
        ids = window.ids(self._fields)
        none: list[Item | None] = [None] * len(ids)
        items = none if self._collection is None else self._collection.get(ids)
        metadata = _metadata(window, self._fields, None)
        same: list[int] = []
        changed: set[int] = set()  # numbers of rows
        for place, (key, item) in enumerate(zip(ids, items, strict=True)):
            is_same = (
                item is not None
                and (self._changed is None or key not in self._changed)
                and item.text == replace_surrogates(window.texts[place])
                and (metadata is None or _is_same(_without_nulls(item.metadata), metadata[place]))
            )
            if is_same:
                same.append(place)
                continue
            changed.add(window.numbers[place])
            if self._changed is not None:
                self._changed.add(key)
        # A row is unchanged if all of its chunks are.
        unchanged = {window.numbers[place] for place in same} - changed
        again = len(unchanged & window.replacing)
        window.duplicates += again
        window.unchanged += len(unchanged) - again
        window.remove(same)

    @override
    def complete(self, stop: threading.Event | None = None) -> None:
        if self._collection is not None and self._pruning is not None:
            self.pruned = self._pruning.prune(self._collection)
        if self._collection is not None:
            prepare_index(self._collection, stop)

    @override
    def close(self) -> None:
        super().close()
        if self._collection is not None:
            self._collection.close()


class _CollectionShard:
    def __init__(self, collection: Collection, settings: ShardSettings, target: Target) -> None:
        self._collection = collection
        self._fields = settings.fields
        self._target = target
        self._rows = 0

    @property
    def rows(self) -> int:
        return self._rows

    def write(self, window: Window, kept: Sequence[int] | None, vectors: npt.NDArray[Any]) -> None:
        if len(vectors):
            self._add(window, kept, vectors)
        if window.stale:
            self._collection.delete(window.stale)

    def _add(self, window: Window, kept: Sequence[int] | None, vectors: npt.NDArray[Any]) -> None:
        places = range(len(window.texts)) if kept is None else kept
        ids = window.ids(self._fields)
        metadata = _metadata(window, self._fields, kept)
        rows = Rows(
            [ids[i] for i in places],
            vectors,
            [window.texts[i] for i in places],
            [None] * len(places) if metadata is None else [*metadata],
            place_of=lambda row: "{}, row {}".format(*window.place(places[row])),
        )
        try:
            added = self._collection.add_vectors(rows.ids, vectors, rows.texts, metadata)
        except (InputTypeError, InputValueError) as error:
            raise naming_row(error, rows, self._collection.info().vector_dtype) from None
        self._rows += len(vectors)
        if window.parts is not None:
            self._target.chunks += len(vectors)
        self._target.overwritten += added.replaced

    def finish(self, columns: Columns) -> Written:
        return Written(0, "", None)  # added rows are on disk already

    def abandon(self) -> None:
        pass  # a later run replaces the rows, since the journal does not list the shard


def _metadata(
    window: Window, fields: Fields, kept: Sequence[int] | None
) -> list[dict[str, Any]] | None:
    """The kept fields of some rows, and those of chunks; None if there are none. Null and missing
    ones are left out.

    Args:
        window: the rows.
        fields: the fields that are read.
        kept: indices of the rows; None takes all.
    """
    names = fields.beside_id
    if not names and window.parts is None:
        return None
    columns = [_plain(field_values(window, name, kept)) for name in names]
    count = len(window.texts) if kept is None else len(kept)
    rows = zip(*columns, strict=True) if columns else [()] * count
    metadata = [
        {
            name: without_surrogates(value)
            for name, value in zip(names, row, strict=True)
            if value is not None
        }
        for row in rows
    ]
    if window.parts is not None:
        places = range(count) if kept is None else kept
        for place, its in zip(places, metadata, strict=True):
            its |= {name: getattr(window.parts[place], name) for name in PART_FIELDS}
    return metadata


def _without_nulls(metadata: Mapping[str, Any] | None) -> dict[str, Any]:
    """Stored metadata as `_metadata` returns it; it may have been added with nulls."""
    return {name: value for name, value in (metadata or {}).items() if value is not None}


def _is_same(stored: dict[str, Any], wanted: dict[str, Any]) -> bool:
    """Whether metadata is the same in values and types: 1, 1.0 and True are different."""
    return stored == wanted and (
        json.dumps(stored, sort_keys=True) == json.dumps(wanted, sort_keys=True)
    )


def _plain(values: Any) -> list[Any]:
    """Values that JSON can hold; Arrow's times and dates become text."""
    plain: list[Any] = values if isinstance(values, list) else values.to_pylist()
    return [value if type(value) in _PLAIN else json_value(value) for value in plain]


def prepare_index(collection: Collection, stop: threading.Event | None) -> None:
    """Make the codes or the graph of a large collection, so that the first search need not."""
    if collection.info().search != "exact":
        collection.prepare(stop)
