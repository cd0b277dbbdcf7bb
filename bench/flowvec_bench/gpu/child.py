"""A step's process.

    python -m flowvec_bench.gpu.child SETTINGS ROWS MODULE:FUNCTION [ARGUMENT...]

The function gets the settings, `emit` and the arguments. What it emits is on disk at once.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any, Protocol

from flowvec_bench.gpu.settings import Settings

__all__ = ["Emit", "main"]


class Emit(Protocol):
    """Writes a row of a step."""

    def __call__(
        self, what: str, *, passed: bool | None = None, note: str = "", **figures: Any
    ) -> None:
        """Write a row.

        Args:
            what: the check or the contender.
            passed: whether a check passed; None for a row that is not a check, or was not run.
            note: why it did not pass or was not run, or what else there is to say.
            **figures: numbers and short texts.
        """


def _emit_to(path: Path) -> Emit:
    def emit(what: str, *, passed: bool | None = None, note: str = "", **figures: Any) -> None:
        row = {"what": what, "passed": passed, "note": note, "figures": figures}
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        print(row, flush=True)

    return emit


def main(arguments: list[str]) -> None:
    """Run one step."""
    path, rows, function, *rest = arguments
    settings = Settings.load(Path(path))
    # Proofs and tuned settings of this run do not go to the user's cache.
    os.environ["FLOWVEC_CACHE"] = str(Path(settings.work) / "cache")
    if settings.stand_in:
        from flowvec_bench.gpu.stand_in import use_stand_in

        use_stand_in()
    module, _, name = function.partition(":")
    work = getattr(importlib.import_module(f"flowvec_bench.gpu.{module}"), name)
    work(settings, _emit_to(Path(rows)), *rest)


if __name__ == "__main__":
    main(sys.argv[1:])
