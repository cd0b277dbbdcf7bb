"""Documents sorted by a reranker or a multi-vector encoder: Text Embeddings Inference's `/rerank`,
Jina's `/v1/rerank` and Cohere's `/v2/rerank`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from flowvec.bundle.manifest import Activation
from flowvec.reranker.scores import Ranked, Ranking
from flowvec.server.answer import Answer, Header, json_answer, outcome_headers
from flowvec.server.answer_types import CohereReranked, JinaReranked, TeiReranked
from flowvec.server.bodies import body_of, decoder
from flowvec.server.described import described
from flowvec.server.late_interaction import score_texts
from flowvec.server.model_queue import Outcome
from flowvec.server.refusal import Refusal
from flowvec.server.request import Request
from flowvec.server.served import Served
from flowvec.server.served_model import ServedMultiVector, ServedReranker

__all__ = ["activation_of", "cohere_rerank", "either_rerank", "jina_rerank"]


class RerankDocument(msgspec.Struct):
    """A document of Jina's."""

    text: str


class Rerank(msgspec.Struct):
    """A body of any form; `label` is ours, and fields of other clients are left out.

    `raw_scores` and `label` are for rerankers. A multi-vector encoder's scores are MaxSim, which is
    not from 0 to 1.
    """

    query: str
    texts: list[str] | None = None
    documents: list[str | RerankDocument] | None = None
    model: str | None = None
    top_n: int | None = None
    truncate: bool | None = None
    truncation_direction: Literal["Left", "Right", "left", "right"] = "Right"
    raw_scores: bool = False
    return_text: bool = False
    return_documents: bool | None = None
    label: str | None = None


_RERANK = decoder(Rerank)


@dataclass(frozen=True, slots=True, eq=False)
class _Scored:
    """Documents that were scored, and how they become rows."""

    model: ServedReranker | ServedMultiVector
    ranking: Ranking
    outcome: Outcome
    characters: int

    @property
    def ranked(self) -> list[Ranked]:
        """Best first."""
        return self.ranking.of(self.outcome.results)

    @property
    def results(self) -> list[dict[str, Any]]:
        """Best first, as Jina and Cohere name them."""
        rows: list[dict[str, Any]] = []
        for item in self.ranked:
            row: dict[str, Any] = {"index": item["corpus_id"], "relevance_score": item["score"]}
            if "text" in item:
                row["document"] = {"text": item["text"]}
            rows.append(row)
        return rows

    def headers(self, request: Request) -> list[Header]:
        """Headers of the answer."""
        fingerprint = self.model.model.fingerprint
        return outcome_headers(request, self.outcome, self.characters, fingerprint)


@described(TeiReranked, JinaReranked, takes=Rerank)
async def either_rerank(served: Served, request: Request) -> Answer:
    """TEI's form, whose body has `texts`, or that of Jina, infinity and vLLM, with `documents`."""
    body = await body_of(request, _RERANK)
    if body.texts is None and body.documents is not None:
        request.dialect = "jina"
        return await _jina(served, request, body)
    if body.texts is None:
        raise Refusal("invalid", "the body has neither `texts` nor `documents`")
    scored = await _score(served, request, body, body.texts, return_documents=body.return_text)
    rows: list[dict[str, Any]] = []
    for item in scored.ranked:
        row: dict[str, Any] = {"index": item["corpus_id"], "score": item["score"]}
        if "text" in item:
            row["text"] = item["text"]
        rows.append(row)
    return json_answer(rows, scored.headers(request))


@described(JinaReranked, takes=Rerank)
async def jina_rerank(served: Served, request: Request) -> Answer:
    """Documents sorted by relevance, as Jina answers."""
    return await _jina(served, request, await body_of(request, _RERANK))


async def _jina(served: Served, request: Request, body: Rerank) -> Answer:
    wanted = body.return_documents is not False
    scored = await _score(served, request, body, _texts_of(body), return_documents=wanted)
    tokens = scored.outcome.tokens
    answer = {
        "id": request.id,
        "object": "rerank",
        "model": scored.model.name,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
        "results": scored.results,
    }
    return json_answer(answer, scored.headers(request))


@described(CohereReranked, takes=Rerank)
async def cohere_rerank(served: Served, request: Request) -> Answer:
    """Documents sorted by relevance, as Cohere answers."""
    body = await body_of(request, _RERANK)
    wanted = body.return_documents is True
    scored = await _score(served, request, body, _texts_of(body), return_documents=wanted)
    answer = {
        "id": request.id,
        "results": scored.results,
        "meta": {
            "api_version": {"version": "2"},
            "billed_units": {"search_units": 1},
            "tokens": {"input_tokens": scored.outcome.tokens},
        },
    }
    return json_answer(answer, scored.headers(request))


def _texts_of(body: Rerank) -> list[str]:
    if body.documents is None:
        raise Refusal("invalid", "the body has no `documents`", "documents")
    return [item if isinstance(item, str) else item.text for item in body.documents]


async def _score(
    served: Served, request: Request, body: Rerank, texts: list[str], *, return_documents: bool
) -> _Scored:
    model = served.ranker(body.model)
    if not texts:
        raise Refusal("empty", "there are no documents to sort")
    if body.top_n is not None and body.top_n < 0:
        raise Refusal("invalid", f"top_n must not be negative, but is {body.top_n}", "top_n")
    if body.truncation_direction.lower() == "left":
        raise Refusal("invalid", "truncation_direction must be Right: texts are cut at their end")
    most = min(body.top_n or len(texts), len(texts))
    cuts = served.settings.truncate if body.truncate is None else body.truncate
    length = sum(map(len, texts))
    if isinstance(model, ServedMultiVector):
        if body.label is not None:
            raise Refusal(
                "inapplicable",
                f"`label` does not apply to {model.name}, which is a model of kind {model.kind}: "
                "leave it out",
                "label",
            )
        ranking = model.encoder.ranking(
            body.query, texts, top_k=most, return_documents=return_documents
        )
        given = {"truncation": "truncate" if cuts else "error"}
        outcome = await score_texts(served, request, model, [body.query], [texts], given)
        return _Scored(model, ranking, outcome, len(body.query) + length)
    ranking = model.reranker.ranking(
        body.query,
        texts,
        top_k=most,
        return_documents=return_documents,
        label=body.label,
        activation="identity" if body.raw_scores else activation_of(model),
        truncation="longest_first" if cuts else "error",
    )
    outcome = await served.score(request, model, ranking.pairs, ranking.options)
    return _Scored(model, ranking, outcome, len(texts) * len(body.query) + length)


def activation_of(model: ServedReranker) -> Activation:
    """From logits to scores from 0 to 1, as the other servers give, which callers compare with
    thresholds: whatever the checkpoint's own activation is."""
    return "softmax" if len(model.reranker.head.labels) > 1 else "sigmoid"
