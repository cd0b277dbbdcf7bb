"""`flowvec cache`: the bundles that were exported on first use."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from flowvec.bundle.bundle import Bundle, absolute_path, kind_of, read_manifest
from flowvec.bundle.cached import (
    Entry,
    bundles_folder,
    entries,
    exclusive,
    partial_entries,
    remove_partial,
)
from flowvec.bundle.cached import remove as delete
from flowvec.cli.options import Json, counted, print_json
from flowvec.errors import BundleError, InputValueError

app = typer.Typer(
    add_completion=False,
    rich_markup_mode="markdown",
    no_args_is_help=True,
    help="List, check and remove the bundles that were exported on first use.",
)

_COMMIT_CHARACTERS = 12


@app.command("list", epilog="Example: flowvec cache list")
def list_entries(as_json: Json = False) -> None:
    """Print name, commit, kind, size and last use of each bundle in the cache."""
    rows = [_described(entry) for entry in entries()]
    if as_json:
        print_json(rows)
        return
    for row in rows:
        typer.echo(
            f"{row['name']}  {row['commit'][:_COMMIT_CHARACTERS]}  {row['kind']}  "
            f"{row['bytes'] / 1e6:,.1f} MB  last used {row['last_used']}"
        )
    total = sum(row["bytes"] for row in rows)
    typer.echo(f"{bundles_folder()}: {counted(len(rows), 'bundle')}, {total / 1e6:,.1f} MB")


@app.command("remove", epilog="Example: flowvec cache remove organization/name")
def remove(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAME...",
            help="A model's name (all its commits), organization/name@commit, or a checkpoint's "
            "directory.",
        ),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Remove every bundle.")] = False,
) -> None:
    """Delete bundles from the cache; the next load exports them again."""
    if everything == bool(names):
        raise InputValueError("give either names or --all")
    listed = entries()
    chosen = listed if everything else []
    for name in names or ():
        named = [entry for entry in listed if _is_named(entry, name)]
        if not named:
            raise InputValueError(f"no bundle of {name} is cached; see `flowvec cache list`")
        chosen += [entry for entry in named if entry not in chosen]
    freed = 0
    for entry in chosen:
        with exclusive(entry, lambda: typer.echo("waiting for an export", err=True)):
            if entry.exists:  # another process may have been faster
                freed += delete(entry)
            remove_partial(entry)
    for entry in partial_entries() if everything else ():
        with exclusive(entry, lambda: typer.echo("waiting for an export", err=True)):
            remove_partial(entry)
    typer.echo(f"{counted(len(chosen), 'bundle')} removed, {freed / 1e6:,.1f} MB freed")


@app.command("verify", epilog="Example: flowvec cache verify")
def verify(as_json: Json = False) -> None:
    """Compare every file of every bundle with its SHA-256. The exit code is 1 if one is damaged."""
    rows: list[dict[str, Any]] = []
    for entry in entries():
        problem = None
        try:
            Bundle.load(entry.bundle)
        except BundleError as error:
            problem = str(error)
        rows.append({"name": str(entry.origin), "path": str(entry.bundle), "problem": problem})
    if as_json:
        print_json(rows)
    else:
        for row in rows:
            typer.echo(f"{row['name']}: {row['problem'] or 'intact'}")
        typer.echo(f"{bundles_folder()}: {counted(len(rows), 'bundle')} checked")
    if damaged := [row["name"] for row in rows if row["problem"] is not None]:
        typer.echo(f"damaged; delete with: flowvec cache remove {' '.join(damaged)}", err=True)
        raise typer.Exit(1)


def _described(entry: Entry) -> dict[str, Any]:
    try:
        kind = kind_of(Bundle(entry.bundle, read_manifest(entry.bundle)))
    except BundleError:
        kind = "damaged"
    origin = entry.origin
    return {
        "name": origin.name,
        "commit": origin.commit,
        "kind": kind,
        "bytes": entry.bytes,
        "last_used": datetime.fromtimestamp(entry.last_used, UTC).isoformat(timespec="seconds"),
        "path": str(entry.bundle),
        "trust_remote_code": origin.trust_remote_code,
        "allow_pickle": origin.allow_pickle,
        "made_by": origin.made_by,
        "export_seconds": origin.seconds,
    }


def _is_named(entry: Entry, name: str) -> bool:
    origin = entry.origin
    if origin.kind == "directory":
        return origin.name == str(absolute_path(name))
    return name in (origin.name, str(origin))
