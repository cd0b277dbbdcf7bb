"""What each route takes and answers, said where the route is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

__all__ = ["BYTES", "NDJSON", "Description", "described", "description_of"]

# What a stream takes and answers: a JSON value a line; or numbers without any form.
NDJSON = "application/x-ndjson"
BYTES = "application/octet-stream"

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Description:
    """What a route takes and answers.

    Attributes:
        answers: types of its answer's body; none for a route that always refuses.
        takes: types of the request's body; none for a GET.
        query: a Struct of the URL's parameters; None without any.
        kind: content type of body and answer; of NDJSON the types are those of a line.
    """

    answers: tuple[Any, ...]
    takes: tuple[Any, ...] = ()
    query: Any = None
    kind: str = "application/json"


_DESCRIPTIONS: dict[Any, Description] = {}


def described(
    *answers: Any, takes: Any = (), query: Any = None, kind: str = "application/json"
) -> Callable[[F], F]:
    """Say what a route takes, one type or several, and answers; arguments as `Description`."""
    types = takes if isinstance(takes, tuple) else (takes,)

    def mark(run: F) -> F:
        _DESCRIPTIONS[run] = Description(answers, types, query, kind)
        return run

    return mark


def description_of(run: Any) -> Description:
    """What a route takes and answers.

    Raises:
        KeyError: it is not described.
    """
    return _DESCRIPTIONS[run]
