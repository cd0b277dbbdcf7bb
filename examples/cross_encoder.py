"""A cross-encoder from paragraphs alone: which paragraph did this sentence come from?

    python examples/cross_encoder.py --model models/backbone/checkpoint --corpus paragraphs.txt \\
        --retrieval retrieval -o my-cross-encoder

A query is a sentence of a paragraph. The model learns to give its paragraph the highest of five
scores (ListNet, Cao et al. 2007). Half of the words of half of the queries are dropped, so that the
model cannot look for whole phrases. No labels of people are used. There are three lessons:

- easy: the sentence stays in its paragraph, and the other four are random. A small model that
  has never compared two texts learned nothing without it.
- words: the sentence stays, and two of the others are among the best for its words by BM25.
- hard: the sentence is taken out of its paragraph, and the others are as in the second.

`--model` may be a cross-encoder already, which goes on with the lessons that `--easy` and `--words`
choose, on paragraphs after those that it has seen (`--skip`).

Writes a directory with `model` (sentence-transformers), `bundle` (flowvec) and `report.json`, and
measures the retrieval sets with BM25, hybrid search and `mini`, each with and without reranking.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from time import perf_counter
from typing import Annotated

import torch
import typer
from sentence_transformers import CrossEncoder
from sentence_transformers.cross_encoder import (
    CrossEncoderTrainer,
    CrossEncoderTrainingArguments,
)
from sentence_transformers.cross_encoder.losses import ListNetLoss
from transformers import set_seed

import recipe
import retrieval_recipe
from flowvec import Encoder, Reranker
from flowvec.errors import InputValueError
from flowvec_bench.quality.beir import read_retrieval
from flowvec_bench.quality.retrieval import RetrievalScore, score_retrieval
from flowvec_export import export
from paragraph_lessons import make_data, read_paragraphs, split_lessons

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


def measured(
    reranker: Reranker, folder: Path, encoder: Encoder, rerank_from: int
) -> list[RetrievalScore]:
    """Figures of every retrieval set in a folder, with and without the reranker."""
    return [
        score
        for dataset in read_retrieval(folder)
        for score in score_retrieval(
            encoder, dataset, hybrid=True, rerankers=[reranker], rerank_from=rerank_from
        )
    ]


def load(model: str, max_length: int) -> CrossEncoder:
    """A cross-encoder of one label without dropout, from an encoder or a cross-encoder."""
    cross_encoder = CrossEncoder(
        model,
        num_labels=1,
        max_length=max_length,
        activation_fn=torch.nn.Sigmoid(),
        model_kwargs={"dtype": torch.float32},
    )
    retrieval_recipe.without_dropout(cross_encoder)
    return cross_encoder


@app.command()
def main(
    model: recipe.Model,
    corpus: retrieval_recipe.Corpus,
    out: recipe.Out,
    retrieval: retrieval_recipe.Retrieval = None,
    skip: Annotated[int, typer.Option(min=0, help="Paragraphs to leave out first.")] = 0,
    count: Annotated[int, typer.Option("--paragraphs", min=2, help="Paragraphs to use.")] = 40_000,
    easy: Annotated[float, typer.Option(min=0, max=1, help="Share of the easy lesson.")] = 0.25,
    words: Annotated[float, typer.Option(min=0, max=1, help="Share of the words lesson.")] = 0,
    epochs: recipe.Epochs = 1,
    steps: recipe.Steps = None,
    batch_size: recipe.BatchSize = 16,
    learning_rate: recipe.LearningRate = 3e-4,
    warmup: recipe.Warmup = 0.1,
    max_length: recipe.MaxLength = 96,
    rerank_from: retrieval_recipe.RerankFrom = 50,
    bf16: recipe.Bfloat16 = False,
    seed: recipe.Seed = 0,
) -> None:
    """Train a cross-encoder on paragraphs, and export it as a reranker."""
    recipe.check_out(out)
    if easy + words > 1:
        raise InputValueError(f"--easy and --words are {easy:g} and {words:g}, together above 1")
    set_seed(seed)
    begun = perf_counter()
    found = read_paragraphs(corpus, skip, count)
    cross_encoder = load(model, max_length)
    settings = retrieval_recipe.Settings(batch_size, learning_rate, warmup, bf16, seed)
    losses: dict[str, list[float]] = {}
    total = 0
    for lesson, part in split_lessons(found, easy, words):
        data = make_data(lesson, part, seed)
        share = None if steps is None else max(1, round(steps * len(part) / len(found)))
        lesson_steps = share or max(1, round(-(-len(part) // batch_size) * epochs))
        losses[lesson.name] = retrieval_recipe.train(
            CrossEncoderTrainer,
            CrossEncoderTrainingArguments,
            lesson_steps,
            settings,
            model=cross_encoder,
            train_dataset=data,
            loss=ListNetLoss(cross_encoder),
        )  # a loss of ln 5 is a guess
        total += lesson_steps
        typer.echo(f"{lesson.name}: {lesson_steps} steps, {losses[lesson.name]}", err=True)
    seconds = round(perf_counter() - begun, 1)
    typer.echo(f"{total} steps in {seconds:.0f} s", err=True)
    cross_encoder.save_pretrained(str(out / "model"), create_model_card=False)
    bundle = export(out / "model", out / "bundle", name=out.name)
    scores: list[RetrievalScore] = []
    if retrieval is not None:
        with Reranker.load(bundle.path) as reranker, Encoder.load("mini") as encoder:
            scores = measured(reranker, retrieval, encoder, rerank_from)
    retrieval_recipe.write_report(
        out,
        scores,
        settings={
            "model": Path(model).name, "skip": skip, "paragraphs": len(found), "easy": easy,
            "words": words, "steps": total, "max_length": max_length, "rerank_from": rerank_from,
            **asdict(settings),
        },
        seconds=seconds,
        losses=losses,
        parity=bundle.manifest.parity,
    )  # fmt: skip


if __name__ == "__main__":
    recipe.run_app(app)
