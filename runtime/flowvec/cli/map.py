"""`flowvec map`: a collection's map as one HTML file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flowvec.bundle.bundle import absolute_path
from flowvec.cli.options import Overwrite, counted
from flowvec.collection.collection import Collection
from flowvec.errors import InputValueError
from flowvec.files import staged_file
from flowvec.progress import bar
from flowvec.projection.collection_map import MAP_ROWS, MapFrame, map_frames
from flowvec.projection.map_file import check_fields, map_page
from flowvec.texts.places import check_apart, check_new
from flowvec.texts.urls import shown

app = typer.Typer(add_completion=False, rich_markup_mode="markdown")


@app.command("map", epilog="Example: flowvec map ./notes -o map.html --color-by year --texts")
def map_command(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="The collection's directory.")],
    out: Annotated[Path, typer.Option("-o", "--out", help="The .html file.")],
    color_by: Annotated[
        list[str] | None,
        typer.Option(metavar="FIELD", help="A metadata field to colour by; may be repeated."),
    ] = None,
    texts: Annotated[
        bool,
        typer.Option("--texts", help="Include the texts' beginnings; without it there are none."),
    ] = False,
    rows: Annotated[
        int,
        typer.Option(min=1, max=MAP_ROWS, help="Most points; a larger collection is sampled."),
    ] = MAP_ROWS,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the sample and the layout.")] = 0,
    overwrite: Overwrite = False,
) -> None:
    """Write a collection's map as one file that any browser opens, without a network.

    Each row is a point, and near rows are near each other. Ids are included.
    """
    if out.suffix != ".html":
        raise InputValueError(f"the output is an .html file, not {out.name}")
    check_apart(absolute_path(out), [directory])
    check_new(absolute_path(out), overwrite=overwrite)
    with Collection.open(directory) as collection:
        last: MapFrame | None = None
        with bar("map", 100, "%") as drawn:
            for frame in map_frames(collection, rows=rows, seed=seed):
                if last is None:
                    check_fields(collection, frame, color_by or ())
                last = frame
                drawn.update(100 * last.progress - drawn.n)
        assert last is not None
        page = map_page(
            collection, last, title=absolute_path(directory).name, fields=color_by or (),
            has_texts=texts,
        )  # fmt: skip
        with staged_file(absolute_path(out)) as partial:
            partial.write_text(page, encoding="utf-8", errors="backslashreplace")
    typer.echo(f"{shown(str(out))}: {counted(len(last.labels), 'point')}")
