"""Derives classes and triplets from scored pairs, to try the recipes without NLI.

    python examples/derive_pairs.py --scored sts/STSB/train.tsv -o derived

Writes `derived/classes.tsv` (scores below 2, below 4, and the rest, as 0, 1, 2) and
`derived/triplets.tsv`. A triplet is the two sentences of a pair with a score of at least 4, and a
sentence that scored at most 1 with one of them; if there is none, one is drawn from all such pairs.
This replaces NLI and is easier: the classes are ranges of similarity, which STS measures, and a
random sentence is a weak negative.
"""

from __future__ import annotations

import random
from collections import defaultdict
from pathlib import Path
from typing import Annotated

import typer

import recipe
from flowvec.errors import InputValueError
from training_data import Columns, number, read_columns, text, write_tsv

LIKE, BETWEEN, UNLIKE = 4.0, 2.0, 1.0

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


def classes(pairs: Columns) -> Columns:
    """The pairs with classes instead of scores."""
    labels = [(score >= BETWEEN) + (score >= LIKE) for score in pairs["score"]]
    return {"sentence1": pairs["sentence1"], "sentence2": pairs["sentence2"], "label": labels}


def triplets(pairs: Columns, seed: int) -> Columns:
    """An anchor, a positive and a negative for each pair of similar sentences."""
    draw = random.Random(seed)
    rows = list(zip(pairs["sentence1"], pairs["sentence2"], pairs["score"], strict=True))
    unlike: dict[str, list[str]] = defaultdict(list)
    for left, right, score in rows:
        if score <= UNLIKE:
            unlike[left].append(right)
            unlike[right].append(left)
    others = sorted(unlike)
    like = [(left, right) for left, right, score in rows if score >= LIKE and left != right]
    if not others or not like:
        raise InputValueError(f"there must be scores of {LIKE:g} or more and of {UNLIKE:g} or less")
    columns: Columns = {"anchor": [], "positive": [], "negative": []}
    for left, right in like:
        negatives = unlike.get(left, []) + unlike.get(right, []) or others
        columns["anchor"].append(left)
        columns["positive"].append(right)
        columns["negative"].append(draw.choice(negatives))
    return columns


@app.command()
def main(
    scored: Annotated[Path, typer.Option(help="A file with score, sentence1 and sentence2.")],
    out: recipe.Out,
    seed: recipe.Seed = 0,
) -> None:
    """Write classes.tsv and triplets.tsv."""
    recipe.check_out(out)
    pairs = read_columns(scored, {"sentence1": text, "sentence2": text, "score": number})
    derived = {"classes": classes(pairs), "triplets": triplets(pairs, seed)}
    out.mkdir(parents=True)
    for name, columns in derived.items():
        write_tsv(out / f"{name}.tsv", columns)
        typer.echo(f"{out / name}.tsv: {len(next(iter(columns.values())))} rows")


if __name__ == "__main__":
    recipe.run_app(app)
