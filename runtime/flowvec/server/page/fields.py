"""Which fields the rows of a collection have, and which operators filters take for them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Literal, TypedDict

from flowvec.collection.collection import Collection
from flowvec.collection.store.json_field import key_of_path, path_of
from flowvec.errors import InputValueError
from flowvec.server.answer import Answer, json_answer
from flowvec.server.collections import chosen_of
from flowvec.server.described import described
from flowvec.server.request import Request
from flowvec.server.served import Served

__all__ = ["FieldType", "Fields", "fields", "fields_of"]

FieldType = Literal["text", "number", "flag", "list"]

# Rows that are read: so many places of the collection, and rows at each.
_PLACES = 16
_ROWS = 16
# Characters of texts after which no more rows are read.
_MOST_CHARACTERS = 1 << 24
_MOST_FIELDS = 64
_MOST_VALUES = 24
_DEPTH = 3
_LONGEST_VALUE = 80
_LONGEST_NAME = 200

_OPERATORS: dict[str, list[str]] = {
    "text": ["=", "!=", "contains", "starts with", "in", "not in", "<", "<=", ">", ">="],
    "number": ["=", "!=", "<", "<=", ">", ">=", "in", "not in"],
    "flag": ["=", "!="],
    "list": ["contains"],
}
_ALWAYS = ["exists", "empty"]


class FieldAbout(TypedDict):
    """A field: the types of its values, some of them, and the operators that filters take."""

    name: str
    types: list[FieldType]
    values: list[str | float | bool]
    operators: list[str]
    is_indexed: bool


class Fields(TypedDict):
    """Fields of the rows that were looked at."""

    rows: int
    fields: list[FieldAbout]


@dataclass(slots=True)
class _Seen:
    """What was seen of a field; dicts keep the order."""

    types: dict[FieldType, None] = field(default_factory=dict)
    values: dict[str | float | bool, None] = field(default_factory=dict)


@described(Fields)
async def fields(served: Served, request: Request) -> Answer:
    """Fields of a collection's metadata, from a sample of its rows."""
    rows = chosen_of(served, request).rows
    async with rows._calls.call(request.seconds_left()):
        return json_answer(await rows._calls.read(lambda: fields_of(rows.collection)))


def fields_of(collection: Collection) -> Fields:
    """Fields of a collection's metadata, from a sample of its rows.

    Objects are looked into: their fields have dots in their names. Names that filters refuse are
    left out.
    """
    seen: dict[str, _Seen] = {}
    rows = 0
    with collection._access.reading():
        indexed = set(collection._store.field_indexes.fields())
        for metadata in _sampled(collection):
            rows += 1
            for name, value in islice(_flat(metadata, ""), _MOST_FIELDS):
                if name in seen or (len(seen) < _MOST_FIELDS and _is_usable(name)):
                    _note(seen.setdefault(name, _Seen()), value)
    return {"rows": rows, "fields": [_about(*each, indexed) for each in seen.items()]}


def _sampled(collection: Collection) -> Iterator[dict[str, Any]]:
    """Metadata of rows at even places, each row once."""
    store = collection._store
    newest, last, characters = store.newest_label(), 0, 0
    for place in range(_PLACES):
        items = store.page(max(last, newest * place // _PLACES), most=_ROWS)
        for item in items:
            last = item.label
            characters += len(item.text or "")
            yield item.metadata or {}
        if not items or characters > _MOST_CHARACTERS:
            return


def _flat(value: dict[str, Any], prefix: str, depth: int = _DEPTH) -> Iterator[tuple[str, Any]]:
    """Fields by the names that filters use, objects looked into."""
    for name, item in value.items():
        key = prefix + name.replace("\\", "\\\\").replace(".", "\\.")
        if isinstance(item, dict):
            if depth:
                yield from _flat(item, f"{key}.", depth - 1)
        elif len(key) <= _LONGEST_NAME:
            yield key, item


def _is_usable(name: str) -> bool:
    try:
        path_of(name)
    except InputValueError:
        return False
    return True


def _note(seen: _Seen, value: Any) -> None:
    if isinstance(value, list):
        seen.types["list"] = None
        for item in value[:_MOST_VALUES]:
            _note_value(seen, item)
    elif isinstance(value, bool):
        seen.types["flag"] = None
    elif isinstance(value, int | float):
        seen.types["number"] = None
        _note_value(seen, value)
    elif isinstance(value, str):
        seen.types["text"] = None
        _note_value(seen, value)


def _note_value(seen: _Seen, value: Any) -> None:
    is_short = isinstance(value, int | float) or (
        isinstance(value, str) and len(value) <= _LONGEST_VALUE
    )
    if is_short and len(seen.values) < _MOST_VALUES:
        seen.values[value] = None


def _about(name: str, seen: _Seen, indexed: set[str]) -> FieldAbout:
    key = key_of_path(path_of(name))
    operators = dict.fromkeys(o for kind in seen.types for o in _OPERATORS[kind])
    return {
        "name": key,
        "types": list(seen.types),
        "values": list(seen.values),
        "operators": [*operators, *_ALWAYS],
        "is_indexed": key in indexed,
    }
