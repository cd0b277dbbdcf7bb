"""Exports a checkpoint in a process of its own, so that torch is never imported in this one.

The child is `python -m flowvec_export.on_demand`. It reads one line of JSON, the request, from its
standard input and answers with one line on its standard output. Its input stays open: it ends when
this process does, whatever ends it.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import logging
import os
import subprocess
import sys
import threading
from collections import deque
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from flowvec import errors
from flowvec.bundle.cached import cannot_write
from flowvec.errors import ExportError, FlowvecError, MissingDependencyError
from flowvec.progress import is_terminal, say

__all__ = ["ExportRequest", "export_in_child"]

logger = logging.getLogger(__name__)

_MODULE = "flowvec_export.on_demand"
_KEPT_LINES = 50


@dataclass(frozen=True, slots=True)
class ExportRequest:
    """What a child exports.

    Attributes:
        source: a hub's name, a directory or an .onnx file.
        revision: the commit of a hub's name.
        out: the bundle's directory, which is created.
        trust_remote_code: run Python files of the checkpoint.
        allow_pickle: read weights that are a pickle.
        offline: make no request to the hub.
        shows_steps: print steps and progress to standard error.
    """

    source: str
    revision: str | None
    out: str
    trust_remote_code: bool
    allow_pickle: bool
    offline: bool
    shows_steps: bool


def export_in_child(request: ExportRequest) -> None:
    """Export a checkpoint and wait for it. If this thread is interrupted, the child is killed.

    Raises:
        ExportError: it cannot be exported, or the child was killed.
        MissingDependencyError: a package is not installed.
        CacheError: the bundle cannot be written.
    """
    if importlib.util.find_spec("flowvec_export") is None or not sys.executable:
        raise MissingDependencyError(
            f"no bundle can be made of {request.source} in this process; {_elsewhere(request)}"
        )
    environment = os.environ | ({"HF_HUB_OFFLINE": "1"} if request.offline else {})
    child = subprocess.Popen(  # noqa: S603
        # -P: a module in the current directory must not take the place of an installed one.
        [sys.executable, *_interpreter_flags(), "-P", "-m", _MODULE],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        # On a terminal the child draws bars. A notebook would not show what a child prints.
        stderr=None if request.shows_steps and is_terminal() else subprocess.PIPE,
        env=environment,
    )
    assert child.stdin is not None
    assert child.stdout is not None
    lines: deque[str] = deque(maxlen=_KEPT_LINES)
    arguments = (child.stderr, lines, request.shows_steps)
    reader = threading.Thread(target=_keep_lines, args=arguments, daemon=True)
    reader.start()
    try:
        with contextlib.suppress(BrokenPipeError):
            child.stdin.write(json.dumps(asdict(request)).encode() + b"\n")
            child.stdin.flush()
        answer = child.stdout.read()
        code = child.wait()
        reader.join(timeout=1.0)
    finally:
        # Also after Ctrl-C; killing a child that has ended does nothing.
        child.kill()
        child.wait()
        with contextlib.suppress(BrokenPipeError):
            child.stdin.close()
        child.stdout.close()
    _raise_failure(request, answer, code, lines)


def _interpreter_flags() -> list[str]:
    """Flags of this Python that decide what the child may import."""
    if sys.flags.isolated:
        return ["-I"]
    flags = {"-E": sys.flags.ignore_environment, "-s": sys.flags.no_user_site}
    return [flag for flag, is_set in flags.items() if is_set]


def _keep_lines(stream: IO[bytes] | None, lines: deque[str], is_shown: bool) -> None:
    """Read what a child prints until it ends, so that it never waits for a full pipe."""
    if stream is None:
        return
    with stream:
        for raw in stream:
            line = raw.decode("utf-8", "replace").rstrip()
            logger.debug("%s", line)
            if line:
                lines.append(line)
                if is_shown:
                    say(line)


def _raise_failure(request: ExportRequest, answer: bytes, code: int, lines: deque[str]) -> None:
    """Raise the error that a child answered with, if it did not succeed."""
    try:
        result: dict[str, Any] = json.loads(answer)
        name, message = result["error"], str(result["message"])
    except (ValueError, KeyError, TypeError):
        last = f": {lines[-1]}" if lines else ""
        how = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
        hint = ", perhaps because memory ran out" if code < 0 else ""
        raise ExportError(f"the export of {request.source} {how}{hint}{last}") from None
    for line in result.get("warnings") or ():
        logger.warning("%s", line)
    if name is None:
        return
    if name == "OSError":
        raise cannot_write(
            Path(request.out).parent.parent, OSError(result.get("errno"), message)
        ) from None
    kind = getattr(errors, name, ExportError)
    if kind is MissingDependencyError:
        raise MissingDependencyError(f"{message}; {_elsewhere(request)}")
    is_ours = isinstance(kind, type) and issubclass(kind, FlowvecError)
    raise (kind if is_ours else ExportError)(message)


def _elsewhere(request: ExportRequest) -> str:
    """How to make the bundle on another machine."""
    revision = "" if request.revision is None else f" --revision {request.revision}"
    return (
        f"or run `flowvec export {request.source}{revision} -o DIR` where it can be exported, and "
        "load DIR"
    )
