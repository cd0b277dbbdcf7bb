"""Lines of `/v1/embed-stream`: what one asks, and what is written for it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, NotRequired, TypedDict

import msgspec
import numpy as np
import numpy.typing as npt

from flowvec.server.answer_types import OpenAiReason
from flowvec.server.bodies import decoded, decoder
from flowvec.server.dialects import worded
from flowvec.server.refusal import Refusal
from flowvec.server.vector_bytes import number_rows

__all__ = [
    "Format", "Line", "StreamFailed", "StreamQuery", "StreamRow", "StreamText", "line_of",
    "written",
]  # fmt: skip

Format = Literal["ndjson", "float32"]

_encode = msgspec.json.Encoder().encode


class StreamText(msgspec.Struct):
    """A line: a text and its id. A line may also be a bare string; other fields are left out."""

    text: str
    id: int | str | None = None


class StreamQuery(msgspec.Struct, forbid_unknown_fields=True):
    """Parameters of the URL."""

    model: str | None = None
    prompt_name: str | None = None
    input_type: Literal["query", "document"] | None = None
    dimensions: int | None = None
    normalize: bool = False
    truncate: bool | None = None
    on_error: Literal["stop", "skip"] = "stop"
    format: Format | None = None


class StreamRow(TypedDict):
    """The vector of a line; lines count from 1."""

    line: int
    id: NotRequired[int | str]
    embedding: list[float]


class StreamFailed(TypedDict):
    """A line that has no vector; without `on_error=skip` it is the last one."""

    line: int
    id: NotRequired[int | str]
    error: OpenAiReason


_LINE = decoder(StreamText | str)  # type: ignore[arg-type]


@dataclass(slots=True, eq=False)
class Line:
    """A line that was read.

    Attributes:
        number: from 1.
        text: to embed; "" if it is refused.
        id: the caller's; None without one.
        refusal: why it has no vector; None if it has one.
        is_repaired: lone surrogates of its text became U+FFFD.
    """

    number: int
    text: str
    id: int | str | None = None
    refusal: Refusal | None = None
    is_repaired: bool = False


def line_of(number: int, content: bytes | None, most_characters: int) -> Line:
    """A line of the body.

    Args:
        number: from 1.
        content: None for a line that was too long to keep.
        most_characters: of its text.
    """
    try:
        if content is None:
            raise Refusal("too_large", "the line is too long")
        decoded_line, repaired = decoded(_LINE, content)
        value: StreamText | str = decoded_line
    except Refusal as refusal:
        refusal.message = refusal.message.replace("the body", "the line")
        return Line(number, "", refusal=refusal)
    line = Line(number, value) if isinstance(value, str) else Line(number, value.text, value.id)
    line.is_repaired = line.text in repaired
    if len(line.text) > most_characters:
        line.text = ""
        line.refusal = Refusal(
            "too_large", f"the text has more than {most_characters:,} characters"
        )
    elif not line.text:
        line.refusal = Refusal("invalid", "the text is empty", "text")
    return line


def written(lines: Iterable[Line], vectors: npt.NDArray[Any], format: Format) -> bytes:
    """What is sent for lines.

    Args:
        lines: those that are refused have no vector.
        vectors: of the others, in their order, (texts, dim).
        format: NDJSON, or little-endian float32, in which a line that is refused is a row of NaN.
    """
    lines = list(lines)
    if format == "float32":
        rows = np.full((len(lines), vectors.shape[1]), np.nan, "<f4")
        rows[[line.refusal is None for line in lines]] = vectors
        return rows.tobytes()
    # Numbers hold no bracket, so rows can be told apart in what was formatted as a whole.
    numbers = iter(number_rows(vectors)[2:-2].split(b"],["))
    return b"".join(
        _failed(line) if line.refusal is not None
        else b'{"line":%d,%b"embedding":[%b]}\n' % (line.number, _id(line), next(numbers))
        for line in lines
    )  # fmt: skip


def _id(line: Line) -> bytes:
    return b"" if line.id is None else b'"id":%b,' % _encode(line.id)


def _failed(line: Line) -> bytes:
    assert line.refusal is not None
    body = worded(line.refusal, "openai")[1]
    return b'{"line":%d,%b%b\n' % (line.number, _id(line), body[1:])
