"""`flowvec info`: what a bundle or a collection is."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from flowvec.bundle import Bundle
from flowvec.collection import Collection
from flowvec.commands import Json, print_json
from flowvec.errors import BundleError
from flowvec.store import FILE

app = typer.Typer(add_completion=False)


@app.command(epilog="Example: flowvec info mini")
def info(
    target: Annotated[
        str, typer.Argument(help="A shipped model (mini), or a bundle's or collection's directory.")
    ],
    as_json: Json = False,
) -> None:
    """Print the figures of a collection, or of a bundle after verifying its files."""
    if (Path(target) / FILE).is_file():
        with Collection.open(target) as collection:
            figures: dict[str, Any] = {"kind": "collection", **asdict(collection.info())}
    else:
        try:
            bundle = Bundle.load(target)
        except BundleError as error:
            if Path(target).is_dir() and not (Path(target) / "manifest.json").exists():
                raise BundleError(f"{target} is neither a bundle nor a collection") from error
            raise
        figures = {
            "kind": "bundle",
            "path": str(bundle.path),
            "fingerprint": bundle.fingerprint,
            **asdict(bundle.manifest),
        }
    if as_json:
        print_json(figures)
        return
    files = figures.pop("files", {})
    figures |= {f"file {name}": f"{record['bytes']:,} bytes" for name, record in files.items()}
    width = max(map(len, figures))
    for key, value in figures.items():
        typer.echo(f"{key:{width}}  {_plain(value)}")


def _plain(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{k}={v!r}" for k, v in value.items()) or "none"
    if isinstance(value, tuple | list):
        return ", ".join(map(str, value)) or "none"
    return "none" if value is None else str(value)
