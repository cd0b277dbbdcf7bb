"""`flowvec rerank`: sorts texts by how well they answer a query."""

from __future__ import annotations

from typing import Annotated, Any, cast

import typer

from flowvec.cli.options import Compute, Format, Json, Provider, Revision, TextField, print_json
from flowvec.cli.rerankers import load_reranker
from flowvec.cli.search import shorten
from flowvec.errors import InputValueError
from flowvec.multi_vector.encoder import MultiVectorEncoder
from flowvec.texts.rows import naming_rows, read_rows

app = typer.Typer(add_completion=False, rich_markup_mode="markdown")

# Rows are held in memory, because all of them are compared.
_MOST_ROWS = 1_000_000


@app.command(epilog='Example: flowvec rerank ./my-reranker "who swims?" notes.txt -k 3')
def rerank(
    bundle: Annotated[
        str,
        typer.Argument(
            help="The directory of a reranker, its checkpoint or a multi-vector encoder, or a "
            "model on the hub."
        ),
    ],
    query: Annotated[str, typer.Argument(help="The text that the others are to answer.")],
    texts: Annotated[
        str,
        typer.Argument(metavar="TEXTS", help="A txt, jsonl or csv file of texts, or - for stdin."),
    ],
    k: Annotated[int, typer.Option("-k", min=1, help="How many texts to show.")] = 10,
    label: Annotated[
        str | None,
        typer.Option(help="The label whose score counts, for a model of several labels."),
    ] = None,
    truncation: Annotated[
        str | None,
        typer.Option(
            help="Pairs above a reranker's length: longest_first cuts the longer text, only_second "
            "the document, error refuses them.",
            show_default="longest_first",
        ),
    ] = None,
    text_field: TextField = "text",
    file_format: Format = None,
    provider: Provider = None,
    compute: Compute = "auto",
    revision: Revision = None,
    as_json: Json = False,
) -> None:
    """Print the texts that answer a query best, with their scores."""
    rows = []
    for row in read_rows(texts, text_field=text_field, file_format=file_format):
        rows.append(row)
        if len(rows) > _MOST_ROWS:
            raise InputValueError(f"{texts} holds more than {_MOST_ROWS:,} texts")
    documents = [row.text for row in rows]
    with load_reranker(bundle, provider, compute, revision) as reranker, naming_rows(texts, rows):
        if isinstance(reranker, MultiVectorEncoder):
            if label is not None or truncation is not None:
                raise InputValueError(
                    "--label and --truncation are for rerankers, not for a multi-vector encoder"
                )
            ranked = reranker.rank(query, documents, top_k=k, return_documents=True)
        else:
            ranked = reranker.rank(
                query,
                documents,
                top_k=k,
                return_documents=True,
                label=label,
                truncation=cast(Any, truncation or "longest_first"),
            )
    if as_json:
        print_json(ranked)
        return
    for hit in ranked:
        typer.echo(f"{hit['score']:7.4f}  {hit['corpus_id']}  {shorten(hit['text'])}")
