"""Text Embeddings Inference's `/predict`: a score of each label."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
import numpy as np

from flowvec.reranker.scores import ScoreOptions
from flowvec.server.answer import Answer, json_answer, outcome_headers
from flowvec.server.answer_types import TeiLabelled
from flowvec.server.bodies import body_of, decoder
from flowvec.server.described import described
from flowvec.server.refusal import Refusal
from flowvec.server.request import Request
from flowvec.server.rerank import activation_of
from flowvec.server.served import Served
from flowvec.tokenizer.pairs import TextPair

__all__ = ["predict"]


class Predict(msgspec.Struct):
    """A pair of texts, or pairs; `model` is ours."""

    inputs: str | list[str | list[str]]
    truncate: bool | None = None
    truncation_direction: Literal["Left", "Right", "left", "right"] = "Right"
    raw_scores: bool = False
    model: str | None = None


_PREDICT = decoder(Predict)


@described(list[TeiLabelled], list[list[TeiLabelled]], takes=Predict)
async def predict(served: Served, request: Request) -> Answer:
    """Labels of one or more pairs of texts with their scores, best first."""
    body = await body_of(request, _PREDICT)
    model = served.reranker(body.model)
    pairs, is_single = _pairs(body.inputs)
    if body.truncation_direction.lower() == "left":
        raise Refusal("invalid", "truncation_direction must be Right: texts are cut at their end")
    cuts = served.settings.truncate if body.truncate is None else body.truncate
    options: ScoreOptions = {
        "activation": "identity" if body.raw_scores else activation_of(model),
        "truncation": "longest_first" if cuts else "error",
    }
    outcome = await served.score(request, model, pairs, options)
    labels = model.reranker.head.labels
    rows = np.reshape(outcome.results, (len(pairs), len(labels))).tolist()
    answers: list[Any] = [
        [
            {"score": score, "label": label}
            for score, label in sorted(zip(row, labels, strict=True), reverse=True)
        ]
        for row in rows
    ]
    characters = sum(len(first) + len(second) for first, second in pairs)
    headers = outcome_headers(request, outcome, characters, model.reranker.fingerprint)
    return json_answer(answers[0] if is_single else answers, headers)


def _pairs(inputs: str | list[str | list[str]]) -> tuple[list[TextPair], bool]:
    """The pairs of a body, and whether it is one pair: two texts rather than a list of lists."""
    if not inputs:
        raise Refusal("empty", "`inputs` cannot be empty")
    lists = inputs if isinstance(inputs, list) else [[inputs]]
    is_single = all(isinstance(item, str) for item in lists)
    rows: list[Any] = [lists] if is_single else lists
    for index, row in enumerate(rows):
        if isinstance(row, str) or len(row) != 2:
            raise Refusal(
                "invalid",
                f"item {index} of `inputs` is not a pair of texts, which this server's rerankers "
                "score",
            )
    return [(first, second) for first, second in rows], is_single or isinstance(inputs, str)
