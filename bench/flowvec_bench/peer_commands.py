"""`flowvec bench peers`."""

from __future__ import annotations

import importlib.util
import json
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flowvec.errors import InputValueError, MissingDependencyError

if TYPE_CHECKING:
    from flowvec_bench.peers.race import Race, Row

__all__ = ["peers"]

_NEEDS = ("torch", "transformers", "onnx", "onnxscript", "safetensors", "psutil", "matplotlib")
_LONG_WORDS = 150


def peers(
    model: Annotated[
        str,
        typer.Argument(
            help="minilm-l6 or bert-base (random weights), or the directory of a "
            "sentence-transformers model with mean pooling."
        ),
    ],
    corpus: Annotated[
        Path, typer.Option(help="A file of paragraphs, one a line (may be .xz): texts to race on.")
    ],
    tokenizer: Annotated[
        Path | None, typer.Option(help="A tokenizer's directory, for a model of random weights.")
    ] = None,
    only: Annotated[
        str | None,
        typer.Option(help="Peers, as st-default,st-bfloat16,fastembed; without it all."),
    ] = None,
    natural: Annotated[int, typer.Option(min=0, help="Sentences of 8 to 60 words.")] = 4000,
    long: Annotated[int, typer.Option(min=0, help="Paragraphs of 150 words or more.")] = 400,
    max_length: Annotated[int, typer.Option(min=8, help="Tokens that all cut at.")] = 256,
    rounds: Annotated[int, typer.Option(min=1, help="Timed passes of each.")] = 5,
    seed: Annotated[int, typer.Option(min=0, help="Of the sample of texts.")] = 0,
    json_out: Annotated[
        Path | None, typer.Option("--json", metavar="OUT", help="Also write the result as JSON.")
    ] = None,
    report: Annotated[
        Path | None, typer.Option(metavar="OUT", help="Also write a Markdown report with a chart.")
    ] = None,
) -> None:
    """Texts a second beside other libraries: same weights and texts, one run, each at its best.

    Every peer is installed into an environment of its own, which is kept in the user's cache. Leave
    the machine alone meanwhile.
    """
    if missing := [name for name in _NEEDS if importlib.util.find_spec(name) is None]:
        raise MissingDependencyError(
            f"flowvec bench peers needs {', '.join(missing)}: "
            'python -m pip install "flowvec[cpu,export,bench]"'
        )
    from flowvec.machine import available_cores
    from flowvec_bench.machine import describe_machine
    from flowvec_bench.peers.forms import SHAPES, make_forms, random_model
    from flowvec_bench.peers.race import race
    from flowvec_bench.peers.report import check_outputs, write_peer_report
    from flowvec_bench.peers.roster import FLOWVEC, PEERS
    from flowvec_bench.texts import natural_sentences, read_paragraphs, sample

    known = {**FLOWVEC, **PEERS}
    names = list(known) if only is None else ["flowvec", *only.split(",")]
    if unknown := [name for name in names if name not in known]:
        raise InputValueError(f"{unknown[0]!r} is no peer; choose from {', '.join(known)}")
    if model in SHAPES and tokenizer is None:
        raise InputValueError(f"{model} has random weights and needs --tokenizer")
    if model not in SHAPES and not Path(model).is_dir():
        raise InputValueError(f"{model} is neither {' nor '.join(SHAPES)} nor a directory")
    if not corpus.is_file():
        raise InputValueError(f"there is no file {corpus}")
    check_outputs(json_out, report)
    texts: dict[str, list[str]] = {}
    if natural:
        texts["natural"] = sample(natural_sentences(corpus), natural, seed)
    if long:
        paragraphs = (p for p in read_paragraphs(corpus) if len(p.split()) >= _LONG_WORDS)
        texts["long"] = sample(paragraphs, long, seed, among=20_000)
    say = (lambda line: typer.echo(line, err=True)) if sys.stderr.isatty() else None
    with tempfile.TemporaryDirectory(prefix="flowvec-") as temporary:
        folder = Path(temporary)
        source = Path(model)
        if model in SHAPES and tokenizer is not None:
            source = random_model(model, tokenizer, max_length, folder / model)
        forms = make_forms(source, folder)
        options = {"max_length": forms.max_length, "dim": forms.dim, "threads": available_cores()}
        chosen = [known[name] for name in dict.fromkeys(names)]
        result = race(chosen, forms.paths, options, texts, folder, rounds=rounds, on_step=say)
    for line in _lines(result):
        typer.echo(line)
    found = {
        "benchmark": "peers",
        "machine": asdict(describe_machine()),
        "model": Path(model).name,
        "max_length": forms.max_length,
        "corpus": corpus.name,
        "seed": seed,
        **asdict(result),
    }
    if json_out is not None:
        json_out.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    if report is not None:
        write_peer_report(result, found, report)


def _lines(result: Race) -> list[str]:
    from flowvec_bench.tables import format_table

    lines = []
    for kind, count in result.kinds.items():
        rows = [_cells(row) for row in result.rows if row.texts == kind]
        header = ("peer", "batch", "texts/s", "slower by", "min cosine", "")
        lines += [
            f"{kind}: {count} texts, medians of {result.rounds} rounds in turn",
            format_table(header, rows, texts=1),
            "",
        ]
    return lines


def _cells(row: Row) -> tuple[str, ...]:
    if row.texts_per_second is None:
        return (row.name, "", "", "", "", (row.error or "")[:80])
    return (
        row.name,
        "own" if row.batch_size is None else str(row.batch_size),
        f"{row.texts_per_second:.0f}",
        f"{row.ratio:.2f}" if row.ratio is not None else "",
        f"{row.min_cosine:.5f}",
        "void: other vectors" if row.void else "",
    )
