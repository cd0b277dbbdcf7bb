"""Protocol of workers: commands as JSON lines on standard input, answers as JSON lines.

It runs in a peer's environment, so it imports the standard library only. Standard output carries
answers and nothing else: what libraries print goes to standard error.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any, TypeVar

__all__ = ["override", "serve"]

Command = dict[str, Any]
_Method = TypeVar("_Method", bound=Callable[..., Any])


def override(method: _Method) -> _Method:
    """Mark a method that overrides one of a base class, like `flowvec.compat.override`."""
    return method


def serve(load: Callable[[Command], Any], work: Callable[[Any, Command], Command]) -> None:
    """Answer commands until `{"do": "end"}`. A command that fails is answered by `{"error": ...}`.

    Args:
        load: creates the engine of `{"do": "load", ...}`. The answer is its `about`, if it has one.
        work: answers any other command with that engine.
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    engine: Any = None
    for line in sys.stdin:
        command = json.loads(line)
        answer: Command = {}
        try:
            if command["do"] == "end":
                return
            if command["do"] == "load":
                engine = load(command)
                answer = {"about": getattr(engine, "about", {})}
            else:
                answer = work(engine, command)
        except BaseException as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
