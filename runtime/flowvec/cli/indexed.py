"""What `flowvec index` prints at its end."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import typer

from flowvec.bulk import BulkSummary
from flowvec.cli.jobs import first_dead_letters, rejected_in_words
from flowvec.cli.options import counted, print_json
from flowvec.collection.collection import Collection
from flowvec.collection.creation import is_collection
from flowvec.texts.remote import name_of
from flowvec.texts.window import DEAD_LETTERS

__all__ = ["print_shards", "print_summary", "rows_of"]


def print_summary(
    directory: Path,
    summary: BulkSummary,
    limit: int,
    *,
    as_json: bool,
    sparse_rows: int | None = None,
    token_rows: int | None = None,
) -> None:
    """Print what a local job did.

    Args:
        directory: the collection's.
        summary: of the job.
        limit: the model's max_length.
        as_json: as one JSON object.
        sparse_rows: how many rows got a sparse vector; None if none were asked for.
        token_rows: how many rows got token vectors; None if none were asked for.
    """
    rows = rows_of(directory)
    added, left_out = summary.rows - summary.unchanged, summary.unchanged + summary.duplicates
    if as_json:
        sparse = {} if sparse_rows is None else {"sparse_vectors": sparse_rows}
        tokens = {} if token_rows is None else {"token_vectors": token_rows}
        print_json(
            {"path": str(directory), "added": added, "replaced": summary.overwritten,
             "left_out": left_out, "unchanged": summary.unchanged,
             "duplicates": summary.duplicates, "dead_letters": summary.dead_letters,
             "pruned": summary.pruned, "chunks": summary.chunks, "truncated": summary.truncated,
             "rows": rows, "dim": summary.dim, **sparse, **tokens}
        )  # fmt: skip
        return
    counts = [
        f"{count} {what}"
        for count, what in (
            (summary.chunks, "chunks"),
            (summary.overwritten, "replaced others"), (summary.unchanged, "were there already")
        )
        if count
    ]  # fmt: skip
    there = f" ({', '.join(counts)})" if counts else ""
    typer.echo(
        f"{directory}: {counted(added, 'row')} added{there}{rejected_in_words(summary)}, "
        f"{f'{summary.pruned} pruned, ' if summary.pruned else ''}"
        f"{rows} in all, {summary.dim} dimensions"
    )
    if sparse_rows is not None:
        typer.echo(f"{counted(sparse_rows, 'sparse vector')} added")
    if token_rows is not None:
        typer.echo(f"token vectors of {counted(token_rows, 'row')} added")
    if summary.truncated:
        typer.echo(f"{summary.truncated} texts have more than {limit} tokens, and were cut")
    if summary.dead_letters:
        letters = Path(f"{directory}{DEAD_LETTERS}")
        for line in first_dead_letters(letters):
            typer.echo(f"skipped: {line}")
        typer.echo(f"dead letters: {letters}")


def rows_of(directory: Path) -> int:
    """Rows of a collection; 0 if there is none."""
    if not is_collection(directory):
        return 0
    with Collection.open(directory) as collection:
        return len(collection)


def print_shards(place: str, done: list[BulkSummary], *, as_json: bool) -> None:
    """Print what the jobs of all shards did."""
    if as_json:
        print_json([asdict(one) for one in done])
        return
    for one in done:
        dead = counted(one.dead_letters, "dead letter")
        typer.echo(f"{Path(one.out).name}: {counted(one.rows, 'row')}, {dead}")
    total = sum(one.rows for one in done)
    typer.echo(f"{name_of(place)}: {total} rows in {counted(len(done), 'shard')}")
