"""Sentence-BERT's regression objective: cosine against a score, squared error.

    python examples/sbert_regression.py --model bert-base-uncased --train sts/STSB/train.tsv \\
        --sts sts --epochs 4 -o sbert-stsb

The file has the columns score, sentence1 and sentence2. Reimers and Gurevych 2019, section 3; the
defaults are theirs (3.1). To continue from another recipe, give its `model` directory.
"""

from __future__ import annotations

from typing import Annotated

import typer
from sentence_transformers.sentence_transformer.losses import CosineSimilarityLoss

import recipe
from flowvec.errors import InputValueError
from training_data import number, read_columns, text

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
    best: Annotated[float, typer.Option(help="The score of a pair that means the same.")] = 5,
    bf16: recipe.Bfloat16 = False,
    seed: recipe.Seed = 0,
) -> None:
    """Train on pairs with scores: sentence1, sentence2, score."""
    columns = read_columns(train, {"sentence1": text, "sentence2": text, "score": number})
    if wrong := [score for score in columns["score"] if not 0 <= score <= best]:
        raise InputValueError(f"{train} has the score {wrong[0]:g}, not from 0 to {best:g}")
    columns["score"] = [score / best for score in columns["score"]]
    settings = recipe.Settings(
        model, sts, out, epochs, steps, batch_size, learning_rate, warmup, max_length, bf16, seed
    )
    run = recipe.begin(settings, pooling)
    recipe.train(run, run.model, CosineSimilarityLoss(run.model), columns)
    recipe.finish(run, run.model, pooling=pooling, best=best)


if __name__ == "__main__":
    recipe.run_app(app)
