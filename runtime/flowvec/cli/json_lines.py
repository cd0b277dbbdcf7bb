"""Progress as lines of JSON on standard error."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

__all__ = ["json_lines"]


class _Progress(Protocol):
    @property
    def seconds(self) -> float: ...


P = TypeVar("P", bound=_Progress)


@contextmanager
def json_lines(line_of: Callable[[P], dict[str, Any]]) -> Iterator[Callable[[P], None]]:
    """What prints progress: one line a second at most, and the last one.

    Args:
        line_of: the fields of a line.
    """
    waiting: P | None = None
    printed = -math.inf

    def show(progress: P) -> None:
        nonlocal waiting, printed
        waiting = progress
        if progress.seconds - printed >= 1.0:
            _print(line_of(progress))
            waiting, printed = None, progress.seconds

    try:
        yield show
    finally:
        if waiting is not None:
            _print(line_of(waiting))


def _print(line: dict[str, Any]) -> None:
    print(json.dumps(line), file=sys.stderr, flush=True)
