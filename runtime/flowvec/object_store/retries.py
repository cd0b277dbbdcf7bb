"""Which failures of an object store pass, and how long to try again.

Libraries raise a great variety of errors, mostly wrapped. What they say is found in the chain of
causes: a status of HTTP, a code of S3, or the error of a connection.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import Literal, TypeVar

from flowvec.errors import BulkError, FlowvecError, first_line
from flowvec.texts.urls import without_secrets

__all__ = ["PATIENCE", "SAME_COMMAND_CONTINUES", "Kind", "is_unsupported", "kind_of", "retried"]

T = TypeVar("T")
Kind = Literal["missing", "conflict", "expired", "denied", "passing", "lasting"]

# How long one call is tried again before it fails, in seconds.
PATIENCE = 180.0
# What messages say of running the same command again; it is true of bulk jobs.
SAME_COMMAND_CONTINUES = "the same command continues"
# The first pause, and the longest; each is between half of it and all of it, at random.
_FIRST_PAUSE = 0.1
_LONGEST_PAUSE = 15.0
# A warning says what is tried again after so many failures, or after so many seconds.
_QUIET_FAILURES = 3
_QUIET_SECONDS = 5.0

_EXPIRED = frozenset(
    ("ExpiredToken", "ExpiredTokenException", "RequestExpired", "TokenRefreshRequired",
     "TokenRetrievalError", "UnauthorizedSSOTokenError", "SSOTokenLoadError",
     "CredentialRetrievalError", "RefreshError")
)  # fmt: skip
_NO_CREDENTIALS = frozenset(("NoCredentialsError", "PartialCredentialsError"))
_PASSING_CODES = frozenset(
    ("SlowDown", "Throttling", "ThrottlingException", "TooManyRequests", "RequestLimitExceeded",
     "BandwidthLimitExceeded", "RequestTimeout", "RequestTimeTooSkewed", "InternalError",
     "ServiceUnavailable", "OperationAborted", "ConditionalRequestConflict", "BadDigest",
     "XAmzContentChecksumMismatch", "IncompleteBody")
)  # fmt: skip
_PASSING_STATUS = frozenset((408, 425, 429, 500, 502, 503, 504, 509))
# Errors of connections, by the libraries that raise them.
_NETWORK = ("aiohttp", "botocore", "aiobotocore", "urllib3", "requests", "http", "httpx", "socket")
_NOT_NETWORK = frozenset(("ClientError", "ParamValidationError", "NoRegionError", "InvalidURL"))

_logger = logging.getLogger(__name__)


def kind_of(error: BaseException) -> Kind:
    """What a failure means.

    Returns:
        `missing`: there is no such object; `conflict`: the condition of a write does not hold;
        `expired`: the credentials are no longer valid; `denied`: access is refused; `passing`: the
        store or the network is busy or failed; `lasting`: trying again would fail the same way.
    """
    chain = list(_chain(error))
    for one in chain:
        name = type(one).__name__
        code, status = _code_and_status(one)
        if code in _EXPIRED or name in _EXPIRED:
            return "expired"
        if name in _NO_CREDENTIALS:
            return "denied"
        if code in _PASSING_CODES or status in _PASSING_STATUS:
            return "passing"
        if status == 412 or code == "PreconditionFailed":
            return "conflict"
        if code == "NoSuchBucket":
            return "lasting"
        if status == 404 or code in ("NoSuchKey", "NoSuchUpload", "404"):
            return "missing"
        if status in (401, 403):
            return "denied"
        if status is not None and status >= 400:
            return "lasting"
    if isinstance(error, FileNotFoundError):
        return "missing"
    if isinstance(error, FileExistsError):
        return "conflict"
    if isinstance(error, PermissionError):
        return "denied"
    if any(_is_of_network(one) for one in chain):
        return "passing"
    return "lasting"


def is_unsupported(error: BaseException) -> bool:
    """Whether a store says that it does not implement what a request asks."""
    answers = [_code_and_status(one) for one in _chain(error)]
    return any(code == "NotImplemented" or status == 501 for code, status in answers)


def retried(
    call: Callable[[], T],
    what: str,
    renew: Callable[[], object] = lambda: None,
    stop: threading.Event | None = None,
    again: str = SAME_COMMAND_CONTINUES,
) -> T:
    """Call, and call again with growing pauses while the failure is one that passes.

    Args:
        call: may be repeated.
        what: what it does, for messages, such as `write s3://bucket/part-000000.npy`.
        renew: reads the credentials again; it is called once after they expired.
        stop: set it to give up instead of pausing.
        again: what the message says of running the same command again.

    Raises:
        BulkError: the credentials expired, or access is refused, or the failure lasts.
        Exception: what the call raised, if it is `missing` or `conflict`.
    """
    started, pause, is_renewed = time.monotonic(), _FIRST_PAUSE, False
    failures, is_said = 0, False
    while True:
        try:
            return call()
        except FlowvecError:
            raise
        except Exception as error:
            kind = kind_of(error)
            if kind in ("missing", "conflict"):
                raise
            why = without_secrets(first_line(error))
            if kind == "expired" and not is_renewed:
                is_renewed = True
                try:
                    renew()
                except Exception as failure:
                    raise BulkError(
                        f"cannot {what}: the credentials have expired, and there are no new ones "
                        f"({first_line(failure)}); renew them, then {again}"
                    ) from failure
                continue
            if kind == "expired":
                raise BulkError(
                    f"cannot {what}: the credentials have expired ({why}); renew them, then {again}"
                ) from error
            if kind == "denied":
                raise BulkError(f"cannot {what}: access is refused ({why})") from error
            if kind == "lasting":
                raise BulkError(f"cannot {what}: {why}") from error
            spent = time.monotonic() - started
            if spent > PATIENCE or (stop is not None and stop.is_set()):
                raise BulkError(
                    f"cannot {what}: {why} (tried for {spent:.0f} s); {again}"
                ) from error
            failures += 1
            if not is_said and (failures >= _QUIET_FAILURES or spent > _QUIET_SECONDS):
                is_said = True
                until = datetime.now() + timedelta(seconds=PATIENCE - spent)
                _logger.warning("cannot %s: %s; trying again until %s", what, why, f"{until:%X}")
            _logger.debug("cannot %s: %s; trying again in up to %.1f s", what, why, pause)
        wait = pause * random.uniform(0.5, 1.0)
        if stop is None:
            time.sleep(wait)
        else:
            stop.wait(wait)
        pause = min(2 * pause, _LONGEST_PAUSE)


def _chain(error: BaseException) -> Iterator[BaseException]:
    """An error, and what it was raised from."""
    seen: set[int] = set()
    one: BaseException | None = error
    while one is not None and id(one) not in seen:
        seen.add(id(one))
        yield one
        one = one.__cause__ or one.__context__


def _code_and_status(error: BaseException) -> tuple[str | None, int | None]:
    """The code and the status of HTTP that an error carries, if any."""
    response = getattr(error, "response", None)
    if isinstance(response, dict):  # botocore's
        code = response.get("Error", {}).get("Code")
        status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
        return code, status if isinstance(status, int) else None
    if type(error).__module__ == "aiohttp.http_exceptions":  # its code is not the store's answer
        return None, None
    for name in ("status_code", "status", "code"):
        value = getattr(error, name, None)
        if isinstance(value, int) and 400 <= value < 600:
            return None, value
    return None, None


def _is_of_network(error: BaseException) -> bool:
    if isinstance(error, ConnectionError | TimeoutError | EOFError):
        return True
    module = type(error).__module__.partition(".")[0]
    return module in _NETWORK and type(error).__name__ not in _NOT_NETWORK
