"""The connection to Qdrant: a server, or a folder of qdrant-client's local mode."""

from __future__ import annotations

import json
import logging
import os
import random
import re
import threading
import time
import warnings
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from flowvec.errors import ConvertError, InputValueError, first_line
from flowvec.object_store.retries import kind_of

__all__ = ["API_KEY", "QdrantConnection", "checked_url"]

API_KEY = "QDRANT_API_KEY"
# How long one call is tried again before it fails, and how long an answer may take, in seconds.
PATIENCE = 180.0
_TIMEOUT = 30
_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 15.0
_SERVER = re.compile(r"[\w.-]+:\d+(/.*)?")

_logger = logging.getLogger(__name__)


def checked_url(target: str) -> str | None:
    """The URL of a server, or None for the folder of a local mode.

    Raises:
        InputValueError: it is neither.
    """
    if "://" not in target:
        if _SERVER.fullmatch(target) and not Path(target).exists():
            raise InputValueError(f"give the server's URL: http://{target}")
        return None
    try:
        parts = urlsplit(target)
        is_valid = bool(parts.scheme in ("http", "https") and parts.hostname and parts.port != 0)
    except ValueError:
        is_valid = False
    if not is_valid:
        raise InputValueError(
            f"{target} is not the URL of a Qdrant server, such as http://localhost:6333"
        )
    if "@" in parts.netloc:
        raise InputValueError(
            f"the URL of the server at {parts.hostname} has a password: give an API key in the "
            f"environment variable {API_KEY} instead"
        )
    if parts.query or parts.fragment:
        raise InputValueError(f"{target} is not the URL of a Qdrant server: it has options")
    return target


class QdrantConnection:
    """A client whose calls are repeated while the server or the network fails.

    Attributes:
        shown: the server or folder in messages.
        is_server: whether calls may come from several threads.
        models: the module `qdrant_client.models`.
    """

    def __init__(self, url: str | None, folder: Path) -> None:
        """Open a folder, or prepare to connect to a server.

        Args:
            url: of the server, or None.
            folder: of a local mode, where there is no URL.

        Raises:
            ConvertError: the folder cannot be opened, or another program has it open.
        """
        from qdrant_client import QdrantClient, models

        self.models: Any = models
        self.is_server = url is not None
        self.shown = url or str(folder)
        self._stopped = threading.Event()
        if url is not None:
            key = os.environ.get(API_KEY) or None
            self._client: Any = QdrantClient(
                url=url, api_key=key, timeout=_TIMEOUT, check_compatibility=False
            )
            return
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self._client = QdrantClient(path=str(folder))
        except Exception as error:
            if "already accessed" in str(error):
                reason = "another program has it open"
            else:
                reason = first_line(error)
            raise ConvertError(f"cannot open Qdrant's folder {folder}: {reason}") from error

    def close(self) -> None:
        """Close the client."""
        self._client.close()

    def stop_repeating(self) -> None:
        """Let calls of other threads end after this try."""
        self._stopped.set()

    def call(
        self, what: str, method: str, *, patience: float | None = None, **arguments: Any
    ) -> Any:
        """Call a method of the client, which may be repeated.

        Args:
            what: what it does, for messages, such as `write points`.
            method: its name.
            patience: how long it is repeated, in seconds; None is `PATIENCE`.
            arguments: its arguments.

        Raises:
            ConvertError: the server refuses it, or the failure lasts.
        """
        patience = PATIENCE if patience is None else patience
        started, pause = time.monotonic(), _FIRST_PAUSE
        while True:
            try:
                if self.is_server:
                    return getattr(self._client, method)(**arguments)
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # of collections that are large for a folder
                    return getattr(self._client, method)(**arguments)
            except Exception as error:
                reason = self._reason(error)
                spent = time.monotonic() - started
                if not self._passes(error):
                    raise ConvertError(f"cannot {what} at {self.shown}: {reason}") from error
                if spent >= patience or self._stopped.is_set():
                    tried = f" (tried for {spent:.0f} s)" if spent >= patience > 0 else ""
                    raise ConvertError(f"cannot {what} at {self.shown}: {reason}{tried}") from error
                _logger.debug("cannot %s: %s; trying again", what, reason)
                wait = max(_seconds_named(error), pause * random.uniform(0.5, 1.0))
            self._stopped.wait(min(wait, patience))
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _passes(self, error: Exception) -> bool:
        """Whether trying again may succeed."""
        if not self.is_server:
            return False
        return hasattr(error, "retry_after_s") or kind_of(error) == "passing"

    def _reason(self, error: Exception) -> str:
        """Why a call failed, in one line."""
        status = getattr(error, "status_code", None)
        if status in (401, 403):
            key = "is not valid, or may not do this" if os.environ.get(API_KEY) else "is not set"
            return f"access is refused ({status}); the API key in {API_KEY} {key}"
        if status is not None:
            return f"the server answers {status}: {_message(getattr(error, 'content', b''))}"
        source = getattr(error, "source", None)  # of an error of the connection
        if isinstance(source, Exception):
            return f"{first_line(source)} ({type(source).__name__})"
        return first_line(error)


def _seconds_named(error: Exception) -> float:
    """How long the server says to wait in an answer 429, or 0."""
    return float(getattr(error, "retry_after_s", 0))


def _message(content: bytes) -> str:
    """The message in an answer."""
    try:
        return str(json.loads(content)["status"]["error"])
    except (ValueError, KeyError, TypeError):
        return content[:200].decode("utf-8", "replace").strip() or "(no message)"
