"""`ShardedSearcher`: searches a collection in shards on Ray, and reads its rows."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack, cast

import numpy as np
import numpy.typing as npt

from flowvec.arguments import explaining, text_or_none
from flowvec.bulk import RayWorkers
from flowvec.bulk.ray_workers import connected_ray
from flowvec.collection.diversity import FETCH_K, LAMBDA_MULT, Diversity
from flowvec.collection.foreign import OF_ROWS, OF_SEARCH
from flowvec.collection.grouping import group_of
from flowvec.collection.model import check_sparse_encoder_or_none
from flowvec.collection.query import Queries, SearchKeywords, SearchOptions
from flowvec.collection.reranking import RERANK_FROM
from flowvec.collection.results import Hit
from flowvec.collection.search_plan import SearchPlan
from flowvec.collection.store.filters import Filter
from flowvec.collection.store.rows import Id, Item
from flowvec.collection.validation import ids_of, texts_of
from flowvec.encoder.encoder import Encoder
from flowvec.errors import InputTypeError, InputValueError
from flowvec.multi_vector.encoder import MultiVectorEncoder
from flowvec.reranker.reranker import Reranker
from flowvec.reranker.shared_reranker import SharedReranker
from flowvec.sequences import as_list
from flowvec.sharded.hybrid import HybridSearch
from flowvec.sharded.manifest import place_of, read_manifest, shard_name
from flowvec.sharded.results import ShardedHits, ShardedRows
from flowvec.sharded.shard_actor import ShardActor
from flowvec.sharded.shard_calls import ShardCalls
from flowvec.sparse.checking import checked_sparse
from flowvec.sparse.encoder import SparseEncoder
from flowvec.sparse.vectors import SparseVectors
from flowvec.texts.urls import shown
from flowvec.vectors import Metric

__all__ = ["ShardedSearcher"]

# Searches that a shard serves at the same time. It must be more than one: an actor with one thread
# takes calls by number, and a call that was cancelled before it was sent leaves a gap, which delays
# later calls for 30 seconds and then fails them (seen with Ray 2.60).
_AT_A_TIME = 4


class ShardedKeywords(SearchKeywords, total=False):
    """Options of a search over shards, which mean what they mean in `Collection.search`."""

    rerank: Reranker | SharedReranker | MultiVectorEncoder | None
    rerank_from: int


class ShardedSearcher:
    """Searches all shards of a collection, each kept open by a Ray actor.

    Below a URL, each machine downloads the shards of its actors into a cache, verifies them, and
    keeps them for the next start. An actor that dies is restarted, and a shard that cannot be
    opened is tried again; until then it is missing from results, which say so. An actor serves four
    calls at a time. Any number of threads may search.

    Hits and scores are those of one collection with all rows, except that graphs may miss other
    rows (`exact`). Searches with words or sparse vectors merge the rankings of all shards before
    they fuse them. A reranker reads the best hits of all shards, in the process that searches. Ids
    must be distinct: of rows with the same id in several shards, the best is a hit.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        encoder: Encoder | None = None,
        sparse_encoder: SparseEncoder | None = None,
        timeout: float = 10.0,
        address: str | None = None,
        cpus_per_shard: float = 0.5,
        cache: str | Path | None = None,
    ) -> None:
        """Open the shards.

        Args:
            path: the folder that `index_shards` filled, visible to all machines, or its URL.
            encoder: embeds queries; without it, queries must be vectors.
            sparse_encoder: makes the sparse vectors of queries, for `search_sparse` and hybrid
                searches; without it, they must be given.
            timeout: seconds that a shard may take to answer a call. A hybrid search makes three
                calls, one after another, and with `group_by` it may make more; other searches
                make one.
            address: address of the Ray cluster; None is a running one, or a new one on this
                machine.
            cpus_per_shard: cores that Ray reserves for each shard.
            cache: where each machine keeps the shards of a URL; None is the folder `shards` in
                flowvec's cache folder (FLOWVEC_CACHE).

        Raises:
            CollectionError: the folder is not a collection in shards.
            FingerprintMismatchError: they were made with another model.
            InputTypeError: `sparse_encoder` is not a SparseEncoder.
            MissingDependencyError: Ray is not installed.
        """
        check_sparse_encoder_or_none(sparse_encoder)
        place = place_of(path)
        about = read_manifest(place)
        if encoder is not None:
            about.check_model(encoder, shown(place))
        about.check_sparse_model(sparse_encoder, shown(place))
        ray = connected_ray(RayWorkers(1, address=address))
        self._encoder = encoder
        self._sparse_encoder = sparse_encoder
        self._metric: Metric | None = None
        actor = ray.remote(ShardActor).options(
            num_cpus=cpus_per_shard, max_restarts=-1, max_concurrency=_AT_A_TIME
        )
        kept_in = None if cache is None else str(Path(cache).expanduser().absolute())
        names = [shard_name(number) for number in range(about.shards)]
        actors = {name: actor.remote(place, name, kept_in) for name in names}
        self._calls = ShardCalls(ray, actors, timeout)
        for one in actors.values():
            one.prepare.remote()

    def __enter__(self) -> ShardedSearcher:
        self._calls.check_open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def shards(self) -> int:
        """How many shards the collection has; 0 after `close`."""
        return len(self._calls)

    def close(self) -> None:
        """Stop the actors; twice is harmless."""
        self._calls.close()

    def search(
        self,
        query: str | npt.ArrayLike,
        k: int = 10,
        *,
        text: str | None = None,
        sparse: SparseVectors | Any | None = None,
        timeout: float | None = None,
        **options: Unpack[ShardedKeywords],
    ) -> ShardedHits:
        """`search_batch` of one text, or of one vector float32 (dim,).

        `text` is the text of a query that is a vector, for the words of a hybrid search, and for
        `rerank`.
        """
        texts = None if text_or_none("text", text) is None else [text]
        queries = [query] if isinstance(query, str) else np.asarray(query, np.float32)[None]
        return self.search_batch(queries, k, texts=texts, sparse=sparse, timeout=timeout, **options)

    def search_batch(
        self,
        queries: Sequence[str] | npt.ArrayLike,
        k: int = 10,
        *,
        texts: Sequence[str | None] | None = None,
        sparse: SparseVectors | Any | None = None,
        timeout: float | None = None,
        **options: Unpack[ShardedKeywords],
    ) -> ShardedHits:
        """The k nearest rows of all shards, or with `hybrid=True` the best of several rankings.

        A hybrid search ranks by words and, where it has sparse vectors of the queries, by these
        too, as `Collection.search` does. BM25 counts the rows of all shards. A shard without a
        full-text index makes one at its first hybrid search; until it has, it is missing.

        Args:
            queries: texts, or vectors float32 (queries, dim).
            k: hits per query.
            texts: the text of each query that is a vector, for the words of a hybrid search and for
                `rerank`.
            sparse: a sparse vector for each query, for a hybrid search. A searcher with a
                `sparse_encoder` makes them from the texts.
            timeout: seconds that a shard may take for a call; None is the one of this object.
                Embedding and reranking are not in it.
            options: `filter`, `hybrid`, `vector_weight`, `sparse_weight`, `fusion`, `min_score`,
                `exact`, `ef`, `rerank`, `rerank_from`, `offset`, `group_by`, `prefix` and
                `with_vectors`, as in `Collection.search`.

        Returns:
            Hits of the shards that answered, and names of those that did not.

        Raises:
            ClosedError: after `close`.
            InputTypeError, InputValueError: as `Collection.search_batch` does.
            FingerprintMismatchError: other models made the sparse vectors of queries and of rows.
            CollectionError: shards have full-text indexes with different tokenizers.
        """
        of_all = SearchKeywords.__annotations__
        own: dict[str, Any] = {name: options.get(name) for name in of_all if name in options}
        checked = SearchOptions.checked(
            k,
            own.pop("filter", None),
            **own,
            has_sparse=sparse is not None or self._sparse_encoder is not None,
            is_reranked=options.get("rerank") is not None,
        )
        if unknown := sorted(options.keys() - ShardedKeywords.__annotations__.keys()):
            raise InputTypeError(f"a search in shards has no argument {unknown[0]!r}")
        self._calls.check_open()
        if isinstance(queries, list | tuple) and not queries:
            return ShardedHits([], {})
        is_text = texts_of(queries) is not None
        given = queries if is_text else _rows(queries)
        plan = SearchPlan.checked(
            given,
            None if texts is None else as_list("texts", texts),
            checked,
            name="queries",
            dim=0 if is_text else np.shape(given)[1],
            rerank=options.get("rerank"),
            rerank_from=options.get("rerank_from", RERANK_FROM),
            sparse=sparse,
        )
        vectors = plan.vectors
        if vectors is None:
            if self._encoder is None:
                raise InputValueError("a searcher without an encoder takes vectors")
            vectors = np.asarray(self._encoder.encode_query(plan.to_embed), np.float32)
        if checked.hybrid and len(vectors):
            hits, missing = self._hybrid(vectors, plan, timeout)
        else:
            first = plan.first_stage
            arguments = (vectors, first.k, options.get("filter"), first.exact, first.ef,
                         first.group_by, first.with_vectors)  # fmt: skip
            answers, missing = self._calls.ask_all("search", arguments, timeout)
            hits = _merged(answers, len(vectors), first)
        return ShardedHits(plan.finished(hits, _texts_alone), self._calls.in_order(missing))

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
        timeout: float | None = None,
    ) -> ShardedHits:
        """Rows near to a text or a vector that differ from each other, of all shards.

        They are chosen among the `fetch_k` nearest rows of all shards.

        Args:
            query: as for `search`.
            k: as the other options, as in `Collection.search_mmr`.
            fetch_k: how many of the nearest rows to choose from.
            lambda_mult: how much nearness counts, 0 to 1.
            filter: which rows are eligible.
            exact: compare every row.
            ef: search depth in the graphs.
            with_vectors: whether hits have their vectors.
            timeout: seconds that a shard may take for a call; None is the one of this object.

        Returns:
            Hits of the one query in the order of choice, and names of shards that did not answer.

        Raises:
            ClosedError: after `close`.
            InputTypeError, InputValueError: as `Collection.search_mmr` does.
        """
        diversity = Diversity.checked(k, fetch_k, lambda_mult, with_vectors)
        found = self.search(
            query, diversity.fetched, filter=filter, exact=exact, ef=ef, with_vectors=True,
            timeout=timeout,
        )  # fmt: skip
        metric = self._metric
        if metric is None:
            answers, missing = self._calls.ask_all("metric", (), timeout)
            if not answers:
                return ShardedHits([[]], self._calls.in_order(missing))
            self._metric = metric = cast(Metric, next(iter(answers.values())))
        return ShardedHits([diversity(found.hits[0], metric)], found.missing)

    def search_sparse(
        self,
        query: str | SparseVectors | Any,
        k: int = 10,
        *,
        filter: Filter | None = None,
        min_score: float | None = None,
        offset: int = 0,
        with_vectors: bool = False,
        timeout: float | None = None,
    ) -> ShardedHits:
        """`search_sparse_batch` of one text, or of one sparse vector."""
        if not isinstance(query, str) and len(checked_sparse("query", query)) != 1:
            raise InputValueError("query must be one sparse vector")
        return self.search_sparse_batch(
            [query] if isinstance(query, str) else query,
            k,
            filter=filter,
            min_score=min_score,
            offset=offset,
            with_vectors=with_vectors,
            timeout=timeout,
        )

    def search_sparse_batch(
        self,
        queries: Sequence[str] | SparseVectors | Any,
        k: int = 10,
        *,
        filter: Filter | None = None,
        min_score: float | None = None,
        offset: int = 0,
        with_vectors: bool = False,
        timeout: float | None = None,
    ) -> ShardedHits:
        """The rows of all shards whose sparse vectors have the largest dot products: exactly.

        Args:
            queries: texts, embedded by `SparseEncoder.encode_query`, or sparse vectors.
            k: hits per query, of rows that share a term with it.
            filter: as in `Collection.search`.
            min_score: drop hits with a lower score.
            offset: as in `Collection.search`.
            with_vectors: whether hits have their dense vectors.
            timeout: seconds that a shard may take; None is the one of this object.

        Returns:
            Hits of the shards that answered, and names of those that did not.

        Raises:
            ClosedError: after `close`.
            InputTypeError, InputValueError: as `Collection.search_sparse_batch` does.
            FingerprintMismatchError: other models made the sparse vectors of queries and of rows.
        """
        checked = SearchOptions.checked(
            k, filter, min_score=min_score, offset=offset, with_vectors=with_vectors
        )
        self._calls.check_open()
        if isinstance(queries, str):
            raise InputTypeError("queries must be texts or sparse vectors, not one text")
        if isinstance(queries, list | tuple) and not queries:
            return ShardedHits([], {})
        texts = texts_of(queries)
        if texts is None:
            vectors, fingerprint = checked_sparse("queries", queries), None
        else:
            vectors, fingerprint = self._encoded_sparse(texts)
        arguments = (vectors, fingerprint, checked.k, filter, with_vectors)
        answers, missing = self._calls.ask_all("search_sparse", arguments, timeout)
        hits = [line[checked.offset :] for line in _merged(answers, len(vectors), checked)]
        return ShardedHits(hits, self._calls.in_order(missing))

    @explaining(OF_ROWS)
    def get(self, ids: Sequence[Id] | Id, *, timeout: float | None = None) -> ShardedRows:
        """Rows by id, from all shards, as `Collection.get` reads them.

        Args:
            ids: ids of the rows, or one id. Of rows with the same id in several shards, that of
                the first shard is read.
            timeout: seconds that a shard may take; None is the one of this object.

        Returns:
            Rows in the order of the ids, None for an unknown id; and names of the shards that did
            not answer, whose rows are None as well (`partial`). A shard with a damaged row among
            them does not answer.

        Raises:
            ClosedError: after `close`.
            InputTypeError, InputValueError: an id is not valid.
        """
        keys = ids_of(ids)
        self._calls.check_open()
        if not keys:
            return ShardedRows([], {})
        arguments = (list(dict.fromkeys(keys)),)
        answers, missing = self._calls.ask_all("get", arguments, timeout)
        row_by_id: dict[Id, Item] = {}
        for items in answers.values():
            for item in items:
                row_by_id.setdefault(item.id, item)
        return ShardedRows([row_by_id.get(key) for key in keys], self._calls.in_order(missing))

    def _encoded_sparse(self, texts: list[str]) -> tuple[SparseVectors, str]:
        """Sparse vectors of queries, and the fingerprint of the model."""
        if self._sparse_encoder is None:
            raise InputValueError("a searcher without a sparse encoder takes sparse vectors")
        return self._sparse_encoder.encode_query(texts), self._sparse_encoder.fingerprint

    def _hybrid(
        self, vectors: npt.NDArray[np.float32], plan: SearchPlan, timeout: float | None
    ) -> tuple[list[list[Hit]], dict[str, str]]:
        """Hits of a hybrid search before reranking, and why shards are missing."""
        options, sparse, fingerprint = plan.first_stage, plan.sparse, None
        if options.shares.sparse > 0.0 and sparse is None and plan.texts is not None:
            sparse, fingerprint = self._encoded_sparse(plan.texts)
        queries = Queries(vectors, plan.texts, sparse)
        return HybridSearch(self._calls, queries, fingerprint, options, timeout).hits()

    def rows(self, timeout: float = 60.0) -> int:
        """Rows of all shards.

        Raises:
            ClosedError: after `close`.
            CollectionError: a shard does not answer.
        """
        self._calls.check_open()
        return self._calls.rows(timeout)


def _rows(queries: object) -> npt.NDArray[np.float32]:
    """Queries that are vectors, float32 (queries, dim)."""
    try:
        rows = np.asarray(queries, np.float32)
    except (TypeError, ValueError) as error:
        raise InputTypeError(f"queries are neither texts nor vectors: {error}") from None
    if rows.ndim != 2:
        raise InputValueError(f"queries must be of shape (queries, dim), not {rows.shape}")
    return rows


def _texts_alone(_encoder: MultiVectorEncoder, _hits: object) -> None:
    """Shards have no token vectors, so a MultiVectorEncoder encodes the texts of the hits."""


def _merged(
    answers: Mapping[str, Sequence[Sequence[Hit]]], queries: int, options: SearchOptions
) -> list[list[Hit]]:
    """The k best hits of several rankings; of hits with the same id or group, only the best."""
    lines: list[list[Hit]] = []
    for i in range(queries):
        best: dict[Id, Hit] = {}
        hits = [hit for answer in answers.values() for hit in answer[i]]
        for hit in sorted(hits, key=lambda hit: -hit.score):
            if options.min_score is None or hit.score >= options.min_score:
                best.setdefault(hit.id, hit)
        line = list(best.values())
        if (field := options.group_by) is not None:
            groups: dict[Hashable, Hit] = {}
            for place, hit in enumerate(line):
                groups.setdefault(group_of(hit.metadata, place, field), hit)
            line = list(groups.values())
        lines.append(line[: options.k])
    return lines
