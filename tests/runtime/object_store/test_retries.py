"""Which failures are tried again, and what is said about the others."""

from __future__ import annotations

import re
import threading
from typing import Any

import pytest

from flowvec.errors import BulkError
from flowvec.object_store import retries
from flowvec.object_store.retries import kind_of, retried


class StoreError(Exception):
    """An error as botocore raises it."""

    def __init__(self, code: str, status: int) -> None:
        super().__init__(f"An error occurred ({code})")
        self.response = {
            "Error": {"Code": code},
            "ResponseMetadata": {"HTTPStatusCode": status},
        }


def raised_from(error: Exception, cause: Exception) -> Exception:
    """An error with a cause, as fsspec's libraries translate them."""
    try:
        raise error from cause
    except type(error) as translated:
        return translated


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (StoreError("SlowDown", 503), "passing"),
        (StoreError("InternalError", 500), "passing"),
        (StoreError("TooManyRequests", 429), "passing"),
        (StoreError("BadDigest", 400), "passing"),
        (StoreError("ConditionalRequestConflict", 409), "passing"),
        (StoreError("PreconditionFailed", 412), "conflict"),
        (StoreError("NoSuchKey", 404), "missing"),
        (StoreError("NoSuchUpload", 404), "missing"),
        (StoreError("NoSuchBucket", 404), "lasting"),
        (StoreError("InvalidArgument", 400), "lasting"),
        (StoreError("ExpiredToken", 400), "expired"),
        (StoreError("AccessDenied", 403), "denied"),
        (raised_from(PermissionError("no"), StoreError("ExpiredToken", 403)), "expired"),
        (raised_from(OSError(22, "busy"), StoreError("SlowDown", 503)), "passing"),
        (ConnectionResetError("gone"), "passing"),
        (TimeoutError(), "passing"),
        (FileNotFoundError("x"), "missing"),
        (FileExistsError("x"), "conflict"),
        (OSError(28, "No space left on device"), "lasting"),
        (ValueError("x"), "lasting"),
    ],
    ids=str,
)  # fmt: skip
def test_an_error_is_what_its_causes_say(error: Exception, kind: str) -> None:
    assert kind_of(error) == kind


class Failing:
    """Fails with errors, one after the other, and then answers."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.calls = 0

    def __call__(self) -> str:
        self.calls += 1
        if self.errors:
            raise self.errors.pop(0)
        return "done"


@pytest.fixture(autouse=True)
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Pauses, which take no time."""
    waited: list[float] = []

    class Clock:
        now = 0.0

        @classmethod
        def sleep(cls, seconds: float) -> None:
            waited.append(seconds)
            cls.now += seconds

        @classmethod
        def monotonic(cls) -> float:
            return cls.now

    monkeypatch.setattr(retries, "time", Clock)
    return waited


def test_what_passes_is_tried_again_with_growing_pauses(pauses: list[float]) -> None:
    call = Failing(*[StoreError("SlowDown", 503), ConnectionResetError("gone")] * 4)
    assert retried(call, "write x") == "done"
    assert call.calls == 9
    for i, pause in enumerate(pauses):
        assert 0.05 * 2**i <= pause <= min(0.1 * 2**i, 15)


def test_a_store_that_stays_away_is_named(pauses: list[float]) -> None:
    call = Failing(*[StoreError("ServiceUnavailable", 503)] * 10_000)
    with pytest.raises(BulkError, match=r"write x: .*Unavailable.*tried"):
        retried(call, "write x")
    assert retries.PATIENCE < sum(pauses) < retries.PATIENCE + 15
    stop = threading.Event()
    stop.set()
    call = Failing(*[StoreError("ServiceUnavailable", 503)] * 10_000)
    with pytest.raises(BulkError, match="the same command continues"):
        retried(call, "write x", stop=stop)
    assert call.calls == 1


def test_a_store_that_stays_away_is_said_once_and_early(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(BulkError):
        retried(Failing(*[ConnectionRefusedError("refused")] * 10_000), "write x")
    (line,) = caplog.messages
    assert re.fullmatch(r"cannot write x: refused; trying again until .+", line)
    caplog.clear()
    assert retried(Failing(*[ConnectionResetError("gone")] * 2), "write x") == "done"
    assert caplog.messages == []  # a fault that passes is not worth a line


@pytest.mark.parametrize("error", [StoreError("NoSuchKey", 404), StoreError("x", 412)], ids=str)
def test_an_answer_is_not_a_failure(error: Exception) -> None:
    with pytest.raises(StoreError):
        retried(Failing(error), "read x")


def test_credentials_are_renewed_once_and_then_named() -> None:
    expired = StoreError("ExpiredToken", 400)
    renewals: list[Any] = []
    assert retried(Failing(expired), "read x", lambda: renewals.append(1)) == "done"
    assert len(renewals) == 1
    with pytest.raises(BulkError, match=r"credentials .*renew them"):
        retried(Failing(expired, expired), "read x", lambda: renewals.append(1))
    assert len(renewals) == 2
    with pytest.raises(BulkError, match="access is refused"):
        retried(Failing(StoreError("AccessDenied", 403)), "read x")


def test_credentials_that_cannot_be_renewed_are_named() -> None:
    def renew() -> None:
        raise RuntimeError("no profile")

    with pytest.raises(BulkError, match=r"read x: .*\(no profile\)"):
        retried(Failing(StoreError("ExpiredToken", 400)), "read x", renew)
