"""Methods of a Collection for the sparse vectors of its rows."""

from __future__ import annotations

import builtins
import logging
import threading
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from flowvec.arguments import explaining
from flowvec.collection.encoder_methods import EncoderMethods
from flowvec.collection.foreign import OF_ROWS, OF_SEARCH
from flowvec.collection.index.sparse_index import SparseIndex
from flowvec.collection.index.vector_index import VectorIndex
from flowvec.collection.model import record_sparse_model
from flowvec.collection.query import Searcher, SearchOptions
from flowvec.collection.results import Hit
from flowvec.collection.store.filters import Filter
from flowvec.collection.store.rows import Id, Rows, check_ids
from flowvec.collection.store.store import Store
from flowvec.collection.validation import check_count, ids_of, last_of_each, texts_of
from flowvec.errors import CollectionError, InputTypeError, InputValueError
from flowvec.sequences import as_list
from flowvec.sparse.checking import checked_sparse, chosen_rows
from flowvec.sparse.encoder import SparseEncoder
from flowvec.sparse.vectors import SparseVectors

__all__ = ["SparseMethods"]

logger = logging.getLogger(__name__)

_ROWS_AT_ONCE = 1024


class SparseMethods(EncoderMethods):
    """Sparse vectors beside the dense ones: written, read and searched."""

    _index: VectorIndex
    _sparse_index: SparseIndex
    _searcher: Searcher

    @explaining(OF_ROWS)
    def set_sparse(self, ids: Sequence[Id], vectors: SparseVectors | Any) -> int:
        """Give rows that are there their sparse vectors, or other ones. On disk when it returns.

            >>> sparse = SparseEncoder.load("my-sparse")
            >>> with Collection.create("with sparse", dim=2) as collection:
            ...     collection.add_vectors(["a"], [[1, 0]], texts=["A dog swims."])
            ...     collection.set_sparse(["a"], sparse.encode_document(["A dog swims."]))
            ...     hits = collection.search_sparse(sparse.encode_query("A dog swims."))
            Added(rows=1, replaced=0, truncated=0)
            1
            >>> [hit.id for hit in hits]
            ['a']

        A row whose text and vector are replaced loses its sparse vector, unless the same call gives
        another.

        Args:
            ids: ids of the rows; unknown ones are ignored. Of equal ids the last is kept.
            vectors: one for each id, as `SparseEncoder.encode_document` returns them, a list of
                them, or a sparse matrix of scipy, (rows, dim). All of a collection have one dim.

        Returns:
            How many rows there are with these ids.

        Raises:
            InputTypeError, InputValueError: an argument is not valid; nothing was changed.
        """
        keys = check_ids(as_list("ids", ids))
        given = checked_sparse("vectors", vectors)
        check_count("vectors", len(given), len(keys))
        kept = last_of_each(keys)
        return self._set_sparse([keys[i] for i in kept], chosen_rows(given, kept))

    def _set_sparse(self, ids: Sequence[Id], vectors: SparseVectors) -> int:
        place_by_id = {item: place for place, item in enumerate(ids)}

        def change() -> int:
            there = self._store.labels_of(ids)
            places = [place_by_id[item] for item, _ in there]
            labels = [label for _, label in there]
            self._store.sparse.put(labels, chosen_rows(vectors, places))
            if labels:
                self._store.meta.touch()
                self._index.stage()  # the same rows, in a state of another number
            return len(labels)

        return self._access.change(change)

    def add_missing_sparse(self, *, stop: threading.Event | None = None) -> int:
        """Make sparse vectors of all texts whose rows have none, by the collection's SparseEncoder.

        For collections that were made without one, and after rows were added without it. About a
        thousand rows are made and stored at a time, so a call that is stopped or killed goes on
        with the rest.

            >>> with Collection.create("dense", dim=2) as collection:
            ...     collection.add_vectors(["a", "b"], [[1, 0], [0, 1]], ["A dog swims.", None])
            Added(rows=2, replaced=0, truncated=0)
            >>> sparse = SparseEncoder.load("my-sparse")
            >>> with Collection.open("dense", sparse_encoder=sparse) as collection:
            ...     collection.add_missing_sparse()
            1

        Args:
            stop: set it to stop after the rows that are being made.

        Returns:
            How many rows got one.

        Raises:
            CollectionError: the collection was opened without a SparseEncoder.
            FingerprintMismatchError: another model made the sparse vectors that are there.
        """
        encoder = self._checked_sparse_encoder()
        count = after = 0
        while stop is None or not stop.is_set():
            with self._access.reading():
                labels = self._store.sparse.missing(after, _ROWS_AT_ONCE)
                texts = [item.text or "" for item in self._store.read(labels).values()]
            if not labels:
                break
            vectors = encoder.encode_document(texts)
            count += self._access.change(partial(self._put_there, labels, vectors, encoder))
            after = labels[-1]
        return count

    def _put_there(
        self, labels: Sequence[int], vectors: SparseVectors, made_by: SparseEncoder
    ) -> int:
        """Write sparse vectors of those rows that still lack one; inside a transaction."""
        lacking = set(self._store.sparse.missing(labels[0] - 1, len(labels)))
        places = [place for place, label in enumerate(labels) if label in lacking]
        self._put_sparse([labels[i] for i in places], chosen_rows(vectors, places), made_by)
        self._store.meta.touch()
        self._index.stage()  # the same rows, in a state of another number
        return len(places)

    def _put_sparse(
        self, labels: Sequence[int], vectors: SparseVectors, made_by: SparseEncoder | None
    ) -> None:
        """Write the sparse vectors of new rows; inside a transaction."""
        if made_by is not None:
            record_sparse_model(self._path, self._store.meta, made_by)
        self._store.sparse.put(labels, vectors)

    def _add_sparse_of(self, rows: Rows) -> None:
        """Give rows that were just added their sparse vectors."""
        if rows.sparse is None:
            return
        given = {i: rows.sparse[i] for i in last_of_each(rows.ids)}
        there = {i: vector for i, vector in given.items() if vector is not None}
        if there:
            vectors = SparseVectors.joined(builtins.list(there.values()))
            self._set_sparse([rows.ids[i] for i in there], vectors)

    def _record_sparse(self, model: str | None, fingerprint: str | None) -> None:
        """Record which model made the sparse vectors, if there are any; inside a transaction."""
        if self._store.sparse.dim is not None and model and fingerprint:
            self._store.meta.write_settings(
                {"sparse_model": model, "sparse_fingerprint": fingerprint}
            )

    def _warn_of_lost_vectors(self, damaged: Store) -> None:
        """Say what rows of a salvaged collection have lost beside themselves."""
        with suppress(CollectionError):
            if damaged.tokens.count:
                logger.warning("token vectors were not copied; add_token_vectors makes them again")
        with suppress(CollectionError):
            lost = damaged.sparse.count - self._store.sparse.count
            if lost > 0:
                logger.warning(
                    "%d sparse vectors were lost; set_sparse gives rows theirs again", lost
                )

    @explaining(OF_ROWS)
    def get_sparse(self, ids: Sequence[Id] | Id) -> builtins.list[SparseVectors | None]:
        """Sparse vectors of rows, in the order of the ids; None for a row without one.

        Raises:
            CorruptCollectionError: one does not match its checksum.
        """
        keys = ids_of(ids)
        with self._access.reading():
            labels = dict(self._store.labels_of(keys))
            found = self._store.sparse.read(builtins.list(labels.values()))
        return [found.get(labels[key]) if key in labels else None for key in keys]

    @explaining(OF_SEARCH)
    def search_sparse(
        self,
        query: str | SparseVectors | Any,
        k: int = 10,
        *,
        filter: Filter | None = None,
        min_score: float | None = None,
        offset: int = 0,
        with_vectors: bool = False,
    ) -> builtins.list[Hit]:
        """The rows whose sparse vectors have the largest dot product with the query's: exactly.

        A row that shares no term with the query is not a hit. The first search reads all sparse
        vectors into memory (`info().sparse_memory_bytes`), 8 bytes for each weight; later ones read
        what was added since. To rank by dense vectors and words as well, see `search` with
        `hybrid`.

        Args:
            query: a text, embedded by `SparseEncoder.encode_query`, or one sparse vector.
            k: how many hits. You get min(k, rows that share a term), or fewer with `min_score`.
            filter: as for `search`.
            min_score: drop hits with a lower score.
            offset: as for `search`.
            with_vectors: whether hits have their dense vectors.

        Returns:
            Hits, best first; their score is the dot product.

        Raises:
            InputTypeError, InputValueError: an argument is not valid.
            CollectionError: the query is a text, and the collection was opened without a
                SparseEncoder.
        """
        texts = [query] if isinstance(query, str) else texts_of(query)
        if texts is not None and len(texts) != 1:
            raise InputValueError(
                f"query must be one text or one sparse vector, not {len(texts)} texts; "
                "search_sparse_batch searches for several"
            )
        vectors = self._sparse_queries(query if texts is None else texts, "query")
        if len(vectors) != 1:
            raise InputValueError(
                f"query must be one text or one sparse vector, not {len(vectors)} sparse vectors; "
                "search_sparse_batch searches for several"
            )
        return self._search_sparse(vectors, k, filter, min_score, offset, with_vectors)[0]

    @explaining(OF_SEARCH)
    def search_sparse_batch(
        self,
        queries: Sequence[str] | SparseVectors | Any,
        k: int = 10,
        *,
        filter: Filter | None = None,
        min_score: float | None = None,
        offset: int = 0,
        with_vectors: bool = False,
    ) -> builtins.list[builtins.list[Hit]]:
        """`search_sparse` for many texts or sparse vectors at once."""
        if isinstance(queries, str):
            raise InputTypeError("queries must be texts or sparse vectors, not one text")
        if isinstance(queries, list | tuple) and not queries:
            return []
        vectors = self._sparse_queries(queries, "queries")
        return self._search_sparse(vectors, k, filter, min_score, offset, with_vectors)

    def _search_sparse(
        self,
        vectors: SparseVectors,
        k: int,
        filter: Filter | None,
        min_score: float | None,
        offset: int,
        with_vectors: bool,
    ) -> builtins.list[builtins.list[Hit]]:
        options = SearchOptions.checked(
            k, filter, min_score=min_score, offset=offset, with_vectors=with_vectors
        )
        self._access.check()
        hits = self._searcher.sparse_hits(vectors, options)
        if not any(hits) and min_score is None:
            self._store.field_hints.after_nothing(options.condition)
        return [line[options.offset :] for line in hits]

    def _sparse_queries(self, queries: object, name: str) -> SparseVectors:
        texts = texts_of(queries)
        if texts is None:
            vectors = checked_sparse(name, queries)
            dim = self._sparse_dim()
            if dim not in (None, vectors.dim):
                raise InputValueError(
                    f"{name} must have {dim} dimensions, as the collection's sparse vectors, and "
                    f"not {vectors.dim}"
                )
            return vectors
        return self._checked_sparse_encoder().encode_query(texts)

    def _sparse_figures(self) -> tuple[int, int]:
        """How many rows have a sparse vector, and bytes of the inverted file in memory."""
        with self._access.reading():
            return self._store.sparse.count, self._sparse_index.memory_bytes

    def _sparse_lacking(self) -> int:
        """How many texts have no sparse vector; 0 before the first one."""
        with self._access.reading():
            return self._store.sparse.lacking()

    def _sparse_dim(self) -> int | None:
        with self._access.reading():
            return self._store.sparse.dim
