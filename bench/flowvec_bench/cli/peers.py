"""`flowvec bench peers` and `flowvec bench latency`."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from flowvec.bundle.bundle import shipped_bundles
from flowvec.bundle.manifest import MANIFEST
from flowvec.cli.options import Overwrite
from flowvec.demo import load_passages
from flowvec.optional import require
from flowvec.progress import say
from flowvec.texts.sentences import split_sentences
from flowvec_bench.cli.options import (
    EXTRAS,
    Corpus,
    JsonOut,
    Report,
    Seed,
    check_corpus,
    check_outputs,
    chosen,
    numbers,
    sample,
    whole_numbers,
    write_json,
)
from flowvec_bench.cli.peer_options import (
    NEEDS,
    NEEDS_FOR_PEERS,
    MaxLength,
    Model,
    Name,
    Only,
    Tokenizer,
    about_race,
    options_of,
)

if TYPE_CHECKING:
    from flowvec_bench.peers.kinds import Kind
    from flowvec_bench.peers.latency import Latency
    from flowvec_bench.peers.race import Race, Row
    from flowvec_bench.peers.registry import Forms

__all__ = ["latency", "peers", "race_lines"]

_LONG_WORDS = 150
_SHORT_WORDS = (4, 12)
# Most tokens of a pair, unless it is given.
_PAIR_LENGTH = 512


def peers(
    model: Model,
    corpus: Corpus,
    tokenizer: Tokenizer = None,
    only: Only = None,
    task: Annotated[
        Literal["encode", "sparse", "multi-vector", "rerank"],
        typer.Option(
            help="encode texts; encode them by a sparse or a multi-vector encoder; or rerank the "
            "documents of queries by a cross-encoder."
        ),
    ] = "encode",
    queries: Annotated[
        int,
        typer.Option(min=1, help="Queries to rerank, each with 100 documents of 50 to 200 words."),
    ] = 10,
    natural: Annotated[
        int, typer.Option(min=0, help="Number of sentences of 8 to 60 words.")
    ] = 4000,
    long: Annotated[
        int, typer.Option(min=0, help="Number of paragraphs of 150 words or more.")
    ] = 400,
    sts: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", help="Also race on the sentences of these scored pairs (TSV)."
        ),
    ] = None,
    max_length: MaxLength = None,
    rounds: Annotated[int, typer.Option(min=1, help="Timed passes of each peer.")] = 5,
    seed: Seed = 0,
    name: Name = None,
    json_out: JsonOut = None,
    report: Report = None,
    overwrite: Overwrite = False,
) -> None:
    """Compare texts per second with other libraries: same weights, same texts, best settings.

    Every peer has its own environment, which is kept in the user's cache. Do not use the machine
    for other work during the race.
    """
    require("flowvec bench peers", EXTRAS, *NEEDS, *NEEDS_FOR_PEERS)
    check_outputs(json_out, report, (model, corpus, tokenizer, sts), overwrite=overwrite)
    if task == "rerank":
        _race_rerankers(
            model,
            corpus,
            tokenizer,
            only,
            queries,
            max_length,
            rounds,
            seed,
            name,
            json_out,
            report,
        )
        return
    from flowvec_bench.peers.model_forms import check_model, opened_forms
    from flowvec_bench.peers.race import race
    from flowvec_bench.peers.registry import FLOWVEC, PEERS, STATIC, suited
    from flowvec_bench.reports.peers import write_peer_report

    texts = partial(_texts_of, corpus, natural, long, sts, seed)
    if task != "encode":
        _race_kind(
            task, model, corpus, tokenizer, only, texts, max_length, rounds, seed, name, json_out,
            report,
        )  # fmt: skip
        return
    racers = chosen(only, {**FLOWVEC, **PEERS, **STATIC})
    check_model(model, tokenizer)
    check_corpus(corpus)
    drawn = texts()
    with opened_forms(model, tokenizer, max_length, racers) as (forms, folder):
        if only is None:
            racers = suited(racers, forms)
        result = race(
            racers, forms.paths, options_of(forms), drawn, folder, rounds=rounds, on_step=say
        )
    for line in race_lines(result):
        typer.echo(line)
    record = about_race("peers", name or Path(model).name, forms, corpus, seed) | asdict(result)
    write_json(record, json_out)
    if report is not None:
        write_peer_report(result, record, report)


def _texts_of(
    corpus: Path, natural: int, long: int, sts: Path | None, seed: int
) -> dict[str, list[str]]:
    """The texts of a race, by kind."""
    from flowvec_bench.texts import natural_sentences, read_paragraphs
    from flowvec_export.sts import read_sts, sentence_rows

    texts: dict[str, list[str]] = {}
    if natural:
        texts["natural"] = sample(natural_sentences(corpus), natural, seed)
    if long:
        paragraphs = (p for p in read_paragraphs(corpus) if len(p.split()) >= _LONG_WORDS)
        texts["long"] = sample(paragraphs, long, seed, among=20_000)
    if sts is not None:
        sentences = list(sentence_rows(read_sts(sts)))
        texts["sts"] = sample(iter(sentences), len(sentences), seed)
    return texts


def _race_kind(
    kind: Kind,
    model: str,
    corpus: Path,
    tokenizer: Path | None,
    only: str | None,
    texts: Callable[[], dict[str, list[str]]],
    max_length: int | None,
    rounds: int,
    seed: int,
    name: str | None,
    json_out: Path | None,
    report: Path | None,
) -> None:
    """`flowvec bench peers --task sparse` and `--task multi-vector`."""
    from flowvec_bench.peers.kinds import encoders_of, opened_kind, race_kind
    from flowvec_bench.peers.model_forms import check_model
    from flowvec_bench.reports.peers import write_peer_report

    if tokenizer is not None:
        what = f"flowvec bench peers --task {kind} with random weights"
        require(what, f"{EXTRAS},train", "sentence_transformers")
    racers = chosen(only, encoders_of(kind))
    check_model(model, tokenizer)
    check_corpus(corpus)
    drawn = texts()
    with opened_kind(kind, model, tokenizer, max_length, racers) as (forms, folder):
        options = options_of(forms)
        result = race_kind(
            kind, racers, forms.paths, options, drawn, folder, rounds=rounds, on_step=say
        )
    for line in race_lines(result):
        typer.echo(line)
    shown = f"{name or Path(model).name}, {kind} encoder"
    record = about_race(kind, shown, forms, corpus, seed) | asdict(result)
    write_json(record, json_out)
    if report is not None:
        write_peer_report(result, record, report)


def _race_rerankers(
    model: str,
    corpus: Path,
    tokenizer: Path | None,
    only: str | None,
    queries: int,
    max_length: int | None,
    rounds: int,
    seed: int,
    name: str | None,
    json_out: Path | None,
    report: Path | None,
) -> None:
    """`flowvec bench peers --task rerank`."""
    from flowvec_bench.peers.model_forms import check_model
    from flowvec_bench.peers.rerankers import (
        opened_reranker,
        pairs_of,
        race_rerankers,
        rerankers,
    )
    from flowvec_bench.reports.peers import write_peer_report
    from flowvec_bench.texts import natural_sentences, read_paragraphs

    racers = chosen(only, rerankers())
    check_model(model, tokenizer)
    check_corpus(corpus)
    pairs = pairs_of(read_paragraphs(corpus), natural_sentences(corpus), queries, seed)
    with opened_reranker(model, tokenizer, max_length or _PAIR_LENGTH, racers) as (
        forms,
        folder,
    ):
        result = race_rerankers(
            racers, forms.paths, options_of(forms), pairs, folder, rounds=rounds, on_step=say
        )
    for line in race_lines(result, "pairs"):
        typer.echo(line)
    shown = f"{name or Path(model).name}, cross-encoder"
    record = about_race("rerankers", shown, forms, corpus, seed) | asdict(result)
    write_json(record, json_out)
    if report is not None:
        write_peer_report(result, record, report, unit="pairs")


def latency(
    model: Annotated[
        str,
        typer.Argument(
            help="A shipped model (mini) or a bundle's directory: measures flowvec alone. "
            "minilm-l6, bert-base, bert-large or a sentence-transformers directory: compared with "
            "peers."
        ),
    ],
    callers: Annotated[
        str, typer.Option(help="Numbers of callers, who each wait for their answer.")
    ] = "1,8,64,256",
    rates: Annotated[
        str | None,
        typer.Option(
            help="Arrivals per second; 0: none. Default: 25, 50 and 75 % of what flowvec reaches."
        ),
    ] = None,
    corpus: Annotated[
        Path | None,
        typer.Option(help="A file with one paragraph per line. Default: the demo's passages."),
    ] = None,
    count: Annotated[int, typer.Option(min=1, help="Number of sentences of 4 to 12 words.")] = 128,
    tokenizer: Tokenizer = None,
    only: Only = None,
    max_length: MaxLength = None,
    seconds: Annotated[
        float, typer.Option(min=0.1, help="Seconds per load level and round.")
    ] = 3.0,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds per load level.")] = 3,
    seed: Seed = 0,
    name: Name = None,
    json_out: JsonOut = None,
    report: Report = None,
    overwrite: Overwrite = False,
) -> None:
    """Measure how long callers with one short text each wait, and how many are served.

    First a fixed number of callers send the next text when they have their vector. Then texts
    arrive at random times, without waiting for earlier answers.
    """
    require("flowvec bench latency", EXTRAS, *NEEDS)
    from flowvec_bench.peers.latency import measure_latency
    from flowvec_bench.peers.registry import FLOWVEC, PEERS
    from flowvec_bench.reports.latency import write_latency_report
    from flowvec_bench.texts import natural_sentences

    levels = whole_numbers("callers", callers)
    speeds = None if rates is None else [rate for rate in numbers("rates", rates) if rate]
    is_bundle = model in shipped_bundles() or (Path(model) / MANIFEST).is_file()
    available = FLOWVEC if is_bundle else {**FLOWVEC, **PEERS}
    # Without peers, a bundle is measured with its defaults.
    racers = chosen("flowvec" if is_bundle and only is None else only, available)
    if not is_bundle:
        require("flowvec bench latency", EXTRAS, *NEEDS_FOR_PEERS)
        from flowvec_bench.peers.model_forms import check_model, opened_forms

        check_model(model, tokenizer)
    if corpus is None:
        demo_sentences = (s for passage in load_passages() for s in split_sentences(passage.text))
        sentences: Iterator[str] = (
            s for s in demo_sentences if _SHORT_WORDS[0] <= len(s.split()) <= _SHORT_WORDS[1]
        )
    else:
        check_corpus(corpus)
        sentences = natural_sentences(corpus, *_SHORT_WORDS)
    check_outputs(json_out, report, (model, corpus, tokenizer), overwrite=overwrite)
    texts = sample(sentences, count, seed)
    opened = _bundle(model) if is_bundle else opened_forms(model, tokenizer, max_length, racers)
    with opened as (forms, folder):
        result = measure_latency(
            racers,
            forms.paths,
            options_of(forms),
            texts,
            folder,
            callers=levels,
            rates=speeds,
            seconds=seconds,
            rounds=rounds,
            seed=seed,
            on_step=say,
        )
    for line in _latency_lines(result):
        typer.echo(line)
    record = about_race("latency", name or Path(model).name, forms, corpus, seed) | asdict(result)
    write_json(record, json_out)
    if report is not None:
        write_latency_report(result, record, report)


@contextmanager
def _bundle(model: str) -> Iterator[tuple[Forms, Path]]:
    from flowvec.bundle.exported import open_bundle
    from flowvec_bench.peers.registry import Forms

    bundle = open_bundle(model)
    with tempfile.TemporaryDirectory(prefix="flowvec-") as temporary:
        yield (
            Forms({"bundle": bundle.path}, bundle.manifest.max_length, bundle.manifest.dim),
            Path(temporary),
        )


def race_lines(result: Race, unit: str = "texts") -> list[str]:
    """A table of each kind of texts, as lines to print."""
    from flowvec_bench.reports.peers import quality_names
    from flowvec_bench.reports.tables import format_table

    lines = []
    for kind, count in result.kinds.items():
        same = "min cosine" if unit == "texts" else "correlation"
        names = quality_names(result)
        header = ("peer", "batch", f"{unit}/s", "slower by", same, *names.values(), "")
        rows = [_cells(row, list(names)) for row in result.rows if row.texts == kind]
        lines += [
            f"{kind}: {count} {unit}, medians of {result.rounds} interleaved rounds",
            format_table(header, rows, texts=1),
            "",
        ]
    return lines


def _cells(row: Row, quality: list[str]) -> tuple[str, ...]:
    from flowvec_bench.reports.peers import quality_cells, rate

    if row.texts_per_second is None:
        return (row.name, "", "", "", "", *("" for _ in quality), (row.error or "")[:80])
    return (
        row.name,
        "default" if row.batch_size is None else str(row.batch_size),
        rate(row.texts_per_second),
        f"{row.ratio:.2f}" if row.ratio is not None else "",
        f"{row.min_cosine:.5f}",
        *quality_cells(row, quality),
        row.remark,
    )


def _latency_lines(result: Latency) -> list[str]:
    from flowvec_bench.reports.latency import cells, level_name
    from flowvec_bench.reports.tables import format_table

    lines = []
    for load, level in dict.fromkeys((row.load, row.level) for row in result.rows):
        rows = [cells(row) for row in result.rows if (row.load, row.level) == (load, level)]
        header = ("peer", "p50 ms", "p95 ms", "p99 ms", "texts/s", "")
        lines += [level_name(load, level), format_table(header, rows, texts=1), ""]
    return lines
