"""`flowvec bundle`: converts bundles for other tools."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, cast

import typer

from flowvec.cli.options import Json, print_json
from flowvec.optional import require

app = typer.Typer(add_completion=False, no_args_is_help=True, rich_markup_mode="markdown")


@app.callback()
def bundle() -> None:
    """Convert a bundle for other tools."""


@app.command(
    "export",
    epilog="Example: flowvec bundle export ./my-bundle --as sentence-transformers ./for-others",
)
def export(
    source: Annotated[
        str, typer.Argument(metavar="BUNDLE", help="A bundle's directory, or a shipped model.")
    ],
    out: Annotated[Path, typer.Argument(metavar="DIR", help="The directory to create.")],
    layout: Annotated[
        str,
        typer.Option(
            "--as",
            help='sentence-transformers (for backend="onnx"), or tei (text-embeddings-inference).',
        ),
    ],
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace a directory that this command wrote.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Write a bundle in the layout that another library or server reads."""
    require("flowvec bundle export", "cpu,onnx", "onnx", "onnx_ir")
    from flowvec_export.interop import export_bundle

    written = export_bundle(source, out, cast(Any, layout), overwrite=overwrite)
    files = sorted(str(p.relative_to(written)) for p in written.rglob("*") if p.is_file())
    if as_json:
        print_json({"out": str(written), "layout": layout, "files": files})
    else:
        typer.echo(f"{written}: {', '.join(files)}")
