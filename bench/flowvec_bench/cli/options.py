"""Options that the commands of `flowvec bench` share: peers, texts and outputs."""

from __future__ import annotations

import json
import lzma
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from flowvec.errors import InputValueError
from flowvec.files import write_file
from flowvec.texts.places import check_outputs_apart
from flowvec_export.arguments import check_output

__all__ = [
    "EXTRAS",
    "Corpus",
    "JsonOut",
    "Report",
    "Seed",
    "about_machine",
    "check_corpus",
    "check_outputs",
    "chosen",
    "numbers",
    "sample",
    "whole_numbers",
    "write_json",
]

# The extra with everything that the races need.
EXTRAS = "cpu,export,bench"

Corpus = Annotated[
    Path,
    typer.Option(
        help="A file with one paragraph per line (may be .xz), from which texts are drawn."
    ),
]
Seed = Annotated[int, typer.Option(min=0, help="Seed of the sample of texts.")]
JsonOut = Annotated[
    Path | None, typer.Option("--json-out", metavar="OUT", help="Also write the result as JSON.")
]
Report = Annotated[
    Path | None, typer.Option(metavar="OUT", help="Also write a Markdown report with a chart.")
]


def chosen(only: str | None, peers: dict[str, Any]) -> list[Any]:
    """The requested peers, after flowvec with its defaults; None requests all."""
    names = list(peers) if only is None else ["flowvec", *only.split(",")]
    if unknown := [name for name in names if name not in peers]:
        raise InputValueError(f"{unknown[0]!r} is not a peer here; choose from {', '.join(peers)}")
    return [peers[name] for name in dict.fromkeys(names)]


def check_corpus(corpus: Path) -> None:
    """Check that the corpus can be read; raises InputValueError if not."""
    from flowvec_bench.texts import open_text

    if not corpus.is_file():
        raise InputValueError(f"there is no file {corpus}")
    try:
        next(open_text(corpus), None)
    except (OSError, EOFError, lzma.LZMAError) as error:
        raise InputValueError(f"cannot read {corpus}: {error}") from None


def check_outputs(
    json_out: Path | None,
    report: Path | None,
    inputs: Iterable[str | Path | None],
    *,
    overwrite: bool,
    other: Path | None = None,
) -> None:
    """Check output files before any long work.

    Args:
        json_out: the file of `--json-out`, if any.
        report: the file of `--report`, if any; its charts are beside it.
        inputs: files and folders that are read; None, and names of models, are ignored.
        overwrite: whether files that exist may be replaced.
        other: one more output.

    Raises:
        InputValueError: a file could not be written, exists, is or is in an input, or is the same
            as another output.
    """
    if report is not None and report.suffix != ".md":
        raise InputValueError(f"a report is a .md file, not {report.name}")
    outs = (json_out, report, None if report is None else report.with_suffix(".svg"), other)
    read = list(inputs)
    for path in outs:
        check_output(path, read, overwrite=overwrite)
    check_outputs_apart(outs)


def sample(texts: Iterator[str], count: int, seed: int, among: int = 200_000) -> list[str]:
    """`flowvec_bench.texts.sample`; its error becomes InputValueError."""
    from flowvec_bench import texts as corpus

    try:
        return corpus.sample(texts, count, seed, among)
    except ValueError as error:
        raise InputValueError(str(error)) from None


def whole_numbers(name: str, listed: str) -> list[int]:
    """Parse whole numbers joined by commas; raises InputValueError for anything else."""
    values = numbers(name, listed)
    if not all(number.is_integer() for number in values):
        raise InputValueError(f"{name} must be whole numbers separated by commas, not {listed!r}")
    return [int(number) for number in values]


def numbers(name: str, listed: str) -> list[float]:
    """Parse numbers joined by commas; raises InputValueError for anything else."""
    try:
        return [float(number) for number in listed.split(",") if number]
    except ValueError:
        raise InputValueError(
            f"{name} must be numbers separated by commas, not {listed!r}"
        ) from None


def about_machine(benchmark: str, **figures: Any) -> dict[str, Any]:
    """The head of a result: benchmark, machine and subject."""
    from flowvec_bench.machine import describe_machine

    return {"benchmark": benchmark, "machine": asdict(describe_machine()), **figures}


def write_json(record: dict[str, Any], out: Path | None) -> None:
    """Write a result atomically, if a file was named."""
    if out is not None:
        content = (json.dumps(record, indent=2) + "\n").encode()
        # A link, a pipe or a device, such as /dev/stdout, must not be replaced by a file.
        if out.is_symlink() or (out.exists() and not out.is_file()):
            out.write_bytes(content)
        else:
            write_file(out, content)
