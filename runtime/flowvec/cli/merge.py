"""`flowvec merge`: the shares of a bulk job, joined into one job."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from flowvec.bulk import merge_shares
from flowvec.cli.options import Json, counted, print_json
from flowvec.texts.urls import shown

app = typer.Typer(add_completion=False, rich_markup_mode="markdown")


@app.command(epilog="Example: flowvec merge vectors")
def merge(
    directory: Annotated[
        str,
        typer.Argument(metavar="DIR", help="The folder of a bulk job in shares, or its URL."),
    ],
    as_json: Json = False,
) -> None:
    """Join the shares of a bulk job (`flowvec encode --shard I/N`) into one job.

    All shares must be complete and of the same job. Their manifests and dead letters become one
    each, as if the job had not been divided. No vectors are read or moved.
    """
    merged = merge_shares(directory)
    if as_json:
        print_json(asdict(merged))
    else:
        typer.echo(
            f"{shown(directory)}: {merged.rows} rows in {counted(merged.shards, 'shard')}, "
            f"{counted(merged.dead_letters, 'dead letter')}; flowvec verify reads all vectors"
        )
