"""Why a request is not answered, apart from how each dialect says it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from flowvec.errors import (
    ClosedError,
    CollectionBusyError,
    CollectionError,
    DeadlineError,
    FingerprintMismatchError,
    FlowvecError,
    MissingDependencyError,
    OutOfMemoryError,
    OverloadedError,
)
from flowvec.spelled import json_message

__all__ = ["AnswerCut", "ClientGone", "Reason", "Refusal", "refusal_of", "stopping"]

Reason = Literal[
    "malformed",  # the body cannot be parsed
    "empty",  # it holds nothing to embed
    "invalid",  # a value is not valid
    "inapplicable",  # a field has no meaning for this kind of model
    "too_large",
    "unauthorized",
    "forbidden",
    "not_found",
    "no_such_model",
    "wrong_method",
    "conflict",
    "timed_out",  # the body did not arrive in time
    "unsupported",
    "overloaded",
    "busy",  # others write to the collection
    "late",  # the deadline passed, or would
    "starting",
    "stopping",
    "unhealthy",
    "model_failed",
    "load_failed",  # a model could not be loaded again
    "out_of_memory",  # the engine's device, for a batch
    "internal",
]

_STATUS: dict[Reason, int] = {
    "malformed": 400,
    "empty": 400,
    "invalid": 400,
    "inapplicable": 400,
    "too_large": 413,
    "unauthorized": 401,
    "forbidden": 403,
    "not_found": 404,
    "no_such_model": 404,
    "wrong_method": 405,
    "conflict": 409,
    "timed_out": 408,
    "unsupported": 415,
    "overloaded": 429,
    "busy": 503,
    "late": 504,
    "starting": 503,
    "stopping": 503,
    "unhealthy": 503,
    "model_failed": 500,
    "load_failed": 500,
    "out_of_memory": 503,
    "internal": 500,
}
# The folders of a model that is named by its path, in a message.
_FOLDERS = re.compile(r"^(?:/|[A-Za-z]:[/\\])(?:(?:(?! \(fingerprint ).)*[/\\])?", re.DOTALL)
# Seconds after which a server that stops is expected to have been replaced.
_RESTART = 1.0


class ClientGone(Exception):  # noqa: N818 - nobody is told
    """The client closed its connection: there is nobody to answer."""


@dataclass(slots=True, eq=False)
class Refusal(Exception):  # noqa: N818 - an answer rather than an error
    """A request that gets an error as its answer.

    Attributes:
        reason: why.
        message: what was wrong, and what to do.
        field: the field of the body that it is about.
        retry_after: seconds after which to try again; None says nothing.
        allow: methods of the route, for `wrong_method`.
    """

    reason: Reason
    message: str
    field: str | None = None
    retry_after: float | None = None
    allow: str | None = None

    @property
    def status(self) -> int:
        """The HTTP status, where a dialect has no other."""
        return _STATUS[self.reason]

    def headers(self) -> list[tuple[bytes, bytes]]:
        """Headers that say the same in every dialect."""
        headers: list[tuple[bytes, bytes]] = []
        if self.retry_after is not None:
            milliseconds = max(1, round(self.retry_after * 1000))
            headers += [
                (b"retry-after", b"%d" % -(-milliseconds // 1000)),
                (b"retry-after-ms", b"%d" % milliseconds),
            ]
        if self.reason == "late":  # a repeated call would be late again
            headers.append((b"x-should-retry", b"false"))
        if self.reason in ("stopping", "timed_out", "too_large"):
            headers.append((b"connection", b"close"))
        if self.reason == "unauthorized":
            headers.append((b"www-authenticate", b"Bearer"))
        if self.allow is not None:
            headers.append((b"allow", self.allow.encode("ascii")))
        return headers


class AnswerCut(Exception):  # noqa: N818 - the client sees it as an answer without its end
    """An answer that has begun cannot be completed, and has no way to say so but to be cut.

    Attributes:
        refusal: why.
    """

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal


def stopping() -> Refusal:
    """A server that stops takes no new work."""
    return Refusal("stopping", "the server is stopping", retry_after=_RESTART)


def refusal_of(error: FlowvecError) -> Refusal:
    """What the caller is told about an error of flowvec."""
    if isinstance(error, OverloadedError):
        return Refusal("overloaded", json_message(error), retry_after=1.0)
    if isinstance(error, CollectionBusyError):  # written by another process for too long
        return Refusal("busy", json_message(error), retry_after=1.0)
    if isinstance(error, OutOfMemoryError):
        # Other work may hold the memory at the moment. The engine's message has files and shapes.
        return Refusal(
            "out_of_memory",
            "there is not enough memory to compute this now; try again, with shorter texts",
            retry_after=1.0,
        )
    if isinstance(error, FingerprintMismatchError):
        # Without folders, which are nobody's business.
        for verb in ("was made with", "has sparse vectors of"):
            _, _, models = str(error).partition(f" {verb} ")
            if models:
                return Refusal("conflict", f"the collection {verb} {_FOLDERS.sub('', models)}")
        return Refusal("conflict", "the collection was made with another model")
    if isinstance(error, DeadlineError):
        return Refusal("late", json_message(error))
    if isinstance(error, ClosedError):
        return stopping()
    if isinstance(error, MissingDependencyError):
        return Refusal("internal", json_message(error))
    if isinstance(error, CollectionError):
        return Refusal("internal", "the collection failed; the server's log says more")
    if isinstance(error, ValueError | TypeError):  # InputValueError and its like
        return Refusal("invalid", json_message(error))
    if isinstance(error, ArithmeticError):  # NaN or infinity, for a text that the message names
        return Refusal("model_failed", json_message(error))
    return Refusal("model_failed", "the model failed; the server's log says more")
