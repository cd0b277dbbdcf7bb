"""`flowvec eval`."""

from __future__ import annotations

import shlex
import sys
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from flowvec import Encoder, MultiVectorEncoder, Reranker, SparseEncoder
from flowvec.bundle.exported import open_bundle
from flowvec.cli.options import (
    MODEL_HELP,
    Compute,
    Format,
    Json,
    Overwrite,
    Provider,
    TextField,
    counted,
    print_json,
)
from flowvec.collection.reranking import RERANK_FROM
from flowvec.errors import InputValueError
from flowvec.optional import require
from flowvec.progress import say
from flowvec.texts.rows import read_rows

if TYPE_CHECKING:
    from flowvec_bench.quality.searching import Retriever
    from flowvec_bench.quality.word_frequency import WordFrequency

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="Measure how good vectors are, on data of your own.",
    epilog="Example: flowvec eval sts mini ./sts",
)

BundleName = Annotated[str, typer.Argument(help=MODEL_HELP)]
StsFolder = Annotated[
    Path,
    typer.Argument(
        metavar="DIR", help="A folder of TSV files (score sentence1 sentence2), or of such folders."
    ),
]


@app.callback()
def evaluate() -> None:
    """Measure how good vectors are, on data of your own."""


def _load(bundle: str | Path, provider: str | None, compute: str) -> Encoder:
    return Encoder.load(bundle, provider=provider, compute=cast(Any, compute))


def _load_retriever(name: str, provider: str | None, compute: str) -> Retriever:
    """A model that finds texts by itself, of the class that opens its bundle."""
    loaded = open_bundle(name)
    kinds = {"sparse": SparseEncoder, "multi_vector": MultiVectorEncoder}
    if loaded.manifest.kind == "reranker":
        raise InputValueError(f"{name} is a reranker, which finds nothing itself: give --rerank")
    kind: Any = kinds.get(loaded.manifest.kind, Encoder)
    model: Retriever = kind.load(loaded.path, provider=provider, compute=compute)
    return model


def _load_reranker(name: str) -> Reranker | MultiVectorEncoder:
    loaded = open_bundle(name)
    is_late = loaded.manifest.kind == "multi_vector"
    return MultiVectorEncoder.load(loaded.path) if is_late else Reranker.load(loaded.path)


def _describe(model: Retriever | Reranker) -> dict[str, Any]:
    """The model; a name instead of a path, since others read the result."""
    info = asdict(model.info())
    info["path"] = Path(info["path"]).name
    return info


def _say_engines(*models: dict[str, Any]) -> None:
    """Print what computed each model: figures differ a little between compute types."""
    typer.echo("")
    for about in models:
        typer.echo(f"{about['name']}: {about['provider']}, {about['compute']}")


@app.command(epilog="Example: flowvec eval sts mini ./sts --json")
def sts(
    bundle: BundleName,
    folder: StsFolder,
    provider: Provider = None,
    compute: Compute = "auto",
    as_json: Json = False,
) -> None:
    """Spearman x 100 of cosine and human scores: each file, all pairs, weighted mean."""
    require("flowvec eval", "cpu,bench", "scipy", "psutil")
    from flowvec_bench.machine import describe_machine
    from flowvec_bench.reports.tables import format_figure, format_table
    from flowvec_export.sts import read_sts, score_sts

    tasks = read_sts(folder)
    with _load(bundle, provider, compute) as encoder:
        say(f"embedding the sentences of {counted(len(tasks), 'set')}")
        scores = score_sts(tasks, encoder.encode)
        info = _describe(encoder)
    if as_json:
        machine = asdict(describe_machine())
        records = [asdict(score) for score in scores]
        print_json({"evaluation": "sts", "encoder": info, "machine": machine, "tasks": records})
        return
    rows = []
    for score in scores:
        parts = [*score.subsets.items(), ("all", score.all), ("wmean", score.wmean)]
        total = sum(score.pairs.values())
        rows += [
            (score.task, part, f"{score.pairs.get(part, total):,}", format_figure(value))
            for part, value in parts
        ]
    typer.echo(format_table(("task", "part", "pairs", info["name"]), rows, texts=2))
    _say_engines(info)


@app.command(epilog="Example: flowvec eval lexical ./flow-bundle ./sts --against ./raw-bundle")
def lexical(
    bundle: BundleName,
    folder: StsFolder,
    against: Annotated[
        list[str] | None, typer.Option(help="Another bundle; may be given several times.")
    ] = None,
    provider: Provider = None,
    compute: Compute = "auto",
    as_json: Json = False,
) -> None:
    """Spearman x 100 of edit distance with gold scores and with cosine: how much a model follows
    spelling."""
    require("flowvec eval", "cpu,bench", "scipy", "rapidfuzz", "psutil")
    from flowvec_bench.machine import describe_machine
    from flowvec_bench.quality.isotropy_report import label_bundles
    from flowvec_bench.quality.lexical import measure_lexical
    from flowvec_bench.reports.tables import format_figure, format_table
    from flowvec_export.sts import read_sts, sentence_rows

    tasks = read_sts(folder)
    rows = sentence_rows(tasks)
    bundles = [open_bundle(name) for name in (bundle, *(against or ()))]
    labels = label_bundles(bundles)
    vectors, infos = {}, []
    for label, loaded in zip(labels, bundles, strict=True):
        say(f"{label}: embedding {len(rows):,} sentences")
        with _load(loaded.path, provider, compute) as encoder:
            vectors[label] = encoder.encode(list(rows))
            infos.append({**_describe(encoder), "label": label})
    table = measure_lexical(tasks, rows, vectors)
    if as_json:
        machine = asdict(describe_machine())
        records = [asdict(row) for row in table]
        print_json(
            {"evaluation": "lexical", "encoders": infos, "machine": machine, "rows": records}
        )
        return
    lines = [
        (
            row.task,
            row.pairs,
            f"{row.count:,}",
            format_figure(row.gold),
            *(format_figure(row.cosine[label]) for label in labels),
        )
        for row in table
    ]
    typer.echo(format_table(("task", "pairs", "n", "gold", *labels), lines, texts=2))
    _say_engines(*({**about, "name": about["label"]} for about in infos))


@app.command(epilog="Example: flowvec eval retrieval mini ./retrieval --hybrid")
def retrieval(
    bundle: Annotated[
        str,
        typer.Argument(
            help=f"{MODEL_HELP} An embedder, or a sparse or multi-vector encoder.",
        ),
    ],
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="DIR", help="A folder in BEIR's layout, or a folder of such folders."
        ),
    ],
    hybrid: Annotated[
        bool,
        typer.Option(
            "--hybrid", help="Also score a collection's hybrid search, by vectors and words."
        ),
    ] = False,
    sparse: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help="A sparse encoder: also score it, alone and fused with the model by ranks.",
        ),
    ] = None,
    rerank: Annotated[
        list[str] | None,
        typer.Option(
            metavar="MODEL",
            help="A reranker or a multi-vector encoder: also score each system with its best hits "
            "reranked. May be given several times.",
        ),
    ] = None,
    rerank_from: Annotated[
        int, typer.Option(min=1, help="How many hits of each query --rerank reads.")
    ] = RERANK_FROM,
    provider: Provider = None,
    compute: Compute = "auto",
    as_json: Json = False,
) -> None:
    """nDCG@10, recall@10, recall@100 and MRR@10 of exact search, compared with BM25.

    A multi-vector encoder compares each query with every document, which suits small sets.
    """
    require("flowvec eval", "cpu,bench", "ir_measures", "bm25s", "Stemmer", "psutil")
    from flowvec_bench.machine import describe_machine
    from flowvec_bench.quality.beir import read_retrieval
    from flowvec_bench.quality.retrieval import score_retrieval
    from flowvec_bench.quality.searching import BM25_SETTINGS
    from flowvec_bench.reports.tables import format_figure, format_table

    sets = read_retrieval(folder)
    with ExitStack() as stack:
        model = _load_retriever(bundle, provider, compute)
        stack.enter_context(model)
        other = None if sparse is None else stack.enter_context(SparseEncoder.load(sparse))
        rerankers = [_load_reranker(name) for name in rerank or ()]
        for reranker in rerankers:
            stack.enter_context(reranker)
        scores = [
            score
            for dataset in sets
            for score in score_retrieval(
                model,
                dataset,
                hybrid=hybrid,
                sparse=other,
                rerankers=rerankers,
                rerank_from=rerank_from,
                on_step=say,
            )
        ]
        info = _describe(model)
        sparse_info = None if other is None else _describe(other)
        described = [_describe(reranker) for reranker in rerankers]
    warnings = {dataset.name: dataset.warnings for dataset in sets}
    if as_json:
        print_json(
            {
                "evaluation": "retrieval",
                "encoder": info,
                "sparse": sparse_info,
                "reranker": described[0] if described else None,
                "rerankers": described,
                "bm25": BM25_SETTINGS,
                "machine": asdict(describe_machine()),
                "warnings": warnings,
                "scores": [asdict(score) for score in scores],
            }
        )
        return
    header = (
        "set",
        "system",
        "documents",
        "queries",
        "nDCG@10",
        "R@10",
        "R@100",
        "MRR@10",
        "ms a query",
    )
    rows = [
        (
            score.dataset,
            score.system,
            f"{score.documents:,}",
            f"{score.queries:,}",
            format_figure(score.ndcg_at_10, 4),
            format_figure(score.recall_at_10, 4),
            format_figure(score.recall_at_100, 4),
            format_figure(score.mrr_at_10, 4),
            format_figure(score.milliseconds, 1),
        )
        for score in scores
    ]
    typer.echo(format_table(header, rows, texts=2))
    _say_engines(info, *([] if sparse_info is None else [sparse_info]), *described)
    typer.echo(f"BM25: {BM25_SETTINGS}")
    for name, lines in warnings.items():
        for line in lines:
            typer.echo(f"{name}: {line}")


@app.command(
    epilog="Example: flowvec eval isotropy ./flow-bundle corpus.txt --against ./raw-bundle "
    "--sts ./sts --report isotropy.md"
)
def isotropy(
    bundle: BundleName,
    corpus: Annotated[
        str, typer.Argument(metavar="CORPUS", help="A txt, jsonl or csv file, or - for stdin.")
    ],
    against: Annotated[str | None, typer.Option(help="A bundle to compare with.")] = None,
    source: Annotated[
        str | None, typer.Option(help="A checkpoint, for its word embeddings by frequency.")
    ] = None,
    sts_folder: Annotated[
        Path | None, typer.Option("--sts", metavar="DIR", help="Labelled pairs, as for `eval sts`.")
    ] = None,
    rows: Annotated[int, typer.Option(min=100, help="Number of texts to sample.")] = 10_000,
    seed: Annotated[int, typer.Option(min=0, help="Seed of every sample.")] = 0,
    report: Annotated[
        Path | None, typer.Option(metavar="OUT", help="Also write a Markdown report, with charts.")
    ] = None,
    overwrite: Overwrite = False,
    text_field: TextField = "text",
    file_format: Format = None,
    provider: Provider = None,
    compute: Compute = "auto",
    as_json: Json = False,
) -> None:
    """Measure how evenly vectors fill their space; optionally write a report with charts."""
    needs = ("scipy", "matplotlib", "psutil")
    if source is None:
        require("flowvec eval", "cpu,bench", *needs)
    else:
        require("flowvec eval", "cpu,export,bench", *needs, "torch", "transformers")
    from flowvec_bench.machine import describe_machine
    from flowvec_bench.quality.isotropy_report import (
        IsotropyReport,
        examine_bundle,
        label_bundles,
        sample_corpus,
    )
    from flowvec_bench.reports.isotropy import check_report_path, write_report
    from flowvec_bench.reports.isotropy_figures import explain, report_lines
    from flowvec_export.sts import read_sts

    if report is not None:
        inputs = (bundle, corpus, against, source, sts_folder)
        check_report_path(report, inputs, overwrite=overwrite)
    bundles = [open_bundle(name) for name in (bundle, against) if name is not None]
    labels = label_bundles(bundles)
    tasks = [] if sts_folder is None else read_sts(sts_folder)
    counter = None if source is None else _WordCounter(source)
    say(f"reading {corpus}")
    read = read_rows(corpus, text_field=text_field, file_format=file_format)
    total, sample = sample_corpus(
        (row.text for row in read), rows, seed, None if counter is None else counter.add
    )
    words = None if counter is None else counter.measure()
    measured = []
    for label, loaded in zip(labels, bundles, strict=True):
        say(f"{label}: embedding and measuring {len(sample):,} texts")
        with _load(loaded.path, provider, compute) as encoder:
            measured.append(examine_bundle(encoder, label, sample, tasks, seed))
    examined = [figures for figures, _ in measured]
    result = IsotropyReport(
        corpus="standard input" if corpus == "-" else Path(corpus).name,
        texts=total,
        rows=len(sample),
        seed=seed,
        sts=None if sts_folder is None else sts_folder.resolve().name,
        bundles=examined,
        word_frequency=words,
        notes=explain(examined, has_sts=bool(tasks)),
        machine=describe_machine(),
    )
    if report is not None:
        # Names, not paths: others read the report.
        typed = [Path(w).name if Path(w).is_absolute() else w for w in sys.argv[1:]]
        command = shlex.join(["flowvec", *typed])
        write_report(report, result, [picture for _, picture in measured], command)
    if as_json:
        print_json({"evaluation": "isotropy", **asdict(result)})
        return
    for line in report_lines(result):
        typer.echo(line)
    if report is not None:
        typer.echo(f"\nreport: {report}")


class _WordCounter:
    """Counts a checkpoint's tokens while a corpus is read."""

    def __init__(self, source: str) -> None:
        from flowvec_bench.quality.word_frequency import count_tokens
        from flowvec_export.sources.load import read_torch_source

        self.checkpoint = read_torch_source(source)
        self.counts = count_tokens(self.checkpoint.tokenizer, [])

    def add(self, texts: list[str]) -> None:
        from flowvec_bench.quality.word_frequency import count_tokens

        self.counts += count_tokens(self.checkpoint.tokenizer, texts)

    def measure(self) -> WordFrequency:
        from flowvec_bench.quality.word_frequency import measure_word_frequency

        weights = self.checkpoint.model.get_input_embeddings().weight.detach().numpy()
        tokenizer, name = self.checkpoint.tokenizer, self.checkpoint.name
        return measure_word_frequency(weights, tokenizer, self.counts, name)
