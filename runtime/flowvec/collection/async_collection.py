"""`Collection` for asyncio."""

from __future__ import annotations

import asyncio
import builtins
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, Unpack

import numpy as np
import numpy.typing as npt

from flowvec.arguments import explaining, text_or_none
from flowvec.collection.async_calls import WRITE_THREADS, AsyncCalls, Embedding
from flowvec.collection.call_queue import CallStatistics
from flowvec.collection.collection import Collection, SparseAndModel
from flowvec.collection.diversity import FETCH_K, LAMBDA_MULT, Diversity
from flowvec.collection.foreign import OF_ADD, OF_ROWS, OF_SEARCH
from flowvec.collection.query import SearchKeywords, SearchOptions
from flowvec.collection.reranking import LOGITS, RERANK_FROM, pairs_of, sorted_again
from flowvec.collection.results import Added, CollectionInfo, Hit, Row
from flowvec.collection.search_plan import SearchPlan
from flowvec.collection.store.filters import Filter
from flowvec.collection.store.rows import Id, Item
from flowvec.collection.token_methods import StoredTokens
from flowvec.collection.validation import Changes, Metadata
from flowvec.encoder.async_encoder import AsyncEncoder
from flowvec.encoder.async_model import results_of
from flowvec.encoder.encoder import Encoder
from flowvec.encoder.shared_model import DEFAULT_MAX_WAITING
from flowvec.errors import InputTypeError
from flowvec.multi_vector.encoder import MultiVectorEncoder
from flowvec.reranker.async_reranker import AsyncReranker
from flowvec.reranker.reranker import Reranker
from flowvec.reranker.shared_reranker import SharedReranker
from flowvec.sequences import as_list, refuse_single
from flowvec.sparse.vectors import SparseVectors
from flowvec.unpicklable import OfOneProcess

__all__ = ["AsyncCollection"]

Floats = npt.NDArray[np.float32]
AnyReranker = Reranker | SharedReranker | AsyncReranker | MultiVectorEncoder


class AsyncCollection(OfOneProcess):
    """A Collection for any number of asyncio tasks.

    Texts of all tasks are embedded through the queue of one `AsyncEncoder`, so they share batches.
    Reads and changes run on threads of their own: the event loop is never blocked, and searches do
    not wait for changes.

        >>> async def main() -> list[str | int]:
        ...     encoder = Encoder.load("mini")
        ...     async with AsyncCollection.open_or_create("async", encoder=encoder) as notes:
        ...         await notes.add(["a", 2], ["The cat sleeps.", "Stocks fell."], timeout=10.0)
        ...         hits = await notes.search("a sleeping animal", k=1, timeout=10.0)
        ...     return [hit.id for hit in hits]
        >>> asyncio.run(main())
        ['a']

    Every method takes a `timeout` in seconds for all that it does and waits for, and raises
    `DeadlineError` after it. A call that is cancelled or timed out frees its place: what waits
    never runs, and what runs ends in the background. A change that has begun is never half made:
    after `CancelledError` or `DeadlineError` it has been made, will be made, or will never be made,
    always as a whole. To repeat it is harmless: `add` replaces rows with the same ids.
    """

    def __init__(
        self,
        collection: Collection,
        *,
        encoder: AsyncEncoder | None = None,
        read_threads: int | None = None,
        write_threads: int = WRITE_THREADS,
        max_waiting: int = DEFAULT_MAX_WAITING,
    ) -> None:
        """Serve an open Collection. Closing this closes neither it nor `encoder`.

        Args:
            collection: an open Collection.
            encoder: embeds texts here and elsewhere: several collections of one model can share
                it. None makes one for the collection's own Encoder, if it has one.
            read_threads: how many searches and other reads run at a time. None is the cores of
                this process, at least 4 and at most 32.
            write_threads: how many changes are prepared at a time; their texts are embedded
                together.
            max_waiting: most reads, and most changes, that may wait for a thread, and most texts
                that may wait in a queue made here; a call that would exceed it is refused.

        Raises:
            InputTypeError, InputValueError: an argument is not valid.
            FingerprintMismatchError: the Encoder is not the model that made the vectors.
            ClosedError: the Encoder is closed.
        """
        _check_kinds(collection, encoder)
        self._collection = collection
        self._owned_encoder: AsyncEncoder | None = None
        self._owns_collection = False
        if encoder is not None:
            collection._checked_encoder(encoder.encoder)
        self._calls = AsyncCalls(read_threads, write_threads, max_waiting)
        if encoder is None and collection.encoder is not None:
            try:
                self._owned_encoder = AsyncEncoder(collection.encoder, max_waiting=max_waiting)
            except BaseException:
                self._calls.stop(drain=False)
                raise
        self._encoder = encoder or self._owned_encoder

    @classmethod
    def open(
        cls, path: str | Path, *, encoder: Encoder | AsyncEncoder | None = None, **options: Any
    ) -> AsyncCollection:
        """Open an existing collection, which `close` will close. It blocks: call it at the start.

        Args:
            path: as for `Collection.open`.
            encoder: an Encoder, or an AsyncEncoder that other collections share.
            **options: those of `AsyncCollection` and of `Collection.open`.

        Raises:
            FlowvecError: as for `Collection.open` and `AsyncCollection`.
        """
        return cls._owning(Collection.open, path, encoder, options)

    @classmethod
    def open_or_create(
        cls, path: str | Path, *, encoder: Encoder | AsyncEncoder | None = None, **options: Any
    ) -> AsyncCollection:
        """Open a collection, or create it if there is none; `close` will close it.

        Args:
            path: as for `Collection.create`.
            encoder: an Encoder, or an AsyncEncoder that other collections share.
            **options: those of `AsyncCollection` and of `Collection.open_or_create`.

        Raises:
            FlowvecError: as for `Collection.create` and `AsyncCollection`.
        """
        return cls._owning(Collection.open_or_create, path, encoder, options)

    @classmethod
    def _owning(
        cls,
        opened: Callable[..., Collection],
        path: str | Path,
        encoder: Encoder | AsyncEncoder | None,
        options: dict[str, Any],
    ) -> AsyncCollection:
        mine = {
            name: options.pop(name)
            for name in ("read_threads", "write_threads", "max_waiting")
            if name in options
        }
        given = encoder.encoder if isinstance(encoder, AsyncEncoder) else encoder
        collection = opened(path, encoder=given, **options)
        try:
            # A collection may have opened its model once more, in the compute type of its vectors.
            is_the_same = isinstance(encoder, AsyncEncoder) and collection.encoder is given
            shared = encoder if isinstance(encoder, AsyncEncoder) and is_the_same else None
            made = cls(collection, encoder=shared, **mine)
        except BaseException:
            collection.close()
            raise
        made._owns_collection = True
        return made

    def __repr__(self) -> str:
        """As that of a Collection: `AsyncCollection('notes', rows=3, model='mini')`."""
        kind = type(self).__name__
        if self._calls.is_closing:
            return f"<{kind} {str(self._collection._path)!r}: this {kind} is closed>"
        return self._collection._described(kind)

    @property
    def collection(self) -> Collection:
        """The Collection, for what has no method here: `asyncio.to_thread(c.collection.verify)`."""
        return self._collection

    @property
    def encoder(self) -> AsyncEncoder | None:
        """What embeds texts; None without an Encoder."""
        return self._encoder

    # --- searching ------------------------------------------------------------------------------

    @explaining(OF_SEARCH)
    async def search(
        self,
        query: str | npt.ArrayLike,
        k: int = 10,
        *,
        timeout: float | None = None,
        text: str | None = None,
        rerank: AnyReranker | None = None,
        rerank_from: int = RERANK_FROM,
        sparse: SparseVectors | Any | None = None,
        **options: Unpack[SearchKeywords],
    ) -> builtins.list[Hit]:
        """The rows nearest to a text or a vector, as `Collection.search`.

        Args:
            query: a text or a vector.
            k: how many hits.
            timeout: seconds for embedding, searching, reranking and waiting; None is no limit.
            text: the text of a query that is a vector.
            rerank: pairs of different tasks share batches in an `AsyncReranker`; a Reranker runs
                in the thread of the search.
            rerank_from: how many hits the reranker reads.
            sparse: the query's sparse vector, for a hybrid search; from a text a SparseEncoder
                makes it in the thread of the search.
            **options: `filter`, `hybrid`, `vector_weight`, `sparse_weight`, `fusion`, `min_score`,
                `exact`, `ef`, `offset`, `group_by`, `prefix` and `with_vectors`.

        Raises:
            DeadlineError: the timeout passed.
            OverloadedError: too many texts or reads wait.
            ClosedError: after `close`, or in a forked child.
            FlowvecError: as for `Collection.search`.
        """
        given = None if text_or_none("text", text) is None else [text]
        async with self._calls.call(timeout):
            checked = self._checked_options(k, rerank, sparse, options)
            (hits,) = await self._search(
                [query], given, checked, "query", _shared(rerank), rerank_from, sparse
            )
            return hits

    @explaining(OF_SEARCH)
    async def search_batch(
        self,
        queries: Sequence[str] | npt.ArrayLike,
        k: int = 10,
        *,
        timeout: float | None = None,
        texts: Sequence[str] | None = None,
        rerank: AnyReranker | None = None,
        rerank_from: int = RERANK_FROM,
        sparse: SparseVectors | Any | None = None,
        **options: Unpack[SearchKeywords],
    ) -> builtins.list[builtins.list[Hit]]:
        """`search` for many texts, or vectors float32 (queries, dim), at once."""
        refuse_single("queries", queries)
        given = None if texts is None else as_list("texts", texts)
        async with self._calls.call(timeout):
            checked = self._checked_options(k, rerank, sparse, options)
            return await self._search(
                queries, given, checked, "queries", _shared(rerank), rerank_from, sparse
            )

    @explaining(OF_SEARCH)
    async def search_sparse(
        self,
        query: str | SparseVectors | Any,
        k: int = 10,
        *,
        timeout: float | None = None,
        filter: Filter | None = None,
        min_score: float | None = None,
        offset: int = 0,
        with_vectors: bool = False,
    ) -> builtins.list[Hit]:
        """The rows with the largest dot product of sparse vectors, as `Collection.search_sparse`.

        A text is embedded in the thread of the search. Errors also as `search`.
        """
        async with self._calls.call(timeout):
            return await self._calls.read(
                lambda: self._collection.search_sparse(
                    query,
                    k,
                    filter=filter,
                    min_score=min_score,
                    offset=offset,
                    with_vectors=with_vectors,
                )
            )

    @explaining(OF_SEARCH)
    async def search_sparse_batch(
        self,
        queries: Sequence[str] | SparseVectors | Any,
        k: int = 10,
        *,
        timeout: float | None = None,
        filter: Filter | None = None,
        min_score: float | None = None,
        offset: int = 0,
        with_vectors: bool = False,
    ) -> builtins.list[builtins.list[Hit]]:
        """`search_sparse` for many texts or sparse vectors at once."""
        async with self._calls.call(timeout):
            return await self._calls.read(
                lambda: self._collection.search_sparse_batch(
                    queries,
                    k,
                    filter=filter,
                    min_score=min_score,
                    offset=offset,
                    with_vectors=with_vectors,
                )
            )

    @explaining(OF_SEARCH)
    async def search_mmr(
        self,
        query: str | npt.ArrayLike,
        k: int = 10,
        *,
        timeout: float | None = None,
        fetch_k: int = FETCH_K,
        lambda_mult: float = LAMBDA_MULT,
        filter: Filter | None = None,
        exact: bool = False,
        ef: int | None = None,
        with_vectors: bool = False,
    ) -> builtins.list[Hit]:
        """Rows that differ from each other, as `Collection.search_mmr`; errors also as `search`."""
        async with self._calls.call(timeout):
            diversity = Diversity.checked(k, fetch_k, lambda_mult, with_vectors)
            plan = diversity.plan(query, self._collection._dim, filter, exact=exact, ef=ef)
            (hits,) = await self._planned(plan)
            metric = self._collection._store.settings.metric
            return await self._calls.read(lambda: diversity(hits, metric))

    async def _search(
        self,
        queries: Sequence[Any] | npt.ArrayLike,
        given: builtins.list[Any] | None,
        options: SearchOptions,
        name: str,
        rerank: object,
        rerank_from: int,
        sparse: object,
    ) -> builtins.list[builtins.list[Hit]]:
        plan = SearchPlan.checked(
            queries,
            given,
            options,
            name=name,
            dim=self._collection._dim,
            rerank=rerank,
            rerank_from=rerank_from,
            sparse=sparse,
            sparse_dim=None if sparse is None else self._collection._sparse_dim(),
        )
        return await self._planned(plan)

    def _checked_options(
        self, k: int, rerank: object, sparse: object, options: SearchKeywords
    ) -> SearchOptions:
        given: dict[str, Any] = {"filter": None, **options}
        for name in options:
            if name not in SearchKeywords.__annotations__:
                raise TypeError(f"a search got an unexpected keyword argument {name!r}")
        return SearchOptions.checked(
            k,
            **given,
            has_sparse=self._collection._has_sparse(sparse),
            is_reranked=rerank is not None,
        )

    async def _planned(self, plan: SearchPlan) -> builtins.list[builtins.list[Hit]]:
        self._calls.reads.check()  # before the texts are embedded for nothing
        vectors = plan.vectors
        if vectors is None:
            vectors = await self._checked_encoder().encode_query(plan.to_embed)
        found, reranking = vectors, plan.reranking
        if reranking is None or plan.texts is None:
            hits = await self._calls.read(lambda: self._collection._first_stage(found, plan))
            return plan.page(hits)
        texts, reranker = plan.texts, reranking.reranker
        if isinstance(reranker, Reranker | MultiVectorEncoder):
            hits = await self._calls.read(
                lambda: reranking(
                    texts,
                    self._collection._first_stage(found, plan),
                    plan.options,
                    self._collection._document_tokens,
                )
            )
            return plan.page(hits)
        hits = await self._calls.read(lambda: self._collection._first_stage(found, plan))
        rankings = reranking.rankings(texts, hits, plan.options)
        logits = await results_of(reranker.submit, pairs_of(rankings), {"activation": LOGITS})
        return plan.page(sorted_again(rankings, hits, logits, plan.options))

    async def _first_stage(
        self, vectors: Floats, plan: SearchPlan, *, timeout: float | None
    ) -> builtins.list[builtins.list[Hit]]:
        """The hits of a search before reranking, of queries that were embedded elsewhere."""
        async with self._calls.call(timeout):
            return await self._calls.read(lambda: self._collection._first_stage(vectors, plan))

    async def _stored_tokens(
        self,
        encoder: MultiVectorEncoder,
        hits: Sequence[Sequence[Hit]],
        *,
        timeout: float | None,
    ) -> StoredTokens | None:
        """The stored token vectors of the hits' texts; None if there are none of this model."""
        async with self._calls.call(timeout):
            return await self._calls.read(lambda: self._collection._stored_tokens(encoder, hits))

    def _checked_encoder(self) -> AsyncEncoder:
        """What embeds texts, after a check that it is the model that made the vectors."""
        if self._encoder is None:
            self._collection._need_encoder()  # raises
            raise AssertionError
        self._collection._checked_encoder(self._encoder.encoder)
        return self._encoder

    # --- reading --------------------------------------------------------------------------------

    @explaining(OF_ROWS)
    async def get(
        self, ids: Sequence[Id] | Id, *, timeout: float | None = None
    ) -> builtins.list[Item | None]:
        """Rows by id, as `Collection.get`; errors also as `search`."""
        async with self._calls.call(timeout):
            return await self._calls.read(lambda: self._collection.get(ids))

    @explaining(OF_ROWS)
    async def get_sparse(
        self, ids: Sequence[Id] | Id, *, timeout: float | None = None
    ) -> builtins.list[SparseVectors | None]:
        """Sparse vectors of rows, as `Collection.get_sparse`; errors also as `search`."""
        async with self._calls.call(timeout):
            return await self._calls.read(lambda: self._collection.get_sparse(ids))

    @explaining(OF_ROWS)
    async def count(self, filter: Filter | None = None, *, timeout: float | None = None) -> int:
        """How many rows meet a filter, as `Collection.count`; errors also as `search`."""
        async with self._calls.call(timeout):
            return await self._calls.read(lambda: self._collection.count(filter))

    @explaining(OF_ROWS)
    async def ids(
        self, filter: Filter | None = None, *, timeout: float | None = None
    ) -> builtins.list[Id]:
        """Ids of the rows that meet a filter, as `Collection.ids`; errors also as `search`."""
        async with self._calls.call(timeout):
            return await self._calls.read(lambda: self._collection.ids(filter))

    @explaining(OF_ROWS)
    async def list(
        self,
        filter: Filter | None = None,
        limit: int = 100,
        after: Row | int | None = None,
        *,
        with_vectors: bool = False,
        timeout: float | None = None,
    ) -> builtins.list[Row]:
        """A page of rows, as `Collection.list`; errors also as `search`."""
        async with self._calls.call(timeout):
            return await self._calls.read(
                lambda: self._collection.list(filter, limit, after, with_vectors=with_vectors)
            )

    async def info(self, *, timeout: float | None = None) -> CollectionInfo:
        """The collection's settings and figures; errors as `search`."""
        async with self._calls.call(timeout):
            return await self._calls.read(self._collection.info)

    async def _sparse_figures(self, *, timeout: float | None) -> tuple[int, int]:
        """Rows with a sparse vector, and bytes of the inverted file in memory."""
        async with self._calls.call(timeout):
            return await self._calls.read(self._collection._sparse_figures)

    async def _token_figures(self, *, timeout: float | None) -> tuple[int, int]:
        """Rows with token vectors, and their size on disk in bytes."""
        async with self._calls.call(timeout):
            return await self._calls.read(self._collection._token_figures)

    async def prepare(self, *, timeout: float | None = None) -> None:
        """Load or build now what the first search would need; errors as `search`.

        If it is cancelled or timed out, it stops within seconds.
        """
        stop = threading.Event()
        async with self._calls.call(timeout):
            await self._calls.read(lambda: self._collection.prepare(stop), stop.set)

    # --- writing --------------------------------------------------------------------------------

    @explaining(OF_ADD)
    async def add(
        self,
        ids: Sequence[Id],
        texts: Sequence[str],
        metadata: Metadata | None = None,
        *,
        timeout: float | None = None,
    ) -> Added:
        """Embed texts and add them, as `Collection.add`. On disk when it returns.

        Until the texts are embedded, cancelling the task adds nothing. After that all rows are
        added, or none.

        Raises:
            DeadlineError: the timeout passed; the rows may still be added, all or none.
            OverloadedError: too many texts or changes wait; nothing was added.
            ClosedError: after `close`, or in a forked child.
            FlowvecError: as for `Collection.add`; nothing was added.
        """
        async with self._calls.call(timeout):
            encoder = self._checked_encoder()
            embedding = Embedding(encoder.shared)
            return await self._calls.write(
                lambda: self._collection._add(ids, texts, metadata, encoder.encoder, embedding),
                embedding.give_up,
            )

    async def _add_embedded(
        self,
        ids: Sequence[Id],
        texts: Sequence[str],
        metadata: Metadata | None,
        encoder: Encoder,
        vectors: Floats,
        truncated: int,
        sparse: SparseAndModel,
        *,
        timeout: float | None,
    ) -> Added:
        """`add` of texts that `encoder` has embedded elsewhere; the ids must differ."""
        async with self._calls.call(timeout):
            return await self._calls.write(
                lambda: self._collection._add(
                    ids,
                    texts,
                    metadata,
                    encoder,
                    lambda _: (vectors, truncated),
                    lambda _: sparse,
                )
            )

    async def _add_vectors(
        self,
        ids: Sequence[Id],
        vectors: npt.ArrayLike,
        texts: Sequence[str | None],
        metadata: Metadata,
        sparse: SparseAndModel,
        *,
        timeout: float | None,
    ) -> Added:
        """`add_vectors`, with sparse vectors that a SparseEncoder has made elsewhere."""
        async with self._calls.call(timeout):
            return await self._calls.write(
                lambda: self._collection._add_vectors(ids, vectors, texts, metadata, *sparse)
            )

    @explaining(OF_ADD)
    async def add_vectors(
        self,
        ids: Sequence[Id],
        vectors: npt.ArrayLike,
        texts: Sequence[str | None] | None = None,
        metadata: Metadata | None = None,
        *,
        sparse: SparseVectors | Any | None = None,
        timeout: float | None = None,
    ) -> Added:
        """Add vectors made elsewhere, as `Collection.add_vectors`; errors also as `add`."""
        async with self._calls.call(timeout):
            return await self._calls.write(
                lambda: self._collection.add_vectors(ids, vectors, texts, metadata, sparse=sparse)
            )

    @explaining(OF_ROWS)
    async def set_sparse(
        self, ids: Sequence[Id], vectors: SparseVectors | Any, *, timeout: float | None = None
    ) -> int:
        """Give rows their sparse vectors, as `Collection.set_sparse`; errors also as `add`."""
        async with self._calls.call(timeout):
            return await self._calls.write(lambda: self._collection.set_sparse(ids, vectors))

    @explaining(OF_ROWS)
    async def delete(
        self,
        ids: Sequence[Id] | Id | None = None,
        *,
        filter: Filter | None = None,
        timeout: float | None = None,
    ) -> int:
        """Delete rows by id or by a filter, as `Collection.delete`; errors also as `add`."""
        async with self._calls.call(timeout):
            return await self._calls.write(lambda: self._collection.delete(ids, filter=filter))

    @explaining(OF_ROWS)
    async def update_metadata(
        self,
        ids: Sequence[Id] | Id | None = None,
        changes: Changes | None = None,
        *,
        filter: Filter | None = None,
        timeout: float | None = None,
    ) -> int:
        """Change fields of rows, as `Collection.update_metadata`; errors also as `add`."""
        async with self._calls.call(timeout):
            return await self._calls.write(
                lambda: self._collection.update_metadata(ids, changes, filter=filter)
            )

    async def compact(self, *, timeout: float | None = None) -> None:
        """Rebuild the graph and free disk space, as `Collection.compact`; errors also as `add`.

        Searches go on meanwhile. Once begun, it ends in the background if it is cancelled.
        """
        async with self._calls.call(timeout):
            await self._calls.write(self._collection.compact)

    # --- life -----------------------------------------------------------------------------------

    def statistics(self) -> dict[str, CallStatistics]:
        """Counts of `reads` and `writes` so far; those of texts are `encoder.statistics()`."""
        return self._calls.statistics()

    async def close(self, *, drain: bool = True) -> None:
        """Refuse new calls and stop the threads; calling it twice is harmless.

        What this opened is closed: the Collection of `open`, and the queue for its Encoder.

        Args:
            drain: let calls of this event loop end first; otherwise those that wait get a
                `ClosedError`. A change that has begun is made in any case.
        """
        await self._calls.close(drain=drain)
        await asyncio.to_thread(self._close_owned, drain)

    def _close_owned(self, drain: bool) -> None:
        if self._owned_encoder is not None:
            self._owned_encoder.shared.close(drain=drain)
        if self._owns_collection:
            self._collection.close()

    async def __aenter__(self) -> Self:
        self._calls.require_open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is GeneratorExit:  # the event loop is gone, so nothing can be awaited
            self._calls.stop(drain=False)
            self._close_owned(drain=False)
        else:
            await self.close(drain=kind is None)


def _check_kinds(collection: object, encoder: object) -> None:
    if not isinstance(collection, Collection):
        hint = ""
        if isinstance(collection, str | Path):
            hint = f": write AsyncCollection.open({str(collection)!r})"
        raise InputTypeError(
            f"collection must be a Collection, not {type(collection).__name__}{hint}"
        )
    if encoder is not None and not isinstance(encoder, AsyncEncoder):
        hint = ": write AsyncEncoder(encoder)" if isinstance(encoder, Encoder) else ""
        raise InputTypeError(f"encoder must be an AsyncEncoder, not {type(encoder).__name__}{hint}")


def _shared(rerank: object) -> object:
    return rerank.shared if isinstance(rerank, AsyncReranker) else rerank
