"""OpenAI's routes: `/v1/embeddings` and `/v1/models`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import msgspec

from flowvec.encoder.options import EncodeOptions
from flowvec.server.answer import Answer, json_answer, outcome_headers, vectors_answer
from flowvec.server.answer_types import ModelAbout, Models, OpenAiEmbedded
from flowvec.server.bodies import Input, body_of, checked_dim, decoder, prompt_of, texts_of
from flowvec.server.described import described
from flowvec.server.model_queue import Outcome
from flowvec.server.refusal import Refusal
from flowvec.server.request import Request
from flowvec.server.served import Served
from flowvec.server.served_model import ServedEncoder, ServedModel
from flowvec.server.vector_bytes import Encoding, openai_data, pieces

__all__ = ["embeddings", "model", "models"]


class OpenAiEmbed(msgspec.Struct):
    """The body of `/v1/embeddings`; `prompt_name`, `input_type` and `normalize` are ours."""

    input: Input
    model: str | None = None
    encoding_format: Encoding | None = None
    dimensions: int | None = None
    prompt_name: str | None = None
    input_type: Literal["query", "document"] | None = None
    normalize: bool = True


_EMBEDDINGS = decoder(OpenAiEmbed)


@described(OpenAiEmbedded, takes=OpenAiEmbed)
async def embeddings(served: Served, request: Request) -> Answer:
    """Vectors of texts."""
    body = await body_of(request, _EMBEDDINGS)
    model = served.encoder(body.model)
    settings = served.settings
    texts = texts_of(body.input, "input", model, accept_token_ids=settings.accept_token_ids)
    if "" in texts:
        raise Refusal("invalid", f"input[{texts.index('')}] is an empty text", "input")
    outcome = await served.embed(request, model, texts, _options(body, model, settings.truncate))
    headers = outcome_headers(request, outcome, sum(map(len, texts)), model.encoder.fingerprint)
    encoding = body.encoding_format or "float"
    request.spent.attributes["gen_ai.request.encoding_formats"] = [encoding]
    return vectors_answer(outcome, _blocks(outcome, model.name, encoding), headers)


def _options(body: OpenAiEmbed, model: ServedEncoder, truncate: bool) -> EncodeOptions:
    prompt = body.prompt_name
    if prompt is None and body.input_type is not None:
        prompt = prompt_of(model, body.input_type)
    options: EncodeOptions = {"truncation": "truncate" if truncate else "error"}
    if body.normalize:
        options["normalize_embeddings"] = True
    if prompt is not None:
        options["prompt_name"] = prompt
    options["truncate_dim"] = checked_dim(model, body.dimensions, "dimensions")
    return options


def _blocks(outcome: Outcome, name: str, encoding: Encoding) -> Iterator[bytes]:
    """The answer, in blocks."""
    between = b'{"object":"list","data":['
    for first, vectors in pieces(outcome.results):
        yield between
        yield openai_data(vectors, first, encoding)
        between = b","
    usage: dict[str, int] = {"prompt_tokens": outcome.tokens, "total_tokens": outcome.tokens}
    if outcome.truncated:
        usage["truncated"] = outcome.truncated
    yield b'],"model":%b,"usage":%b}' % (msgspec.json.encode(name), msgspec.json.encode(usage))


@described(Models)
async def models(served: Served, request: Request) -> Answer:
    """All models."""
    return json_answer({"object": "list", "data": [_described(served, m) for m in served.models]})


@described(ModelAbout)
async def model(served: Served, request: Request) -> Answer:
    """One model."""
    name = request.parameters["name"]
    for candidate in served.models:
        if candidate.name == name:
            return json_answer(_described(served, candidate))
    raise Refusal("no_such_model", f"there is no model {name!r:.100}", "model")


def _described(served: Served, model: ServedModel) -> dict[str, Any]:
    return {
        "id": model.name,
        "object": "model",
        "created": served.started,
        "owned_by": "flowvec",
        **model.about(),
    }
