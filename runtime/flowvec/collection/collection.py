"""Collection: ids, texts, metadata and vectors on disk, and their nearest neighbours."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import cast

import numpy as np
import numpy.typing as npt

from flowvec.arguments import choice, explaining, flag, text_or_none, whole_number
from flowvec.bundle.bundle import absolute_path
from flowvec.collection.access import Access
from flowvec.collection.creation import create_store, is_unfinished
from flowvec.collection.diversity import FETCH_K, LAMBDA_MULT, Diversity
from flowvec.collection.field_methods import FieldMethods
from flowvec.collection.foreign import OF_ADD, OF_SEARCH
from flowvec.collection.index.vector_index import VectorIndex
from flowvec.collection.model import (
    Model,
    check_model,
    check_same_settings,
    matching_encoder,
    new_settings,
)
from flowvec.collection.parquet import read_parquet, write_parquet
from flowvec.collection.query import Searcher, SearchOptions
from flowvec.collection.reranking import RERANK_FROM
from flowvec.collection.results import Added, CollectionInfo, Hit
from flowvec.collection.row_methods import RowMethods
from flowvec.collection.search_plan import SearchPlan
from flowvec.collection.store.filters import Filter
from flowvec.collection.store.full_text import TOKENIZERS, TextTokenizer
from flowvec.collection.store.rows import Id, Rows, check_ids
from flowvec.collection.store.settings import VectorDtype
from flowvec.collection.store.store import FILE, Store
from flowvec.collection.store.writer_locks import WRITE_TIMEOUT
from flowvec.collection.validation import (
    Metadata,
    check_count,
    check_metadata,
    check_share,
    check_vectors,
    checked_write_timeout,
    last_of_each,
    round_to_float16,
    texts_of,
)
from flowvec.encoder.argument import check_encoder_or_none
from flowvec.encoder.encoder import Encoder
from flowvec.encoder.pipeline import windows_of
from flowvec.errors import (
    CollectionBusyError,
    CollectionError,
    CorruptCollectionError,
    InputValueError,
)
from flowvec.multi_vector.encoder import MultiVectorEncoder
from flowvec.reranker.reranker import Reranker
from flowvec.reranker.shared_reranker import SharedReranker
from flowvec.sequences import as_list, refuse_single
from flowvec.texts.unicode import replace_surrogates, without_surrogates
from flowvec.tokenizer.tokenizer import check_texts
from flowvec.vectors import Metric

__all__ = ["Collection"]

logger = logging.getLogger(__name__)
# Separate from `logger`, so that users can turn off this warning alone. It keeps its first name,
# because logging configurations may refer to it.
_truncation_logger = logging.getLogger("flowvec.collection.truncation")

Floats = npt.NDArray[np.float32]

# A measured recall is reported until the collection grows or shrinks by more than this factor.
_RECALL_VALID = 1.5
_SALVAGE_ROWS = 4096


class Collection(RowMethods, FieldMethods):
    """A directory of vectors that can be searched.

    `collection.sqlite` holds all data; `graph-<n>.hnsw` is a cache, verified before it is used and
    rebuilt if it is missing or damaged. A row is on disk when `add` returns, and a deletion when
    `delete` returns.

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
        exact_below: int | None = None,
        write_timeout: float | None = WRITE_TIMEOUT,
    ) -> None:
        """Wrap an open store; use `Collection.create` or `Collection.open`."""
        self._path = path
        self._store = store
        self._encoder = encoder
        self._own_encoder: Encoder | None = None  # opened here, so closed here
        self._dim = store.settings.dim
        self._index = VectorIndex(store, path, exact_below)
        self._access = Access(path, store, self._index, checked_write_timeout(write_timeout))
        self._searcher = Searcher(store, self._index, self._access.reading)
        self._has_warned_of_truncation = False

    # --- opening and closing --------------------------------------------------------------------

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
        write_timeout: float | None = WRITE_TIMEOUT,
    ) -> Collection:
        """Create an empty collection.

        Args:
            path: a directory that does not exist, is empty, or holds an interrupted `create`.
            encoder: embeds texts. Its fingerprint is kept, and later Encoders must match it.
            dim: length of the vectors, for a collection without an Encoder.
            metric: `cosine`, `ip` (inner product) or `l2` (Euclidean distance).
            vector_dtype: how vectors are stored: `float32`, or `float16` at half the size.
            exist_ok: if there is a collection, open it. It must have the same model or dim, metric
                and vector_dtype.
            exact_below: as for `open`.
            write_timeout: as for `open`.

        Raises:
            InputValueError: both or neither of encoder and dim; an unknown metric; with `exist_ok`,
                a collection with another dim, metric or vector_dtype.
            CollectionError: the directory is not empty or cannot be written.
            FingerprintMismatchError: with `exist_ok`, the vectors there are of another model.
        """
        flag("exist_ok", exist_ok)
        exact_below = _checked_exact_below(exact_below)
        checked_write_timeout(write_timeout)
        settings = new_settings(encoder, dim, metric, vector_dtype)
        folder = absolute_path(path)
        store = create_store(folder, settings)
        if store is not None:
            try:
                return cls(folder, store, encoder, exact_below, write_timeout)
            except BaseException:
                store.close()
                raise
        if not exist_ok:
            raise CollectionError(f"{folder} is not empty: it holds a collection")
        collection = cls.open(
            folder, encoder=encoder, exact_below=exact_below, write_timeout=write_timeout
        )
        try:
            check_same_settings(collection._store.settings, settings, folder)
        except InputValueError:
            collection.close()
            raise
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
        write_timeout: float | None = WRITE_TIMEOUT,
    ) -> Collection:
        """Open a collection, or create it if there is none: `create(..., exist_ok=True)`.

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
            write_timeout=write_timeout,
        )

    @staticmethod
    def is_unmade(path: str | Path) -> bool:
        """Whether a directory only holds an interrupted `create`."""
        return is_unfinished(absolute_path(path))

    @classmethod
    def open(
        cls,
        path: str | Path,
        *,
        encoder: Encoder | None = None,
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
            exact_below: up to this many rows, searches compare every row and no graph is built;
                None is 10,000. It applies to this object and is not kept on disk.
            write_timeout: how long a change waits while other threads and processes write, in
                seconds, before it raises CollectionBusyError. 0 tries once; None waits as long as
                it takes.

        Raises:
            CollectionError: there is no collection, or it is of another layout version.
            FingerprintMismatchError: the Encoder is not the model that made the vectors.
            CorruptCollectionError: the database is damaged.
        """
        check_encoder_or_none(encoder)
        exact_below = _checked_exact_below(exact_below)
        checked_write_timeout(write_timeout)
        folder = absolute_path(path)
        store = Store(folder / FILE)
        try:
            collection = cls(folder, store, encoder, exact_below, write_timeout)
            if encoder is not None:
                collection._take_encoder(encoder)
        except BaseException:
            store.close()
            raise
        return collection

    def close(self) -> None:
        """Save the graph and close the files; calling it twice is harmless."""
        try:
            self._access.close()
        finally:
            if self._own_encoder is not None:
                self._own_encoder.close()

    def __enter__(self) -> Collection:
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
    ) -> Added:
        """Embed texts and add them. Rows with the same ids are replaced. On disk when it returns.

        Args:
            ids: strings or whole numbers; 1 and "1" are two ids. Of rows with equal ids the last is
                kept.
            texts: one text for each id, embedded by `Encoder.encode_document`.
            metadata: for each id a dict that JSON can hold, or None; or a DataFrame (pandas or
                polars) with one row for each id. Its columns become fields, missing values null,
                and dates ISO 8601 strings.

        Returns:
            How many rows were written and replaced, and how many texts were longer than
            `max_length` and cut. The first such `add` also logs a warning.

        Raises:
            InputTypeError, InputValueError: an id, text or metadata is not valid; nothing was
                added.
        """
        encoder = self._need_encoder()
        return self._add(ids, texts, metadata, encoder, partial(_embedded, encoder))

    def _add(
        self,
        ids: Sequence[Id],
        texts: Sequence[str],
        metadata: Metadata | None,
        encoder: Encoder,
        embed: Callable[[list[str]], tuple[Floats, int]],
    ) -> Added:
        """`add` with an Encoder, and with a function that gives its vectors of documents.

        The function returns float32 (texts, dim), and how many texts were cut.
        """
        items = as_list("texts", texts)
        check_texts(items)
        keys = check_ids(as_list("ids", ids))
        check_count("texts", len(items), len(keys))
        payload = check_metadata(metadata, len(keys))
        kept = last_of_each(keys)
        kept_texts = [items[i] for i in kept]
        vectors, truncated = embed(kept_texts)
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
            made_by=encoder,
        )
        return Added(len(kept), replaced, truncated)

    @explaining(OF_ADD)
    def add_vectors(
        self,
        ids: Sequence[Id],
        vectors: npt.ArrayLike,
        texts: Sequence[str | None] | None = None,
        metadata: Metadata | None = None,
    ) -> Added:
        """Add vectors made elsewhere. Rows with the same ids are replaced. On disk when it returns.

        Args:
            ids: as in `add`.
            vectors: float32 (rows, dim); other number types are converted.
            texts: for each row a text or None, returned by searches.
            metadata: as in `add`.

        Returns:
            How many rows were written and replaced.

        Raises:
            InputTypeError, InputValueError: an argument is not valid; nothing was added.
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

    # --- searching ------------------------------------------------------------------------------

    @explaining(OF_SEARCH)
    def search(
        self,
        query: str | npt.ArrayLike,
        k: int = 10,
        *,
        text: str | None = None,
        filter: Filter | None = None,
        hybrid: bool = False,
        vector_weight: float | None = None,
        min_score: float | None = None,
        exact: bool = False,
        ef: int | None = None,
        rerank: Reranker | SharedReranker | MultiVectorEncoder | None = None,
        rerank_from: int = RERANK_FROM,
        offset: int = 0,
        group_by: str | None = None,
        prefix: bool = False,
        with_vectors: bool = False,
    ) -> list[Hit]:
        """The rows nearest to a text or a vector.

        Args:
            query: a text, embedded by `Encoder.encode_query`, or a float32 vector (dim,).
            k: how many hits. You get min(k, eligible rows), or fewer with `min_score`.
            text: the text of a query that is a vector: `hybrid` searches its words, and `rerank`
                reads it. Nothing is embedded then.
            filter: which rows are eligible by their metadata, id (`$id`) or text (`$text`), for
                example `{"lang": "en", "year": {">=": 2020}, "$text": {"contains": "cat"}}`; see
                `flowvec.collection.store.filters`.
            hybrid: rank by words as well as by vectors. A hit's score is `vector_weight` times its
                nearness (1 for a row equal to the query, 0 for the last of the 500 nearest) plus
                the rest times its BM25 (1 for the row that matches best, 0 for rows that are not
                among the 500 best). It does not depend on k and `offset`. Needs a text, in
                `query` or `text`, and the full-text index of `index_texts`, which the first hybrid
                search creates.
            vector_weight: share of the vectors in a hybrid search: 0 (words only) to 1 (vectors
                only). None is 0.5.
            min_score: drop hits with a lower score; with `rerank`, with a lower score of the
                reranker.
            exact: compare every eligible row instead of asking the graph, which may miss some
                (`tune_recall`). Small collections always do. It reads all rows.
            ef: search depth in the graph. A larger one finds more of the true neighbours and takes
                longer. None is the collection's own (`info().ef_search`).
            rerank: a reranker or multi-vector encoder that reads the query and the text of each of
                the best hits, and sorts them again. A hit's `score` is then the reranker's, and
                `search_score` the one before. Needs a text, in `query` or `text`, and rows with
                texts.
            rerank_from: how many hits the reranker reads; at least offset + k.
            offset: skip this many of the best hits: the next page of k hits has `offset=k`. A page
                takes as long as one search for offset + k hits. Pages of one query fit together
                while nothing is written, except that a graph may find other rows as offset + k
                grows. Those of a hybrid search always do; above 500 hits it compares every row.
            group_by: a field of the metadata, such as the parent of `Encoder.split_texts`: of the
                rows with the same value only the best is a hit, so k hits have k values. More rows
                are looked at until there are k, or no others. Rows without the field are hits of
                their own. A reranker reads only the hits that are left.
            prefix: in a hybrid search, the last word of the text is the beginning of a word, as
                while a user types it; unless something follows it, such as a space. With the
                tokenizer `trigram` every word is found as a part of words anyway.
            with_vectors: whether hits have their vectors.

        Returns:
            Hits, best first.

        Raises:
            InputValueError: k is negative; the vector has another length, NaN or infinity; the
                filter is not valid; `text` with a query that is a text, or without use.
            CollectionError: the query is a text, and the collection was opened without an Encoder.
        """
        options = SearchOptions.checked(
            k,
            filter,
            hybrid=hybrid,
            vector_weight=vector_weight,
            min_score=min_score,
            exact=exact,
            ef=ef,
            offset=offset,
            group_by=group_by,
            prefix=prefix,
            with_vectors=with_vectors,
            is_reranked=rerank is not None,
        )
        plan = SearchPlan.checked(
            [query],
            None if text_or_none("text", text) is None else [text],
            options,
            name="query",
            dim=self._dim,
            rerank=rerank,
            rerank_from=rerank_from,
        )
        return self._search(plan)[0]

    @explaining(OF_SEARCH)
    def search_batch(
        self,
        queries: Sequence[str] | npt.ArrayLike,
        k: int = 10,
        *,
        texts: Sequence[str] | None = None,
        filter: Filter | None = None,
        hybrid: bool = False,
        vector_weight: float | None = None,
        min_score: float | None = None,
        exact: bool = False,
        ef: int | None = None,
        rerank: Reranker | SharedReranker | MultiVectorEncoder | None = None,
        rerank_from: int = RERANK_FROM,
        offset: int = 0,
        group_by: str | None = None,
        prefix: bool = False,
        with_vectors: bool = False,
    ) -> list[list[Hit]]:
        """`search` for many texts, or vectors float32 (queries, dim), at once.

        `texts` has the text of each vector, as `text` of `search`.
        """
        refuse_single("queries", queries)
        options = SearchOptions.checked(
            k,
            filter,
            hybrid=hybrid,
            vector_weight=vector_weight,
            min_score=min_score,
            exact=exact,
            ef=ef,
            offset=offset,
            group_by=group_by,
            prefix=prefix,
            with_vectors=with_vectors,
            is_reranked=rerank is not None,
        )
        plan = SearchPlan.checked(
            queries,
            None if texts is None else as_list("texts", texts),
            options,
            name="queries",
            dim=self._dim,
            rerank=rerank,
            rerank_from=rerank_from,
        )
        return self._search(plan)

    @explaining(OF_SEARCH)
    def search_mmr(
        self,
        query: str | npt.ArrayLike,
        k: int = 10,
        *,
        fetch_k: int = FETCH_K,
        lambda_mult: float = LAMBDA_MULT,
        filter: Filter | None = None,
        exact: bool = False,
        ef: int | None = None,
        with_vectors: bool = False,
    ) -> list[Hit]:
        """Rows near to a text or a vector that differ from each other: maximal marginal relevance.

            >>> with Collection.create("diverse", dim=2) as collection:
            ...     collection.add_vectors(["a", "same as a", "b"], [[1, 0], [1, 0], [2, 1]])
            ...     [hit.id for hit in collection.search_mmr([1, 0], k=2, lambda_mult=0.3)]
            Added(rows=3, replaced=0, truncated=0)
            ['a', 'b']

        Of the `fetch_k` nearest rows, the nearest is the first hit. The next is always the row with
        the largest `lambda_mult` x score - (1 - `lambda_mult`) x similarity, where the similarity
        is the row's largest with a hit before it, by the collection's metric.

        Args:
            query: as for `search`.
            k: how many hits. You get min(k, eligible rows).
            fetch_k: how many of the nearest rows to choose from; at least k are.
            lambda_mult: 1 is the order of `search`; 0 looks only at how hits differ from each
                other.
            filter: as for `search`.
            exact: as for `search`.
            ef: as for `search`.
            with_vectors: as for `search`.

        Returns:
            Hits in the order of choice, with the scores of `search`.

        Raises:
            InputTypeError, InputValueError, CollectionError: as for `search`.
        """
        diversity = Diversity.checked(k, fetch_k, lambda_mult, with_vectors)
        plan = diversity.plan(query, self._dim, filter, exact=exact, ef=ef)
        return diversity(self._search(plan)[0], self._store.settings.metric)

    def _search(self, plan: SearchPlan) -> list[list[Hit]]:
        vectors = plan.vectors
        if vectors is None:
            vectors = self._checked_encoder().encode_query(plan.to_embed)
        hits = self._first_stage(vectors, plan)
        if plan.reranking is not None and plan.texts is not None:
            hits = plan.reranking(plan.texts, hits, plan.options)
        return plan.page(hits)

    def _first_stage(self, vectors: Floats, plan: SearchPlan) -> list[list[Hit]]:
        """The hits before reranking, from vectors of the queries, float32 (queries, dim)."""
        options = plan.first_stage
        if not options.hybrid or plan.texts is None:
            return self._searcher.hits(vectors, options)
        if not self._has_full_text():
            self.index_texts()
        return self._searcher.hybrid_hits(plan.texts, vectors, options)

    def search_ids(
        self,
        queries: npt.ArrayLike,
        k: int = 10,
        *,
        filter: Filter | None = None,
        exact: bool = False,
        ef: int | None = None,
    ) -> tuple[list[list[Id]], Floats]:
        """Only ids and scores of the nearest rows. Faster than `search`: no row is read from disk.

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
        self._access.check()
        options = SearchOptions.checked(k, filter, exact=exact, ef=ef)
        return self._searcher.ids(check_vectors(queries, self._dim, "queries"), options)

    def info(self) -> CollectionInfo:
        """The collection's settings and figures."""
        self.refresh()
        self._store.database.check_in_place()
        with self._access.reading():
            settings, rows = self._store.settings, self._store.meta.counts().rows
            is_exact = self._index.is_exact
            return CollectionInfo(
                path=str(self._path),
                rows=rows,
                dim=settings.dim,
                metric=settings.metric,
                model=settings.model,
                fingerprint=settings.fingerprint,
                compute=settings.compute,
                search="exact" if is_exact else "hnsw",
                graph_rows=self._index.graph_rows,
                vector_dtype=settings.vector_dtype,
                full_text=self._store.full_text.tokenizer,
                indexed_fields=tuple(self._store.field_indexes.fields()),
                ef_search=self._index.ef_search,
                recall=1.0 if is_exact else _measured_recall(self._store.meta.read(), rows),
                bytes=_size_of(self._path),
                memory_bytes=self._index.memory_bytes,
                mapped_bytes=self._index.mapped_bytes,
                created=settings.created,
                created_by=settings.created_by,
            )

    # --- upkeep ---------------------------------------------------------------------------------

    def to_parquet(self, path: str | Path, *, filter: Filter | None = None) -> int:
        """Write all rows to a Parquet file (extra `[files]`), and return how many.

        Args:
            path: a .parquet file, which is replaced.
            filter: only rows that meet it, as for `search`.

        Raises:
            InputTypeError, InputValueError: the filter is not valid, or the file has another
                extension.
            CollectionError: it cannot be written.
            CorruptCollectionError: a row does not match its checksum.
            MissingDependencyError: pyarrow is not installed.
        """
        settings = self._store.settings
        kept = ("metric", "model", "fingerprint", "compute", "created_by")
        about = {key: value for key, value in settings.as_meta().items() if key in kept}
        file = absolute_path(path)
        if file.suffix != ".parquet":
            raise InputValueError(f"to_parquet writes a .parquet file, not {file.name}")
        with self._access.reading():  # one state of all rows
            return write_parquet(file, self.rows(filter), self._dim, settings.vector_dtype, about)

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
                valid; the files are of different models; a folder holds an unfinished job.
            CollectionError: the directory is not empty or cannot be written.
            MissingDependencyError: pyarrow is not installed.
        """
        files = read_parquet(parquet)
        about = files.about
        return cls._create_from(
            path,
            files.batches,
            Model(about.get("model"), about.get("fingerprint"), about.get("compute")),
            dim=files.dim,
            metric=metric or cast(Metric, about.get("metric", "cosine")),
            vector_dtype=vector_dtype or cast(VectorDtype, files.dtype),
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
    ) -> Collection:
        """Create a collection of rows, and of the model that made their vectors."""
        existed = absolute_path(path).exists()
        collection = cls.create(path, dim=dim, metric=metric, vector_dtype=vector_dtype)
        try:
            for rows in batches:
                # Rows of earlier versions may hold lone surrogates, also in their metadata.
                metadata = [without_surrogates(item) for item in rows.metadata]
                collection.add_vectors(rows.ids, rows.vectors, rows.texts, metadata)
            with collection._access.writing(), collection._store.transaction():
                collection._store.meta.write_settings(model.as_meta())
        except BaseException:
            # Remove the partial collection, so that the call can be repeated.
            collection.close()
            for file in collection._path.iterdir():
                file.unlink()
            if not existed:
                collection._path.rmdir()
            raise
        return collection

    def refresh(self) -> None:
        """Read what other processes have committed; every search does this by itself."""
        self._access.check()
        self._index.refresh()

    def verify(self) -> list[str]:
        """Check each row's checksum, SQLite's structure, the full-text index and the graph's files.

        Returns:
            One message for each problem; an empty list if there is none. A damaged graph is rebuilt
            by itself, and `compact` rebuilds a damaged full-text index. Damaged rows are lost:
            `delete` removes them, or `salvage` creates a new collection of all other rows.
        """
        messages: list[str] = []
        with self._access.reading():
            for problems in (self._store.problems, self._index.problems):
                try:
                    messages.extend(problems())
                except CorruptCollectionError as error:
                    messages.append(str(error))
        return messages

    def prepare(self, stop: threading.Event | None = None) -> bool:
        """Load what the first search needs, and wait until the graph holds all rows.

        Searches do not need it: they compare rows that the graph does not hold yet exactly, while
        it grows in the background. The graph is saved when it has grown by a quarter, and when the
        collection is closed.

        Args:
            stop: set it to stop within seconds; a graph of a million rows takes minutes.

        Returns:
            Whether everything is in memory; False if it was stopped.
        """
        self._access.check()
        return self._index.prepare(None if stop is None else stop.is_set)

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
            CorruptCollectionError: the settings are damaged too.
        """
        store = Store(absolute_path(path) / FILE)
        try:
            settings = store.meta.parse_settings(store.meta.read())
            intact = (item for item in store.intact() if len(item.vector) == settings.dim)
            parts = iter(lambda: list(islice(intact, _SALVAGE_ROWS)), [])
            with cls._create_from(
                into,
                map(Rows.of, parts),
                Model(settings.model, settings.fingerprint, settings.compute),
                dim=settings.dim,
                metric=settings.metric,
                vector_dtype=settings.vector_dtype,
            ) as new:
                kept = len(new)
            with suppress(CollectionError):
                return max(0, store.meta.counts().rows - kept)
            return 0
        finally:
            store.close()

    def index_texts(self, *, tokenizer: TextTokenizer | None = None) -> None:
        """Create the full-text index that hybrid searches need; changes keep it up to date.

        Args:
            tokenizer: `unicode61` finds words, whatever their English ending, case and accents.
                `trigram` finds parts of words and of texts without spaces, such as Chinese,
                Japanese and Thai; the index is a few times larger. It is kept with the collection;
                another one makes the index again, in one transaction. None keeps the one that is
                there, or is `unicode61`.

        Raises:
            InputValueError: there is no such tokenizer.
            CollectionError: the index has to be made, and the collection is read-only, or others
                were writing longer than `write_timeout`; or its SQLite has no `trigram`.
        """
        if tokenizer is not None:
            choice("tokenizer", tokenizer, TOKENIZERS)
        self._access.check()
        existing = self._store.full_text.tokenizer if self._has_full_text() else None
        is_building = False
        try:
            with self._access.writing():
                is_building = True
                full_text = self._store.full_text
                if not full_text.exists or tokenizer not in (None, full_text.tokenizer):
                    logger.info("%s: creating the full-text index", self._path)
                    with self._store.transaction():
                        self._store.build_full_text(tokenizer)
        except CollectionError as error:
            if is_building:
                raise
            kind = type(error) if isinstance(error, CollectionBusyError) else CollectionError
            raise kind(
                f"the full-text index has the tokenizer {existing}, and it cannot be made again "
                f"with {tokenizer} now: {error}"
                if existing
                else "hybrid searches need a full-text index; this collection has none, and it "
                f"cannot be created now: {error}"
            ) from error

    def _has_full_text(self) -> bool:
        with self._access.reading():
            return self._store.full_text.exists

    def compact(self) -> None:
        """Rebuild the graph, the vectors file and the full-text index, and free disk space.

        Searches go on meanwhile. Changes wait while files are written anew (seconds for a million
        rows), but not while the graph is built.
        """
        with self._access.writing():
            if self._store.full_text.exists_in_part:
                with self._store.transaction():
                    self._store.build_full_text()
            self._index.compact_vectors()
        self._index.compact_graph()
        with self._access.writing():
            self._store.database.vacuum()

    def tune_recall(
        self,
        target: float = 0.95,
        *,
        queries: int | Sequence[str] | npt.ArrayLike = 500,
        seed: int = 0,
    ) -> float:
        """Find the least search depth that reaches a recall, and use it for all searches.

        Queries are searched both by the graph and exactly. Real queries are best. If you have none,
        each query is made as the mean of three rows; that is about as hard for the graph as texts
        that are in none of the rows, or a little harder.

        Args:
            target: share of the ten nearest rows that a search should find, above 0 and at most 1.
            queries: texts, or vectors float32 (queries, dim), or how many queries to make.
            seed: seed for the queries that are made.

        Returns:
            The recall that was reached: 1 for a collection that is searched exactly, and less than
            the target if no setting reaches it.
        """
        share = check_share(target, "target")
        seed = whole_number("seed", seed, 0, most=None)
        vectors: int | Floats
        if isinstance(queries, int | np.integer | float | str):
            vectors = whole_number("queries", queries, most=None)
        elif (texts := texts_of(queries)) is not None:
            vectors = self._checked_encoder().encode_query(texts)
        else:
            vectors = check_vectors(cast(npt.ArrayLike, queries), self._dim, "queries")
        if not isinstance(vectors, int) and not len(vectors):
            raise InputValueError("there must be at least one query")
        if len(self) and self.info().search == "exact":
            return 1.0
        self.prepare()
        with self._access.reading():
            rows = len(self)
            ef, recall = self._index.measure_recall(share, vectors, seed)

        def keep() -> None:
            self._store.meta.write(
                {"ef_search": str(ef), "recall": repr(recall), "recall rows": str(rows)}
            )
            self._store.meta.touch()
            self._index.stage(ef_search=ef)

        self._access.change(keep)
        return recall

    @property
    def encoder(self) -> Encoder | None:
        """The Encoder that embeds texts here, in the compute type of the vectors; None without one.

        It embeds queries for searches by vector. Closing the collection may close it.
        """
        return self._encoder

    # --- the encoder ----------------------------------------------------------------------------

    def _checked_encoder(self, encoder: Encoder | None = None) -> Encoder:
        """An Encoder, or the own one, after a check that it is the model that made the vectors."""
        encoder = self._need_encoder() if encoder is None else encoder
        settings = self._store.settings
        if settings.fingerprint != encoder.fingerprint:  # the model was recorded after `open`
            self._access.check()
            check_model(self._path, settings, encoder)
        return encoder

    def _take_encoder(self, encoder: Encoder) -> None:
        """Embed with an Encoder, or with one of its model in the compute type of the vectors.

        Raises:
            FingerprintMismatchError: it is another model.
        """
        settings = self._store.settings
        self._encoder = matching_encoder(settings, encoder)
        if self._encoder is not encoder:
            self._own_encoder = self._encoder
        check_model(self._path, settings, self._encoder)

    def _need_encoder(self) -> Encoder:
        if self._encoder is None:
            raise CollectionError(
                "this collection was opened without an encoder, so it takes vectors, not texts; "
                "open it with Collection.open(path, encoder=...)"
            )
        return self._encoder


def _embedded(encoder: Encoder, texts: list[str]) -> tuple[Floats, int]:
    """Vectors of documents, float32 (texts, dim), and how many of the texts were cut."""
    parts = list(encoder.windows(windows_of(texts), encoder.job(encoder.document_prompt)))
    vectors = [np.empty((0, encoder.dim), np.float32), *(part.vectors for part in parts)]
    return np.concatenate(vectors), sum(len(part.truncated) for part in parts)


def _checked_exact_below(exact_below: object) -> int | None:
    return None if exact_below is None else whole_number("exact_below", exact_below, least=0)


def _size_of(folder: Path) -> int:
    size = 0
    for file in folder.iterdir():
        with suppress(FileNotFoundError):  # a writer has removed it
            size += file.stat().st_size
    return size


def _measured_recall(meta: dict[str, str], rows: int) -> float | None:
    """The recall that `tune_recall` measured; None if there is none, or the rows have changed."""
    try:
        recall, rows_then = float(meta["recall"]), int(meta["recall rows"])
    except (KeyError, ValueError):
        return None
    is_valid = rows_then <= _RECALL_VALID * rows and rows <= _RECALL_VALID * rows_then
    return recall if is_valid else None
