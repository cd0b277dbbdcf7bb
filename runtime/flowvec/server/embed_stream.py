"""`/v1/embed-stream`: texts in, a line each, and their vectors out while more texts come.

What is in memory is bounded, whatever the client sends and however slowly it reads: lines are read
only while there is room for their texts, and texts are queued only while their vectors can be
sent.
"""

from __future__ import annotations

import msgspec

from flowvec.encoder.options import EncodeOptions
from flowvec.server.answer import Answer, Header
from flowvec.server.bodies import checked_dim, misfit, prompt_of
from flowvec.server.body_stream import BodyStream
from flowvec.server.described import BYTES, NDJSON, described
from flowvec.server.request import Request
from flowvec.server.served import Served
from flowvec.server.served_model import ServedEncoder
from flowvec.server.stream_lines import (
    Format,
    StreamFailed,
    StreamQuery,
    StreamRow,
    StreamText,
)
from flowvec.server.text_stream import TextStream

__all__ = ["embed_stream"]


@described(StreamRow, StreamFailed, takes=(StreamText, str), query=StreamQuery, kind=NDJSON)
async def embed_stream(served: Served, request: Request) -> Answer:
    """Vectors of any number of texts, a line each, in order, while they are computed."""
    request.check_encoding()
    try:
        query = msgspec.convert(request.query, StreamQuery, strict=False)
    except msgspec.ValidationError as error:
        raise misfit("the URL", error, StreamQuery) from None
    model = served.encoder(query.model)
    options = _options(query, model, served.settings.truncate)
    model.encoder.job(**options)  # checks them
    format: Format = query.format or _accepted(request)
    body = await BodyStream.begun(request.receive)
    stream = TextStream(served, request, body, query, model, options, format)
    headers: list[Header] = [
        (b"x-flowvec-dimensions", b"%d" % stream.dim),
        (b"x-flowvec-fingerprint", model.encoder.fingerprint.encode("ascii")),
    ]
    kind = NDJSON if format == "ndjson" else BYTES
    return Answer(stream.pieces(), kind=kind.encode("ascii"), headers=headers)


def _options(query: StreamQuery, model: ServedEncoder, truncate: bool) -> EncodeOptions:
    cuts = truncate if query.truncate is None else query.truncate
    options: EncodeOptions = {"truncation": "truncate" if cuts else "error"}
    prompt = query.prompt_name
    if prompt is None and query.input_type is not None:
        prompt = prompt_of(model, query.input_type)
    if prompt is not None:
        options["prompt_name"] = prompt
    if query.normalize:
        options["normalize_embeddings"] = True
    options["truncate_dim"] = checked_dim(model, query.dimensions, "dimensions")
    return options


def _accepted(request: Request) -> Format:
    accept = request.header(b"accept") or ""
    return "float32" if accept.partition(";")[0].strip() == BYTES else "ndjson"
