"""Ollama's routes: `/api/embed` and the older `/api/embeddings`."""

from __future__ import annotations

import time
from collections.abc import Iterator

import msgspec

from flowvec.encoder.options import EncodeOptions
from flowvec.server.answer import Answer, json_answer, outcome_headers, vectors_answer
from flowvec.server.answer_types import OllamaEmbedded, OllamaEmbedding, OllamaVersion
from flowvec.server.bodies import body_of, checked_dim, decoder
from flowvec.server.described import described
from flowvec.server.model_queue import Outcome
from flowvec.server.request import Request
from flowvec.server.served import Served
from flowvec.server.vector_bytes import number_rows, pieces
from flowvec.version import __version__

__all__ = ["embed", "embeddings", "version"]

# What Ollama's clients put behind names without a tag.
_LATEST = ":latest"


class OllamaEmbed(msgspec.Struct):
    """The body of `/api/embed`; `options` and `keep_alive` are left out."""

    model: str
    input: str | list[str]
    truncate: bool | None = None
    dimensions: int | None = None


class OllamaPrompt(msgspec.Struct):
    """The body of `/api/embeddings`."""

    model: str
    prompt: str


_EMBED, _EMBEDDINGS = decoder(OllamaEmbed), decoder(OllamaPrompt)


@described(OllamaEmbedded, takes=OllamaEmbed)
async def embed(served: Served, request: Request) -> Answer:
    """Normalized vectors of texts."""
    body = await body_of(request, _EMBED)
    model = served.encoder(body.model.removesuffix(_LATEST))
    texts = [body.input] if isinstance(body.input, str) else body.input
    cuts = served.settings.truncate if body.truncate is None else body.truncate
    options: EncodeOptions = {
        "truncation": "truncate" if cuts else "error",
        "normalize_embeddings": True,
        "truncate_dim": checked_dim(model, body.dimensions, "dimensions"),
    }
    outcome = await served.embed(request, model, texts, options)
    headers = outcome_headers(request, outcome, sum(map(len, texts)), model.encoder.fingerprint)
    nanoseconds = int((time.perf_counter() - request.came) * 1e9)
    return vectors_answer(outcome, _blocks(outcome, body.model, nanoseconds), headers)


def _blocks(outcome: Outcome, name: str, nanoseconds: int) -> Iterator[bytes]:
    """The answer, in blocks."""
    yield b'{"model":%b,"embeddings":[' % msgspec.json.encode(name)
    between = b""
    for _, vectors in pieces(outcome.results):
        yield between
        yield number_rows(vectors)[1:-1]
        between = b","
    figures = (nanoseconds, outcome.tokens)
    yield b'],"total_duration":%d,"load_duration":0,"prompt_eval_count":%d}' % figures


@described(OllamaEmbedding, takes=OllamaPrompt)
async def embeddings(served: Served, request: Request) -> Answer:
    """The vector of one text, as the model gives it."""
    body = await body_of(request, _EMBEDDINGS)
    model = served.encoder(body.model.removesuffix(_LATEST))
    options: EncodeOptions = {"truncation": "truncate" if served.settings.truncate else "error"}
    outcome = await served.embed(request, model, [body.prompt], options)
    headers = outcome_headers(request, outcome, len(body.prompt), model.encoder.fingerprint)
    return Answer(b'{"embedding":%b}' % number_rows(outcome.results[0]), headers=headers)


@described(OllamaVersion)
async def version(served: Served, request: Request) -> Answer:
    """What Ollama's clients ask first."""
    return json_answer({"version": __version__})
