"""What `flowvec serve` logs: as lines of text, or as JSON for collectors of logs.

Nothing of texts, queries or paths is logged: requests by their route, and unexpected errors by
their type and place, since a message may quote what a caller sent.
"""

from __future__ import annotations

import logging
import traceback
from datetime import UTC, datetime
from typing import Any, Literal

import msgspec

from flowvec.compat import override
from flowvec.server.request import Request

__all__ = ["LogFormat", "access_logger", "log_access", "log_failure", "set_up_logs"]

LogFormat = Literal["text", "json"]

# Of requests that were answered; flowvec serve shows them with --log-format json.
access_logger = logging.getLogger("flowvec.server.access")
logger = logging.getLogger("flowvec.server")

_encode = msgspec.json.Encoder(enc_hook=str).encode


class _Json(logging.Formatter):
    """A record as one line of JSON."""

    @override
    def format(self, record: logging.LogRecord) -> str:
        """Time, level, logger and message, and what the record has besides."""
        fields: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info and record.exc_info[1] is not None:
            fields["error"], fields["trace"] = _described(record.exc_info[1])
        return _encode(fields).decode()


def _described(error: BaseException) -> tuple[str, list[str]]:
    """Type of an error, and where it was raised: files, lines and functions."""
    frames = traceback.extract_tb(error.__traceback__)
    return type(error).__name__, [f"{f.filename}:{f.lineno} {f.name}" for f in frames]


def set_up_logs(form: LogFormat) -> None:
    """Log to standard error, in one of the formats."""
    handler = logging.StreamHandler()
    if form == "json":
        handler.setFormatter(_Json())
    else:
        text = "%(asctime)s %(levelname)s %(name)s: %(message)s"
        handler.setFormatter(logging.Formatter(text))
    access_logger.setLevel(logging.INFO if form == "json" else logging.WARNING)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO)


def log_access(request: Request, route: str, status: int, seconds: float) -> None:
    """Log a request that was answered, or whose client left (status 499)."""
    if not access_logger.isEnabledFor(logging.INFO):
        return
    fields: dict[str, Any] = {
        "request_id": request.id,
        "route": route,
        "status": status,
        "ms": round(1e3 * seconds, 3),
    }
    if request.key:
        fields["key"] = request.key
    spent = request.spent
    if spent.items:
        fields |= {"model": spent.model, "texts": spent.items, "tokens": spent.tokens}
        if spent.replaced:
            fields["replaced"] = spent.replaced
        fields |= {f"{stage}_ms": round(1e3 * time, 3) for stage, time in spent.seconds.items()}
    access_logger.info("%s %d", route, status, extra={"fields": fields})


def log_failure(request: Request, route: str, error: Exception, *, is_expected: bool) -> None:
    """Log why a request was not answered.

    Args:
        request: which was not.
        route: its method and path, without parameters.
        error: why.
        is_expected: it is one of flowvec's, whose messages quote no text.
    """
    fields: dict[str, Any] = {"request_id": request.id, "route": route}
    if is_expected:
        logger.warning("%s: %s", route, error, extra={"fields": fields})
        return
    name, trace = _described(error)
    fields |= {"error": name, "trace": trace}
    logger.error("%s: %s at %s", route, name, " < ".join(reversed(trace)), extra={"fields": fields})
