"""Cohere's `/v2/embed`: vectors in several types at once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import msgspec

from flowvec.encoder.options import EncodeOptions
from flowvec.encoder.postprocess import Postprocess, Precision
from flowvec.server.answer import Answer, outcome_headers, vectors_answer
from flowvec.server.answer_types import CohereEmbedded
from flowvec.server.bodies import body_of, checked_dim, decoder, prompt_of
from flowvec.server.described import described
from flowvec.server.model_queue import Outcome
from flowvec.server.refusal import Refusal
from flowvec.server.request import Request
from flowvec.server.served import Served
from flowvec.server.served_model import ServedEncoder
from flowvec.server.vector_bytes import base64_rows, number_rows, pieces

__all__ = ["cohere_embed"]

_Type = Literal["float", "int8", "uint8", "binary", "ubinary", "base64"]


class CohereContent(msgspec.Struct):
    """A piece of an input: only texts are taken."""

    type: str
    text: str = ""


class CohereInput(msgspec.Struct):
    content: list[CohereContent]


class CohereEmbed(msgspec.Struct):
    """The body of `/v2/embed`."""

    model: str | None = None
    texts: list[str] | None = None
    inputs: list[CohereInput] | None = None
    input_type: (
        Literal["search_query", "search_document", "classification", "clustering", "image"] | None
    ) = None
    embedding_types: list[_Type] | None = None
    output_dimension: int | None = None
    truncate: Literal["NONE", "START", "END"] = "END"


_EMBED = decoder(CohereEmbed)
_PROMPTS: dict[str, Literal["query", "document"]] = {
    "search_query": "query",
    "search_document": "document",
}


@described(CohereEmbedded, takes=CohereEmbed)
async def cohere_embed(served: Served, request: Request) -> Answer:
    """Vectors of texts in the types that the request names."""
    body = await body_of(request, _EMBED)
    model = served.encoder(body.model)
    texts = _texts_of(request, body)
    if body.truncate == "START":
        raise Refusal("invalid", "truncate must be END or NONE: texts are cut at their end")
    types: list[_Type] = body.embedding_types or ["float"]
    steps = {kind: _step(model, kind, body.output_dimension) for kind in types}
    cuts = served.settings.truncate and body.truncate == "END"
    options: EncodeOptions = {"truncation": "truncate" if cuts else "error"}
    if body.input_type in _PROMPTS:
        options["prompt_name"] = prompt_of(model, _PROMPTS[body.input_type])
    # Whole vectors, of which each type takes what it needs.
    outcome = await served.embed(request, model, texts, options)
    headers = outcome_headers(request, outcome, sum(map(len, texts)), model.encoder.fingerprint)
    blocks = _blocks(outcome, steps, request.id, texts)
    return vectors_answer(outcome, blocks, headers)


def _texts_of(request: Request, body: CohereEmbed) -> list[str]:
    texts = list(body.texts or [])
    for item in body.inputs or []:
        if any(piece.type != "text" for piece in item.content):
            raise Refusal("invalid", "inputs must be texts: this server takes no images", "inputs")
        parts = [piece.text for piece in item.content]
        texts.append(" ".join(parts))
        if not request.repaired.isdisjoint(parts):
            request.repaired |= {texts[-1]}
    if not texts:
        raise Refusal("empty", "the body has no texts", "texts")
    return texts


def _step(model: ServedEncoder, kind: _Type, dim: int | None) -> Postprocess:
    """From whole vectors to those of a type."""
    precision: Precision = "float32" if kind in ("float", "base64") else kind  # type: ignore[assignment]
    job = model.encoder.job(
        # Ranges of 8 bits are those of vectors as the model gives them; signs have no length.
        normalize_embeddings=True if precision == "float32" else None,
        truncate_dim=checked_dim(model, dim, "output_dimension"),
        precision=precision,
    )
    return job.postprocess


def _blocks(
    outcome: Outcome, steps: dict[_Type, Postprocess], name: str, texts: list[str]
) -> Iterator[bytes]:
    """The answer, in blocks."""
    yield b'{"id":%b,"response_type":"embeddings_by_type","embeddings":{' % msgspec.json.encode(
        name
    )
    comma = b""
    for kind, step in steps.items():
        yield b'%b"%b":' % (comma, kind.encode())
        between, comma = b"[", b","
        for _, vectors in pieces(outcome.results):
            rows = step(vectors)
            yield between
            yield (base64_rows(rows) if kind == "base64" else number_rows(rows))[1:-1]
            between = b","
        yield b"]"
    tokens = {"input_tokens": outcome.tokens}
    meta = {"api_version": {"version": "2"}, "billed_units": tokens, "tokens": tokens}
    yield b'},"texts":%b,"meta":%b}' % (msgspec.json.encode(texts), msgspec.json.encode(meta))
