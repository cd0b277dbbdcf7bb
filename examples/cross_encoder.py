"""A cross-encoder from paragraphs alone: which paragraph did this sentence come from?

    python examples/cross_encoder.py --model models/backbone/checkpoint --corpus paragraphs.txt \\
        --retrieval retrieval -o my-cross-encoder

A query is a sentence that is taken out of a paragraph. Its documents are the rest of the paragraph,
two of the best others for its words by BM25, and two random ones. The model learns to give
the right one the highest score (ListNet, Cao et al. 2007). Half of the words of half of the queries
are dropped, so that the model cannot look for whole phrases. No labels of people are used.

The first quarter of the paragraphs is an easier lesson: the sentence stays in its paragraph, and
all others are random. A small model that has never compared two texts learned nothing without it.

Writes a directory with `model` (sentence-transformers), `bundle` (flowvec) and `report.json`, and
measures the retrieval sets with BM25, hybrid search and `mini`, each with and without reranking.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from time import perf_counter
from typing import Annotated

import bm25s
import torch
import typer
from datasets import Dataset, disable_progress_bars
from sentence_transformers import CrossEncoder
from sentence_transformers.cross_encoder import (
    CrossEncoderTrainer,
    CrossEncoderTrainingArguments,
)
from sentence_transformers.cross_encoder.losses import ListNetLoss
from transformers import PrinterCallback, set_seed

import recipe
from flowvec import Encoder, Reranker
from flowvec.errors import InputValueError
from flowvec.texts.inputs import read_rows
from flowvec.texts.sentences import split_sentences
from flowvec_bench.quality.beir import read_retrieval
from flowvec_bench.quality.retrieval import RetrievalScore, score_retrieval
from flowvec_bench.reports.tables import format_figure, format_table
from flowvec_export import export

# Documents of a query besides its own: drawn from the best by BM25, and from all.
HARD, RANDOM = 2, 2
BEST = 20
# Share of the paragraphs that make the easier lesson.
EASY = 0.25
LEAST_SENTENCES = 3
MOST_WORDS = 100

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


def paragraphs(corpus: Path, count: int) -> list[list[str]]:
    """The sentences of the first paragraphs that have enough of them.

    Raises:
        InputValueError: there are fewer than two.
    """
    found = list(islice(_long_enough(corpus), count))
    if len(found) < 2:
        raise InputValueError(
            f"{corpus} must have paragraphs of at least {LEAST_SENTENCES} sentences"
        )
    return found


def _long_enough(corpus: Path) -> Iterator[list[str]]:
    for row in read_rows(str(corpus)):
        sentences = split_sentences(row.text)
        if len(sentences) >= LEAST_SENTENCES:
            yield sentences


def easy_lesson(found: list[list[str]], seed: int) -> Dataset:
    """Queries whose sentence stays in its paragraph; the other documents are random."""
    draw = random.Random(seed)
    documents = [_first_words(sentences) for sentences in found]
    queries = [_query(draw.choice(sentences), draw) for sentences in found]
    return _listwise(
        queries,
        [
            [own, *_random_others(documents, i, HARD + RANDOM, draw)]
            for i, own in enumerate(documents)
        ],
    )


def lesson(found: list[list[str]], seed: int) -> Dataset:
    """Queries whose sentence is taken out of its paragraph, with near and random documents."""
    draw = random.Random(seed)
    chosen = [draw.randrange(len(sentences)) for sentences in found]
    queries = [_query(s[i], draw) for s, i in zip(found, chosen, strict=True)]
    rests = [_first_words(s[:i] + s[i + 1 :]) for s, i in zip(found, chosen, strict=True)]
    index = bm25s.BM25()
    options = {"stopwords": "english", "show_progress": False}
    index.index(bm25s.tokenize(rests, **options), show_progress=False)
    rows, _ = index.retrieve(
        bm25s.tokenize(queries, return_ids=False, **options),
        k=min(BEST + 1, len(rests)),
        show_progress=False,
    )
    documents = []
    for own, best in enumerate(rows.tolist()):
        near = [rests[row] for row in best if row != own]
        hard = draw.sample(near, min(HARD, len(near)))
        others = _random_others(rests, own, HARD + RANDOM - len(hard), draw)
        documents.append([rests[own], *hard, *others])
    return _listwise(queries, documents)


def _listwise(queries: list[str], documents: list[list[str]]) -> Dataset:
    """Rows for ListNet; the first document of each query is the right one."""
    # ListNet compares softmaxes: that of a label of 10 is a certainty.
    labels = [[10.0] + [0.0] * (HARD + RANDOM)] * len(documents)
    return Dataset.from_dict({"query": queries, "docs": documents, "labels": labels})


def _random_others(texts: list[str], own: int, count: int, draw: random.Random) -> list[str]:
    others = [draw.randrange(len(texts) - 1) for _ in range(count)]
    return [texts[row + (row >= own)] for row in others]


def _first_words(sentences: list[str]) -> str:
    return " ".join(" ".join(sentences).split()[:MOST_WORDS])


def _query(sentence: str, draw: random.Random) -> str:
    words = sentence.split()
    if draw.random() < 0.5:
        kept = sorted(draw.sample(range(len(words)), max(1, len(words) // 2)))
        words = [words[i] for i in kept]
    return " ".join(words)


def measured(
    reranker: Reranker, folder: Path, encoder: Encoder, rerank_from: int
) -> list[RetrievalScore]:
    """Figures of every retrieval set in a folder, with and without the reranker."""
    return [
        score
        for dataset in read_retrieval(folder)
        for score in score_retrieval(
            encoder, dataset, hybrid=True, reranker=reranker, rerank_from=rerank_from
        )
    ]


def train(
    cross_encoder: CrossEncoder,
    data: Dataset,
    steps: int,
    batch_size: int,
    learning_rate: float,
    warmup: float,
    bf16: bool,
    seed: int,
) -> list[float]:
    """Train on one lesson, and return its losses: ln 5 is a guess."""
    with tempfile.TemporaryDirectory(prefix="flowvec-") as folder:
        arguments = CrossEncoderTrainingArguments(
            output_dir=folder,
            max_steps=steps,
            per_device_train_batch_size=batch_size,
            learning_rate=learning_rate,
            warmup_steps=round(steps * warmup),
            bf16=bf16,
            use_cpu=not torch.cuda.is_available(),
            seed=seed,
            save_strategy="no",
            report_to="none",
            logging_steps=max(1, steps // 10),
            disable_tqdm=not sys.stderr.isatty(),
            dataloader_pin_memory=torch.cuda.is_available(),
        )
        trainer = CrossEncoderTrainer(
            model=cross_encoder, args=arguments, train_dataset=data, loss=ListNetLoss(cross_encoder)
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    losses = [round(entry["loss"], 4) for entry in trainer.state.log_history if "loss" in entry]
    typer.echo(f"{steps} steps; losses {losses}", err=True)
    return losses


@app.command()
def main(
    model: recipe.Model,
    corpus: Annotated[Path, typer.Option(help="A file with one paragraph per line.")],
    out: recipe.Out,
    retrieval: Annotated[
        Path | None, typer.Option(help="A folder in BEIR's layout, or a folder of such folders.")
    ] = None,
    count: Annotated[int, typer.Option("--paragraphs", min=2, help="Paragraphs to use.")] = 40_000,
    epochs: recipe.Epochs = 1,
    steps: recipe.Steps = None,
    batch_size: recipe.BatchSize = 16,
    learning_rate: recipe.LearningRate = 3e-4,
    warmup: recipe.Warmup = 0.1,
    max_length: recipe.MaxLength = 96,
    rerank_from: Annotated[
        int, typer.Option(min=1, help="Hits that are reranked in the retrieval sets.")
    ] = 50,
    bf16: recipe.Bfloat16 = False,
    seed: recipe.Seed = 0,
) -> None:
    """Train a cross-encoder on paragraphs, and export it as a reranker."""
    recipe.check_out(out)
    set_seed(seed)
    begun = perf_counter()
    found = paragraphs(corpus, count)
    easy = max(2, round(len(found) * EASY))
    lessons = [easy_lesson(found[:easy], seed), lesson(found[-max(2, len(found) - easy) :], seed)]
    typer.echo(f"{len(found)} queries in {perf_counter() - begun:.0f} s", err=True)
    cross_encoder = CrossEncoder(
        model,
        num_labels=1,
        max_length=max_length,
        activation_fn=torch.nn.Sigmoid(),
        model_kwargs={"dtype": torch.float32},
    )
    for module in cross_encoder.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0  # no text is seen twice
    if not sys.stderr.isatty():
        disable_progress_bars()
    losses: list[float] = []
    total = 0
    for data in lessons:
        most = None if steps is None else max(1, round(steps * len(data) / len(found)))
        count_of_steps = most or max(1, round(-(-len(data) // batch_size) * epochs))
        losses += train(
            cross_encoder, data, count_of_steps, batch_size, learning_rate, warmup, bf16, seed
        )
        total += count_of_steps
    seconds = round(perf_counter() - begun, 1)
    typer.echo(f"{total} steps in {seconds:.0f} s", err=True)
    cross_encoder.save_pretrained(str(out / "model"), create_model_card=False)
    bundle = export(out / "model", out / "bundle", name=out.name)
    scores: list[RetrievalScore] = []
    if retrieval is not None:
        with Reranker.load(bundle.path) as reranker, Encoder.load("mini") as encoder:
            scores = measured(reranker, retrieval, encoder, rerank_from)
        typer.echo(table(scores))
    report = {
        "settings": {
            "model": Path(model).name, "paragraphs": len(found), "steps": total,
            "batch_size": batch_size, "learning_rate": learning_rate, "max_length": max_length,
            "bf16": bf16, "seed": seed, "rerank_from": rerank_from,
        },
        "seconds": seconds,
        "losses": losses,
        "parity": bundle.manifest.parity,
        "retrieval": [asdict(score) for score in scores],
    }  # fmt: skip
    (out / "report.json").write_text(json.dumps(report, indent=2) + "\n")


def table(scores: list[RetrievalScore]) -> str:
    """The figures of all sets and systems."""
    rows = [
        (
            score.dataset,
            score.system,
            format_figure(score.ndcg_at_10, 4),
            format_figure(score.mrr_at_10, 4),
            format_figure(score.milliseconds, 1),
        )
        for score in scores
    ]
    return format_table(("set", "system", "nDCG@10", "MRR@10", "ms a query"), rows, texts=2)


if __name__ == "__main__":
    recipe.run_app(app)
