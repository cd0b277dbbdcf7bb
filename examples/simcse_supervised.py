"""Supervised SimCSE: find an anchor's positive among all positives and hard negatives.

    python examples/simcse_supervised.py --model bert-base-uncased --train nli-triplets.tsv \\
        --sts sts -o simcse-nli

The file has the columns anchor, positive and negative: in NLI a premise, what it entails and what
contradicts it. The linear layer with tanh after the pooling stays, as a Dense module. Gao, Yao and
Chen 2021, section 4; the defaults are those of their code for BERT-base.
"""

from __future__ import annotations

from typing import Annotated

import typer
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

import encoders
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
    epochs: recipe.Epochs = 3,
    steps: recipe.Steps = None,
    batch_size: recipe.BatchSize = 512,
    learning_rate: recipe.LearningRate = 5e-5,
    warmup: recipe.Warmup = 0,
    max_length: recipe.MaxLength = 32,
    pooling: recipe.PoolingMode = "cls",
    temperature: Annotated[
        float, typer.Option(help="Temperature of the softmax over cosines.")
    ] = 0.05,
    bf16: recipe.Bfloat16 = False,
    seed: recipe.Seed = 0,
) -> None:
    """Train on triplets: anchor, positive, negative."""
    columns = read_columns(train, {"anchor": text, "positive": text, "negative": text})
    if temperature <= 0:
        raise InputValueError(f"temperature must be above 0, but is {temperature:g}")
    settings = recipe.Settings(
        model, sts, out, epochs, steps, batch_size, learning_rate, warmup, max_length, bf16, seed
    )
    run = recipe.begin(settings, pooling)
    trained = encoders.with_head(run.model)
    loss = MultipleNegativesRankingLoss(trained, scale=1 / temperature)
    recipe.train(run, trained, loss, columns)
    recipe.finish(run, trained, pooling=pooling, temperature=temperature)


if __name__ == "__main__":
    recipe.run_app(app)
