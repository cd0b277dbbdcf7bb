"""Collection: ids, texts, metadata and vectors on disk, and their nearest neighbours."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import numpy.typing as npt

from flowvec.arguments import choice, flag, whole_number
from flowvec.bundle.bundle import absolute_path
from flowvec.collection.hybrid import HYBRID_BEST
from flowvec.collection.index.hnsw import EF_CONSTRUCTION, M
from flowvec.collection.index.vector_index import Neighbours
from flowvec.collection.parquet import read_parquet, write_parquet
from flowvec.collection.query import Searcher
from flowvec.collection.results import Added, CollectionInfo, Hit
from flowvec.collection.store.filters import Condition, Filter, compile_filter
from flowvec.collection.store.locks import LOCK_FILE, WriterLock
from flowvec.collection.store.rows import Id, Item, Rows, check_ids
from flowvec.collection.store.store import FILE, Store, UnmadeError
from flowvec.collection.validation import (
    Metadata,
    check_count,
    check_k,
    check_metadata,
    check_score,
    check_vectors,
    check_weight,
    check_whole,
    last_of_each,
    texts_of,
)
from flowvec.encoder.encoder import Encoder
from flowvec.encoder.pipeline import windows_of
from flowvec.encoder.tokenizer import check_texts
from flowvec.errors import (
    ClosedError,
    CollectionError,
    CorruptCollectionError,
    FingerprintMismatchError,
    InputTypeError,
    InputValueError,
)
from flowvec.files import sync_folder
from flowvec.sequences import as_list, refuse_single
from flowvec.texts.unicode import replace_surrogates
from flowvec.vectors import METRICS, Metric
from flowvec.version import __version__

__all__ = ["Collection"]

logger = logging.getLogger(__name__)
# Of its own, so that it can be switched off.
_truncation = logging.getLogger("flowvec.collection.truncation")

Floats = npt.NDArray[np.float32]
VectorDtype = Literal["float32", "float16"]
VECTOR_DTYPES = ("float32", "float16")

# What a collection keeps of the model that made its vectors.
_MODEL_KEYS = ("model", "fingerprint", "compute")
# A measured recall says nothing of a collection that has grown or shrunk by more than this.
_STALE = 1.5
_SALVAGED_AT_ONCE = 4096
# Files that a kill during `create` can leave.
_OF_CREATE = frozenset((FILE, f"{FILE}-wal", f"{FILE}-shm", f"{FILE}-journal", LOCK_FILE))


class Collection:
    """A directory of vectors that can be searched.

    `collection.sqlite` is the truth; `graph-<n>.hnsw` is a cache that is verified before use and
    rebuilt from the truth when it is missing or damaged. A returned `add` or `delete` is on disk.

        >>> with Collection.open_or_create("notes", encoder=Encoder.load("mini")) as notes:
        ...     notes.add(["a", 2], ["The cat sleeps.", "Stocks fell."])
        ...     [hit.id for hit in notes.search("a sleeping animal", k=1)]
        Added(rows=2, replaced=0, truncated=0)
        ['a']

    Any number of threads may search while one of them adds, deletes or compacts; those that write
    take turns. Across processes there are any number of readers and one writer: who changes the
    collection first is its writer until it is closed, another's change is refused at once, and
    readers see what was committed at their next call.
    """

    def __init__(
        self, path: Path, store: Store, encoder: Encoder | None, exact_below: int | None = None
    ) -> None:
        """Wrap an open store; use `Collection.create` or `Collection.open`."""
        self._path = path
        self._store = store
        self._encoder = encoder
        self._meta = store.read_meta()
        try:
            store.settings()
            self._dim = int(self._meta["dim"])
            m, ef_construction = int(self._meta["M"]), int(self._meta["ef_construction"])
            self._metric = METRICS[METRICS.index(cast(Metric, self._meta["metric"]))]
            self._created = self._meta["created"], self._meta["created_by"]
        except (KeyError, ValueError) as error:
            raise CorruptCollectionError(f"{path}: its table meta is damaged: {error!r}") from None
        self._vector_dtype = self._meta.get("vector_dtype", "float32")
        # Held by a thread that writes; searches do not wait for it.
        self._turn = threading.RLock()
        self._neighbours = Neighbours(
            store, path, self._dim, self._metric, m, ef_construction, exact_below
        )
        self._searcher = Searcher(store, self._neighbours, self._reading)
        self._writer_lock = WriterLock(path)
        # Ours alone to change, with all that others wrote before taken in.
        self._is_writer = False
        self._has_told_of_cuts = False
        self._process = os.getpid()
        self._closed = False

    # --- life -----------------------------------------------------------------------------------

    @classmethod
    def create(
        cls,
        path: str | Path,
        *,
        encoder: Encoder | None = None,
        dim: int | None = None,
        metric: Metric = "cosine",
        vector_dtype: VectorDtype = "float32",
        exist_ok: bool = False,
        exact_below: int | None = None,
    ) -> Collection:
        """Make a new, empty collection.

        Args:
            path: a directory that does not exist, or is empty, or in which this was interrupted.
            encoder: embeds texts; its fingerprint is kept, and later Encoders must match it.
            dim: length of the vectors, for a collection without an Encoder.
            metric: `cosine`, `ip` (inner product) or `l2` (Euclidean distance).
            vector_dtype: how vectors are stored: `float32`, or `float16` at half the size.
            exist_ok: open the collection that is there instead, if there is one: of the same model
                or length, metric and vector_dtype.
            exact_below: as for `open`.

        Raises:
            InputValueError: not exactly one of encoder and dim, or an unknown metric; with
                `exist_ok`, a collection of another length, metric or vector_dtype.
            CollectionError: the directory is not empty or cannot be written.
            FingerprintMismatchError: with `exist_ok`, another model made the vectors there.
        """
        _check_type(encoder)
        if (encoder is None) == (dim is None):
            raise InputValueError("give either an encoder or a dim")
        choice("metric", metric, METRICS)
        choice("vector_dtype", vector_dtype, VECTOR_DTYPES)
        flag("exist_ok", exist_ok)
        if dim is not None:
            dim = whole_number("dim", dim)
        exact_below = _rows_below(exact_below)
        folder = absolute_path(path)
        meta = {
            "dim": str(encoder.dim if encoder else dim),
            "metric": metric,
            "vector_dtype": vector_dtype,
            "M": str(M),
            "ef_construction": str(EF_CONSTRUCTION),
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "created_by": f"flowvec {__version__}",
        }
        if encoder is not None:
            meta |= _model_of(encoder)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with cls._making(folder) as is_there:
                if not is_there:
                    return cls._made(folder, meta, encoder, exact_below)
        except (OSError, ValueError) as error:  # a NUL in a name is a ValueError
            reason = getattr(error, "strerror", None) or error
            raise CollectionError(f"cannot create {folder}: {reason}") from error
        if not exist_ok:
            raise CollectionError(f"{folder} is not empty: it holds a collection")
        return cls._opened_as(folder, encoder, meta, exact_below)

    @classmethod
    @contextmanager
    def _making(cls, folder: Path) -> Iterator[bool]:
        """Whether a collection is there; where none is, others make none within the block.

        What an interrupted `create` left is removed.
        """
        names = {file.name for file in folder.iterdir()}
        if FILE in names and not cls.is_unmade(folder):
            yield True
            return
        if strangers := sorted(names - _OF_CREATE):
            raise CollectionError(f"{folder} is not empty: it holds {strangers[0]}")
        lock = WriterLock(folder)
        try:
            lock.acquire(briefly=True)
        except CollectionError:
            # Whoever has it has made a collection meanwhile, and writes into it.
            if FILE not in {file.name for file in folder.iterdir()} or cls.is_unmade(folder):
                raise
            yield True
            return
        try:
            is_there = (folder / FILE).exists() and not cls.is_unmade(folder)
            if not is_there:
                for name in _OF_CREATE - {LOCK_FILE}:
                    (folder / name).unlink(missing_ok=True)
            yield is_there
        finally:
            lock.release()

    @classmethod
    def _made(
        cls,
        folder: Path,
        meta: dict[str, str],
        encoder: Encoder | None,
        exact_below: int | None,
    ) -> Collection:
        store = Store(folder / FILE, create=meta)
        try:
            for level in (folder, folder.parent):
                sync_folder(level)
            return cls(folder, store, encoder, exact_below)
        except BaseException:
            store.close()
            raise

    @classmethod
    def _opened_as(
        cls,
        folder: Path,
        encoder: Encoder | None,
        meta: Mapping[str, str],
        exact_below: int | None,
    ) -> Collection:
        """Open what is there, if it is what `create` was asked for."""
        collection = cls.open(folder, encoder=encoder, exact_below=exact_below)
        for name in ("dim", "metric", "vector_dtype"):
            there = collection._meta.get(name, "float32")
            if there != meta[name]:
                collection.close()
                raise InputValueError(f"{folder} has {name} {there}, not {meta[name]}")
        return collection

    @classmethod
    def open_or_create(
        cls,
        path: str | Path,
        *,
        encoder: Encoder | None = None,
        dim: int | None = None,
        metric: Metric = "cosine",
        vector_dtype: VectorDtype = "float32",
        exact_below: int | None = None,
    ) -> Collection:
        """Open the collection that is there, or make one: `create(..., exist_ok=True)`.

        Arguments and errors are those of `create`.
        """
        return cls.create(
            path,
            encoder=encoder,
            dim=dim,
            metric=metric,
            vector_dtype=vector_dtype,
            exist_ok=True,
            exact_below=exact_below,
        )

    @staticmethod
    def is_unmade(path: str | Path) -> bool:
        """Whether all that a directory holds is what a kill during `create` can leave."""
        folder = absolute_path(path)
        names = {file.name for file in folder.iterdir()} if folder.is_dir() else set()
        if FILE not in names or not names <= _OF_CREATE:
            return False
        try:
            Store(folder / FILE).close()
        except UnmadeError:
            return True
        except CollectionError:
            pass  # something is wrong with it, but it is one
        return False

    @classmethod
    def open(
        cls,
        path: str | Path,
        *,
        encoder: Encoder | None = None,
        exact_below: int | None = None,
    ) -> Collection:
        """Open an existing collection.

        One that cannot be written, by its permissions or its disk's, is read as it lies there.
        While nobody has it open for writing, that is without any lock: who may write it then must
        not do so before it is closed again.

        Args:
            path: its directory.
            encoder: needed to add or search texts; without it vectors can be added and searched.
            exact_below: up to so many rows every row is compared, and no graph is built; None is
                10,000. It is of this Collection object, and not kept on disk.

        Raises:
            CollectionError: there is no collection, or it is of another layout version.
            FingerprintMismatchError: the Encoder is not the model that made the vectors.
            CorruptCollectionError: the database is damaged.
        """
        _check_type(encoder)
        exact_below = _rows_below(exact_below)
        folder = absolute_path(path)
        store = Store(folder / FILE)
        try:
            collection = cls(folder, store, encoder, exact_below)
            if encoder is not None:
                collection._check_encoder(encoder)
        except BaseException:
            store.close()
            raise
        return collection

    def _check_encoder(self, encoder: Encoder) -> None:
        expected = self._meta.get("fingerprint")
        if expected is None and encoder.dim == self._dim:
            return  # the first texts that are added decide
        if encoder.fingerprint != expected:
            made_with = f"plain vectors of {self._dim} dimensions"
            if expected is not None:
                made_with = f"{self._meta.get('model')} (fingerprint {expected[:12]})"
            raise FingerprintMismatchError(
                f"{self._path} was made with {made_with}, and {encoder.bundle.manifest.name} is "
                f"another model (fingerprint {encoder.fingerprint[:12]}): their vectors cannot be "
                "compared"
            )
        compute = self._meta.get("compute")
        if compute not in (None, encoder.engine.compute):
            logger.warning(
                "%s was made in %s and is now used in %s: scores may differ in the third digit",
                self._path,
                compute,
                encoder.engine.compute,
            )

    def close(self) -> None:
        """Save the graph and close the files; calling it twice is harmless."""
        if self._process != os.getpid():
            # A thread of the parent's may have had its turn at the fork, for ever.
            self._closed = True
            self._writer_lock.forget()
            return
        with self._turn:
            if self._closed:
                return
            self._closed = True
            try:
                self._neighbours.close()
                self._save_graph()
            except CollectionError as error:
                # The graph is a cache: without it the next search takes longer, that is all.
                logger.warning("%s", error)
            finally:
                try:
                    self._store.close()
                finally:
                    self._writer_lock.release()

    def _save_graph(self) -> None:
        """Write the graph to disk where that is ours to do.

        Who only reads leaves it to the writer, unless the graph would have to be built again.
        """
        if not self._neighbours.is_unsaved:
            return
        if not self._is_writer:
            if not self._neighbours.was_built:
                return
            try:
                self._become_writer(briefly=True, waits=False)
            except CollectionError as error:
                logger.debug("the graph is not saved: %s", error)
                return
        self._neighbours.save()

    def _become_writer(self, *, briefly: bool = False, waits: bool = True) -> None:
        if not self._is_writer:
            self._writer_lock.acquire(briefly=briefly, waits=waits)
            try:
                self._neighbours.refresh()
            except BaseException:
                self._writer_lock.release()
                raise
            self._is_writer = True

    def _resign(self) -> None:
        self._is_writer = False
        self._writer_lock.release()

    def __enter__(self) -> Collection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check_usable(self) -> None:
        if self._closed:
            raise ClosedError("this Collection is closed")
        if self._process != os.getpid():
            raise CollectionError("a Collection does not survive a fork; open it again")

    def _reading(self) -> AbstractContextManager[None]:
        """One state of the file for the block."""
        self._check_usable()
        return self._store.reading()

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """The writer's turn, of all threads and processes."""
        self._check_usable()
        with self._turn:
            self._check_usable()
            self._become_writer()
            yield

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """A transaction, whose block stages its change; when it has ended, searches see it."""
        with self._writing():
            self._neighbours.begin()
            with self._store.transaction():
                yield
            self._neighbours.publish()

    # --- writing --------------------------------------------------------------------------------

    def add(
        self,
        ids: Sequence[Id],
        texts: Sequence[str],
        metadata: Metadata | None = None,
    ) -> Added:
        """Embed texts and add them; rows of the same ids are replaced. On disk when it returns.

        Args:
            ids: any texts or whole numbers; 1 and "1" are two ids. Of equal ids the last counts.
            texts: as many texts, embedded by `Encoder.encode_document`.
            metadata: as many JSON objects or None, or a DataFrame of as many rows (pandas or
                polars), whose columns are fields; missing values become null, dates ISO 8601 texts.

        Returns:
            How many rows were written and replaced, and how many texts were cut at `max_length`,
            of which a warning tells once.

        Raises:
            InputTypeError, InputValueError: an id, text or metadata is refused; nothing was added.
        """
        encoder = self._need_encoder()
        items = as_list("texts", texts)
        check_texts(items)
        keys = check_ids(as_list("ids", ids))
        check_count("texts", len(items), len(keys))
        payload = check_metadata(metadata, len(keys))
        kept = last_of_each(keys)
        kept_texts = [items[i] for i in kept]
        parts = list(encoder.windows(windows_of(kept_texts), encoder.job(encoder.document_prompt)))
        truncated = sum(len(part.truncated) for part in parts)
        if truncated and not self._has_told_of_cuts:
            self._has_told_of_cuts = True
            _truncation.warning(
                "%s: %d of %d texts have more than %d tokens, and were cut; said once",
                self._path,
                truncated,
                len(kept_texts),
                encoder.max_length,
            )
        empty = np.empty((0, self._dim), np.float32)
        replaced = self._write(
            [keys[i] for i in kept],
            np.concatenate([part.vectors for part in parts]) if parts else empty,
            kept_texts,
            [payload[i] for i in kept],
            made_by=encoder,
        )
        return Added(len(kept), replaced, truncated)

    def add_vectors(
        self,
        ids: Sequence[Id],
        vectors: npt.ArrayLike,
        texts: Sequence[str | None] | None = None,
        metadata: Metadata | None = None,
    ) -> Added:
        """Add vectors made elsewhere; rows of the same ids are replaced. On disk on return.

        Args:
            ids: as in `add`.
            vectors: float32 (rows, dim); other number types are converted.
            texts: as many texts or None, kept and returned by searches.
            metadata: as in `add`.

        Returns:
            How many rows were written and replaced.

        Raises:
            InputTypeError, InputValueError: something is refused; nothing was added.
        """
        rows = check_vectors(vectors, self._dim, "vectors")
        keys = check_ids(as_list("ids", ids))
        check_count("vectors", len(rows), len(keys))
        items = [None] * len(rows) if texts is None else as_list("texts", texts)
        check_count("texts", len(items), len(keys))
        check_texts(["" if text is None else text for text in items])
        payload = check_metadata(metadata, len(keys))
        kept = last_of_each(keys)
        replaced = self._write(
            [keys[i] for i in kept],
            rows[kept],
            [items[i] for i in kept],
            [payload[i] for i in kept],
        )
        return Added(len(kept), replaced, 0)

    def _write(
        self,
        ids: Sequence[Id],
        vectors: Floats,
        texts: Sequence[str | None],
        metadata: Sequence[str | None],
        made_by: Encoder | None = None,
    ) -> int:
        """Write rows; how many they replaced."""
        if not ids:
            return 0
        stored = [None if text is None else replace_surrogates(text) for text in texts]
        if self._vector_dtype == "float16":
            given = vectors
            with np.errstate(over="ignore"):
                # What is searched before and after a restart is the same.
                vectors = vectors.astype(np.float16).astype(np.float32)
            if not np.isfinite(vectors).all():
                raise InputValueError("a vector holds numbers that float16 cannot: above 65504")
            vanished = np.flatnonzero(given.any(axis=1) & ~vectors.any(axis=1))
            if len(vanished):
                raise InputValueError(
                    f"row {vanished[0]} of the vectors becomes zero in float16: its numbers are "
                    "too small"
                )
        with self._changing():
            if made_by is not None:
                self._claim(made_by)
            labels, replaced = self._store.upsert(ids, vectors, stored, metadata)
            self._neighbours.stage(replaced, labels, vectors, ids)
        if made_by is not None and "fingerprint" not in self._meta:
            with self._reading():
                self._meta = self._store.read_meta()
        return len(replaced)

    def _claim(self, encoder: Encoder) -> None:
        """Let the first texts that are added decide whose vectors these are; in a transaction."""
        stored = self._store.read_meta()
        if "fingerprint" not in stored:
            self._store.write_settings(_model_of(encoder))
        elif stored["fingerprint"] != self._meta.get("fingerprint"):
            self._meta = stored  # another handle was first
            self._check_encoder(encoder)

    def delete(self, ids: Sequence[Id]) -> int:
        """Delete rows by id; on disk when it returns. Unknown ids are ignored.

        Returns:
            How many rows there were.
        """
        keys = check_ids(as_list("ids", ids, ordered=False))
        with self._changing():
            labels = self._store.delete(keys)
            if labels:
                self._neighbours.stage(labels)
        return len(labels)

    # --- reading --------------------------------------------------------------------------------

    def __len__(self) -> int:
        """Rows in the collection."""
        with self._reading():
            return self._store.counts().rows

    def get(self, ids: Sequence[Id]) -> list[Item | None]:
        """Rows by id, in the order of the ids; None for an unknown one.

        Raises:
            CorruptCollectionError: a row does not match its checksum.
        """
        keys = check_ids(as_list("ids", ids))
        with self._reading():
            labels = dict(self._store.labels_of(keys))
            items = self._store.read(list(labels.values()))
        found = [labels.get(key) for key in keys]
        return [None if label is None else items[label] for label in found]

    def rows(self) -> Iterator[Item]:
        """All rows in the order in which they were added, at constant memory.

        Rows that come or go meanwhile may or may not be among them; one that is replaced comes as
        it was, as it is then, or both.

        Raises:
            CorruptCollectionError: a row does not match its checksum.
        """
        after = 0
        while True:
            with self._reading():
                items = self._store.page(after)
            if not items:
                return
            yield from items
            after = items[-1].label

    def search(
        self,
        query: str | npt.ArrayLike,
        k: int = 10,
        *,
        filter: Filter | None = None,
        hybrid: bool = False,
        vector_weight: float = 0.5,
        min_score: float | None = None,
        exact: bool = False,
        ef: int | None = None,
    ) -> list[Hit]:
        """The rows nearest to a text or a vector.

        Args:
            query: a text, embedded by `Encoder.encode_query`, or a float32 vector (dim,).
            k: how many; always min(k, eligible rows) hits are returned, unless `min_score` drops
                some.
            filter: which rows are eligible by their metadata, as
                `{"lang": "en", "year": {">=": 2020}, "not": {"tag": {"in": ["draft"]}}}`; see
                `flowvec.collection.store.filters`.
            hybrid: rank by words as well. A hit's score is `vector_weight` times its nearness (1
                for a row equal to the query, 0 for the last of the 100 or 5 k nearest) and the rest
                times its BM25 (1 for the row that matches best). Needs a text, and the index that
                `index_texts` makes; the first such search makes it where there is none.
            vector_weight: of a hybrid search, 0 (words alone) to 1 (vectors alone).
            min_score: the least score of a hit.
            exact: compare every eligible row, as small collections always do, and not ask the
                graph, which may miss some (`tune_recall`). All rows are read for it.
            ef: how far the graph is searched: more finds more of the true neighbours, and takes
                longer. None is as far as the collection's own (`info().ef_search`).

        Returns:
            Hits, best first.

        Raises:
            InputValueError: negative k; a vector of another length, or with NaN or infinity; a
                filter that cannot be asked.
            CollectionError: a text, but the collection was opened without an Encoder.
        """
        options = (hybrid, vector_weight, min_score, exact, ef)
        return self._search([query], "query", k, filter, *options)[0]

    def search_batch(
        self,
        queries: Sequence[str] | npt.ArrayLike,
        k: int = 10,
        *,
        filter: Filter | None = None,
        hybrid: bool = False,
        vector_weight: float = 0.5,
        min_score: float | None = None,
        exact: bool = False,
        ef: int | None = None,
    ) -> list[list[Hit]]:
        """`search` for many texts, or vectors float32 (queries, dim), at once."""
        refuse_single("queries", queries)
        options = (hybrid, vector_weight, min_score, exact, ef)
        return self._search(queries, "queries", k, filter, *options)

    def _search(
        self,
        queries: Sequence[Any] | npt.ArrayLike,
        name: str,
        k: int,
        filter: Filter | None,
        hybrid: bool,
        vector_weight: float,
        min_score: float | None,
        exact: bool,
        ef: int | None,
    ) -> list[list[Hit]]:
        """`search_batch`; `name` is what the caller calls its queries."""
        flag("exact", exact)
        flag("hybrid", hybrid)
        ef = _effort(ef)
        count, condition, min_score = check_k(k), _condition(filter), check_score(min_score)
        vector_weight = check_weight(vector_weight)
        if hybrid and min_score is not None and min_score > HYBRID_BEST:
            raise InputValueError(
                f"a hybrid search's scores are at most {HYBRID_BEST:g}, and min_score is "
                f"{min_score}"
            )
        texts = texts_of(queries)
        if texts is None:
            vectors = check_vectors(cast(npt.ArrayLike, queries), self._dim, name)
            if hybrid and len(vectors):
                raise InputValueError("a hybrid search needs a text: a vector has no words")
        else:
            vectors = self._encoder_of_all().encode_query(texts)
        if texts is None or not hybrid:
            return self._searcher.hits(vectors, count, condition, min_score, exact=exact, ef=ef)
        with self._reading():
            has_words = self._store.has_words()
        if not has_words:
            self.index_texts()
        return self._searcher.hybrid_hits(
            texts,
            vectors,
            count,
            condition,
            min_score,
            vector_weight=vector_weight,
            exact=exact,
            ef=ef,
        )

    def search_ids(
        self,
        queries: npt.ArrayLike,
        k: int = 10,
        *,
        filter: Filter | None = None,
        exact: bool = False,
        ef: int | None = None,
    ) -> tuple[list[list[Id]], Floats]:
        """Ids and scores alone, as fast as the graph gives them: no row is read from disk.

        Args:
            queries: float32 (queries, dim).
            k: as for `search`.
            filter: as for `search`.
            exact: as for `search`.
            ef: as for `search`.

        Returns:
            For each query min(k, eligible rows) ids, best first, and scores, float32 (queries,
            min(k, eligible rows)).
        """
        self._check_usable()
        flag("exact", exact)
        vectors = check_vectors(queries, self._dim, "queries")
        return self._searcher.ids(
            vectors, check_k(k), _condition(filter), exact=exact, ef=_effort(ef)
        )

    def info(self) -> CollectionInfo:
        """The collection's figures."""
        self.refresh()
        with self._reading():
            meta, rows = self._store.read_meta(), self._store.counts().rows
            return CollectionInfo(
                path=str(self._path),
                rows=rows,
                dim=self._dim,
                metric=self._metric,
                model=meta.get("model"),
                fingerprint=meta.get("fingerprint"),
                compute=meta.get("compute"),
                search="exact" if self._neighbours.is_exact else "hnsw",
                graph_rows=self._neighbours.graph_rows,
                vector_dtype=self._vector_dtype,
                ef_search=self._neighbours.ef_search,
                recall=1.0 if self._neighbours.is_exact else _recall_of(meta, rows),
                bytes=_size_of(self._path),
                created=self._created[0],
                created_by=self._created[1],
            )

    # --- upkeep ---------------------------------------------------------------------------------

    def to_parquet(self, path: str | Path) -> int:
        """Write all rows to a Parquet file (extra `[files]`); returns how many.

        Raises:
            CollectionError: it cannot be written.
            CorruptCollectionError: a row does not match its checksum.
            MissingDependencyError: pyarrow is not installed.
        """
        kept = ("metric", "model", "fingerprint", "compute", "created_by")
        about = {key: self._meta[key] for key in kept if key in self._meta}
        file = absolute_path(path)
        with self._reading():  # one state of all rows
            return write_parquet(file, self.rows(), self._dim, self._vector_dtype, about)

    @classmethod
    def from_parquet(
        cls,
        path: str | Path,
        parquet: str | Path | Sequence[str | Path],
        *,
        metric: Metric | None = None,
        vector_dtype: VectorDtype | None = None,
    ) -> Collection:
        """Make a collection of the rows of Parquet files (extra `[files]`).

        Args:
            path: as for `create`.
            parquet: a file, a folder of files or a glob, or several of these: what `to_parquet`
                wrote, what `flowvec encode` wrote, or others with the columns `id` and `vector` and
                perhaps `text` and `metadata` (JSON). All other columns become metadata. Rows that
                have the id of an earlier one replace it.
            metric: None takes the files' own, `cosine` where they name none.
            vector_dtype: None takes the files' own.

        The model and its fingerprint are those that the files, or the manifest beside them, name.

        Raises:
            InputTypeError, InputValueError: a file cannot be read, or holds what cannot be added;
                files are of different models; a folder holds a job that is not complete.
            CollectionError: the directory is not empty or cannot be written.
            MissingDependencyError: pyarrow is not installed.
        """
        found = read_parquet(parquet)
        model = {key: found.about[key] for key in _MODEL_KEYS if key in found.about}
        return cls._filled(
            path,
            found.batches,
            model if "fingerprint" in model else {},
            dim=found.dim,
            metric=metric or cast(Metric, found.about.get("metric", "cosine")),
            vector_dtype=vector_dtype or cast(VectorDtype, found.dtype),
        )

    @classmethod
    def _filled(
        cls,
        path: str | Path,
        batches: Iterable[Rows],
        model: Mapping[str, str],
        *,
        dim: int,
        metric: Metric,
        vector_dtype: VectorDtype,
    ) -> Collection:
        """A new collection of rows, and of the model that made their vectors."""
        was_there = absolute_path(path).exists()
        collection = cls.create(path, dim=dim, metric=metric, vector_dtype=vector_dtype)
        try:
            for rows in batches:
                collection.add_vectors(rows.ids, rows.vectors, rows.texts, rows.metadata)
            with collection._writing(), collection._store.transaction():
                collection._store.write_settings(model)
            collection._meta = collection._store.read_meta()
        except BaseException:
            # Half of the rows would be neither what was asked for nor what could be tried again.
            collection.close()
            for file in collection._path.iterdir():
                file.unlink()
            if not was_there:
                collection._path.rmdir()
            raise
        return collection

    def refresh(self) -> None:
        """Take in what other processes have committed; every search does so by itself."""
        self._check_usable()
        self._neighbours.refresh()

    def verify(self) -> list[str]:
        """Check everything: each row's checksum, SQLite's own structure, the graph's files.

        Returns:
            What is wrong, a line each; none where all is well. A damaged graph is rebuilt by
            itself, and `compact` makes the full-text index anew. Damaged rows are lost: `delete`
            takes them out, or `salvage` makes a new collection of all others.
        """
        found: list[str] = []
        with self._reading():
            for problems in (self._store.problems, self._neighbours.problems):
                try:
                    found.extend(problems())
                except CorruptCollectionError as error:
                    found.append(str(error))
        return found

    def prepare(self, stop: threading.Event | None = None) -> bool:
        """Have all in memory that the first search would otherwise have to load or build.

        What had to be built is saved, at the latest when the collection is closed.

        Args:
            stop: set it to give up within seconds; a graph of a million rows takes minutes.

        Returns:
            Whether all of it is in memory; False where it was stopped.
        """
        with self._reading():
            return self._neighbours.prepare(None if stop is None else stop.is_set)

    @classmethod
    def salvage(cls, path: str | Path, into: str | Path) -> int:
        """Make a new collection of all rows of a damaged one that are intact.

        Args:
            path: the directory of the damaged one, which stays as it is.
            into: as for `create`.

        Returns:
            How many rows were lost, as far as is known.

        Raises:
            CollectionError: there is no collection at `path`, or none can be made at `into`.
            CorruptCollectionError: so much is damaged that not even its settings can be read.
        """
        store = Store(absolute_path(path) / FILE)
        try:
            meta = store.read_meta()
            try:
                dim = check_whole("dim", int(meta["dim"]), 1)
                metric = METRICS[METRICS.index(cast(Metric, meta["metric"]))]
                dtype = cast(VectorDtype, meta.get("vector_dtype", "float32"))
                VECTOR_DTYPES.index(dtype)
            except (KeyError, ValueError) as error:
                raise CorruptCollectionError(
                    f"{path}: its table meta is damaged: {error!r}"
                ) from None
            intact = (item for item in store.intact() if len(item.vector) == dim)
            parts = iter(lambda: list(islice(intact, _SALVAGED_AT_ONCE)), [])
            model = {key: meta[key] for key in _MODEL_KEYS if key in meta}
            with cls._filled(
                into, map(Rows.of, parts), model, dim=dim, metric=metric, vector_dtype=dtype
            ) as new:
                kept = len(new)
            with suppress(CollectionError):
                return max(0, store.counts().rows - kept)
            return 0
        finally:
            store.close()

    def index_texts(self) -> None:
        """Make the full-text index that hybrid searches need; every later change keeps it.

        Raises:
            CollectionError: there is none, and another process is the collection's writer, or it
                cannot be written here.
        """
        self._check_usable()
        with self._turn:
            self._check_usable()
            was_writer = self._is_writer
            try:
                self._become_writer(briefly=True)
            except CollectionError as error:
                raise CollectionError(
                    "hybrid searches need a full-text index, which this collection has not and "
                    f"its writer can make with index_texts(): {error}"
                ) from error
            try:
                if not self._store.has_words():
                    logger.info("%s: making the full-text index", self._path)
                    with self._store.transaction():
                        self._store.index_words()
            finally:
                if not was_writer:  # who only searches is no writer from now on
                    self._resign()

    def compact(self) -> None:
        """Build the graph and the full-text index anew, and give free space back to the disk.

        Searches go on meanwhile; changes wait.
        """
        with self._writing():
            if self._store.has_part_of_words():
                with self._store.transaction():
                    self._store.index_words()
            self._neighbours.compact()
            self._neighbours.save()
            self._store.vacuum()

    def tune_recall(
        self,
        target: float = 0.95,
        *,
        queries: int | Sequence[str] | npt.ArrayLike = 500,
        seed: int = 0,
    ) -> float:
        """Find how far the graph must be searched for a recall, and keep that for all searches.

        Queries are searched by the graph and exactly. The best are those that will be asked: where
        none are given, each is made of three rows of the collection, between which it lies: that is
        about as hard for the graph as texts that are in none of its rows, or a little harder.

        Args:
            target: share of the ten nearest that a search is to find, above 0 and at most 1.
            queries: texts, or vectors float32 (queries, dim), or how many to make.
            seed: of the rows that they are made of.

        Returns:
            The recall that was reached: 1 for a collection that is searched exactly, and below the
            target where no setting reaches it.
        """
        share = check_score(target, "target")
        if share is None or not 0 < share <= 1:
            raise InputValueError(f"target must be above 0 and at most 1, but is {target}")
        seed = check_whole("seed", seed, 0)
        asked: int | Floats
        if isinstance(queries, int | np.integer | float | str):
            asked = check_whole("queries", queries, 1)
        else:
            asked = self._query_vectors(queries)
            if not len(asked):
                raise InputValueError("there must be a query at least")
        with self._writing():
            with self._store.reading():
                if len(self) and self.info().search == "exact":
                    return 1.0
                ef, recall = self._neighbours.measure_recall(share, asked, seed)
            with self._changing():
                self._store.write_meta(
                    {"ef_search": str(ef), "recall": repr(recall), "recall rows": str(len(self))}
                )
                self._store.touch()
                self._neighbours.stage(ef_search=ef)
            return recall

    # --- checks ---------------------------------------------------------------------------------

    def _query_vectors(self, queries: Sequence[str] | npt.ArrayLike) -> Floats:
        """Texts embedded, or vectors checked, float32 (queries, dim)."""
        texts = texts_of(queries)
        if texts is not None:
            return self._encoder_of_all().encode_query(texts)
        return check_vectors(queries, self._dim, "queries")

    def _encoder_of_all(self) -> Encoder:
        """The Encoder, which is the one that made the vectors: another handle may have decided."""
        encoder = self._need_encoder()
        if "fingerprint" not in self._meta:
            with self._reading():
                self._meta = self._store.read_meta()
            self._check_encoder(encoder)
        return encoder

    def _need_encoder(self) -> Encoder:
        if self._encoder is None:
            raise CollectionError(
                "this collection was opened without an encoder, so it takes vectors, not texts; "
                "open it with Collection.open(path, encoder=...)"
            )
        return self._encoder


def _check_type(encoder: object) -> None:
    if encoder is not None and not isinstance(encoder, Encoder):
        raise InputTypeError(
            f"encoder must be an Encoder, as Encoder.load gives, not {type(encoder).__name__}"
        )


def _model_of(encoder: Encoder) -> dict[str, str]:
    """What a collection keeps of the model that made its vectors."""
    return {
        "model": encoder.bundle.handle,
        "fingerprint": encoder.fingerprint,
        "compute": encoder.engine.compute,
    }


def _rows_below(exact_below: object) -> int | None:
    return None if exact_below is None else whole_number("exact_below", exact_below, least=0)


def _effort(ef: object) -> int | None:
    return None if ef is None else whole_number("ef", ef)


def _condition(wanted: Filter | None) -> Condition | None:
    return None if wanted is None else compile_filter(wanted)


def _size_of(folder: Path) -> int:
    size = 0
    for file in folder.iterdir():
        with suppress(FileNotFoundError):  # a writer has cleared it away
            size += file.stat().st_size
    return size


def _recall_of(meta: dict[str, str], rows: int) -> float | None:
    """As it was measured; None where it never was, or of another collection by now."""
    try:
        recall, then = float(meta["recall"]), int(meta["recall rows"])
    except (KeyError, ValueError):
        return None
    return recall if then <= _STALE * rows and rows <= _STALE * then else None
