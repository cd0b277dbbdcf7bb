"""Measures all recipes on the repository's own masked-language BERT, without and with a flow.

    python examples/measure.py train --data ../shared/data --work recipes
    python examples/measure.py flows --data ../shared/data --work recipes
    python examples/measure.py report --work recipes -o results.json

NLI is not available: classes and triplets are derived from the scores of STS-B's training pairs.
Many of STS-B's pairs are from STS12 to STS14, so pairs of these sets that share a sentence with the
training pairs are not scored. One core, one seed.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any

import torch
import typer

import recipe
from flowvec_bench.machine import describe_machine
from flowvec_export import FitSettings
from flowvec_export.fitting.corpus import embed_raw, read_corpus, sample_texts
from flowvec_export.fitting.fit import fit_transform, mean_cosine, split
from flowvec_export.sts import StsPairs, StsTask, read_sts, score_vectors, sentence_rows
from training_data import write_tsv

HERE = Path(__file__).resolve().parent
BASE = HERE.parent / "models/backbone/checkpoint"
WIKI_ROWS = 30_000

# Names in braces stand for folders and files; they are filled in when a command runs.
RUNS = {
    "regression": "sbert_regression --train {stsb} --epochs 2 --learning-rate 3e-4 --bf16",
    "classification": "sbert_classification --train {derived}/classes.tsv --learning-rate 3e-4 "
    "--bf16",
    "triplets": "sbert_triplet --train {derived}/triplets.tsv --epochs 4 --learning-rate 3e-4 "
    "--bf16",
    "SimCSE supervised": "simcse_supervised --train {derived}/triplets.tsv --pooling mean "
    "--batch-size 64 --epochs 6 --learning-rate 3e-4 --bf16",
    "SimCSE unsupervised": "simcse_unsupervised --train {wiki} --sentences --rows 20000 "
    "--pooling mean --learning-rate 1e-4 --bf16",
    "regression, the paper's options": "sbert_regression --train {stsb}",
}
WITHOUT_FLOWS = ("regression, the paper's options",)

Data = Annotated[Path, typer.Option(help="The folder with sts/ and text/wiki.txt.xz.")]
Work = Annotated[Path, typer.Option(help="Folder for models and figures; finished runs are kept.")]

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


def slug(name: str) -> str:
    """The folder name of a run."""
    return re.sub(r"\W+", "-", name.lower()).strip("-")


def letters(sentence: str) -> str:
    """A sentence's letters and digits, to compare sentences that are tokenized differently."""
    return re.sub(r"\W+", "", sentence.lower())


def write_unseen(sts: Path, out: Path) -> None:
    """STS-B's dev and test, and the pairs of STS12 to STS14 without a sentence of its train."""
    tasks = {task.name: task for task in read_sts(sts)}
    trained = tasks["STSB"].subsets.pop("train")
    seen = {letters(sentence) for sentence in (*trained.left, *trained.right)}
    for task in tasks.values():
        (out / task.name).mkdir(parents=True)
        for subset, pairs in task.subsets.items():
            kept = [
                row
                for row in zip(pairs.gold, pairs.left, pairs.right, strict=True)
                if task.name == "STSB" or not seen & {letters(row[1]), letters(row[2])}
            ]
            if len(kept) > 1:
                columns = zip(*kept, strict=True)
                named = zip(("score", "sentence1", "sentence2"), map(list, columns), strict=True)
                write_tsv(out / task.name / f"{subset}.tsv", dict(named))


@app.command()
def train(data: Data, work: Work) -> None:
    """Run the recipes that have not run yet, in sequence."""
    places = {
        "stsb": data / "sts/STSB/train.tsv",
        "wiki": data / "text/wiki.txt.xz",
        "derived": work / "derived",
    }
    work.mkdir(parents=True, exist_ok=True)
    if not (work / "sts").exists():
        write_unseen(data / "sts", work / "sts")
        derive = [HERE / "derive_pairs.py", "--scored", places["stsb"], "-o", places["derived"]]
        subprocess.run([sys.executable, *map(str, derive)], check=True)
    for name, line in RUNS.items():
        script, *options = shlex.split(line)
        out = work / slug(name)
        if not out.exists():
            filled = [option.format(**places) for option in options]
            common = ["--model", BASE, "--sts", work / "sts", "-o", out]
            command = [sys.executable, HERE / f"{script}.py", *filled, *common]
            subprocess.run(list(map(str, command)), check=True)


@app.command()
def flows(data: Data, work: Work) -> None:
    """Fit two flows for each trained model: on Wikipedia's sentences, and on those of the sets."""
    tasks = read_sts(work / "sts")
    wiki = read_corpus(str(data / "text/wiki.txt.xz"), rows=WIKI_ROWS, sentences=True)
    models = {"base": BASE} | {name: work / slug(name) / "model" for name in RUNS}
    for name, model in models.items():
        out = work / f"{slug(name)}.flows.json"
        if name not in WITHOUT_FLOWS and model.is_dir() and not out.exists():
            typer.echo(name, err=True)
            figures = measure_flows(model, tasks, wiki)
            out.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


def measure_flows(model: Path, tasks: list[StsTask], wiki: list[str]) -> dict[str, object]:
    """Scores of a model alone and with each flow, from vectors that are computed once."""
    rows = sentence_rows(tasks)
    target = sample_texts(rows, len(rows), 0, "the sets")
    started = perf_counter()
    sentences, texts = (torch.from_numpy(embed_raw(model, t)) for t in (list(rows), wiki))
    seconds = {"embedding": round(perf_counter() - started, 1)}
    in_order = sentences[[rows[text] for text in target]]
    scored = {"none": sentences.numpy()}
    for corpus, vectors in (("wiki", texts), ("target", in_order)):
        started = perf_counter()
        flow, _ = fit_transform(("flow",), *split(vectors.numpy()), FitSettings())
        with torch.no_grad():
            scored[f"flow, {corpus}"] = flow(sentences).numpy()
        seconds[f"flow, {corpus}"] = round(perf_counter() - started, 1)
    return {
        "rows": {"wiki": len(wiki), "target": len(target)},
        "seconds": seconds,
        "mean_cosine": {kind: round(mean_cosine(v), 4) for kind, v in scored.items()},
        "scores": {
            kind: [asdict(score) for score in score_vectors(tasks, rows, vectors)]
            for kind, vectors in scored.items()
        },
    }


@app.command()
def report(work: Work, out: Annotated[Path, typer.Option("-o", "--out")]) -> None:
    """Write all results to one file, and print the table in Markdown."""
    runs = {name: run for name in ("base", *RUNS) if (run := read_run(work, name))}
    record = {
        "evaluation": "recipes",
        "machine": asdict(describe_machine()),
        "base": "models/backbone/checkpoint",
        "seeds": 1,
        "pairs": {task.name: count(task.subsets) for task in read_sts(work / "sts")},
        "runs": runs,
    }
    out.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    typer.echo("| trained by | transform | STS-B dev | STS-B test | STS12 | STS13 | STS14 |")
    typer.echo("|---|---|---|---|---|---|---|")
    for name, run in runs.items():
        for kind, scores in run["scores"].items():
            typer.echo(f"| {name} | {kind} | {' | '.join(cells(scores))} |")


def read_run(work: Path, name: str) -> dict[str, Any]:
    """A run's command, report, and scores without and with a flow."""
    trained, with_flows = work / slug(name) / "report.json", work / f"{slug(name)}.flows.json"
    run: dict[str, Any] = {}
    if trained.exists():
        run["command"] = f"python examples/{RUNS[name]}"
        run["report"] = json.loads(trained.read_text(encoding="utf-8"))
        run["scores"] = {"none": run["report"]["after"]}
    if with_flows.exists():
        run |= json.loads(with_flows.read_text(encoding="utf-8"))
    return run


def cells(scores: list[dict[str, Any]]) -> list[str]:
    """STS-B dev and test, and the years as all / wmean."""
    task = {score["task"]: score for score in scores}
    years = [task[year] for year in ("STS12", "STS13", "STS14")]
    return [
        *(f"{task['STSB']['subsets'][part]:.1f}" for part in ("dev", "test")),
        *(f"{year['all']:.1f} / {year['wmean']:.1f}" for year in years),
    ]


def count(subsets: dict[str, StsPairs]) -> dict[str, int]:
    """Pairs of each file."""
    return {name: len(pairs) for name, pairs in subsets.items()}


if __name__ == "__main__":
    recipe.run_app(app)
