"""What `flowvec index` prints at its end."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import typer

from flowvec.bulk import BulkSummary
from flowvec.cli.jobs import first_dead_letters, rejected_in_words
from flowvec.cli.options import counted, print_json
from flowvec.cli.other_vectors import OtherVectors
from flowvec.collection.collection import Collection
from flowvec.collection.creation import is_collection
from flowvec.texts.urls import shown
from flowvec.texts.window import DEAD_LETTERS

__all__ = ["print_other_vectors", "print_shards", "print_summary", "rows_of"]


def print_summary(
    directory: Path,
    summary: BulkSummary,
    limit: int,
    made: OtherVectors,
    *,
    as_json: bool,
) -> None:
    """Print what a local job did.

    Args:
        directory: the collection's.
        summary: of the job.
        limit: the model's max_length.
        made: sparse and token vectors that rows got.
        as_json: as one JSON object.
    """
    rows = rows_of(directory)
    added, left_out = summary.rows - summary.unchanged, summary.unchanged + summary.duplicates
    if as_json:
        print_json(
            {"path": str(directory), "added": added, "replaced": summary.overwritten,
             "left_out": left_out, "unchanged": summary.unchanged,
             "duplicates": summary.duplicates, "dead_letters": summary.dead_letters,
             "pruned": summary.pruned, "chunks": summary.chunks, "truncated": summary.truncated,
             "rows": rows, "dim": summary.dim, **_counts(made)}
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
        f"{shown(str(directory))}: {counted(added, 'row')} added{there}"
        f"{rejected_in_words(summary)}, "
        f"{f'{summary.pruned} pruned, ' if summary.pruned else ''}"
        f"{rows} in all, {summary.dim} dimensions"
    )
    _print_counts(made)
    if summary.truncated:
        typer.echo(f"{summary.truncated} texts have more than {limit} tokens, and were cut")
    if summary.dead_letters:
        letters = Path(f"{directory}{DEAD_LETTERS}")
        for line in first_dead_letters(letters):
            typer.echo(f"skipped: {line}")
        typer.echo(f"dead letters: {shown(str(letters))}")


def print_other_vectors(directory: Path, made: OtherVectors, *, as_json: bool) -> None:
    """Print what a command without files did."""
    if as_json:
        print_json({"path": str(directory), "rows": rows_of(directory), **_counts(made)})
        return
    typer.echo(f"{shown(str(directory))}: {counted(rows_of(directory), 'row')}")
    _print_counts(made)


def _counts(made: OtherVectors) -> dict[str, int]:
    counts = {"sparse_vectors": made.sparse_rows, "token_vectors": made.token_rows}
    return {name: count for name, count in counts.items() if count is not None}


def _print_counts(made: OtherVectors) -> None:
    if made.sparse_rows is not None:
        typer.echo(f"{counted(made.sparse_rows, 'sparse vector')} added")
    if made.token_rows is not None:
        typer.echo(f"token vectors of {counted(made.token_rows, 'row')} added")


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
        typer.echo(f"{Path(one.out).name.removesuffix('.job')}: {counted(one.rows, 'row')}, {dead}")
    total = sum(one.rows for one in done)
    typer.echo(f"{shown(place)}: {total} rows in {counted(len(done), 'shard')}")
