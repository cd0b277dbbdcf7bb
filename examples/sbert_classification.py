"""Sentence-BERT's classification objective: softmax over [u; v; |u - v|], for pairs with classes.

    python examples/sbert_classification.py --model bert-base-uncased --train nli.tsv --sts sts \\
        -o sbert-nli

`nli.tsv` has the columns sentence1, sentence2 and label, a whole number from 0 (in NLI three:
contradiction, entailment, neutral). The classifier is dropped: u is the sentence's vector.
Reimers and Gurevych 2019, section 3; the defaults are theirs (3.1).
"""

from __future__ import annotations

import typer
from sentence_transformers.sentence_transformer.losses import SoftmaxLoss

import recipe
from flowvec.errors import InputValueError
from training_data import class_number, read_columns, text

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
    bf16: recipe.Bfloat16 = False,
    seed: recipe.Seed = 0,
) -> None:
    """Train on pairs with classes: sentence1, sentence2, label."""
    columns = read_columns(train, {"sentence1": text, "sentence2": text, "label": class_number})
    labels = sorted(set(columns["label"]))
    if len(labels) < 2 or labels != list(range(len(labels))):
        raise InputValueError(f"{train} has the labels {labels}; they must be 0, 1 and so on")
    settings = recipe.Settings(
        model, sts, out, epochs, steps, batch_size, learning_rate, warmup, max_length, bf16, seed
    )
    run = recipe.begin(settings, pooling)
    width = run.model.get_embedding_dimension()
    loss = SoftmaxLoss(run.model, width, num_labels=len(labels))
    recipe.train(run, run.model, loss, columns)
    recipe.finish(run, run.model, pooling=pooling, classes=len(labels))


if __name__ == "__main__":
    recipe.run_app(app)
