"""Waiting for another thread or process, without using a core."""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["wait_until"]


def wait_until(condition: Callable[[], object], seconds: float = 300.0) -> None:
    """Return as soon as `condition()` is true; fail after `seconds`."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"still not so after {seconds:g} seconds"
        time.sleep(0.001)
