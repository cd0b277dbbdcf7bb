"""The process in which the runtime exports a checkpoint: see `flowvec.bundle.child`.

It is no command for users: `flowvec export` is.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
from typing import Any

from flowvec.errors import FlowvecError
from flowvec.progress import say
from flowvec_export.packages import require_packages

__all__: list[str] = []


def main() -> None:
    """Read a request from stdin, export, and answer on stdout."""
    # Ctrl-C reaches the parent as well, which ends this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    answer = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what libraries print must not mix with the answer
    request = json.loads(sys.stdin.buffer.readline())
    threading.Thread(target=_end_with_parent, daemon=True).start()
    result: dict[str, Any] = {"error": None, "message": ""}
    warnings = _Kept()
    logging.getLogger("flowvec_export").addHandler(warnings)
    try:
        _export(request)
    except FlowvecError as error:
        result = {"error": type(error).__name__, "message": str(error)}
    except OSError as error:
        where = f": {error.filename}" if error.filename else ""
        message = f"{error.strerror or error}{where}"
        result = {"error": "OSError", "message": message, "errno": error.errno}
    answer.write(json.dumps(result | {"warnings": warnings.lines}) + "\n")
    answer.close()


class _Kept(logging.Handler):
    """Keeps warnings for the parent, which says them to the user."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a line."""
        self.lines.append(record.getMessage())


def _end_with_parent() -> None:
    """End this process when its input is closed: the parent has ended or given up."""
    os.read(0, 1)
    os._exit(1)


def _export(request: dict[str, Any]) -> None:
    source = request["source"]
    require_packages(f"making a bundle of {source}", source)
    from flowvec_export.build import export

    export(
        source,
        request["out"],
        revision=request["revision"],
        trust_remote_code=request["trust_remote_code"],
        allow_pickle=request["allow_pickle"],
        on_step=say if request["shows_steps"] else None,
    )


if __name__ == "__main__":
    main()
