"""Sentence-BERT's triplet objective: max(|a - p| - |a - n| + margin, 0), Euclidean.

    python examples/sbert_triplet.py --model bert-base-uncased --train triplets.tsv --sts sts \\
        -o sbert-triplets

The file has the columns anchor, positive and negative. Reimers and Gurevych 2019, section 3: the
margin is 1 there, and 5 by default in sentence-transformers. It is a distance, not a cosine, so its
effect depends on the length of the model's vectors.
"""

from __future__ import annotations

from typing import Annotated

import typer
from sentence_transformers.sentence_transformer.losses import TripletDistanceMetric, TripletLoss

import recipe
from flowvec.errors import InputValueError
from training_data import read_columns, text

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(
    model: recipe.Model,
    train: recipe.Train,
    sts: recipe.Sts,
    out: recipe.Out,
    epochs: recipe.Epochs = 1,
    steps: recipe.Steps = None,
    batch_size: recipe.BatchSize = 16,
    learning_rate: recipe.LearningRate = 2e-5,
    warmup: recipe.Warmup = 0.1,
    max_length: recipe.MaxLength = 128,
    pooling: recipe.PoolingMode = None,
    margin: Annotated[
        float, typer.Option(help="How much farther away the negative must be than the positive.")
    ] = 1,
    bf16: recipe.Bfloat16 = False,
    seed: recipe.Seed = 0,
) -> None:
    """Train on triplets: anchor, positive, negative."""
    columns = read_columns(train, {"anchor": text, "positive": text, "negative": text})
    if margin <= 0:
        raise InputValueError(f"margin must be above 0, but is {margin:g}")
    settings = recipe.Settings(
        model, sts, out, epochs, steps, batch_size, learning_rate, warmup, max_length, bf16, seed
    )
    run = recipe.begin(settings, pooling)
    loss = TripletLoss(run.model, TripletDistanceMetric.EUCLIDEAN, triplet_margin=margin)
    recipe.train(run, run.model, loss, columns)
    recipe.finish(run, run.model, pooling=pooling, margin=margin)


if __name__ == "__main__":
    recipe.run_app(app)
