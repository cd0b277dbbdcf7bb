"""Text Embeddings Inference's routes of other vectors: `/embed_sparse`, and `/embed_all`, which
gives a vector for each token."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import msgspec

from flowvec.server.answer import Answer, blocks_answer, outcome_headers
from flowvec.server.answer_types import TeiSparse, TeiTokenVectors
from flowvec.server.bodies import Input, body_of, decoder, prompt_of, texts_of
from flowvec.server.described import described
from flowvec.server.queued_call import Outcome
from flowvec.server.refusal import Refusal
from flowvec.server.request import Request
from flowvec.server.served import Served
from flowvec.server.served_model import ServedMultiVector, ServedTexts
from flowvec.server.vector_bytes import sparse_pieces, sparse_rows, token_rows
from flowvec.tokenizer.given_ids import GivenIds

__all__ = ["embed_all", "embed_sparse"]


class TeiEmbedAll(msgspec.Struct):
    """The body of `/embed_all`; `input_type` and `model` are ours. `normalize` and `dimensions` are
    for other routes, and are refused."""

    inputs: Input
    truncate: bool | None = None
    truncation_direction: Literal["Left", "Right", "left", "right"] = "Right"
    prompt_name: str | None = None
    input_type: Literal["query", "document"] | None = None
    model: str | None = None
    normalize: bool | None = None
    dimensions: int | None = None


class TeiEmbedSparse(TeiEmbedAll):
    """The body of `/embed_sparse`; `max_active_dims`, `input_type` and `model` are ours."""

    max_active_dims: int | None = None


_SPARSE, _ALL = decoder(TeiEmbedSparse), decoder(TeiEmbedAll)


@described(TeiSparse, takes=TeiEmbedSparse)
async def embed_sparse(served: Served, request: Request) -> Answer:
    """Sparse vectors of texts: the weights that are not zero, by token id."""
    body = await body_of(request, _SPARSE)
    model = served.sparse(body.model)
    texts = _texts(served, model, body)
    options = _options(served, body)
    if body.max_active_dims is not None:
        options["max_active_dims"] = body.max_active_dims
    prompt = body.prompt_name
    if prompt is None and body.input_type is not None:
        prompt = prompt_of(model, body.input_type)
    outcome = await served.embed(request, model, texts, {**options, "prompt_name": prompt})
    vectors = outcome.results
    blocks = _joined(map(sparse_rows, sparse_pieces(vectors)))
    held = vectors.values.nbytes + vectors.indices.nbytes
    headers = outcome_headers(request, outcome, sum(map(len, texts)), model.encoder.fingerprint)
    return blocks_answer(blocks, 2 * vectors.values.size, held, headers)


@described(TeiTokenVectors, takes=TeiEmbedAll)
async def embed_all(served: Served, request: Request) -> Answer:
    """A vector for each token of texts."""
    body = await body_of(request, _ALL)
    model = served.multi_vector(body.model)
    texts = _texts(served, model, body)
    options = {**_options(served, body), "is_query": _is_query(model, body)}
    outcome = await served.embed(request, model, texts, options)
    numbers = sum(vectors.size for vectors in outcome.results)
    headers = outcome_headers(request, outcome, sum(map(len, texts)), model.encoder.fingerprint)
    return blocks_answer(_token_blocks(outcome), numbers, 4 * numbers, headers)


def _texts(served: Served, model: ServedTexts, body: TeiEmbedAll) -> list[str | GivenIds]:
    """The texts of a body whose other fields apply.

    Raises:
        Refusal: a field does not apply, or the texts are not valid.
    """
    for field in ("normalize", "dimensions"):
        if getattr(body, field) is not None:
            raise Refusal(
                "inapplicable",
                f"`{field}` does not apply to {model.name}, which is a model of kind "
                f"{model.kind}: leave it out",
                field,
            )
    accepts = served.settings.accept_token_ids
    texts = texts_of(body.inputs, "inputs", model, accept_token_ids=accepts)
    if "" in texts:
        raise Refusal("invalid", f"`inputs` cannot be empty, but text {texts.index('')} is")
    return texts


def _options(served: Served, body: TeiEmbedAll) -> dict[str, Any]:
    if body.truncation_direction.lower() == "left":
        raise Refusal("invalid", "truncation_direction must be Right: texts are cut at their end")
    cuts = served.settings.truncate if body.truncate is None else body.truncate
    return {"truncation": "truncate" if cuts else "error"}


def _is_query(model: ServedMultiVector, body: TeiEmbedAll) -> bool:
    """Whether the texts are queries: what a multi-vector encoder has instead of other prompts."""
    if body.prompt_name is None:
        return body.input_type == "query"
    encoder = model.encoder
    prompts = {encoder.query_prompt: True, encoder.document_prompt: False}
    prompts.pop("", None)
    if body.prompt_name not in prompts:
        names = " and ".join(prompts) or "no prompts; give `input_type`"
        raise Refusal(
            "invalid", f"{model.name} has no prompt {body.prompt_name!r:.100}; it has {names}"
        )
    return prompts[body.prompt_name]


def _token_blocks(outcome: Outcome) -> Iterator[bytes]:
    """The answer of `/embed_all`, in blocks of a text."""
    return _joined(map(token_rows, outcome.results))


def _joined(rows: Iterator[bytes]) -> Iterator[bytes]:
    """Rows of a list, in blocks."""
    between = b"["
    for row in rows:
        yield between + row
        between = b","
    yield b"]"
