"""`flowvec bench peers` and `flowvec bench latency`."""

from __future__ import annotations

import importlib.util
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flowvec.bundle import shipped_bundles
from flowvec.demo import load_passages
from flowvec.errors import InputValueError, MissingDependencyError
from flowvec.manifest import MANIFEST
from flowvec.sentences import split_sentences

if TYPE_CHECKING:
    from flowvec_bench.peers.latency import Latency
    from flowvec_bench.peers.race import Race, Row
    from flowvec_bench.peers.roster import Forms, Peer

__all__ = ["latency", "peers"]

_NEEDS = ("psutil", "matplotlib")
_NEEDS_FOR_PEERS = ("torch", "transformers", "onnx", "onnxscript", "safetensors", "scipy")
_LONG_WORDS = 150
_SHORT_WORDS = (4, 12)
_MAX_LENGTH = 256

_Tokenizer = Annotated[
    Path | None, typer.Option(help="A tokenizer's directory, for a model of random weights.")
]
_Only = Annotated[
    str | None, typer.Option(help="Peers, as st-default,st-bfloat16,fastembed; without it all.")
]
_Seed = Annotated[int, typer.Option(min=0, help="Of the sample of texts.")]
_MaxLength = Annotated[
    int | None,
    typer.Option(min=8, help="Tokens that all cut at; 256, or the model's own if it is less."),
]
_JsonOut = Annotated[
    Path | None, typer.Option("--json", metavar="OUT", help="Also write the result as JSON.")
]
_Name = Annotated[
    str | None,
    typer.Option(help="What reports call the model; without it as its directory is called."),
]
_Report = Annotated[
    Path | None, typer.Option(metavar="OUT", help="Also write a Markdown report with a chart.")
]


def peers(
    model: Annotated[
        str,
        typer.Argument(
            help="minilm-l6 or bert-base (random weights), or the directory of a "
            "sentence-transformers model."
        ),
    ],
    corpus: Annotated[
        Path, typer.Option(help="A file of paragraphs, one a line (may be .xz): texts to race on.")
    ],
    tokenizer: _Tokenizer = None,
    only: _Only = None,
    natural: Annotated[int, typer.Option(min=0, help="Sentences of 8 to 60 words.")] = 4000,
    long: Annotated[int, typer.Option(min=0, help="Paragraphs of 150 words or more.")] = 400,
    sts: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Also the sentences of these pairs with scores (TSV)."),
    ] = None,
    max_length: _MaxLength = None,
    rounds: Annotated[int, typer.Option(min=1, help="Timed passes of each.")] = 5,
    seed: _Seed = 0,
    name: _Name = None,
    json_out: _JsonOut = None,
    report: _Report = None,
) -> None:
    """Texts a second beside other libraries: same weights and texts, one run, each at its best.

    Every peer is installed into an environment of its own, which is kept in the user's cache. Leave
    the machine alone meanwhile.
    """
    _require("peers", *_NEEDS, *_NEEDS_FOR_PEERS)
    from flowvec_bench.peers.race import race
    from flowvec_bench.peers.report import check_outputs, write_peer_report
    from flowvec_bench.peers.roster import FLOWVEC, PEERS
    from flowvec_bench.texts import natural_sentences, read_paragraphs
    from flowvec_export.sts import read_sts, sentence_rows

    chosen = _chosen(only, {**FLOWVEC, **PEERS})
    _check_model(model, tokenizer)
    _check_corpus(corpus)
    check_outputs(json_out, report)
    texts: dict[str, list[str]] = {}
    if natural:
        texts["natural"] = _sample(natural_sentences(corpus), natural, seed)
    if long:
        paragraphs = (p for p in read_paragraphs(corpus) if len(p.split()) >= _LONG_WORDS)
        texts["long"] = _sample(paragraphs, long, seed, among=20_000)
    if sts is not None:
        sentences = list(sentence_rows(read_sts(sts)))
        texts["sts"] = _sample(iter(sentences), len(sentences), seed)
    with _forms(model, tokenizer, max_length, chosen) as (forms, folder):
        result = race(
            chosen, forms.paths, _options(forms), texts, folder, rounds=rounds, on_step=_say()
        )
    for line in _race_lines(result):
        typer.echo(line)
    found = _about("peers", name or Path(model).name, forms, corpus, seed) | asdict(result)
    _write_json(found, json_out)
    if report is not None:
        write_peer_report(result, found, report)


def latency(
    model: Annotated[
        str,
        typer.Argument(
            help="A shipped model (mini) or a bundle's directory, for flowvec alone; minilm-l6, "
            "bert-base or a sentence-transformers directory beside peers."
        ),
    ],
    callers: Annotated[
        str, typer.Option(help="Callers who each wait for their answer.")
    ] = "1,8,64,256",
    rates: Annotated[
        str | None,
        typer.Option(
            help="Arrivals a second; without it 25, 50 and 75 % of what flowvec reaches. 0: none."
        ),
    ] = None,
    corpus: Annotated[
        Path | None,
        typer.Option(help="A file of paragraphs, one a line; without it the demonstration's."),
    ] = None,
    count: Annotated[int, typer.Option(min=1, help="Sentences of 4 to 12 words.")] = 128,
    tokenizer: _Tokenizer = None,
    only: _Only = None,
    max_length: _MaxLength = None,
    seconds: Annotated[float, typer.Option(min=0.1, help="Of each level and round.")] = 3.0,
    rounds: Annotated[int, typer.Option(min=1, help="Of each level.")] = 3,
    seed: _Seed = 0,
    name: _Name = None,
    json_out: _JsonOut = None,
    report: _Report = None,
) -> None:
    """How long callers with one short text each wait, and how many are served.

    First a fixed number of callers, each of whom sends its next text when it has its vector; then
    arrivals at random moments, whether or not the last one was answered.
    """
    _require("latency", *_NEEDS)
    from flowvec_bench.peers.latency import measure_latency
    from flowvec_bench.peers.latency_report import write_latency_report
    from flowvec_bench.peers.report import check_outputs
    from flowvec_bench.peers.roster import FLOWVEC, PEERS
    from flowvec_bench.texts import natural_sentences

    levels = _whole_numbers("callers", callers)
    speeds = None if rates is None else [rate for rate in _numbers("rates", rates) if rate]
    alone = model in shipped_bundles() or (Path(model) / MANIFEST).is_file()
    known = FLOWVEC if alone else {**FLOWVEC, **PEERS}
    # By itself a bundle is measured as it comes.
    chosen = _chosen("flowvec" if alone and only is None else only, known)
    if not alone:
        _require("latency", *_NEEDS_FOR_PEERS)
        _check_model(model, tokenizer)
    if corpus is None:
        own = (s for passage in load_passages() for s in split_sentences(passage.text))
        sentences: Iterator[str] = (
            s for s in own if _SHORT_WORDS[0] <= len(s.split()) <= _SHORT_WORDS[1]
        )
    else:
        _check_corpus(corpus)
        sentences = natural_sentences(corpus, *_SHORT_WORDS)
    check_outputs(json_out, report)
    texts = _sample(sentences, count, seed)
    made = _bundle(model) if alone else _forms(model, tokenizer, max_length, chosen)
    with made as (forms, folder):
        result = measure_latency(
            chosen,
            forms.paths,
            _options(forms),
            texts,
            folder,
            callers=levels,
            rates=speeds,
            seconds=seconds,
            rounds=rounds,
            seed=seed,
            on_step=_say(),
        )
    for line in _latency_lines(result):
        typer.echo(line)
    found = _about("latency", name or Path(model).name, forms, corpus, seed) | asdict(result)
    _write_json(found, json_out)
    if report is not None:
        write_latency_report(result, found, report)


# --- what both do ---------------------------------------------------------------------------------


def _require(command: str, *names: str) -> None:
    if missing := [name for name in names if importlib.util.find_spec(name) is None]:
        raise MissingDependencyError(
            f"flowvec bench {command} needs {', '.join(missing)}: "
            'python -m pip install "flowvec[cpu,export,bench]"'
        )


def _say() -> Any:
    return (lambda line: typer.echo(line, err=True)) if sys.stderr.isatty() else None


def _chosen(only: str | None, known: dict[str, Any]) -> list[Any]:
    """The peers that were asked for, flowvec as it comes before them."""
    names = list(known) if only is None else ["flowvec", *only.split(",")]
    if unknown := [name for name in names if name not in known]:
        raise InputValueError(f"{unknown[0]!r} is no peer here; choose from {', '.join(known)}")
    return [known[name] for name in dict.fromkeys(names)]


def _check_model(model: str, tokenizer: Path | None) -> None:
    from flowvec_bench.peers.forms import SHAPES

    if model in SHAPES and tokenizer is None:
        raise InputValueError(f"{model} has random weights and needs --tokenizer")
    if model not in SHAPES and not Path(model).is_dir():
        raise InputValueError(f"{model} is neither {' nor '.join(SHAPES)} nor a directory")
    if model not in SHAPES and tokenizer is not None:
        raise InputValueError(f"{model} has a tokenizer of its own: --tokenizer has no use")


def _check_corpus(corpus: Path) -> None:
    if not corpus.is_file():
        raise InputValueError(f"there is no file {corpus}")


def _sample(texts: Iterator[str], count: int, seed: int, among: int = 200_000) -> list[str]:
    from flowvec_bench.texts import sample

    try:
        return sample(texts, count, seed, among)
    except ValueError as error:
        raise InputValueError(str(error)) from None


def _whole_numbers(name: str, listed: str) -> list[int]:
    numbers = _numbers(name, listed)
    if not all(number.is_integer() for number in numbers):
        raise InputValueError(f"{name} must be whole numbers with commas, not {listed!r}")
    return [int(number) for number in numbers]


def _numbers(name: str, listed: str) -> list[float]:
    try:
        return [float(number) for number in listed.split(",") if number]
    except ValueError:
        raise InputValueError(f"{name} must be numbers with commas, not {listed!r}") from None


@contextmanager
def _forms(
    model: str, tokenizer: Path | None, max_length: int | None, chosen: Sequence[Peer]
) -> Iterator[tuple[Forms, Path]]:
    """A model in all its forms, and a folder for what comes up."""
    from flowvec_bench.peers.forms import make_forms, random_model

    with tempfile.TemporaryDirectory(prefix="flowvec-") as temporary:
        folder = Path(temporary)
        source = Path(model)
        if tokenizer is not None:
            source = random_model(model, tokenizer, max_length or _MAX_LENGTH, folder / model)
        # As it comes flowvec takes float16 on a GPU; int8 is only made for who asks for it.
        asked = {peer.options.get("load", {}).get("compute") for peer in chosen} - {None}
        yield make_forms(source, folder, max_length, {"float16", *asked}), folder


@contextmanager
def _bundle(model: str) -> Iterator[tuple[Forms, Path]]:
    from flowvec import Bundle
    from flowvec_bench.peers.roster import Forms

    bundle = Bundle.load(model)
    with tempfile.TemporaryDirectory(prefix="flowvec-") as temporary:
        yield (
            Forms({"bundle": bundle.path}, bundle.manifest.max_length, bundle.manifest.dim),
            Path(temporary),
        )


def _options(forms: Forms) -> dict[str, Any]:
    from flowvec.machine import available_cores

    return {"max_length": forms.max_length, "dim": forms.dim, "threads": available_cores()}


def _about(
    benchmark: str, model: str, forms: Forms, corpus: Path | None, seed: int
) -> dict[str, Any]:
    from flowvec_bench.machine import describe_machine

    return {
        "benchmark": benchmark,
        "machine": asdict(describe_machine()),
        "model": model,
        "max_length": forms.max_length,
        "corpus": "the demonstration's passages" if corpus is None else corpus.name,
        "seed": seed,
    }


def _write_json(found: dict[str, Any], out: Path | None) -> None:
    if out is not None:
        out.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


# --- tables ---------------------------------------------------------------------------------------


def _race_lines(result: Race) -> list[str]:
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
    from flowvec_bench.peers.report import rate

    if row.texts_per_second is None:
        return (row.name, "", "", "", "", (row.error or "")[:80])
    return (
        row.name,
        "own" if row.batch_size is None else str(row.batch_size),
        rate(row.texts_per_second),
        f"{row.ratio:.2f}" if row.ratio is not None else "",
        f"{row.min_cosine:.5f}",
        "void: other vectors" if row.void else "",
    )


def _latency_lines(result: Latency) -> list[str]:
    from flowvec_bench.peers.latency_report import cells, level_name
    from flowvec_bench.tables import format_table

    lines = []
    for load, level in dict.fromkeys((row.load, row.level) for row in result.rows):
        rows = [cells(row) for row in result.rows if (row.load, row.level) == (load, level)]
        header = ("peer", "p50 ms", "p95 ms", "p99 ms", "texts/s", "")
        lines += [level_name(load, level), format_table(header, rows, texts=1), ""]
    return lines
