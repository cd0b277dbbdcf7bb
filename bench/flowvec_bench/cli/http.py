"""`flowvec bench http`."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from flowvec.bundle.bundle import shipped_bundles
from flowvec.bundle.manifest import MANIFEST
from flowvec.cli.options import Overwrite
from flowvec.demo import load_passages
from flowvec.errors import InputValueError
from flowvec.optional import require
from flowvec.progress import say
from flowvec.texts.sentences import split_sentences
from flowvec_bench.cli.options import (
    EXTRAS,
    JsonOut,
    Report,
    Seed,
    about_machine,
    check_corpus,
    check_outputs,
    numbers,
    sample,
    whole_numbers,
    write_json,
)
from flowvec_bench.cli.peer_options import (
    NEEDS,
    NEEDS_FOR_PEERS,
    MaxLength,
    Name,
    Tokenizer,
    options_of,
)

if TYPE_CHECKING:
    from flowvec_bench.http.contestants import Loads
    from flowvec_bench.http.figures import HttpFigures, LoadPlan
    from flowvec_bench.http.lineup import HttpLineup
    from flowvec_bench.http.registry import HttpServer
    from flowvec_bench.peers.registry import Forms
    from flowvec_bench.peers.runner import Runner

__all__ = ["http"]

_WORDS = (8, 60)
_SHORT_WORDS = (4, 12)
_SHORT_TEXTS = 128
# Sentences of a corpus among which some are drawn.
_AMONG = 20_000


def http(
    target: Annotated[
        str,
        typer.Argument(
            metavar="URL|MODEL",
            help="http://HOST:PORT of a running server. Or a shipped model (mini) or a bundle's "
            "directory: flowvec serve, and the same work in process. Or minilm-l6, bert-base, "
            "bert-large or a sentence-transformers directory: beside other servers.",
        ),
    ],
    callers: Annotated[
        str, typer.Option(help="Numbers of callers, who each wait for their answer.")
    ] = "64",
    rates: Annotated[
        str | None,
        typer.Option(
            help="Calls that arrive per second; 0: none. Default: shares of what each server "
            "reaches with callers."
        ),
    ] = None,
    texts_per_call: Annotated[int, typer.Option(min=1, help="Texts of each call.")] = 1,
    within: Annotated[
        float, typer.Option(min=1.0, metavar="MS", help="An answer in this time counts as good.")
    ] = 100.0,
    deadline: Annotated[
        bool,
        typer.Option(
            "--deadline", help="Tell servers that time, as the header x-request-timeout-ms."
        ),
    ] = False,
    corpus: Annotated[
        Path | None,
        typer.Option(help="A file with one paragraph per line. Default: the demo's passages."),
    ] = None,
    count: Annotated[int, typer.Option(min=1, help="Number of different calls.")] = 256,
    tokenizer: Tokenizer = None,
    only: Annotated[
        str | None,
        typer.Option(help="Servers, for example infinity,plain-best. Default: all that suit."),
    ] = None,
    max_length: MaxLength = None,
    seconds: Annotated[float, typer.Option(min=0.1, help="Seconds per load and round.")] = 3.0,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds per load.")] = 3,
    seed: Seed = 0,
    route: Annotated[
        Literal["openai", "tei"], typer.Option(help="Of a URL: the route that it speaks.")
    ] = "openai",
    model: Annotated[str, typer.Option(help="Of a URL: the model that calls name.")] = "",
    name: Name = None,
    json_out: JsonOut = None,
    report: Report = None,
    overwrite: Overwrite = False,
) -> None:
    """Load servers over HTTP: waits, texts per second, and what is answered in time.

    First one caller with a short text, then callers who each wait for their answer, then calls at
    random times. The client is another process; do not use the machine for other work meanwhile.
    """
    require("flowvec bench http", f"{EXTRAS},serve", *NEEDS, "httptools", "uvicorn", "msgspec")
    from flowvec_bench.http.contestants import Loads
    from flowvec_bench.http.figures import LoadPlan
    from flowvec_bench.http.lineup import load_generator
    from flowvec_bench.http.measure import measure_http

    plan = LoadPlan(
        texts_per_call,
        tuple(whole_numbers("callers", callers)),
        None if rates is None else tuple(rate for rate in numbers("rates", rates) if rate),
        within,
        seconds,
        rounds,
        seed,
    )
    check_outputs(json_out, report, (target, corpus, tokenizer), overwrite=overwrite)
    texts = _sentences(corpus, _WORDS, count * texts_per_call, seed)
    short = _sentences(corpus, _SHORT_WORDS, _SHORT_TEXTS, seed)
    calls = [texts[i : i + texts_per_call] for i in range(0, len(texts), texts_per_call)]
    headers = {"x-request-timeout-ms": f"{within:g}"} if deadline else {}
    with tempfile.TemporaryDirectory(prefix="flowvec-http-") as temporary:
        loads = Loads.write(Path(temporary), calls, [[text] for text in short])
        client = load_generator()
        try:
            if target.startswith("http://"):
                lineup = _existing(target, route, model, client, headers)
                figures = measure_http(lineup.contestants, loads, plan, client, say)
            else:
                with _started(
                    target, tokenizer, max_length, only, loads, client, headers
                ) as lineup:
                    figures = measure_http(lineup.contestants, loads, plan, client, say)
        finally:
            client.end()
    _tell(figures, plan)
    shown = "the server" if target.startswith("http://") else Path(target).name
    record = about_machine(
        "http",
        model=name or shown,
        corpus="the demonstration's passages" if corpus is None else corpus.name,
        texts=len(texts),
        deadline=deadline,
        settings=lineup.settings,
        errors=lineup.errors,
        versions=lineup.versions,
        **asdict(plan),
        **asdict(figures),
    )
    write_json(record, json_out)
    if report is not None:
        from flowvec_bench.reports.http import write_http_report

        write_http_report(figures, record, report)


def _sentences(corpus: Path | None, words: tuple[int, int], count: int, seed: int) -> list[str]:
    """Sentences of that many words. The demonstration's are repeated if there are too few."""
    from flowvec_bench.texts import natural_sentences

    if corpus is not None:
        check_corpus(corpus)
        return sample(natural_sentences(corpus, *words), count, seed, max(_AMONG, 2 * count))
    pool = [s for passage in load_passages() for s in split_sentences(passage.text)]
    fitting = [s for s in pool if words[0] <= len(s.split()) <= words[1]]
    drawn = sample(iter(fitting), min(count, len(fitting)), seed)
    return [drawn[i % len(drawn)] for i in range(count)]


def _existing(
    url: str, route: str, model: str, client: Runner, headers: dict[str, str]
) -> HttpLineup:
    """A server that runs already."""
    from flowvec_bench.http.contestants import Served
    from flowvec_bench.http.lineup import HttpLineup, target_of

    return HttpLineup([Served("the server", client, target_of(url, route, model, headers))])


@contextmanager
def _started(
    model: str,
    tokenizer: Path | None,
    max_length: int | None,
    only: str | None,
    loads: Loads,
    client: Runner,
    headers: dict[str, str],
) -> Iterator[HttpLineup]:
    """Servers of a model, which end with the block."""
    from flowvec_bench.http.lineup import opened
    from flowvec_bench.http.registry import SERVERS

    is_bundle = model in shipped_bundles() or (Path(model) / MANIFEST).is_file()
    servers = _servers(SERVERS, only, is_bundle)
    with (
        _forms(model, tokenizer, max_length, servers, is_bundle) as forms,
        opened(servers, forms, options_of(forms), loads, client, say, headers) as lineup,
    ):
        yield lineup


def _servers(known: dict[str, HttpServer], only: str | None, is_bundle: bool) -> list[HttpServer]:
    """The requested servers, after flowvec's own."""
    suited = {key: s for key, s in known.items() if s.form == "bundle" or not is_bundle}
    by_default = [key for key, server in suited.items() if server.by_default]
    names = by_default if only is None else ["flowvec", *only.split(",")]
    if unknown := [name for name in names if name not in suited]:
        raise InputValueError(
            f"{unknown[0]!r} is not a server here; choose from {', '.join(suited)}"
        )
    return [suited[name] for name in dict.fromkeys(names)]


@contextmanager
def _forms(
    model: str,
    tokenizer: Path | None,
    max_length: int | None,
    servers: Sequence[HttpServer],
    is_bundle: bool,
) -> Iterator[Forms]:
    """The model in the forms that servers read."""
    if is_bundle:
        from flowvec.bundle.exported import open_bundle
        from flowvec_bench.peers.registry import Forms

        bundle = open_bundle(model)
        yield Forms({"bundle": bundle.path}, bundle.manifest.max_length, bundle.manifest.dim)
        return
    require("flowvec bench http", f"{EXTRAS},serve", *NEEDS_FOR_PEERS)
    from flowvec_bench.peers.model_forms import check_model, opened_forms
    from flowvec_bench.peers.registry import FLOWVEC

    check_model(model, tokenizer)
    int8 = [FLOWVEC["flowvec-int8"]] if any("int8" in s.command for s in servers) else []
    with opened_forms(model, tokenizer, max_length, int8) as (forms, _):
        yield forms


def _tell(figures: HttpFigures, plan: LoadPlan) -> None:
    from flowvec_bench.reports.http import HEADER, cells, level_name, summary
    from flowvec_bench.reports.tables import format_table

    for load in dict.fromkeys((row.load, row.level) for row in figures.rows):
        rows = [row for row in figures.rows if (row.load, row.level) == load]
        typer.echo(level_name(rows[0], plan.texts_per_call))
        typer.echo(format_table(HEADER, [cells(row) for row in rows]) + "\n")
    header, lines = summary(figures, plan.within)
    typer.echo(format_table(header, lines))
