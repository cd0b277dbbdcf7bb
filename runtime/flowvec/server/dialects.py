"""How each family of routes words an error: the bodies and statuses that its clients expect."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from flowvec.server.refusal import Reason, Refusal

__all__ = ["Dialect", "worded"]

Dialect = Literal["openai", "tei", "cohere", "jina", "ollama"]

_encode = msgspec.json.Encoder().encode

# What OpenAI's clients read from `type` and `code`.
_OPENAI_TYPE: dict[Reason, str] = {
    "overloaded": "overloaded",
    "busy": "overloaded",
    "late": "timeout",
    "starting": "server_error",
    "stopping": "server_error",
    "unhealthy": "server_error",
    "model_failed": "server_error",
    "load_failed": "server_error",
    "out_of_memory": "server_error",
    "internal": "server_error",
}
_OPENAI_CODE: dict[Reason, str] = {
    "unauthorized": "invalid_api_key",
    "no_such_model": "model_not_found",
    "overloaded": "overloaded",
    "busy": "busy",
    "late": "deadline_exceeded",
    "load_failed": "load_failed",
    "too_large": "request_too_large",
    "starting": "starting",
    "stopping": "stopping",
    "unhealthy": "unhealthy",
    "out_of_memory": "out_of_memory",
}
# Text Embeddings Inference: `error_type`, and statuses of its own.
_TEI_TYPE: dict[Reason, str] = {
    "empty": "Empty",
    "overloaded": "Overloaded",
    "starting": "Unhealthy",
    "stopping": "Unhealthy",
    "unhealthy": "Unhealthy",
    "model_failed": "Backend",
    "out_of_memory": "Backend",
    "internal": "Backend",
    "late": "Overloaded",
    "no_such_model": "Backend",
}
_TEI_STATUS: dict[Reason, int] = {"invalid": 422, "model_failed": 424, "no_such_model": 424}


def worded(refusal: Refusal, dialect: Dialect) -> tuple[int, bytes]:
    """Status and JSON body of a refusal.

    Args:
        refusal: why there is no other answer.
        dialect: of the route.
    """
    status, message, reason = refusal.status, refusal.message, refusal.reason
    body: dict[str, Any]
    if dialect == "openai":
        body = {
            "error": {
                "message": message,
                "type": _OPENAI_TYPE.get(reason, "invalid_request_error"),
                "param": refusal.field,
                "code": _OPENAI_CODE.get(reason),
            }
        }
    elif dialect == "tei":
        status = _TEI_STATUS.get(reason, status)
        body = {"error": message, "error_type": _TEI_TYPE.get(reason, "Validation")}
    elif dialect == "cohere":
        body = {"message": message}
    elif dialect == "jina":
        body = {"detail": message}
    else:
        body = {"error": message}
    return status, _encode(body)
