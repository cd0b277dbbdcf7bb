"""Retrieval on folders in BEIR's layout: an encoder's exact search, with BM25 beside it.

nDCG@10, recall@10, recall@100 and MRR@10 come from ir-measures. Both systems give their first 100
documents. BM25 is bm25s as it comes (Lucene's variant, k1 1.5, b .75, words of two letters or
more, lower-cased) with its English stop words and the Snowball English stemmer.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import bm25s
import ir_measures
import numpy as np
import Stemmer
from ir_measures import RR, R, nDCG

from flowvec import Encoder
from flowvec.errors import InputValueError
from flowvec.exact import Metric, top_k
from flowvec.postprocess import normalize

__all__ = [
    "BM25_SETTINGS",
    "Ranking",
    "RetrievalScore",
    "RetrievalSet",
    "read_retrieval",
    "score_retrieval",
    "score_run",
    "search_bm25",
    "search_encoder",
]

BM25_SETTINGS = "bm25s, Lucene's variant, k1 1.5, b .75, English stop words and Snowball stemmer"

# The first 100 document rows of each query, best first; fewer where fewer were found.
Ranking = list[list[int]]

_DEPTH = 100
_QUERY_BLOCK = 256
_METRICS: dict[str, Metric] = {"cosine": "cosine", "dot": "ip", "euclidean": "l2"}
_FILES = ("corpus.jsonl", "queries.jsonl", "qrels/test.tsv")


@dataclass(frozen=True, slots=True)
class RetrievalSet:
    """One set: its documents, and those of its queries that have a relevant document.

    Attributes:
        name: the folder's name.
        document_ids: ids in the file's order.
        documents: title, a space and text; without title the text alone.
        query_ids: ids in the file's order.
        queries: their texts.
        qrels: relevance (0 and up) by query id and document id.
        warnings: what of the files could not be used, a sentence each.
    """

    name: str
    document_ids: list[str]
    documents: list[str]
    query_ids: list[str]
    queries: list[str]
    qrels: dict[str, dict[str, int]]
    warnings: list[str]


@dataclass(frozen=True, slots=True)
class RetrievalScore:
    """Means over the queries of one set, 0 to 1.

    Attributes:
        dataset: the folder's name.
        system: the model's name, or `BM25`.
        documents: how many were searched.
        queries: how many were asked.
        ndcg_at_10: with linear gain, as trec_eval has it.
        recall_at_10: share of the relevant documents among the first 10.
        recall_at_100: the same of the first 100.
        mrr_at_10: mean of 1 / rank of the first relevant document; 0 where none is among 10.
    """

    dataset: str
    system: str
    documents: int
    queries: int
    ndcg_at_10: float
    recall_at_10: float
    recall_at_100: float
    mrr_at_10: float


def read_retrieval(folder: str | Path) -> list[RetrievalSet]:
    """Read one folder in BEIR's layout, or each such folder in a folder, sorted by name.

    The layout: `corpus.jsonl` (`_id`, `title`, `text`), `queries.jsonl` (`_id`, `text`) and
    `qrels/test.tsv` (header, then query id, document id and a whole number, with tabs between).
    Queries without a relevant document are left out; judged documents that the corpus lacks count
    as not found. Both are said in `warnings`.

    Raises:
        InputValueError: no such folder, a file is missing or is not as above, an id occurs twice,
            or a judged query is missing; the message names file and line.
    """
    root = Path(folder)
    if not root.is_dir():
        raise InputValueError(f"{folder} is no directory of retrieval sets")
    if any((root / name).exists() for name in _FILES):
        return [_read_set(root)]
    found = [path for path in sorted(root.iterdir()) if (path / _FILES[0]).exists()]
    if not found:
        raise InputValueError(
            f"{folder} is no retrieval set ({', '.join(_FILES)}) and holds no directory that is one"
        )
    return [_read_set(path) for path in found]


def _read_set(folder: Path) -> RetrievalSet:
    corpus, queries, judged = (folder / name for name in _FILES)
    documents = {
        i: f"{record.get('title') or ''} {text}".strip() for i, text, record in _jsonl(corpus)
    }
    asked = {i: text for i, text, _ in _jsonl(queries)}
    qrels = _read_qrels(judged, asked.keys())
    relevant = [i for i in asked if any(qrels.get(i, {}).values())]
    if not relevant or not documents:
        raise InputValueError(f"{folder} has no documents, or no query with a relevant one")
    warnings = []
    if left_out := len(asked) - len(relevant):
        warnings.append(f"{left_out} queries without a relevant document were left out")
    if missing := {d for i in relevant for d in qrels[i]} - documents.keys():
        warnings.append(
            f"{len(missing)} judged documents are not in the corpus ({min(missing)} is one) and "
            "count as not found"
        )
    return RetrievalSet(
        name=folder.resolve().name,
        document_ids=list(documents),
        documents=list(documents.values()),
        query_ids=relevant,
        queries=[asked[i] for i in relevant],
        qrels={i: qrels[i] for i in relevant},
        warnings=warnings,
    )


def _lines(path: Path) -> Iterator[tuple[str, str]]:
    """The lines of a UTF-8 file, each with where it stands."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputValueError(f"cannot read {path}: {error.strerror or error}") from None
    for number, line in enumerate(data.split(b"\n"), 1):
        where = f"{path}, line {number}"
        try:
            text = line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise InputValueError(f"{where} is not UTF-8: {error}") from None
        if text.strip():
            yield where, text.rstrip("\r")


def _jsonl(path: Path) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Id, text and the whole record of each line."""
    seen: set[str] = set()
    for where, line in _lines(path):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InputValueError(f"{where} is no JSON: {error}") from None
        if not isinstance(record, dict):
            raise InputValueError(f"{where} is no JSON object")
        for field in ("_id", "text"):
            if not isinstance(record.get(field), str):
                raise InputValueError(f"{where} has no text in the field {field!r}")
        if record["_id"] in seen:
            raise InputValueError(f"{where} has the _id {record['_id']!r} of an earlier line")
        seen.add(record["_id"])
        yield record["_id"], record["text"], record


def _read_qrels(path: Path, queries: Any) -> dict[str, dict[str, int]]:
    qrels: dict[str, dict[str, int]] = {}
    for number, (where, line) in enumerate(_lines(path)):
        fields = line.split("\t")
        if len(fields) != 3:
            raise InputValueError(f"{where} has {len(fields)} columns instead of 3")
        if number == 0:
            if fields[2].lstrip("-").isdigit():
                raise InputValueError(f"{where} must be the header query-id, corpus-id, score")
            continue
        query, document, score = fields
        if not score.isdigit():
            raise InputValueError(f"{where}: the score {score!r} is no whole number from 0 on")
        if query not in queries:
            raise InputValueError(f"{where} judges the query {query!r}, which queries.jsonl lacks")
        qrels.setdefault(query, {})[document] = int(score)
    return qrels


def search_encoder(encoder: Encoder, dataset: RetrievalSet) -> Ranking:
    """Exact search by the bundle's similarity; equal scores in the corpus's order."""
    documents = encoder.encode_document(dataset.documents)
    queries = encoder.encode_query(dataset.queries)
    similarity = encoder.info().similarity
    if similarity not in _METRICS:  # manhattan
        return [
            np.argsort(-line, kind="stable")[:_DEPTH].tolist()
            for start in range(0, len(queries), _QUERY_BLOCK)
            for line in encoder.similarity(queries[start : start + _QUERY_BLOCK], documents)
        ]
    if similarity == "cosine":
        documents, queries = normalize(documents), normalize(queries)
    found, _ = top_k(queries, documents, _DEPTH, _METRICS[similarity])
    return cast(Ranking, found.tolist())


def search_bm25(dataset: RetrievalSet) -> Ranking:
    """BM25 with the settings above; documents that share no word with a query are not found."""
    stemmer = Stemmer.Stemmer("english")
    options = {"stopwords": "english", "stemmer": stemmer, "show_progress": False}
    index = bm25s.BM25()
    index.index(bm25s.tokenize(dataset.documents, **options), show_progress=False)
    tokens = bm25s.tokenize(dataset.queries, return_ids=False, **options)
    depth = min(_DEPTH, len(dataset.documents))
    rows, scores = index.retrieve(tokens, k=depth, show_progress=False)
    return [
        [int(row) for row, score in zip(*line, strict=True) if score > 0]
        for line in zip(rows, scores, strict=True)
    ]


def score_run(
    dataset: RetrievalSet, system: str, ranking: Sequence[Sequence[int]]
) -> RetrievalScore:
    """Measure one system's ranking of document rows, a list for each query."""
    # Ranks as scores: trec_eval would order equal scores by document id.
    run = {
        query: {dataset.document_ids[row]: -float(rank) for rank, row in enumerate(rows)}
        for query, rows in zip(dataset.query_ids, ranking, strict=True)
    }
    measures = [nDCG @ 10, R @ 10, R @ 100, RR @ 10]
    found = ir_measures.calc_aggregate(measures, dataset.qrels, run)
    ndcg, recall, recall_100, mrr = (float(found[measure]) for measure in measures)
    return RetrievalScore(
        dataset=dataset.name,
        system=system,
        documents=len(dataset.documents),
        queries=len(dataset.queries),
        ndcg_at_10=ndcg,
        recall_at_10=recall,
        recall_at_100=recall_100,
        mrr_at_10=mrr,
    )


def score_retrieval(encoder: Encoder, dataset: RetrievalSet) -> list[RetrievalScore]:
    """The encoder, then BM25, on one set."""
    return [
        score_run(dataset, encoder.info().name, search_encoder(encoder, dataset)),
        score_run(dataset, "BM25", search_bm25(dataset)),
    ]
