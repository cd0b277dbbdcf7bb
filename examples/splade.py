"""A SPLADE model from paragraphs alone: sparse vectors that a sentence shares with its paragraph.

    python examples/splade.py --model models/backbone/checkpoint --corpus paragraphs.txt \\
        --retrieval retrieval -o my-splade

SPLADE (Formal et al. 2021) reads a masked language model's logits as weights of the vocabulary's
tokens: log(1 + relu), the largest of all places of the text. A query is a sentence of a paragraph,
without half of its words in half of the cases. The model learns to give its paragraph a larger dot
product than the other paragraphs of the batch, of which one for each query is among the best for
its words by BM25. In a share of the rows (`--taken-out`), the sentence is taken out of its
paragraph, so that the same words are not enough. No labels of people are used. The regularizer
(FLOPS) keeps vectors sparse.

The logits of a model that was only trained to fill in words are above zero for almost every token
of the vocabulary. So first, each token's bias is lowered until it is active in few paragraphs
(`--active`); this begins with vectors that are sparse, and with rare tokens that weigh more.

Writes a directory with `model` (sentence-transformers), `bundle` (flowvec) and `report.json`, and
measures the retrieval sets with `mini`, BM25, hybrid search, the new model, and `mini` fused with
it.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from time import perf_counter
from typing import Annotated

import torch
import typer
from sentence_transformers import (
    SparseEncoder,
    SparseEncoderTrainer,
    SparseEncoderTrainingArguments,
)
from sentence_transformers.sparse_encoder.losses import (
    SparseMultipleNegativesRankingLoss,
    SpladeLoss,
)
from transformers import set_seed

import flowvec
import recipe
import retrieval_recipe
from flowvec.errors import InputValueError
from flowvec_bench.quality.beir import read_retrieval
from flowvec_bench.quality.retrieval import RetrievalScore, score_retrieval
from flowvec_export import export
from paragraph_lessons import make_triplets, read_paragraphs

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

# Paragraphs from which each token's bias is found.
SAMPLE = 512


def load(model: str, max_length: int) -> SparseEncoder:
    """A SPLADE model without dropout, in float32, from a masked language model or a SPLADE model.

    Raises:
        InputValueError: the model takes fewer tokens than `max_length`.
    """
    encoder = SparseEncoder(model, device="cpu", model_kwargs={"dtype": torch.float32})
    limit = encoder.max_seq_length
    if limit is not None and max_length > limit:
        raise InputValueError(f"max_length is {max_length}, but {model} takes {limit} tokens")
    retrieval_recipe.without_dropout(encoder)
    return encoder


@torch.no_grad()
def lower_biases(encoder: SparseEncoder, texts: list[str], active: float) -> None:
    """Lower each token's bias until its weight is above zero in this share of the texts.

    Tokens that already are in fewer keep theirs.
    """
    largest = []
    for start in range(0, len(texts), 32):
        features = encoder.preprocess(texts[start : start + 32])
        logits = encoder[0](features)["token_embeddings"]
        padding = features["attention_mask"][:, :, None] == 0
        largest.append(logits.masked_fill(padding, -torch.inf).amax(dim=1))
    thresholds = torch.cat(largest).quantile(1 - active, dim=0)
    encoder[0].auto_model.get_output_embeddings().bias -= thresholds.clamp(min=0)


def measured(bundle: Path, folder: Path) -> list[RetrievalScore]:
    """Figures of every retrieval set in a folder, of the new model and of those beside it."""
    with flowvec.SparseEncoder.load(bundle) as sparse, flowvec.Encoder.load("mini") as encoder:
        return [
            score
            for dataset in read_retrieval(folder)
            for score in score_retrieval(encoder, dataset, hybrid=True, sparse=sparse)
        ]


@app.command()
def main(
    model: recipe.Model,
    corpus: retrieval_recipe.Corpus,
    out: recipe.Out,
    retrieval: retrieval_recipe.Retrieval = None,
    count: retrieval_recipe.Paragraphs = 2_560,
    taken_out: retrieval_recipe.TakenOut = 0.5,
    active: Annotated[
        float,
        typer.Option(
            help="Share of the paragraphs in which a token is active at first; 1 changes nothing."
        ),
    ] = 0.02,
    query_weight: Annotated[
        float, typer.Option(min=0, help="Weight of the FLOPS regularizer of queries.")
    ] = 1e-2,
    document_weight: Annotated[
        float, typer.Option(min=0, help="Weight of the FLOPS regularizer of documents.")
    ] = 1e-2,
    epochs: recipe.Epochs = 1,
    steps: recipe.Steps = None,
    batch_size: recipe.BatchSize = 16,
    learning_rate: recipe.LearningRate = 3e-4,
    warmup: recipe.Warmup = 0.1,
    max_length: recipe.MaxLength = 64,
    bf16: recipe.Bfloat16 = False,
    seed: recipe.Seed = 0,
) -> None:
    """Train a SPLADE model on paragraphs, and export it as a sparse encoder."""
    recipe.check_out(out)
    if not 0 < active <= 1:
        raise InputValueError(f"--active must be above 0 and at most 1, but is {active:g}")
    set_seed(seed)
    begun = perf_counter()
    found = read_paragraphs(corpus, 0, count)
    data = make_triplets(found, taken_out, seed)
    encoder = load(model, max_length)
    limit, encoder.max_seq_length = encoder.max_seq_length, max_length
    if active < 1:
        lower_biases(encoder, data["positive"][:SAMPLE], active)
    settings = retrieval_recipe.Settings(batch_size, learning_rate, warmup, bf16, seed)
    steps = steps or max(1, round(-(-len(data) // batch_size) * epochs))
    losses = retrieval_recipe.train(
        SparseEncoderTrainer,
        SparseEncoderTrainingArguments,
        steps,
        settings,
        model=encoder,
        train_dataset=data,
        loss=SpladeLoss(
            encoder,
            SparseMultipleNegativesRankingLoss(encoder),
            document_regularizer_weight=document_weight,
            query_regularizer_weight=query_weight,
        ),
    )
    seconds = round(perf_counter() - begun, 1)
    typer.echo(f"{steps} steps in {seconds:.0f} s: {losses}", err=True)
    encoder.max_seq_length = limit
    encoder.save_pretrained(str(out / "model"), create_model_card=False)
    bundle = export(out / "model", out / "bundle", name=out.name)
    retrieval_recipe.write_report(
        out,
        measured(bundle.path, retrieval) if retrieval is not None else [],
        settings={
            "model": Path(model).name, "paragraphs": len(found), "taken_out": taken_out,
            "active": active, "query_weight": query_weight, "document_weight": document_weight,
            "steps": steps, "max_length": max_length, **asdict(settings),
        },
        seconds=seconds,
        losses=losses,
        parity=bundle.manifest.parity,
    )  # fmt: skip


if __name__ == "__main__":
    recipe.run_app(app)
