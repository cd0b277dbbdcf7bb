"""One route: its path, what answers, and what it needs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from flowvec.server.answer import Answer
from flowvec.server.dialects import Dialect
from flowvec.server.request import Request
from flowvec.server.served import Served

__all__ = ["Route", "Run"]

Run = Callable[[Served, Request], Awaitable[Answer]]


@dataclass(frozen=True, slots=True)
class Route:
    """One route.

    Attributes:
        method: GET, POST or DELETE; GET includes HEAD.
        path: a segment in braces is a parameter; with a star, it is all that follows.
        run: answers.
        dialect: of its errors.
        is_work: takes work in, which a server that stops refuses.
        is_open: needs no API key.
    """

    method: str
    path: str
    run: Run
    dialect: Dialect = "openai"
    is_work: bool = True
    is_open: bool = False
