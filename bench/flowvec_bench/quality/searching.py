"""The systems that `flowvec eval retrieval` compares: each ranks a set's documents for its queries.

BM25 is bm25s with its defaults (Lucene's variant, k1 1.5, b .75, words of two letters or more,
lower-cased), its English stop words and the Snowball English stemmer.
"""

from __future__ import annotations

import logging
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import cast

import bm25s
import numpy as np
import numpy.typing as npt
import Stemmer

from flowvec import Collection, Encoder, MultiVectorEncoder, Reranker, SparseEncoder, maxsim
from flowvec.encoder.postprocess import normalize
from flowvec.vectors import METRIC_OF_SIMILARITY, top_k
from flowvec_bench.quality.beir import RetrievalSet

__all__ = [
    "BM25_SETTINGS",
    "DEPTH",
    "RANK_CONSTANT",
    "Ranking",
    "Retriever",
    "Timed",
    "fuse_ranks",
    "rerank",
    "search",
    "search_bm25",
    "search_encoder",
    "search_hybrid",
    "search_multi_vector",
    "search_sparse",
]

BM25_SETTINGS = "bm25s, Lucene's variant, k1 1.5, b .75, English stop words and Snowball stemmer"
# Of reciprocal rank fusion, as in the paper.
RANK_CONSTANT = 60

# The first document rows of each query, best first; fewer if fewer were found.
Ranking = list[list[int]]
# What finds documents by itself.
Retriever = Encoder | SparseEncoder | MultiVectorEncoder

DEPTH = 100
_SEARCHED = DEPTH + 1  # one may be the query itself
_QUERY_BLOCK = 256
_ADDED = 4096  # rows that are committed together
_COMPARED = 1024  # documents whose token vectors are held at once


@dataclass(frozen=True, slots=True)
class Timed:
    """A ranking, and how long its queries took together, in seconds."""

    ranking: Ranking
    seconds: float


def search(model: Retriever, dataset: RetrievalSet) -> Timed:
    """Exact search by a model of any kind that finds documents by itself."""
    if isinstance(model, SparseEncoder):
        return search_sparse(model, dataset)
    if isinstance(model, MultiVectorEncoder):
        return search_multi_vector(model, dataset)
    return search_encoder(model, dataset)


def search_encoder(encoder: Encoder, dataset: RetrievalSet) -> Timed:
    """Exact search by the bundle's similarity; equal scores in the corpus's order."""
    documents = encoder.encode_document(dataset.documents)
    begun = time.perf_counter()
    ranking = _search_vectors(encoder, dataset, documents)
    return Timed(ranking, time.perf_counter() - begun)


def _search_vectors(
    encoder: Encoder, dataset: RetrievalSet, documents: npt.NDArray[np.float32]
) -> Ranking:
    queries = encoder.encode_query(dataset.queries)
    similarity = encoder.info().similarity
    if similarity not in METRIC_OF_SIMILARITY:  # manhattan
        return [
            np.argsort(-line, kind="stable")[:_SEARCHED].tolist()
            for start in range(0, len(queries), _QUERY_BLOCK)
            for line in encoder.similarity(queries[start : start + _QUERY_BLOCK], documents)
        ]
    if similarity == "cosine":
        documents, queries = normalize(documents), normalize(queries)
    ranking, _ = top_k(queries, documents, _SEARCHED, METRIC_OF_SIMILARITY[similarity])
    return cast(Ranking, ranking.tolist())


def search_bm25(dataset: RetrievalSet) -> Timed:
    """BM25 with the settings above; documents without a word of the query are not found."""
    stemmer = Stemmer.Stemmer("english")
    options = {"stopwords": "english", "stemmer": stemmer, "show_progress": False}
    documents = bm25s.tokenize(dataset.documents, **options)
    if not documents.vocab:  # only stop words, which bm25s cannot index
        return Timed([[] for _ in dataset.queries], 0.0)
    index = bm25s.BM25()
    index.index(documents, show_progress=False)
    begun = time.perf_counter()
    tokens = bm25s.tokenize(dataset.queries, return_ids=False, **options)
    depth = min(_SEARCHED, len(dataset.documents))
    rows, scores = index.retrieve(tokens, k=depth, show_progress=False)
    ranking = [
        [int(row) for row, score in zip(*line, strict=True) if score > 0]
        for line in zip(rows, scores, strict=True)
    ]
    return Timed(ranking, time.perf_counter() - begun)


@contextmanager
def _warnings_name(name: str) -> Iterator[None]:
    """Let warnings about cut texts name the set instead of the temporary folder."""
    logger = logging.getLogger("flowvec.collection.truncation")

    def rename(record: logging.LogRecord) -> bool:
        if isinstance(record.args, tuple):
            record.args = (name, *record.args[1:])
        return True

    logger.addFilter(rename)
    try:
        yield
    finally:
        logger.removeFilter(rename)


def search_hybrid(encoder: Encoder, dataset: RetrievalSet) -> Timed:
    """A Collection's hybrid search: vectors and words together."""
    with tempfile.TemporaryDirectory(prefix="flowvec-") as folder, _warnings_name(dataset.name):
        metric = METRIC_OF_SIMILARITY.get(encoder.info().similarity, "cosine")
        with Collection.create(Path(folder) / "c", encoder=encoder, metric=metric) as collection:
            for first in range(0, len(dataset.documents), _ADDED):
                texts = dataset.documents[first : first + _ADDED]
                collection.add(range(first, first + len(texts)), texts)
            collection.index_texts()
            collection.search_batch(list(dataset.queries)[:1], _SEARCHED, hybrid=True)  # warm
            begun = time.perf_counter()
            hits = collection.search_batch(list(dataset.queries), _SEARCHED, hybrid=True)
            seconds = time.perf_counter() - begun
    return Timed([[int(hit.id) for hit in line] for line in hits], seconds)


def search_sparse(encoder: SparseEncoder, dataset: RetrievalSet) -> Timed:
    """Exact search by the dot product; documents that share no token with a query are not found."""
    documents = encoder.encode_document(dataset.documents)
    begun = time.perf_counter()
    hits = documents.search(encoder.encode_query(dataset.queries), _SEARCHED)
    ranking = [[hit["corpus_id"] for hit in line] for line in hits]
    return Timed(ranking, time.perf_counter() - begun)


def search_multi_vector(
    encoder: MultiVectorEncoder, dataset: RetrievalSet, *, compared: int = _COMPARED
) -> Timed:
    """MaxSim of every query with every document; equal scores in the corpus's order.

    The time grows with queries times documents, so this is for small sets: `rerank` reads the best
    hits of another search.

    Args:
        encoder: the model.
        dataset: queries and documents.
        compared: documents whose token vectors are held at once.
    """
    begun = time.perf_counter()
    queries = encoder.encode_query(dataset.queries)
    seconds = time.perf_counter() - begun
    scores = np.empty((len(queries), 0), dtype=np.float32)
    rows = np.empty((len(queries), 0), dtype=np.int64)
    vectors = encoder.stream_documents(dataset.documents)
    for first in range(0, len(dataset.documents), compared):
        block = list(islice(vectors, compared))
        begun = time.perf_counter()
        numbers = np.tile(np.arange(first, first + len(block)), (len(queries), 1))
        together = np.hstack([scores, maxsim(queries, block)])
        best = np.argsort(-together, axis=1, kind="stable")[:, :_SEARCHED]
        scores = np.take_along_axis(together, best, axis=1)
        rows = np.take_along_axis(np.hstack([rows, numbers]), best, axis=1)
        seconds += time.perf_counter() - begun
    return Timed(rows.tolist(), seconds)


def fuse_ranks(*systems: Timed) -> Timed:
    """Reciprocal rank fusion: a document's score is the sum of 1 / (60 + rank) over the systems.

    Cormack, Clarke and Buettcher (2009), "Reciprocal rank fusion outperforms Condorcet and
    individual rank learning methods". Equal scores are ordered by the first system's ranking, then
    by the next one's.
    """
    ranking: Ranking = []
    for lines in zip(*(system.ranking for system in systems), strict=True):
        scores: defaultdict[int, float] = defaultdict(float)
        for line in lines:
            for rank, row in enumerate(line, start=1):
                scores[row] += 1 / (RANK_CONSTANT + rank)
        ranking.append(sorted(scores, key=scores.__getitem__, reverse=True)[:_SEARCHED])
    return Timed(ranking, sum(system.seconds for system in systems))


def rerank(
    reranker: Reranker | MultiVectorEncoder, dataset: RetrievalSet, first: Timed, depth: int
) -> Timed:
    """The first documents of each query in a reranker's order, then the rest as they were.

    Args:
        reranker: reads each query with its documents, or compares their token vectors.
        dataset: the texts.
        first: ranking of the first stage.
        depth: how many documents of each query are read.
    """
    begun = time.perf_counter()
    ranking: Ranking = []
    for query, rows in zip(dataset.queries, first.ranking, strict=True):
        ranked = reranker.rank(query, [dataset.documents[row] for row in rows[:depth]])
        ranking.append([rows[hit["corpus_id"]] for hit in ranked] + rows[depth:])
    return Timed(ranking, first.seconds + time.perf_counter() - begun)
