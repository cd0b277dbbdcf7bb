"""Options that several subcommands share."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import Annotated, Any

import typer

__all__ = [
    "MODEL_HELP",
    "BulkFormat",
    "Compute",
    "Format",
    "IdField",
    "Json",
    "MaxBatchTokens",
    "Overwrite",
    "Provider",
    "Revision",
    "ShardTimeout",
    "TextField",
    "counted",
    "print_json",
    "size_in_words",
]

MODEL_HELP = (
    "A shipped model (mini), the directory of a bundle or checkpoint, or a model on the Hugging "
    "Face hub (organization/name)."
)
Provider = Annotated[
    str | None,
    typer.Option(
        help="cpu, openvino, native, cuda or tensorrt; by default the best that can run here. "
        "cuda and tensorrt are experimental."
    ),
]
Compute = Annotated[str, typer.Option(help="auto, float32, bfloat16, float16 or int8.")]
MaxBatchTokens = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Most tokens in a batch, padding included; by default what `flowvec "
        "tune` found, or 512 (on a GPU 16384).",
    ),
]
Revision = Annotated[
    str | None,
    typer.Option(help="Branch, tag or commit of a model on the hub; by default its main branch."),
]
IdField = Annotated[
    str | None,
    typer.Option(help="Field that holds the id; without it rows are numbered from 0."),
]
TextField = Annotated[
    str,
    typer.Option(
        help="Field of jsonl, csv or Parquet that holds the text; or several, joined by commas: "
        "title,text."
    ),
]
Format = Annotated[
    str | None,
    typer.Option("--format", help="txt, jsonl or csv; by default the file's extension decides."),
]
BulkFormat = Annotated[
    str | None,
    typer.Option("--format", help="txt, jsonl, csv or parquet; without it the extensions decide."),
]
ShardTimeout = Annotated[
    float,
    typer.Option(
        "--timeout",
        min=0.0,
        help="Seconds that a shard may take to answer. A shard below a URL is downloaded first.",
    ),
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace files that exist.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]


def counted(number: int, what: str) -> str:
    """A number with its word: `1 row`, `2 rows`."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def size_in_words(size: int) -> str:
    """A number of bytes in kB, or in MB from 100 kB on."""
    return f"{size / 1e3:,.1f} kB" if size < 100_000 else f"{size / 1e6:,.1f} MB"


def print_json(value: Any) -> None:
    """Print a dataclass, or anything that json takes, as indented JSON."""
    plain = asdict(value) if hasattr(value, "__dataclass_fields__") else value
    # Escaped if the output cannot encode it; a replacement character would change the value.
    text = json.dumps(plain, indent=2, ensure_ascii=False)
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except (UnicodeEncodeError, LookupError):
        text = json.dumps(plain, indent=2)
    typer.echo(text)
