"""A cross-encoder from paragraphs alone: which paragraph did this sentence come from?

    python examples/cross_encoder.py --model models/backbone/checkpoint --corpus paragraphs.txt \\
        --retrieval retrieval -o my-cross-encoder

A query is a sentence that is taken out of a paragraph. Its documents are the rest of the paragraph,
the best paragraphs for its words by BM25 from elsewhere, and a random one. The model learns to give
the right one the highest score (ListNet, Cao et al. 2007). Half of the words of half of the queries
are dropped, so that the model cannot look for whole phrases. No labels of people are used.

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

# Documents of a query besides its own: by BM25, and at random.
HARD, RANDOM = 3, 1
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


def listwise(found: list[list[str]], seed: int) -> Dataset:
    """A query, its documents and their labels for each paragraph."""
    draw = random.Random(seed)
    chosen = [draw.randrange(len(sentences)) for sentences in found]
    queries = [_query(s[i], draw) for s, i in zip(found, chosen, strict=True)]
    rests = [
        " ".join(" ".join(s[:i] + s[i + 1 :]).split()[:MOST_WORDS])
        for s, i in zip(found, chosen, strict=True)
    ]
    index = bm25s.BM25()
    options = {"stopwords": "english", "show_progress": False}
    index.index(bm25s.tokenize(rests, **options), show_progress=False)
    rows, _ = index.retrieve(
        bm25s.tokenize(queries, return_ids=False, **options),
        k=min(HARD + 1, len(rests)),
        show_progress=False,
    )
    documents = []
    for own, best in enumerate(rows.tolist()):
        others = [row for row in best if row != own][:HARD]
        while len(others) < HARD + RANDOM:
            others.append(draw.choice([draw.randrange(len(rests)), (own + 1) % len(rests)]))
        documents.append([rests[own], *(rests[row] for row in others)])
    # ListNet compares softmaxes: that of a label of 10 is a certainty.
    labels = [[10.0] + [0.0] * (HARD + RANDOM)] * len(documents)
    return Dataset.from_dict({"query": queries, "docs": documents, "labels": labels})


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
    learning_rate: recipe.LearningRate = 1e-4,
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
    data = listwise(paragraphs(corpus, count), seed)
    typer.echo(f"{len(data)} queries in {perf_counter() - begun:.0f} s", err=True)
    cross_encoder = CrossEncoder(
        model,
        num_labels=1,
        max_length=max_length,
        activation_fn=torch.nn.Sigmoid(),
        model_kwargs={"dtype": torch.float32},
    )
    if not sys.stderr.isatty():
        disable_progress_bars()
    batches = -(-len(data) // batch_size)
    total = steps or max(1, round(batches * epochs))
    with tempfile.TemporaryDirectory(prefix="flowvec-") as folder:
        arguments = CrossEncoderTrainingArguments(
            output_dir=folder,
            num_train_epochs=epochs,
            max_steps=total,
            per_device_train_batch_size=batch_size,
            learning_rate=learning_rate,
            warmup_steps=round(total * warmup),
            bf16=bf16,
            use_cpu=not torch.cuda.is_available(),
            seed=seed,
            save_strategy="no",
            report_to="none",
            logging_steps=max(1, total // 20),
            disable_tqdm=not sys.stderr.isatty(),
            dataloader_pin_memory=torch.cuda.is_available(),
        )
        trainer = CrossEncoderTrainer(
            model=cross_encoder, args=arguments, train_dataset=data, loss=ListNetLoss(cross_encoder)
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    losses = [round(entry["loss"], 4) for entry in trainer.state.log_history if "loss" in entry]
    seconds = round(perf_counter() - begun, 1)
    typer.echo(f"{total} steps in {seconds:.0f} s; losses {losses}", err=True)
    cross_encoder.save_pretrained(str(out / "model"), create_model_card=False)
    bundle = export(out / "model", out / "bundle", name=out.name)
    scores: list[RetrievalScore] = []
    if retrieval is not None:
        with Reranker.load(bundle.path) as reranker, Encoder.load("mini") as encoder:
            scores = measured(reranker, retrieval, encoder, rerank_from)
        typer.echo(table(scores))
    report = {
        "settings": {
            "model": Path(model).name, "paragraphs": len(data), "steps": total,
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
