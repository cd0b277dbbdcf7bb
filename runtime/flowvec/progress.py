"""What long work shows on standard error: a bar on a terminal or in a notebook, else lines.

`flowvec COMMAND --quiet` turns it off, and so do the parameters `on_step=None` and
`show_progress_bar=False`.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any

__all__ = [
    "bar",
    "hidden",
    "hidden_everywhere",
    "is_shown",
    "is_terminal",
    "say",
    "shows_bars",
]

_is_hidden = False
_is_hidden_here = ContextVar("_is_hidden_here", default=False)


@contextmanager
def hidden_everywhere() -> Iterator[None]:
    """Show nothing while the block runs, in any thread of this process; `--quiet` uses this."""
    global _is_hidden
    before, _is_hidden = _is_hidden, True
    try:
        yield
    finally:
        _is_hidden = before


@contextmanager
def hidden(is_hidden: bool = True) -> Iterator[None]:
    """Show nothing while the block runs, in this thread or task; False changes nothing."""
    token = _is_hidden_here.set(is_hidden or _is_hidden_here.get())
    try:
        yield
    finally:
        _is_hidden_here.reset(token)


def is_shown() -> bool:
    """Whether anything is shown."""
    return not (_is_hidden or _is_hidden_here.get())


def shows_bars() -> bool:
    """Whether a bar can be drawn: standard error is a terminal, or this is a notebook."""
    return is_shown() and (is_terminal() or _is_notebook())


def say(line: str) -> None:
    """Print a line, above the bar if there is one. Work never fails because of it."""
    if not is_shown() or sys.stderr is None:
        return
    # Nobody reads it any more, it is closed, or it is an object that can only write.
    with suppress(OSError, ValueError, AttributeError):
        if shows_bars():
            from tqdm.auto import tqdm

            tqdm.write(line, file=sys.stderr)
        else:
            # Without tqdm, whose lock forked processes share.
            print(line, file=sys.stderr, flush=True)


@contextmanager
def bar(
    name: str, total: int | None, unit: str, *, shown: bool | None = None, after: float = 0.0
) -> Iterator[Any]:
    """Show a bar while the block runs, and yield it: call its `update` as `tqdm.tqdm`'s.

    Args:
        name: what is done.
        total: how many units there are; None is not known.
        unit: what is counted, such as `texts`.
        shown: None shows it where `shows_bars` says so.
        after: seconds until it is drawn; what is done by then is done in silence.
    """
    if not (shows_bars() if shown is None else shown and is_shown()):
        # Even a disabled bar of tqdm takes a lock that forked processes share: a process that is
        # killed while it holds it would block all others.
        yield _NoBar(total)
        return
    if after:
        late = _LateBar(name, total, unit, after)
        try:
            yield late
        finally:
            late.close()
        return
    with _drawn(name, total, unit) as drawn:
        yield drawn


def _drawn(name: str, total: int | None, unit: str, done: float = 0) -> Any:
    from tqdm.auto import tqdm

    size = {"ncols": 80, "nrows": 24} if _has_no_size() else {}
    return tqdm(desc=name, total=total, unit=f" {unit}", initial=done, **size)


def _has_no_size() -> bool:
    """Whether standard error is a terminal of 0 columns or lines, on which tqdm draws nothing.

    `script`, `docker exec` and continuous integration make such ones.
    """
    with suppress(AttributeError, OSError, ValueError):
        return 0 in os.get_terminal_size(sys.stderr.fileno())
    return False


class _NoBar:
    """What `bar` yields where none is shown."""

    def __init__(self, total: int | None) -> None:
        self.total, self.initial = total, 0
        self.n: float = 0

    def update(self, n: float = 1) -> None:
        """Nothing."""

    def set_postfix_str(self, s: str, refresh: bool = True) -> None:
        """Nothing."""


class _LateBar:
    """A bar that is drawn by the first `update` after some seconds: short work takes no lock."""

    def __init__(self, name: str, total: int | None, unit: str, after: float) -> None:
        self.total, self.initial = total, 0
        self.n: float = 0
        self._name, self._unit = name, unit
        self._due = time.monotonic() + after
        self._bar: Any = None

    def update(self, n: float = 1) -> None:
        """Count what is done, and show it when it is time."""
        self.n += n
        if self._bar is not None:
            self._bar.update(n)
        elif time.monotonic() >= self._due:
            self._bar = _drawn(self._name, self.total, self._unit, self.n)

    def set_postfix_str(self, s: str, refresh: bool = True) -> None:
        """Show a text behind the bar."""
        if self._bar is not None:
            self._bar.set_postfix_str(s, refresh)

    def close(self) -> None:
        """Leave the bar as it is, if it was drawn."""
        if self._bar is not None:
            self._bar.close()


def is_terminal() -> bool:
    """Whether standard error is a terminal."""
    try:
        return sys.stderr is not None and sys.stderr.isatty()
    except (ValueError, AttributeError):  # it is closed, or an object that can only write
        return False


def _is_notebook() -> bool:
    """Whether this process is a notebook's kernel. IPython is not imported for this."""
    # Another module may have that name, or it may be imported at this moment.
    get_ipython = getattr(sys.modules.get("IPython"), "get_ipython", None)
    return get_ipython is not None and hasattr(get_ipython(), "kernel")
