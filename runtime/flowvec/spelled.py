"""Parts of an error's message that Python and JSON write in two ways.

An error takes its message in parts. `str` of it is Python's; the server, whose callers write JSON,
answers with `json_message`:

    >>> error = InputValueError("add ", setting("hybrid", True))
    >>> str(error), json_message(error)
    ('add hybrid=True', 'add "hybrid": true')
"""

from __future__ import annotations

import json
from dataclasses import dataclass

__all__ = [
    "A_DICT", "TRUE_OR_FALSE", "Spelled", "argument", "json_message", "kind_of", "setting", "shown",
]  # fmt: skip

_JSON_TYPES: dict[type, str] = {
    dict: "an object",
    list: "a list",
    str: "a text",
    bool: "true or false",
    int: "a number",
    float: "a number",
    type(None): "null",
}


@dataclass(frozen=True, slots=True)
class Spelled:
    """A part of a message.

    Attributes:
        python: as Python's callers write it.
        json: as it stands in a body.
    """

    python: str
    json: str

    def __str__(self) -> str:
        return self.python


A_DICT = Spelled("a dict", "an object")
TRUE_OR_FALSE = Spelled("True or False", "true or false")


def argument(name: str) -> Spelled:
    """An argument without a value: `text=`."""
    return Spelled(f"{name}=", f'"{name}"')


def setting(name: str, value: bool | float | str | None) -> Spelled:
    """An argument and its value: `hybrid=True`."""
    return Spelled(f"{name}={value!r}", f'"{name}": {json.dumps(value)}')


def shown(value: object) -> Spelled:
    """A value that a caller gave; what JSON has no form for is written as Python does."""
    try:
        return Spelled(repr(value), json.dumps(value, ensure_ascii=False))
    except (TypeError, ValueError, RecursionError):
        return Spelled(repr(value), repr(value))


def kind_of(value: object) -> Spelled:
    """The type of a value that a caller gave."""
    name = type(value).__name__
    return Spelled(name, _JSON_TYPES.get(type(value), name))


def json_message(error: BaseException) -> str:
    """An error's message, with its parts as JSON writes them."""
    if not any(isinstance(part, Spelled) for part in error.args):
        return str(error)
    return "".join(part.json if isinstance(part, Spelled) else str(part) for part in error.args)
