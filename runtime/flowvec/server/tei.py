"""Routes of Hugging Face's Text Embeddings Inference."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any, Literal

import msgspec
import numpy as np

from flowvec.encoder.options import EncodeOptions, prompt_text
from flowvec.encoder.postprocess import normalize
from flowvec.server.answer import Answer, json_answer, outcome_headers, vectors_answer
from flowvec.server.answer_types import Decoded, TeiEmbedded, TeiInfo, TeiSimilarities, TeiTokens
from flowvec.server.bodies import Input, body_of, checked_dim, decoder, texts_of
from flowvec.server.described import described
from flowvec.server.model_queue import Outcome
from flowvec.server.refusal import Refusal
from flowvec.server.request import Request
from flowvec.server.served import Served
from flowvec.server.served_model import ModelKind, ServedEncoder, ServedModel, ServedReranker
from flowvec.server.vector_bytes import number_rows, pieces
from flowvec.version import __version__

__all__ = ["decode", "embed", "info", "similarity", "tokenize"]

Direction = Literal["Left", "Right", "left", "right"]

# Characters that are tokenized for `/tokenize` in one request.
_MOST_CHARACTERS = 1_000_000
# The kind that `/info` is about, if there are several.
_ORDER: tuple[ModelKind, ...] = ("embedding", "reranker", "sparse", "multi_vector")


class TeiEmbed(msgspec.Struct):
    """The body of `/embed`; `model` is ours."""

    inputs: Input
    truncate: bool | None = None
    truncation_direction: Direction = "Right"
    prompt_name: str | None = None
    normalize: bool = True
    dimensions: int | None = None
    model: str | None = None


class TeiPair(msgspec.Struct):
    source_sentence: str
    sentences: list[str]


class TeiParameters(msgspec.Struct):
    truncate: bool | None = None
    truncation_direction: Direction = "Right"
    prompt_name: str | None = None


class TeiSimilarity(msgspec.Struct):
    """The body of `/similarity`."""

    inputs: TeiPair
    parameters: TeiParameters = msgspec.field(default_factory=TeiParameters)
    model: str | None = None


class TeiTokenize(msgspec.Struct):
    """The body of `/tokenize`."""

    inputs: str | list[str]
    add_special_tokens: bool = True
    prompt_name: str | None = None
    model: str | None = None


class TeiDecode(msgspec.Struct):
    """The body of `/decode`."""

    ids: list[int | list[int]]
    skip_special_tokens: bool = True
    model: str | None = None


_EMBED, _SIMILARITY = decoder(TeiEmbed), decoder(TeiSimilarity)
_TOKENIZE, _DECODE = decoder(TeiTokenize), decoder(TeiDecode)


@described(TeiEmbedded, takes=TeiEmbed)
async def embed(served: Served, request: Request) -> Answer:
    """Vectors of texts, as a bare list of lists."""
    body = await body_of(request, _EMBED)
    model = served.encoder(body.model)
    settings = served.settings
    texts = texts_of(body.inputs, "inputs", model, accept_token_ids=settings.accept_token_ids)
    if "" in texts:
        raise Refusal("invalid", f"`inputs` cannot be empty, but text {texts.index('')} is")
    options = _options(body, model, settings.truncate)
    if body.normalize:
        options["normalize_embeddings"] = True
    options["truncate_dim"] = checked_dim(model, body.dimensions, "dimensions")
    outcome = await served.embed(request, model, texts, options)
    headers = outcome_headers(request, outcome, sum(map(len, texts)), model.encoder.fingerprint)
    return vectors_answer(outcome, _blocks(outcome), headers)


def _blocks(outcome: Outcome) -> Iterator[bytes]:
    """The answer, in blocks."""
    between = b"["
    for _, vectors in pieces(outcome.results):
        yield between
        yield number_rows(vectors)[1:-1]
        between = b","
    yield b"]"


def _options(body: TeiEmbed | TeiParameters, model: ServedEncoder, truncate: bool) -> EncodeOptions:
    if body.truncation_direction.lower() == "left":
        raise Refusal("invalid", "truncation_direction must be Right: texts are cut at their end")
    cuts = truncate if body.truncate is None else body.truncate
    options: EncodeOptions = {"truncation": "truncate" if cuts else "error"}
    if body.prompt_name is not None:
        options["prompt_name"] = body.prompt_name
    return options


@described(TeiSimilarities, takes=TeiSimilarity)
async def similarity(served: Served, request: Request) -> Answer:
    """Cosines of one text with others."""
    body = await body_of(request, _SIMILARITY)
    model = served.encoder(body.model)
    texts = [body.inputs.source_sentence, *body.inputs.sentences]
    if not body.inputs.sentences:
        raise Refusal("empty", "`sentences` cannot be empty")
    options = _options(body.parameters, model, served.settings.truncate)
    outcome = await served.embed(request, model, texts, options)
    vectors = normalize(outcome.results)
    cosines = vectors[1:] @ vectors[0]
    headers = outcome_headers(request, outcome, sum(map(len, texts)), model.encoder.fingerprint)
    return Answer(number_rows(cosines.astype(np.float32)), headers=headers)


@described(TeiTokens, takes=TeiTokenize)
async def tokenize(served: Served, request: Request) -> Answer:
    """The tokens of texts, with their places."""
    body = await body_of(request, _TOKENIZE)
    encoder = served.reads_texts(body.model).encoder
    texts = [body.inputs] if isinstance(body.inputs, str) else body.inputs
    if not texts:
        raise Refusal("empty", "`inputs` cannot be empty")
    if sum(map(len, texts)) > _MOST_CHARACTERS:
        raise Refusal("too_large", f"at most {_MOST_CHARACTERS:,} characters are tokenized")
    prompt = prompt_text(encoder.bundle.manifest, body.prompt_name)
    tokenizer = encoder._tokenizer

    def run() -> list[list[dict[str, Any]]]:
        special = body.add_special_tokens
        pieces_of = (tokenizer.pieces(prompt + text, special=special) for text in texts)
        return [[asdict(piece) for piece in text] for text in pieces_of]

    return json_answer(await asyncio.to_thread(run))


@described(Decoded, takes=TeiDecode)
async def decode(served: Served, request: Request) -> Answer:
    """Texts of token ids."""
    body = await body_of(request, _DECODE)
    tokenizer = served.reads_texts(body.model).encoder._tokenizer
    kinds = set(map(type, body.ids))
    if len(kinds) != 1:
        raise Refusal("invalid", "`ids` must be token ids of a text, or of texts")
    lists: Any = [body.ids] if kinds == {int} else body.ids
    skip = body.skip_special_tokens

    def run() -> list[str]:
        return [tokenizer.decode(ids, skip_special=skip) for ids in lists]

    return json_answer(await asyncio.to_thread(run))


@described(TeiInfo)
async def info(served: Served, request: Request) -> Answer:
    """What is served, and its limits."""
    settings = served.settings
    # As for POST /: an embedding model counts before others.
    served_model = min(served.models, key=lambda model: _ORDER.index(model.kind), default=None)
    if served_model is None:
        raise Refusal("no_such_model", "this server has no model")
    model = served_model.model
    about: Any = model.info()  # type: ignore[attr-defined]
    described = {
        "model_id": about.source or about.name,
        "model_sha": None,
        "model_dtype": about.compute,
        "served_model_name": served_model.name,
        "model_type": _model_type(served_model),
        "max_concurrent_requests": settings.max_waiting_tokens // 16,
        "max_input_length": model.max_length,
        "max_batch_tokens": model.max_batch_tokens,
        "max_batch_requests": None,
        "max_client_batch_size": settings.max_waiting_tokens // 16,
        "auto_truncate": settings.truncate,
        "tokenization_workers": model.engine.streams,
        "version": __version__,
        "sha": None,
        "docker_label": None,
        "max_waiting_tokens": settings.max_waiting_tokens,
        "fingerprint": model.fingerprint,
        "provider": about.provider,
        "proof": about.proof,
        "models": [each.name for each in served.models],
    }
    return json_answer(described)


def _model_type(model: ServedModel) -> dict[str, Any]:
    """A model's kind, as TEI says it; of one that TEI does not have, in its manner."""
    if isinstance(model, ServedReranker):
        labels = list(model.reranker.head.labels)
        return {
            "classifier" if len(labels) > 1 else "reranker": {
                "id2label": {str(i): label for i, label in enumerate(labels)},
                "label2id": {label: i for i, label in enumerate(labels)},
            }
        }
    if isinstance(model, ServedEncoder):
        return {"embedding": {"pooling": model.encoder.info().pooling}}
    return {"embedding": {"pooling": "splade" if model.kind == "sparse" else "none"}}
