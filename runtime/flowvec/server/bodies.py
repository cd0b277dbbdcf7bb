"""What the routes' bodies have in common: decoding them, and texts or token ids among their
fields."""

from __future__ import annotations

import re
from collections.abc import Set
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import msgspec
import numpy as np

from flowvec.files import BYTE_ORDER_MARK
from flowvec.server.collection_bodies import ids_of
from flowvec.server.lone_surrogates import strings_at, without_lone_surrogates
from flowvec.server.refusal import Refusal
from flowvec.server.request import Request
from flowvec.server.served_model import ServedEncoder, ServedTexts
from flowvec.tokenizer.given_ids import GivenIds

__all__ = [
    "Input", "body_of", "checked_dim", "decoded", "decoder", "misfit", "prompt_of", "texts_of",
]  # fmt: skip

S = TypeVar("S")

# One text, texts, token ids of one text, or token ids of texts; what is a mixture is checked later.
Input = str | list[str | int | list[int]]

_NO_IDS = (
    "holds token ids, and this server takes texts: with LangChain's OpenAIEmbeddings, set "
    "check_embedding_ctx_length=False. Ids of the model's own tokenizer are taken if the server "
    "runs with --accept-token-ids"
)
# Types in msgspec's messages, between grave accents, and JSON's names of them.
_JSON_TYPES = {"bool": "boolean", "float": "number", "int": "integer", "str": "string"}
_FIELD = re.compile(r"at `\$\.(\w+)`")
_TYPE = re.compile(r"(?<=[` ])(bool|float|int|str)(?=[` ])")
# Where msgspec found an error, and what some languages write there.
_BYTE = re.compile(r"\(byte (\d+)\)")
_NO_NUMBER = re.compile(rb"NaN|Infinity")

_NONE: Set[str] = frozenset()


def decoder(kind: type[S]) -> msgspec.json.Decoder[S]:
    """A decoder of bodies of one kind."""
    return msgspec.json.Decoder(kind)


async def body_of(request: Request, with_: msgspec.json.Decoder[S], *, empty: bytes = b"") -> S:
    """A request's body, checked against its fields.

    Args:
        request: it remembers the strings in which lone surrogates became U+FFFD.
        with_: of the route.
        empty: what an empty body stands for.

    Raises:
        Refusal: it does not come, is not JSON, or a field has another type.
        ClientGone: the client left before its end.
    """
    value, request.repaired = decoded(with_, await request.body() or empty)
    # Two ids must not become one.
    ids = (item for item in ids_of(value) if isinstance(item, str))
    if request.repaired and not request.repaired.isdisjoint(ids):
        raise Refusal("invalid", "an id holds a lone surrogate, which UTF-8 cannot encode", "ids")
    return value


def decoded(with_: msgspec.json.Decoder[S], body: bytes) -> tuple[S, Set[str]]:
    """A body, checked against its fields; and its strings in which lone surrogates, which JSON may
    hold (RFC 8259, section 8.2), became U+FFFD.

    Raises:
        Refusal: it is not JSON, or a field has another type.
    """
    try:
        try:
            return with_.decode(body), _NONE
        except msgspec.ValidationError:
            raise
        except msgspec.DecodeError:
            content, places = without_lone_surrogates(body.removeprefix(BYTE_ORDER_MARK))
            return with_.decode(content), strings_at(content, places) if places.size else _NONE
    except msgspec.ValidationError as error:
        raise misfit("the body", error, with_.type) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Refusal("malformed", _malformed(body, error)) from None
    except RecursionError:
        raise Refusal("malformed", "the body is nested too deeply") from None


def _malformed(body: bytes, error: Exception) -> str:
    """Why a body is not JSON."""
    try:
        body.decode()
    except UnicodeDecodeError as bad:
        return f"the body is not UTF-8: byte {bad.start:,} is 0x{body[bad.start]:02x}"
    if not body.strip():
        return "the body is not JSON: it is empty"
    reason = str(error).replace("Input data was truncated", "it ends too early")
    place = _BYTE.search(reason)
    if place and (number := _NO_NUMBER.match(body, int(place[1]))):
        reason = f"numbers cannot be {number[0].decode()} (byte {place[1]})"
    return f"the body is not JSON: {reason}"


def misfit(what: str, error: msgspec.ValidationError, kind: object) -> Refusal:
    """A body, or something else, that is not of the type that a route takes."""
    reason = str(error)
    if reason.startswith("Expected"):
        reason = _TYPE.sub(lambda match: _JSON_TYPES[match[0]], reason)
    elif reason.startswith("Invalid enum value") and isinstance(kind, type):
        place = _FIELD.search(reason)
        hints = get_type_hints(kind)
        if place is not None and (values := _choices(hints.get(place[1]))):
            reason += f"; choose from {', '.join(map(str, values))}"
    return Refusal("invalid", f"{what} is not as this route takes it: {reason}")


def _choices(hint: object) -> list[object]:
    """The values of a field, if its type lists them."""
    if get_origin(hint) is Literal:
        return list(get_args(hint))
    return [value for part in get_args(hint) for value in _choices(part)]


def texts_of(
    given: Input, field: str, model: ServedTexts, *, accept_token_ids: bool
) -> list[str | GivenIds]:
    """The texts of a request.

    Args:
        given: the field's value.
        field: its name, for messages.
        model: has a row for each id that it knows.
        accept_token_ids: whether token ids are taken.

    Raises:
        Refusal: it is empty, or holds token ids that are not taken, or that the model lacks.
    """
    if isinstance(given, str):
        return [given]
    if not given:
        raise Refusal("empty", f"{field} is empty", field)
    kinds = set(map(type, given))
    if kinds == {str}:
        return given  # type: ignore[return-value]
    if not accept_token_ids:
        raise Refusal("invalid", f"{field} {_NO_IDS}", field)
    if kinds == {int}:
        return [_ids_of(given, field, field, model)]
    if int in kinds:
        raise Refusal("invalid", f"{field} holds ids beside texts", field)
    return [
        item if isinstance(item, str) else _ids_of(item, f"{field}[{i}]", field, model)
        for i, item in enumerate(given)
    ]


def _ids_of(ids: Any, place: str, field: str, model: ServedTexts) -> GivenIds:
    """Token ids of one text, which the model has."""
    if not ids:
        raise Refusal("invalid", f"{place} is an empty list of token ids", field)
    rows = model.encoder._token_rows
    if not 0 <= min(ids) <= max(ids) < rows:
        at = next(i for i, number in enumerate(ids) if not 0 <= number < rows)
        raise Refusal(
            "invalid",
            f"{place}[{at}] is {ids[at]!r:.40}, and the model has token ids from 0 to {rows - 1}",
            field,
        )
    return GivenIds(np.array(ids, dtype=np.int32))


def prompt_of(model: ServedTexts, input_type: Literal["query", "document"]) -> str:
    """The prompt for queries or documents; "" if the model has none."""
    encoder = model.encoder
    return encoder.query_prompt if input_type == "query" else encoder.document_prompt


def checked_dim(model: ServedEncoder, dimensions: int | None, field: str) -> int | None:
    """How many dimensions to keep; None keeps all.

    Raises:
        Refusal: it is not from 1 to those of the model.
    """
    dim = model.encoder.dim
    if dimensions is not None and not 1 <= dimensions <= dim:
        raise Refusal("invalid", f"{field} must be from 1 to {dim}, but is {dimensions}", field)
    return dimensions
