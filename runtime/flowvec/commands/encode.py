"""`flowvec encode`: a file of texts to a .npy file of vectors."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, cast

import numpy as np
import typer
from numpy.lib import format as npy
from tqdm import tqdm

from flowvec.commands import Compute, Format, Json, MaxBatchTokens, Provider, TextField, print_json
from flowvec.encoder import Encoder
from flowvec.errors import InputValueError
from flowvec.inputs import read_rows
from flowvec.pipeline import EncodeStatistics

app = typer.Typer(add_completion=False)


@app.command(
    epilog="Example: flowvec encode mini notes.jsonl -o notes.npy --text-field body",
)
def encode(
    bundle: Annotated[str, typer.Argument(help="A shipped model (mini) or a bundle's directory.")],
    source: Annotated[
        str, typer.Argument(metavar="INPUT", help="A txt, jsonl or csv file, or - for stdin.")
    ],
    out: Annotated[Path, typer.Option("-o", "--out", help="The .npy file to write.")],
    text_field: TextField = "text",
    file_format: Format = None,
    prompt: Annotated[str | None, typer.Option(help="Name of the bundle's prompt to use.")] = None,
    provider: Provider = None,
    compute: Compute = "auto",
    max_batch_tokens: MaxBatchTokens = None,
    as_json: Json = False,
) -> None:
    """Embed the texts of a file into a float32 .npy array (rows, dim), in input order.

    Texts stream through at constant memory. The file appears whole or not at all.
    """
    if out.suffix != ".npy":
        raise InputValueError(f"the output must be a .npy file, not {out.name}")
    if out.is_dir():
        raise InputValueError(f"{out} is a directory")
    if not out.absolute().parent.is_dir():
        raise InputValueError(f"there is no directory {out.absolute().parent}")
    seen: list[EncodeStatistics] = []
    rows = read_rows(source, text_field=text_field, file_format=file_format)
    with Encoder.load(
        bundle,
        provider=provider,
        compute=cast(Any, compute),
        max_batch_tokens=max_batch_tokens,
        on_statistics=seen.append,
    ) as encoder:
        progress = tqdm(
            encoder.stream((row.text for row in rows), prompt_name=prompt),
            desc="encode",
            unit=" texts",
            disable=not sys.stderr.isatty(),
        )
        count = write_npy(out, progress, encoder.dim)
        info = encoder.info()
    statistics = seen[-1]
    if as_json:
        print_json(
            {
                "out": str(out),
                "rows": count,
                "dim": info.dim,
                "tokens": statistics.tokens,
                "truncated": statistics.truncated,
                "replaced": statistics.replaced,
                "padding": statistics.padding,
                "seconds": statistics.seconds,
                "provider": info.provider,
                "compute": info.compute,
            }
        )
    else:
        rate = count / statistics.seconds if statistics.seconds else 0.0
        typer.echo(
            f"{out}: {count} x {info.dim} float32 in {statistics.seconds:.1f} s, {rate:.0f} "
            f"texts/s on {info.provider} in {info.compute}; {statistics.truncated} texts were "
            f"cut at {info.max_length} tokens"
        )


def write_npy(path: Path, vectors: Iterator[np.ndarray[Any, Any]], dim: int) -> int:
    """Write vectors, float32 (dim,) each, as one array (rows, dim); returns the rows.

    The row count is known only at the end: numpy leaves room in the header to write it in place.
    The file is written beside and renamed.
    """
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")

    def header(file: Any, rows: int) -> None:
        described = {"descr": "<f4", "fortran_order": False, "shape": (rows, dim)}
        npy.write_array_header_1_0(file, described)

    count = 0
    try:
        with partial.open("wb") as file:
            header(file, 0)
            for vector in vectors:
                file.write(vector.astype("<f4", copy=False).tobytes())
                count += 1
            file.seek(0)
            header(file, count)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    return count
