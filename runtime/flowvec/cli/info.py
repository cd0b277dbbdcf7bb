"""`flowvec info`: what a bundle or a collection is."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from flowvec.bulk.verify import folder_info, is_bulk_folder
from flowvec.bundle.bundle import class_of, kind_of
from flowvec.bundle.checkpoint import is_checkpoint
from flowvec.bundle.exported import open_bundle
from flowvec.bundle.names import first_folder_exists, parse_hub_name
from flowvec.cli.options import Json, Revision, print_json
from flowvec.collection.collection import Collection
from flowvec.collection.store.store import FILE
from flowvec.errors import BundleError
from flowvec.sharded.manifest import is_sharded, read_manifest
from flowvec.texts.unicode import printable

app = typer.Typer(add_completion=False, rich_markup_mode="markdown")


@app.command(epilog="Example: flowvec info mini")
def info(
    target: Annotated[
        str,
        typer.Argument(
            help="A shipped model (mini), a model on the Hugging Face hub, or the directory of a "
            "bundle, a checkpoint, a collection or a bulk job; or the URL of a bulk job or of a "
            "collection in shards."
        ),
    ],
    revision: Revision = None,
    as_json: Json = False,
) -> None:
    """Print what a collection or a bulk job holds, or what a bundle is, after verifying it."""
    if (Path(target) / FILE).is_file():
        with Collection.open(target) as collection:
            figures: dict[str, Any] = {"kind": "collection", **asdict(collection.info())}
    elif is_sharded(target):
        figures = {"kind": "collection in shards", **asdict(read_manifest(target))}
    elif is_bulk_folder(target):
        figures = {"kind": "folder of a bulk job", **asdict(folder_info(target))}
    else:
        try:
            bundle = open_bundle(target, revision=revision)
        except BundleError as error:
            explained = _explained(target, error)
            if explained is None:
                raise
            raise BundleError(explained) from error
        figures = {
            **asdict(bundle.manifest),
            "kind": "bundle",
            "model_kind": kind_of(bundle),
            "opens_with": f"flowvec.{class_of(bundle)}.load",
            "path": str(bundle.path),
            "fingerprint": bundle.fingerprint,
            "variants": bundle.variants,
        }
        for key in ("pooling", "transform", "prompts", "default_prompt_name", "similarity"):
            if bundle.manifest.kind == "reranker":
                del figures[key]
        if bundle.manifest.kind == "multi_vector":
            del figures["pooling"], figures["similarity"]
        for key in ("head", "max_active_dims", "late_interaction"):
            if figures[key] is None:
                del figures[key]
    if as_json:
        print_json(figures)
        return
    files = figures.pop("files", {})
    figures |= {f"file {name}": f"{record['bytes']:,} bytes" for name, record in files.items()}
    width = max(map(len, figures))
    for key, value in figures.items():
        typer.echo(printable(f"{key:{width}}  {_plain(value)}"))


def _explained(target: str, error: BundleError) -> str | None:
    """Why a target is nothing that this command can show; None if the error says so already."""
    folder = Path(target)
    if not os.path.lexists(folder):  # False also for a name that is too long
        wanted = "of a bundle, a collection or a bulk job"
        if parse_hub_name(target) is None or first_folder_exists(target):
            return f"there is no directory {target}; give one {wanted}, or a model's name"
        return f"there is no directory {target} {wanted}; and as a model's name: {error}"
    is_model = (folder / "manifest.json").exists() or is_checkpoint(folder)
    if folder.is_dir() and not is_model:
        return f"{target} is not a bundle, a collection or the folder of a bulk job"
    return None


def _plain(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{k}={v!r}" for k, v in value.items()) or "none"
    if isinstance(value, tuple | list):
        return ", ".join(map(str, value)) or "none"
    return "none" if value is None else str(value)
