"""Scores retrieval on sets in BEIR's layout: an encoder's exact search compared with BM25.

nDCG@10, recall@10, recall@100 and MRR@10 are computed by ir-measures, over the first 100 documents
of a system. A query that is also a document does not find itself (`queries_that_are_documents`).
BM25 is bm25s with its defaults (Lucene's variant, k1 1.5, b .75, words of two letters or more,
lower-cased), its English stop words and the Snowball English stemmer.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import bm25s
import ir_measures
import numpy as np
import numpy.typing as npt
import Stemmer
from ir_measures import RR, R, nDCG

from flowvec import Collection, Encoder, Reranker
from flowvec.collection.reranking import RERANK_FROM
from flowvec.encoder.postprocess import normalize
from flowvec.vectors import METRIC_OF_SIMILARITY, top_k
from flowvec_bench.quality.beir import RetrievalSet

__all__ = [
    "BM25_SETTINGS",
    "Ranking",
    "RetrievalScore",
    "Timed",
    "rerank",
    "score_retrieval",
    "score_run",
    "search_bm25",
    "search_encoder",
    "search_hybrid",
]

BM25_SETTINGS = "bm25s, Lucene's variant, k1 1.5, b .75, English stop words and Snowball stemmer"

# The first document rows of each query, best first; fewer if fewer were found.
Ranking = list[list[int]]

_DEPTH = 100
_SEARCHED = _DEPTH + 1  # one may be the query itself
_QUERY_BLOCK = 256
_ADDED = 4096  # rows that are committed together


@dataclass(frozen=True, slots=True)
class RetrievalScore:
    """Means over the queries of one set, 0 to 1.

    Attributes:
        dataset: the folder's name.
        system: the model's name, `BM25`, or the model's name and "hybrid".
        documents: number of documents.
        queries: number of queries.
        ndcg_at_10: nDCG with linear gain, as in trec_eval.
        recall_at_10: share of the relevant documents among the first 10.
        recall_at_100: the same of the first 100.
        mrr_at_10: mean of 1 / rank of the first relevant document; 0 if none is among 10.
        milliseconds: wall time of a query, all queries together, without encoding the documents;
            with a reranker, both stages. None if it was not measured.
    """

    dataset: str
    system: str
    documents: int
    queries: int
    ndcg_at_10: float
    recall_at_10: float
    recall_at_100: float
    mrr_at_10: float
    milliseconds: float | None = None


@dataclass(frozen=True, slots=True)
class Timed:
    """A ranking, and how long its queries took together, in seconds."""

    ranking: Ranking
    seconds: float


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


def search_hybrid(encoder: Encoder, dataset: RetrievalSet) -> Timed:
    """A Collection's hybrid search: vectors and words together."""
    with tempfile.TemporaryDirectory(prefix="flowvec-") as folder:
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


def rerank(reranker: Reranker, dataset: RetrievalSet, first: Timed, depth: int) -> Timed:
    """The first documents of each query in a reranker's order, then the rest as they were.

    Args:
        reranker: reads each query with its documents.
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


def score_run(
    dataset: RetrievalSet,
    system: str,
    ranking: Sequence[Sequence[int]],
    seconds: float | None = None,
) -> RetrievalScore:
    """Measure one system's ranking of document rows, a list for each query.

    `seconds` is how long all queries took together.
    """
    # Ranks as scores: trec_eval would order equal scores by document id.
    run: dict[str, dict[str, float]] = {}
    for query, rows in zip(dataset.query_ids, ranking, strict=True):
        ids = [dataset.document_ids[row] for row in rows]
        if query in dataset.queries_that_are_documents:
            ids = [document for document in ids if document != query]
        run[query] = {document: -float(rank) for rank, document in enumerate(ids[:_DEPTH])}
    measures = [nDCG @ 10, R @ 10, R @ 100, RR @ 10]
    means = ir_measures.calc_aggregate(measures, dataset.qrels, run)
    ndcg, recall, recall_100, mrr = (float(means[measure]) for measure in measures)
    return RetrievalScore(
        dataset=dataset.name,
        system=system,
        documents=len(dataset.documents),
        queries=len(dataset.queries),
        ndcg_at_10=ndcg,
        recall_at_10=recall,
        recall_at_100=recall_100,
        mrr_at_10=mrr,
        milliseconds=None if seconds is None else 1000 * seconds / max(1, len(dataset.queries)),
    )


def score_retrieval(
    encoder: Encoder,
    dataset: RetrievalSet,
    *,
    hybrid: bool = False,
    reranker: Reranker | None = None,
    rerank_from: int = RERANK_FROM,
) -> list[RetrievalScore]:
    """Measure the encoder, then BM25, and optionally a Collection's hybrid search, on one set.

    With a reranker, each of them is measured a second time with its first `rerank_from` documents
    sorted again.
    """
    name = encoder.info().name
    systems = {name: search_encoder(encoder, dataset), "BM25": search_bm25(dataset)}
    if hybrid:
        systems[f"{name}, hybrid"] = search_hybrid(encoder, dataset)
    scores = []
    for system, timed in systems.items():
        scores.append(score_run(dataset, system, timed.ranking, timed.seconds))
        if reranker is not None:
            again = rerank(reranker, dataset, timed, rerank_from)
            name = f"{system}, reranked"
            scores.append(score_run(dataset, name, again.ranking, again.seconds))
    return scores
