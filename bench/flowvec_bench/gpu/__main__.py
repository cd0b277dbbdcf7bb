"""`python -m flowvec_bench.gpu`: run all steps, or continue where the last call stopped.

Nothing but the standard library is imported before the wheels are installed: what flowvec needs may
be among them.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flowvec_bench.gpu.runner import Record

__all__ = ["main"]

# The repository's own tokenizer, of 9,000 words: speed does not depend on it.
_TOKENIZER = Path(__file__).parents[3] / "models" / "backbone" / "checkpoint"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m flowvec_bench.gpu", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder of the report and records")
    parser.add_argument(
        "--wheels",
        type=Path,
        help="folder of wheels (or their pieces, named FILE.whl.000 and so on) to install first, "
        "for example onnxruntime-gpu; without it, the environment is used as it is",
    )
    parser.add_argument(
        "--work", type=Path, default=Path(tempfile.gettempdir()) / "flowvec-gpu",
        help="folder of models and installed wheels (%(default)s)",
    )  # fmt: skip
    parser.add_argument("--minutes", type=float, default=8.5, help="time for all steps (8.5)")
    parser.add_argument("--corpus", type=Path, help="text file, a paragraph a line, .xz or .gz")
    parser.add_argument("--tokenizer", type=Path, default=_TOKENIZER, help="transformers tokenizer")
    parser.add_argument("--only", default="", help="steps, by the beginning of their names: a,b")
    parser.add_argument("--retry", action="store_true", help="run failed steps again")
    parser.add_argument(
        "--stand-in",
        action="store_true",
        help="test the steps without a GPU: the CPU provider runs under CUDA's name, on a tiny "
        "model, and the report says so",
    )
    return parser


def main(arguments: list[str] | None = None) -> int:
    """Run the steps; returns 0 if all are done and no check failed."""
    parser = _parser()
    given = parser.parse_args(arguments)
    if given.wheels is not None and not given.wheels.is_dir():
        parser.error(f"{given.wheels} is not a folder of wheels")
    out, work = given.out.resolve(), given.work.resolve()
    out.mkdir(parents=True, exist_ok=True)
    work.mkdir(parents=True, exist_ok=True)
    packages = work / "packages"
    if given.wheels is not None:
        _install(given.wheels.resolve(), packages)

    from flowvec_bench.gpu.report import summary, write_report
    from flowvec_bench.gpu.runner import run_steps
    from flowvec_bench.gpu.settings import Settings
    from flowvec_bench.gpu.stand_in import SAID
    from flowvec_bench.gpu.steps import STEPS

    chosen = tuple(filter(None, given.only.split(",")))
    names = [step.name for step in STEPS]
    for start in chosen:
        if not any(name.startswith(start) for name in names):
            parser.error(f"no step's name begins with {start!r}; the steps are {', '.join(names)}")
    settings = Settings(
        work=str(work),
        tokenizer=str(given.tokenizer.resolve()),
        wheels=None if given.wheels is None else str(given.wheels.resolve()),
        corpus=None if given.corpus is None else str(given.corpus.resolve()),
        stand_in=given.stand_in,
    )
    kept = out / "settings.json"
    if kept.exists() and Settings.load(kept).stand_in != settings.stand_in:
        parser.error(f"{out} holds a run {'without' if given.stand_in else 'with'} --stand-in")
    for folder in (work, out):
        settings.save(folder / "settings.json")
    if given.stand_in:
        print(SAID)
    steps = [step for step in STEPS if not chosen or step.name.startswith(chosen)]

    def report(records: list[Record]) -> None:
        last = records[-1]
        if not last.lacks:  # one line at the end says it of all such steps
            why = f": {_last_line(last.reason)}" if last.reason else ""
            print(f"{last.step}: {last.status}, {last.seconds:.0f} s{why}", flush=True)
        write_report(records, out, stand_in=given.stand_in)

    try:
        records = run_steps(
            steps,
            work / "settings.json",
            out / "steps",
            given.minutes * 60,
            search_path=(str(packages),),
            retry=given.retry,
            on_record=report,
        )
    except KeyboardInterrupt:
        print(f"stopped; the same command continues. Records and report: {out}", file=sys.stderr)
        return 130
    if lacking := [record for record in records if record.lacks]:
        print(_said_of(lacking, records, stand_in=given.stand_in))
    print(summary(records))
    failed = any(row["passed"] is False for record in records for row in record.rows)
    return int(failed or any(record.status != "done" for record in records))


def _last_line(reason: str) -> str:
    """What an exception says, at the end of a log."""
    return reason.strip().splitlines()[-1].removeprefix("RuntimeError: ")[-300:]


def _said_of(lacking: list[Record], records: list[Record], *, stand_in: bool) -> str:
    """One line about the steps that were not run because others are not done, and what to do."""
    skipped = {record.step for record in lacking}
    needed = {name for record in lacking for name in record.lacks} - skipped
    causes = [record for record in records if record.step in needed]
    line = f"{len(lacking)} steps were not run: they need {' and '.join(sorted(needed))}"
    if any(record.status != "not run" for record in causes):
        line += ". Mend what failed, and give --retry"
    if "machine" in needed and not stand_in:
        line += "; --stand-in tests the steps on a machine without a GPU"
    return line


def _install(wheels: Path, packages: Path) -> None:
    """Install the wheels, once; a failure shows again in the first step, which records it."""
    program = Path(__file__).with_name("wheels.py")
    command = [sys.executable, str(program), str(wheels), str(packages)]
    try:
        subprocess.run(command, timeout=90, check=True)
    except subprocess.SubprocessError as error:
        print(f"the wheels cannot be installed: {error}", flush=True)
    sys.path.insert(0, str(packages))


if __name__ == "__main__":
    raise SystemExit(main())
