"""`flowvec pairs`: the most similar pairs of texts in a file."""

from __future__ import annotations

from typing import Annotated, Any, cast

import typer

from flowvec.cli.options import MODEL_HELP, Compute, Format, Json, Provider, TextField, print_json
from flowvec.cli.search import shorten
from flowvec.collection.mining import most_similar_pairs
from flowvec.encoder.encoder import Encoder
from flowvec.texts.rows import naming_rows, read_rows

app = typer.Typer(add_completion=False, rich_markup_mode="markdown")


@app.command(epilog="Example: flowvec pairs questions.txt -k 20 --threshold 0.8")
def pairs(
    source: Annotated[
        str, typer.Argument(metavar="INPUT", help="A txt, jsonl or csv file, or - for stdin.")
    ],
    k: Annotated[int, typer.Option("-k", min=1, help="How many pairs to show.")] = 20,
    threshold: Annotated[
        float | None, typer.Option(help="Leave out pairs with a smaller cosine.")
    ] = None,
    model: Annotated[str, typer.Option(help=MODEL_HELP)] = "mini",
    text_field: TextField = "text",
    file_format: Format = None,
    provider: Provider = None,
    compute: Compute = "auto",
    as_json: Json = False,
) -> None:
    """Compare every text with every other text, and print the most similar pairs.

    Rows are numbered from 0; blank lines of a txt file are skipped. Equal texts are pairs too.
    """
    rows = read_rows(source, text_field=text_field, file_format=file_format, skip_blank=True)
    kept = list(rows)
    texts, numbers = [row.text for row in kept], [row.number for row in kept]
    loaded = Encoder.load(model, provider=provider, compute=cast(Any, compute))
    with loaded as encoder, naming_rows(source, kept):
        found_pairs = most_similar_pairs(texts, encoder=encoder, top_k=k, threshold=threshold)
    if as_json:
        print_json(
            [{"score": p.score, "left": numbers[p.left], "right": numbers[p.right],
              "texts": [texts[p.left], texts[p.right]]} for p in found_pairs]
        )  # fmt: skip
        return
    if not found_pairs:
        typer.echo("no pairs")
    for pair in found_pairs:
        typer.echo(f"{pair.score:7.4f}  {numbers[pair.left]:6}  {shorten(texts[pair.left])}")
        typer.echo(f"{'':7}  {numbers[pair.right]:6}  {shorten(texts[pair.right])}")
