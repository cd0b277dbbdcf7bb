"""Where the command `flowvec` begins: before `flowvec` is imported, which takes part of a second.

A Ctrl-C in that time ends the process without a traceback.
"""

from __future__ import annotations

import os
import signal

__all__ = ["main"]


def main() -> None:
    """Import and run `flowvec.cli.main.main`."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, lambda number, _: os._exit(128 + number))
    from flowvec.cli.main import main as run

    run()
