"""Unsupervised SimCSE: find a sentence in its batch, by a copy with other dropout.

    python examples/simcse_unsupervised.py --model bert-base-uncased --train wiki.txt --sts sts \\
        --rows 1000000 -o simcse

The file holds one sentence per line, or paragraphs with --sentences; in jsonl the field is text. A
linear layer with tanh follows the pooling during training, and is removed at the end. Gao,
Yao and Chen 2021, section 3; the defaults are those of their code for BERT-base.
"""

from __future__ import annotations

from typing import Annotated

import typer
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

import encoders
import recipe
from flowvec.errors import InputValueError
from flowvec_export.fitting.corpus import read_corpus

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(
    model: recipe.Model,
    train: recipe.Train,
    sts: recipe.Sts,
    out: recipe.Out,
    epochs: recipe.Epochs = 1,
    steps: recipe.Steps = None,
    batch_size: recipe.BatchSize = 64,
    learning_rate: recipe.LearningRate = 3e-5,
    warmup: recipe.Warmup = 0,
    max_length: recipe.MaxLength = 32,
    pooling: recipe.PoolingMode = "cls",
    temperature: Annotated[
        float, typer.Option(help="Temperature of the softmax over cosines.")
    ] = 0.05,
    dropout: Annotated[
        float, typer.Option(help="Dropout, the only difference between the two copies.")
    ] = 0.1,
    rows: Annotated[int, typer.Option(min=2, help="Sentences to draw.")] = 1_000_000,
    sentences: Annotated[
        bool, typer.Option("--sentences", help="Split every line into sentences.")
    ] = False,
    bf16: recipe.Bfloat16 = False,
    seed: recipe.Seed = 0,
) -> None:
    """Train on sentences without labels."""
    if temperature <= 0:
        raise InputValueError(f"temperature must be above 0, but is {temperature:g}")
    texts = read_corpus(str(train), rows=rows, seed=seed, sentences=sentences)
    settings = recipe.Settings(
        model, sts, out, epochs, steps, batch_size, learning_rate, warmup, max_length, bf16, seed
    )
    run = recipe.begin(settings, pooling)
    trained = encoders.with_head(run.model)
    encoders.set_dropout(trained, dropout)
    loss = MultipleNegativesRankingLoss(trained, scale=1 / temperature)
    recipe.train(run, trained, loss, {"anchor": texts, "positive": texts})
    bare = SentenceTransformer(modules=list(trained)[:-1])
    recipe.finish(run, bare, pooling=pooling, temperature=temperature, dropout=dropout)


if __name__ == "__main__":
    recipe.run_app(app)
