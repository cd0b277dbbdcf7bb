"""What Ctrl-C and SIGTERM do to a command."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import typer

from flowvec.texts.urls import shown_command

__all__ = [
    "INTERRUPT_EXIT",
    "Stop",
    "interrupt",
    "interruptible",
    "starting",
    "stopping",
    "telling_how_to_continue",
    "was_interrupted",
]

# The shell's exit code for a command that Ctrl-C ended.
INTERRUPT_EXIT = 128 + signal.SIGINT
_STOPPING = "stopping; a second Ctrl-C ends at once"
# A KeyboardInterrupt during the import of some extension modules (onnxruntime, openvino) is
# dropped, or becomes an ImportError.
_INTERRUPTED = threading.Event()


def interrupt(*_: object) -> None:
    """The first Ctrl-C lets the command clean up; the next one ends the process at once."""
    _INTERRUPTED.set()
    signal.signal(signal.SIGINT, _end)
    raise KeyboardInterrupt


@contextmanager
def starting() -> Iterator[None]:
    """Ctrl-C ends the process at once: before and after a command nothing is to be cleaned up.

    A process that ignores the signal goes on ignoring it. The handlers of before are restored.
    """
    handler = signal.getsignal(signal.SIGINT)
    handles = handler not in (signal.SIG_IGN, None)
    hook = sys.unraisablehook

    def unraisable(ignored: Any, /) -> None:
        # Python prints and drops what a finalizer or the callback of a weak reference raises.
        if _INTERRUPTED.is_set() and issubclass(ignored.exc_type, KeyboardInterrupt):
            os._exit(INTERRUPT_EXIT)
        hook(ignored)

    if handles:
        signal.signal(signal.SIGINT, _end)
        sys.unraisablehook = unraisable
    try:
        yield
    finally:
        if handles:
            sys.unraisablehook = hook
            signal.signal(signal.SIGINT, handler)


@contextmanager
def interruptible() -> Iterator[None]:
    """Inside `starting`: Ctrl-C raises KeyboardInterrupt, so that a command can clean up."""
    handles = signal.getsignal(signal.SIGINT) is _end
    if handles:
        signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        if handles:
            signal.signal(signal.SIGINT, _end)


@contextmanager
def telling_how_to_continue(what: str) -> Iterator[None]:
    """On SIGINT or SIGTERM, print the command again, and what it does then.

    For commands that are stopped by an exception, where `stopping` asks a job to stop.
    """
    handles = signal.getsignal(signal.SIGINT) is interrupt

    def tell(*_: object) -> None:
        typer.echo(_STOPPING, err=True)
        interrupt()

    if handles:
        signal.signal(signal.SIGINT, tell)
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        typer.echo(f"stopped; {what}:\n{shown_command(['flowvec', *sys.argv[1:]])}", err=True)
        raise
    finally:
        if signal.getsignal(signal.SIGINT) is tell:
            signal.signal(signal.SIGINT, interrupt)


def was_interrupted() -> bool:
    """Whether there was a Ctrl-C before a command's own handler was in place."""
    return _INTERRUPTED.is_set()


class Stop:
    """Whether a signal asked to stop, and its number."""

    def __init__(self) -> None:
        self.event = threading.Event()
        self.number = int(signal.SIGINT)


@contextmanager
def stopping() -> Iterator[Stop]:
    """The first SIGINT or SIGTERM asks the job to stop; the second ends the process.

    Raises:
        KeyboardInterrupt: there was a SIGINT before.
    """
    if _INTERRUPTED.is_set():
        raise KeyboardInterrupt
    stop = Stop()
    handlers = {
        number: handler
        for number in (signal.SIGINT, signal.SIGTERM)
        if (handler := signal.getsignal(number)) is not signal.SIG_IGN
    }

    def ask(number: int, _: Any) -> None:
        stop.number = number
        stop.event.set()
        for handled in handlers:
            signal.signal(handled, _end)
        typer.echo(_STOPPING, err=True)

    def restore() -> None:
        for number, handler in handlers.items():
            signal.signal(number, handler)

    for number in handlers:
        signal.signal(number, ask)
    try:
        yield stop
    finally:
        restore()


def _end(number: int, _: Any) -> None:
    """End the process at once, without cleaning up; the next run removes temporary files."""
    os._exit(128 + number)
