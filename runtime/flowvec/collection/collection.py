"""Collection: ids, texts, metadata and vectors on disk, and their nearest neighbours."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from flowvec.arguments import explaining, flag
from flowvec.bundle.bundle import absolute_path
from flowvec.collection.access import Access
from flowvec.collection.creation import create_store
from flowvec.collection.field_methods import FieldMethods
from flowvec.collection.foreign import OF_ADD
from flowvec.collection.index.choice import DEFAULT, IndexChoice, IndexKind
from flowvec.collection.index.sparse_index import SparseIndex
from flowvec.collection.index.vector_index import VectorIndex
from flowvec.collection.model import (
    Model,
    check_model,
    check_same_settings,
    check_sparse_encoder_or_none,
    new_settings,
)
from flowvec.collection.parquet import read_parquet, write_parquet
from flowvec.collection.query import Searcher
from flowvec.collection.refused_rows import naming_row
from flowvec.collection.results import Added
from flowvec.collection.search_methods import SearchMethods
from flowvec.collection.store.absence import check_not_url
from flowvec.collection.store.filters import Filter
from flowvec.collection.store.rows import Id, Rows, check_ids
from flowvec.collection.store.settings import VectorDtype
from flowvec.collection.store.store import FILE, Store
from flowvec.collection.store.writer_locks import WRITE_TIMEOUT
from flowvec.collection.validation import (
    Metadata,
    check_count,
    check_metadata,
    check_vectors,
    checked_write_timeout,
    counted_as_given,
    last_of_each,
    round_to_float16,
)
from flowvec.encoder.argument import check_encoder_or_none
from flowvec.encoder.encoder import Encoder
from flowvec.encoder.loaded_model import call_bar, wants_bar
from flowvec.encoder.pipeline import windows_of
from flowvec.errors import CollectionError, InputTypeError, InputValueError
from flowvec.progress import hidden, say
from flowvec.sequences import as_list
from flowvec.sparse.checking import checked_sparse, chosen_rows
from flowvec.sparse.encoder import SparseEncoder
from flowvec.sparse.vectors import SparseVectors
from flowvec.texts.places import check_apart, check_new
from flowvec.texts.unicode import replace_surrogates, without_surrogates
from flowvec.texts.window import WINDOW
from flowvec.tokenizer.tokenizer import check_texts
from flowvec.vectors import Metric

__all__ = ["Collection"]

# A logger of its own, so that users can turn off this warning alone.
_truncation_logger = logging.getLogger("flowvec.collection.truncation")

Floats = npt.NDArray[np.float32]
# Sparse vectors, and the SparseEncoder that made them; None for those that were made elsewhere.
SparseAndModel = tuple[SparseVectors | None, SparseEncoder | None]

_SALVAGE_ROWS = 4096
# Settings that a Parquet file has in its schema.
_KEPT = {
    "metric", "model", "fingerprint", "compute", "created_by",
    "sparse_dim", "sparse_model", "sparse_fingerprint",
}  # fmt: skip


class Collection(SearchMethods, FieldMethods):
    """A directory of vectors that can be searched.

    `collection.sqlite` holds all data; other files are caches, verified before they are used and
    made again if they are missing or damaged. A row is on disk when `add` returns, and a deletion
    when `delete` returns.

        >>> with Collection.open_or_create("notes", encoder=Encoder.load("mini")) as notes:
        ...     notes.add(["a", 2], ["The cat sleeps.", "Stocks fell."])
        ...     [hit.id for hit in notes.search("a sleeping animal", k=1)]
        Added(rows=2, replaced=0, truncated=0)
        ['a']

    Any number of threads and processes may search and write at the same time. Searches never wait
    for changes. Changes take turns, each for its own transaction: one that waits longer than
    `write_timeout` raises CollectionBusyError. Every handle sees what others have committed at its
    next call.
    """

    def __init__(
        self,
        path: Path,
        store: Store,
        encoder: Encoder | None,
        choice: IndexChoice = DEFAULT,
        write_timeout: float | None = WRITE_TIMEOUT,
    ) -> None:
        """Wrap an open store; use `Collection.create` or `Collection.open`."""
        self._path = path
        self._store = store
        self._encoder = encoder
        self._own_encoder: Encoder | None = None  # opened here, so closed here
        self._sparse_encoder: SparseEncoder | None = None
        self._dim = store.settings.dim
        self._index = VectorIndex(store, path, choice)
        self._access = Access(path, store, self._index, checked_write_timeout(write_timeout))
        self._sparse_index = SparseIndex(store)
        self._searcher = Searcher(store, self._index, self._sparse_index, self._access.reading)
        self._has_warned_of_truncation = False

    # --- opening and closing --------------------------------------------------------------------

    @classmethod
    def create(
        cls,
        path: str | Path,
        *,
        encoder: Encoder | None = None,
        sparse_encoder: SparseEncoder | None = None,
        dim: int | None = None,
        metric: Metric = "cosine",
        vector_dtype: VectorDtype = "float32",
        exist_ok: bool = False,
        index: IndexKind = "auto",
        exact_below: int | None = None,
        write_timeout: float | None = WRITE_TIMEOUT,
    ) -> Collection:
        """Create an empty collection.

        Args:
            path: a directory that does not exist, is empty, or holds an interrupted `create`.
            encoder: embeds texts. Its fingerprint is kept, and later Encoders must match it.
            sparse_encoder: makes sparse vectors of texts beside the dense ones, for
                `search_sparse` and hybrid searches. Its fingerprint is kept with the first.
            dim: length of the vectors, for a collection without an Encoder.
            metric: `cosine`, `ip` (inner product) or `l2` (Euclidean distance).
            vector_dtype: how vectors are stored: `float32`, or `float16` at half the size.
            exist_ok: if there is a collection, open it. It must have the same model or dim, metric
                and vector_dtype.
            index, exact_below, write_timeout: as for `open`.

        Raises:
            InputValueError: the path is a URL; both or neither of encoder and dim; an unknown
                metric; with `exist_ok`, a collection with another dim, metric or vector_dtype.
            CollectionError: the directory is not empty or cannot be written.
            FingerprintMismatchError: with `exist_ok`, the vectors there are of another model.
        """
        flag("exist_ok", exist_ok)
        choice = IndexChoice.checked(index, exact_below)
        checked_write_timeout(write_timeout)
        check_sparse_encoder_or_none(sparse_encoder)
        settings = new_settings(encoder, dim, metric, vector_dtype)
        folder = absolute_path(path)
        check_not_url(path)
        store = create_store(folder, settings)
        if store is not None:
            try:
                collection = cls(folder, store, encoder, choice, write_timeout)
                collection._sparse_encoder = sparse_encoder
                return collection
            except BaseException:
                store.close()
                raise
        if not exist_ok:
            what = "it holds a collection; open_or_create opens it"
            raise CollectionError(f"{folder} is not empty: {what}")
        collection = cls.open(
            folder,
            encoder=encoder,
            sparse_encoder=sparse_encoder,
            index=index,
            exact_below=exact_below,
            write_timeout=write_timeout,
        )
        try:
            check_same_settings(collection._store.settings, settings, folder)
        except BaseException:
            collection.close()
            raise
        return collection

    @classmethod
    def open_or_create(
        cls,
        path: str | Path,
        *,
        encoder: Encoder | None = None,
        sparse_encoder: SparseEncoder | None = None,
        dim: int | None = None,
        metric: Metric = "cosine",
        vector_dtype: VectorDtype = "float32",
        index: IndexKind = "auto",
        exact_below: int | None = None,
        write_timeout: float | None = WRITE_TIMEOUT,
    ) -> Collection:
        """Open a collection, or create it if there is none: `create(..., exist_ok=True)`.

        Arguments and errors are those of `create`.
        """
        return cls.create(
            path,
            encoder=encoder,
            sparse_encoder=sparse_encoder,
            dim=dim,
            metric=metric,
            vector_dtype=vector_dtype,
            exist_ok=True,
            index=index,
            exact_below=exact_below,
            write_timeout=write_timeout,
        )

    @classmethod
    def open(
        cls,
        path: str | Path,
        *,
        encoder: Encoder | None = None,
        sparse_encoder: SparseEncoder | None = None,
        index: IndexKind = "auto",
        exact_below: int | None = None,
        write_timeout: float | None = WRITE_TIMEOUT,
    ) -> Collection:
        """Open an existing collection.

        A read-only collection is opened without locking if no writer has it open: no process may
        write it until it is closed.

        Args:
            path: its directory.
            encoder: needed to add or search texts. Without it, vectors can be added and searched.
                If `Encoder.load` chose its compute type, and the vectors were made in another one,
                the collection opens the model once more in that type.
            sparse_encoder: needed to make sparse vectors of texts, which `add` then does, and
                searches by sparse vectors of a text. Without it, sparse vectors can be given.
            index: what answers searches of this object. `scan` compares short codes of all rows,
                and finds .999 of the nearest. `graph` looks at few rows, and must be built. `auto`
                scans up to 500,000 rows, where that is faster.
            exact_below: up to this many rows, a search compares all vectors; None is 10,000.
            write_timeout: how long a change waits while other threads and processes write, in
                seconds, before it raises CollectionBusyError. 0 tries once; None waits as long as
                it takes.

        Raises:
            CollectionError: there is no collection, or a newer flowvec made it.
            FingerprintMismatchError: an Encoder is not the model that made the vectors.
            CorruptCollectionError: the database is damaged.
        """
        check_encoder_or_none(encoder)
        check_sparse_encoder_or_none(sparse_encoder)
        choice = IndexChoice.checked(index, exact_below)
        checked_write_timeout(write_timeout)
        folder = absolute_path(path)
        with ExitStack() as opened:
            store = Store(folder / FILE)
            opened.callback(store.close)
            collection = cls(folder, store, encoder, choice, write_timeout)
            opened.callback(collection.close)
            if encoder is not None:
                collection._take_encoder(encoder)
            if sparse_encoder is not None:
                collection._take_sparse_encoder(sparse_encoder)
            opened.pop_all()
        return collection

    def close(self) -> None:
        """Save the graph, and close all files, mappings and threads; twice is harmless.

        Searches of other threads that have begun end first; later calls raise ClosedError.
        """
        try:
            self._access.close()
        finally:
            self._sparse_index.clear()
            if self._own_encoder is not None:
                self._own_encoder.close()

    def __enter__(self) -> Collection:
        self._access.check()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- writing --------------------------------------------------------------------------------

    @explaining(OF_ADD)
    def add(
        self,
        ids: Sequence[Id],
        texts: Sequence[str],
        metadata: Metadata | None = None,
        *,
        show_progress_bar: bool | None = None,
    ) -> Added:
        """Embed texts and add them. Rows with the same ids are replaced. On disk when it returns.

        Args:
            ids: strings, whole numbers or UUIDs, which become strings; 1 and "1" are two ids. Of
                rows with equal ids the last is kept. As texts, they may be an array of Arrow.
            texts: one text for each id, embedded by `Encoder.encode_document`, and where the
                collection was opened with a SparseEncoder, by its `encode_document` too.
            metadata: for each id a dict that JSON can hold, or None; or a DataFrame (pandas or
                polars) with one row for each id. Its columns become fields, missing values null,
                and dates ISO 8601 strings.
            show_progress_bar: None shows one for many texts on a terminal or in a notebook, and
                elsewhere prints one line to standard error. False shows nothing.

        Returns:
            How many rows were written and replaced, and how many texts were longer than
            `max_length` and cut. The first such `add` also logs a warning.

        Raises:
            InputTypeError, InputValueError: an id, text or metadata is not valid; nothing was
                added.
        """
        encoder = self._need_encoder()
        with hidden(show_progress_bar is False):
            return self._add(
                ids, texts, metadata, encoder, partial(_embedded, encoder, show_progress_bar),
                partial(self._embedded_sparse, show_progress_bar=show_progress_bar),
            )  # fmt: skip

    def _add(
        self,
        ids: Sequence[Id],
        texts: Sequence[str],
        metadata: Metadata | None,
        encoder: Encoder,
        embed: Callable[[list[str]], tuple[Floats, int]],
        embed_sparse: Callable[[list[str]], SparseAndModel] | None = None,
    ) -> Added:
        """`add` with an Encoder, and with a function that gives its vectors of documents.

        The function returns float32 (texts, dim), and how many texts were cut. `embed_sparse` gives
        the sparse vectors; without it the collection's own SparseEncoder makes them.
        """
        items = as_list("texts", texts)
        check_texts(items)
        keys = check_ids(as_list("ids", ids))
        check_count("texts", len(items), len(keys))
        payload = check_metadata(metadata, len(keys))
        kept = last_of_each(keys)
        kept_texts = [items[i] for i in kept]
        with counted_as_given(kept):
            vectors, truncated = embed(kept_texts)
            sparse, sparse_made_by = (embed_sparse or self._embedded_sparse)(kept_texts)
        if truncated and not self._has_warned_of_truncation:
            self._has_warned_of_truncation = True
            _truncation_logger.warning(
                "%s: %d of %d texts have more than %d tokens and were cut (said once)",
                self._path,
                truncated,
                len(kept_texts),
                encoder.max_length,
            )
        replaced = self._write(
            [keys[i] for i in kept],
            vectors,
            kept_texts,
            [payload[i] for i in kept],
            sparse,
            made_by=encoder,
            sparse_made_by=sparse_made_by,
        )
        return Added(len(kept), replaced, truncated)

    def _embedded_sparse(
        self, texts: list[str], *, show_progress_bar: bool | None = False
    ) -> SparseAndModel:
        """Sparse vectors of documents by the own SparseEncoder; none without one."""
        encoder = self._sparse_encoder
        if encoder is None:
            return None, None
        return encoder.encode_document(texts, show_progress_bar=show_progress_bar), encoder

    @explaining(OF_ADD)
    def add_vectors(
        self,
        ids: Sequence[Id],
        vectors: npt.ArrayLike,
        texts: Sequence[str | None] | None = None,
        metadata: Metadata | None = None,
        *,
        sparse: SparseVectors | Any | None = None,
    ) -> Added:
        """Add vectors made elsewhere. Rows with the same ids are replaced. On disk when it returns.

        Args:
            ids: as in `add`.
            vectors: float32 (rows, dim); other number types are converted.
            texts: for each row a text or None, returned by searches.
            metadata: as in `add`.
            sparse: for each row its sparse vector, as for `set_sparse`; None gives the rows none.

        Returns:
            How many rows were written and replaced.

        Raises:
            InputTypeError, InputValueError: an argument is not valid; nothing was added.
        """
        return self._add_vectors(ids, vectors, texts, metadata, sparse, None)

    def _add_vectors(
        self,
        ids: Sequence[Id],
        vectors: npt.ArrayLike,
        texts: Sequence[str | None] | None,
        metadata: Metadata | None,
        sparse: SparseVectors | Any | None,
        sparse_made_by: SparseEncoder | None,
    ) -> Added:
        """`add_vectors`, with the SparseEncoder that made the sparse vectors, if one did."""
        rows = check_vectors(vectors, self._dim, "vectors")
        keys = check_ids(as_list("ids", ids))
        check_count("vectors", len(rows), len(keys))
        items = [None] * len(rows) if texts is None else as_list("texts", texts)
        check_count("texts", len(items), len(keys))
        check_texts(["" if text is None else text for text in items])
        payload = check_metadata(metadata, len(keys))
        given = None if sparse is None else checked_sparse("sparse", sparse)
        if given is not None:
            check_count("sparse vectors", len(given), len(keys))
        kept = last_of_each(keys)
        replaced = self._write(
            [keys[i] for i in kept],
            rows[kept],
            [items[i] for i in kept],
            [payload[i] for i in kept],
            None if given is None else chosen_rows(given, kept),
            sparse_made_by=sparse_made_by,
        )
        return Added(len(kept), replaced, 0)

    def _write(
        self,
        ids: Sequence[Id],
        vectors: Floats,
        texts: Sequence[str | None],
        metadata: Sequence[str | None],
        sparse: SparseVectors | None = None,
        made_by: Encoder | None = None,
        sparse_made_by: SparseEncoder | None = None,
    ) -> int:
        """Write rows, and return how many were replaced."""
        if not ids:
            return 0
        stored = [None if text is None else replace_surrogates(text) for text in texts]
        if self._store.dtype == np.float16:
            vectors = round_to_float16(vectors)  # so that searches agree before and after a restart

        def write() -> int:
            if made_by is not None:
                self._record_model(made_by)
            labels, replaced = self._store.upsert(ids, vectors, stored, metadata)
            if sparse is not None:
                self._put_sparse(labels, sparse, sparse_made_by)
            self._index.stage(replaced, labels, vectors, ids)
            return len(replaced)

        return self._access.change(write)

    def _record_model(self, encoder: Encoder) -> None:
        """Record the model of the first texts that are added; inside a transaction."""
        if self._store.meta.is_known_model(encoder.fingerprint):
            return
        settings = self._store.meta.read_settings()
        if settings.fingerprint is None:
            self._store.meta.write_settings(Model.of(encoder).as_meta())
        elif settings.fingerprint != encoder.fingerprint:
            check_model(self._path, settings, encoder)

    # --- Parquet files and salvage ---------------------------------------------------------------

    def to_parquet(
        self, path: str | Path, *, filter: Filter | None = None, overwrite: bool = False
    ) -> int:
        """Write all rows to a Parquet file (extra `[files]`), and return how many.

        Args:
            path: a .parquet file, outside the collection's directory.
            filter: only rows that meet it, as for `search`.
            overwrite: replace a file that exists.

        Raises:
            InputTypeError, InputValueError: the filter is not valid, or the file has another
                extension, exists, or is in the collection's directory.
            CollectionError: it cannot be written.
            CorruptCollectionError: a row does not match its checksum.
            MissingDependencyError: pyarrow is not installed.
        """
        file = absolute_path(path)
        if file.suffix != ".parquet":
            raise InputValueError(f"to_parquet writes a .parquet file, not {file.name}")
        check_apart(file, [self._path])
        check_new(file, overwrite=flag("overwrite", overwrite))
        with self._access.reading():  # one state of all rows
            settings = self._store.meta.read_settings()
            about = {key: value for key, value in settings.as_meta().items() if key in _KEPT}
            return write_parquet(
                file,
                self.rows(filter),
                self._dim,
                settings.vector_dtype,
                about,
                None if settings.sparse_dim is None else self._store.sparse.read,
            )

    @classmethod
    def from_parquet(
        cls,
        path: str | Path,
        parquet: str | Path | Sequence[str | Path],
        *,
        metric: Metric | None = None,
        vector_dtype: VectorDtype | None = None,
    ) -> Collection:
        """Create a collection from Parquet files (extra `[files]`).

        Args:
            path: as for `create`.
            parquet: a file, a folder of files, a glob, or a list of these. They are written by
                `to_parquet` or `flowvec encode`, or have the columns `id` and `vector`, and
                optionally `text` and `metadata` (JSON). Other columns become metadata, which
                cannot hold bytes and durations. A row replaces earlier rows with the same id.
            metric: None takes the one in the files, or `cosine`.
            vector_dtype: None takes the one in the files.

        The model and its fingerprint are taken from the files, or from the manifest beside them.

        Raises:
            InputTypeError, InputValueError: a file cannot be read, or holds rows that are not
                valid; the files are of different models; a folder holds an unfinished job, or the
                new collection.
            CollectionError: the directory is not empty or cannot be written.
            MissingDependencyError: pyarrow is not installed.
        """
        read = read_parquet(parquet)
        about = read.about
        with read.files:
            check_apart(absolute_path(path), read.read)
            return cls._create_from(
                path,
                read.batches,
                Model(about.get("model"), about.get("fingerprint"), about.get("compute")),
                dim=read.dim,
                metric=metric or cast(Metric, about.get("metric", "cosine")),
                vector_dtype=vector_dtype or cast(VectorDtype, read.dtype),
                sparse_model=(about.get("sparse_model"), about.get("sparse_fingerprint")),
            )

    @classmethod
    def _create_from(
        cls,
        path: str | Path,
        batches: Iterable[Rows],
        model: Model,
        *,
        dim: int,
        metric: Metric,
        vector_dtype: VectorDtype,
        sparse_model: tuple[str | None, str | None],
    ) -> Collection:
        """Create a collection of rows, and of the models that made their vectors.

        `sparse_model` is the name and the fingerprint of the one of the sparse vectors.
        """
        existed = absolute_path(path).exists()
        collection = cls.create(path, dim=dim, metric=metric, vector_dtype=vector_dtype)
        try:
            for rows in batches:
                # Files of other programs may hold lone surrogates in their metadata.
                rows = replace(rows, metadata=list(map(without_surrogates, rows.metadata)))
                try:
                    collection.add_vectors(rows.ids, rows.vectors, rows.texts, rows.metadata)
                except (InputTypeError, InputValueError) as error:
                    raise naming_row(error, rows, vector_dtype) from None
                collection._add_sparse_of(rows)
            with collection._access.writing(), collection._store.transaction():
                collection._store.meta.write_settings(model.as_meta())
                collection._record_sparse(*sparse_model)
        except BaseException:
            # Remove the partial collection, so that the call can be repeated.
            collection.close()
            for file in collection._path.iterdir():
                file.unlink()
            if not existed:
                collection._path.rmdir()
            raise
        return collection

    @classmethod
    def salvage(cls, path: str | Path, into: str | Path) -> int:
        """Create a new collection of all intact rows of a damaged one.

        Args:
            path: directory of the damaged collection, which is not changed.
            into: directory of the new one, as for `create`.

        Returns:
            How many rows were lost, as far as is known.

        Raises:
            CollectionError: there is no collection at `path`, or `into` cannot be created.
            InputValueError: one of the directories contains the other.
            CorruptCollectionError: the settings are damaged too.
        """
        check_apart(absolute_path(into), [absolute_path(path)])
        store = Store(absolute_path(path) / FILE)
        try:
            settings = store.meta.parse_settings(store.meta.read())
            intact = (item for item in store.intact() if len(item.vector) == settings.dim)
            parts = iter(lambda: list(islice(intact, _SALVAGE_ROWS)), [])
            with cls._create_from(
                into,
                (Rows.of(part, store.sparse.intact([i.label for i in part])) for part in parts),
                Model(settings.model, settings.fingerprint, settings.compute),
                dim=settings.dim,
                metric=settings.metric,
                vector_dtype=settings.vector_dtype,
                sparse_model=(settings.sparse_model, settings.sparse_fingerprint),
            ) as new:
                kept = len(new)
                new._warn_of_lost_vectors(store)
            with suppress(CollectionError):
                return max(0, store.meta.counts().rows - kept)
            return 0
        finally:
            store.close()


def _embedded(
    encoder: Encoder, show_progress_bar: bool | None, texts: list[str]
) -> tuple[Floats, int]:
    """Vectors of documents, float32 (texts, dim), and how many of the texts were cut."""
    vectors = np.empty((len(texts), encoder.dim), np.float32)
    filled = truncated = 0
    job = encoder.job(encoder.document_prompt)
    if len(texts) > WINDOW and not wants_bar(show_progress_bar, len(texts)):
        say(f"embedding {len(texts):,} texts")
    with call_bar("embed", len(texts), "texts", show_progress_bar) as drawn:
        for part in encoder.windows(windows_of(texts), job, done=drawn.update):
            vectors[filled : filled + len(part.vectors)] = part.vectors
            filled += len(part.vectors)
            truncated += len(part.truncated)
    return vectors, truncated
