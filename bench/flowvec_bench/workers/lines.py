"""Protocol of workers: commands as JSON lines on standard input, answers as JSON lines.

It runs in a peer's environment, so it only imports the standard library. Only answers go to
standard output; messages of libraries go to standard error.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

__all__ = ["serve"]

Command = dict[str, Any]


def serve(load: Callable[[Command], Any], work: Callable[[Any, Command], Command]) -> None:
    """Answer commands until `{"do": "end"}`; the answer to a command that fails is `{"error":
    ...}`.

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
