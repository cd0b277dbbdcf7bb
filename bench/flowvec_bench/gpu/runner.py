"""Runs steps in processes of their own, each with a time limit, and keeps a record of each."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from flowvec.files import write_file

__all__ = ["Record", "Step", "read_record", "run_step", "run_steps"]

# Steps with less time than this are not begun.
_LEAST_SECONDS = 5.0
_LOG_SHOWN = 1500


@dataclass(frozen=True, slots=True)
class Step:
    """A step.

    Attributes:
        name: of the step and its files.
        function: `module:function` of this package, which gets the settings and `emit`.
        limit: seconds after which it is stopped.
        arguments: more arguments of the function.
        needs: steps that must be done.
    """

    name: str
    function: str
    limit: float
    arguments: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Record:
    """What became of a step.

    Attributes:
        step: its name.
        status: `done`, `failed`, `timed out` or `not run`.
        seconds: how long it ran.
        reason: why it is not done.
        rows: what it wrote; a step that failed keeps what it wrote before.
        lacks: steps that it needs and that are not done, for which it was not run.
    """

    step: str
    status: str
    seconds: float = 0.0
    reason: str = ""
    rows: list[dict[str, Any]] = field(default_factory=list)
    lacks: list[str] = field(default_factory=list)


def read_record(folder: Path, name: str) -> Record | None:
    """A step's record, or None if it has none."""
    try:
        return Record(**json.loads((folder / f"{name}.json").read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None


def run_steps(
    steps: Sequence[Step],
    settings: Path,
    folder: Path,
    seconds: float,
    *,
    search_path: Sequence[str] = (),
    retry: bool = False,
    on_record: Callable[[list[Record]], object] = lambda records: None,
) -> list[Record]:
    """Run the steps that have no record.

    Args:
        steps: in their order.
        settings: the file of the settings.
        folder: where records go.
        seconds: time for all steps. Those that are left without time are not run or are stopped,
            and keep no record, so that the same call runs them.
        search_path: folders that come first in the steps' search path.
        retry: run steps again that failed or timed out.
        on_record: called with all records, after each step.
    """
    folder.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + seconds
    records: list[Record] = []
    for step in steps:
        record = read_record(folder, step.name)
        done = {known.step for known in records if known.status == "done"}
        if record is None or (retry and record.status != "done"):
            left = end - time.monotonic()
            missing = [need for need in step.needs if need not in done]
            if missing:
                why = f"needs {', '.join(missing)}"
                record = Record(step.name, "not run", reason=why, lacks=missing)
            elif left < _LEAST_SECONDS:
                record = Record(step.name, "not run", reason="no time was left")
            else:
                record = run_step(step, settings, folder, min(step.limit, left), search_path)
                if record.status == "timed out" and left < step.limit:
                    record = replace(record, reason=f"no time was left after {left:.0f} s")
                else:
                    write_file(folder / f"{step.name}.json", _encoded(asdict(record)))
        records.append(record)
        on_record(records)
    return records


def run_step(
    step: Step, settings: Path, folder: Path, limit: float, search_path: Sequence[str] = ()
) -> Record:
    """Run one step in a process, and stop it and its children after `limit` seconds."""
    rows, log = folder / f"{step.name}.rows.jsonl", folder / f"{step.name}.log"
    rows.unlink(missing_ok=True)
    known = os.environ.get("PYTHONPATH", "")
    path = os.pathsep.join([*search_path, *([known] if known else [])])
    command = [sys.executable, "-m", "flowvec_bench.gpu.child", str(settings), str(rows)]
    begun = time.monotonic()
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command, step.function, *step.arguments],
            stdout=output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": path},
            start_new_session=True,
        )
        try:
            code = process.wait(limit)
            status, reason = ("done", "") if code == 0 else ("failed", f"exit status {code}")
        except subprocess.TimeoutExpired:
            status, reason = "timed out", f"it took more than {limit:.0f} s"
        finally:
            _end(process)
    if status == "failed":
        reason += f": {_tail(log)}"
    return Record(step.name, status, round(time.monotonic() - begun, 2), reason, _read(rows))


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a step's process and those that it started, which are a group of their own."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _read(path: Path) -> list[dict[str, Any]]:
    """Rows of a file; a last line that was not completed is left out."""
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").split("\n")
    return [json.loads(line) for line in lines[:-1]]


def _tail(log: Path) -> str:
    return log.read_text(encoding="utf-8", errors="replace").strip()[-_LOG_SHOWN:]


def _encoded(value: Any) -> bytes:
    return json.dumps(value, indent=1).encode()
