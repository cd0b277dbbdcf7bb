"""Scores retrieval on sets in BEIR's layout: a model's exact search compared with BM25.

nDCG@10, recall@10, recall@100 and MRR@10 are computed by ir-measures, over the first 100 documents
of a system. A query that is also a document does not find itself (`queries_that_are_documents`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import ir_measures
from ir_measures import RR, R, nDCG

from flowvec import Encoder, MultiVectorEncoder, Reranker, SparseEncoder
from flowvec.collection.reranking import RERANK_FROM
from flowvec.errors import InputValueError
from flowvec.progress import say
from flowvec_bench.quality.beir import RetrievalSet
from flowvec_bench.quality.searching import (
    DEPTH,
    Retriever,
    fuse_ranks,
    rerank,
    search,
    search_bm25,
    search_hybrid,
    search_sparse,
)

__all__ = ["RetrievalScore", "score_retrieval", "score_run"]


@dataclass(frozen=True, slots=True)
class RetrievalScore:
    """Means over the queries of one set, 0 to 1.

    Attributes:
        dataset: the folder's name.
        system: the model's name or `BM25`, and what was added: "hybrid", the sparse encoder that it
            was fused with, "reranked".
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
        run[query] = {document: -float(rank) for rank, document in enumerate(ids[:DEPTH])}
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
    model: Retriever,
    dataset: RetrievalSet,
    *,
    hybrid: bool = False,
    sparse: SparseEncoder | None = None,
    rerankers: Sequence[Reranker | MultiVectorEncoder] = (),
    rerank_from: int = RERANK_FROM,
    on_step: Callable[[str], object] | None = say,
) -> list[RetrievalScore]:
    """Measure a model's exact search, then BM25 and what else was asked for, on one set.

    Args:
        model: an encoder of any kind; token vectors are compared with those of every document.
        dataset: the set.
        hybrid: also a Collection's hybrid search, by the encoder's vectors and words.
        sparse: also this one, alone and fused with the model by ranks.
        rerankers: each measures every system again, with its first documents sorted.
        rerank_from: how many documents of a query are sorted.
        on_step: called with a line of text before each step; by default it goes to standard
            error. None is silent.

    Raises:
        InputValueError: `hybrid` with a model that is not an Encoder, or `sparse` with a
            SparseEncoder.
    """
    name = model.info().name
    if hybrid and not isinstance(model, Encoder):
        raise InputValueError(f"hybrid search needs an Encoder; {name} is not one")
    if sparse is not None and isinstance(model, SparseEncoder):
        raise InputValueError(f"sparse is fused with a model of another kind; {name} is sparse too")

    def tell(step: str) -> None:
        if on_step is not None:
            on_step(f"{dataset.name}: {step}")

    tell(f"{name} embeds {len(dataset.documents):,} documents, {len(dataset.queries):,} queries")
    own = search(model, dataset)
    tell("BM25")
    systems = [(name, own), ("BM25", search_bm25(dataset))]
    if hybrid:
        assert isinstance(model, Encoder), "checked above"
        tell("hybrid search")
        systems.append((f"{name}, hybrid", search_hybrid(model, dataset)))
    if sparse is not None:
        other = sparse.info().name
        tell(f"{other} embeds the documents and queries")
        found = search_sparse(sparse, dataset)
        systems += [(other, found), (f"{name} + {other}", fuse_ranks(own, found))]
    scores = []
    for system, timed in systems:
        scores.append(score_run(dataset, system, timed.ranking, timed.seconds))
        for reranker in rerankers:
            tell(f"{reranker.info().name} reranks the hits of {system}")
            again = rerank(reranker, dataset, timed, rerank_from)
            by = f" by {reranker.info().name}" if len(rerankers) > 1 else ""
            scores.append(
                score_run(dataset, f"{system}, reranked{by}", again.ranking, again.seconds)
            )
    return scores
