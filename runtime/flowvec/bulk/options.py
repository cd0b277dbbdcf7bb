"""Options of a bulk job, checked before anything is read or written."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast, get_args

from flowvec.arguments import choice, path_of, text_or_none, whole_number
from flowvec.arrow import imported_arrow
from flowvec.bulk.records import check_share
from flowvec.bulk.repeats import OnDuplicate
from flowvec.bulk.shard_files import BULK_PRECISIONS, BulkPrecision, OutFormat, check_names
from flowvec.encoder.options import Truncation
from flowvec.errors import InputTypeError, InputValueError
from flowvec.sequences import as_list
from flowvec.texts.joining import text_fields
from flowvec.texts.urls import is_url, name_of, shown
from flowvec.texts.window import WINDOW, Fields

__all__ = [
    "MAX_TEXT_BYTES",
    "ONE_FILE",
    "ROWS_PER_SHARD",
    "BulkOptions",
    "Dedupe",
    "as_inputs",
    "check_options",
    "checked_fields",
    "expanded",
    "out_format_of",
    "url_of",
]

ROWS_PER_SHARD = 8 * WINDOW
MAX_TEXT_BYTES = 1 << 24
# Rows per shard if all go into a single file.
ONE_FILE = 1 << 62


# Where equal texts are encoded once.
Dedupe = Literal["job", "window"]


@dataclass(frozen=True, slots=True)
class BulkOptions:
    """Options that decide the written bytes, besides the inputs and the model."""

    out_format: OutFormat
    fields: Fields
    precision: BulkPrecision
    prompt_name: str | None
    truncation: Truncation
    rows_per_shard: int
    on_duplicate: OnDuplicate = "last"
    dedupe: Dedupe | None = None
    changed_since: str | None = None  # SHA-256 of the earlier job's shards


def as_inputs(inputs: str | Path | Iterable[str | Path]) -> list[str | Path]:
    """One input, or several, as a list.

    Raises:
        InputTypeError, InputValueError: one is not a path.
    """
    paths = [inputs] if isinstance(inputs, str | Path) else as_list("inputs", inputs)
    for one in paths:
        path_of("an input", one)
    # As given, except for `~`: the job's manifest records it.
    return [expanded(Path(one)) if str(one).startswith("~") else one for one in paths]


def expanded(path: Path) -> Path:
    """A path with `~` expanded, and a name: `.` has none."""
    with suppress(RuntimeError):  # an unknown user's
        path = path.expanduser()
    return path if path.name not in ("", "..") else path.resolve()


def checked_fields(
    text: str | Sequence[str], key: str | None, keep: Sequence[str], max_text_bytes: int
) -> Fields:
    """The fields that are read.

    Raises:
        InputValueError: a field cannot be kept, or max_text_bytes is not positive.
    """
    whole_number("max_text_bytes", max_text_bytes)
    text_or_none("id_field", key)
    names = as_list("keep", keep)
    for name in names:
        if not isinstance(name, str):
            raise InputTypeError(f"keep must be names of fields, not {name!r}")
    fields = Fields(text_fields(text), key, tuple(dict.fromkeys(names)), max_text_bytes)
    check_names(fields)
    return fields


# A Path drops one of the two slashes of a URL. A drive is one letter.
_PATH_OF_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
# Extensions of files; folders are not named like this.
_OTHER_FILES = frozenset(
    (".txt", ".csv", ".tsv", ".json", ".jsonl", ".npz", ".pt", ".bin", ".h5", ".pkl", ".arrow",
     ".feather", ".gz", ".bz2", ".xz", ".zst", ".zip")
)  # fmt: skip


def out_format_of(path: Path, wanted: OutFormat | None) -> OutFormat:
    """The format of the output, by its name or as given.

    Raises:
        InputValueError: the name says another format, or one that flowvec does not write.
    """
    if _PATH_OF_URL.match(str(path)):
        if wanted == "collection":
            raise InputValueError(
                "a collection is a directory of a file system; below a URL it is in shards: "
                "flowvec index --engine ray"
            )
        raise InputValueError(
            f"{shown(str(path))} has one slash, and a URL has two after its scheme; in Python give "
            "it as a text, since a Path changes its slashes"
        )
    if path.suffix.lower() in _OTHER_FILES:
        raise InputValueError(
            f"the output is a .npy or .parquet file, or a folder of shards, not {path.name}: "
            f"name a folder without {path.suffix}"
        )
    if path.suffix in (".npy", ".parquet"):
        named = cast(OutFormat, path.suffix[1:])
        if wanted is not None and choice("out_format", wanted, get_args(OutFormat)) != named:
            what = (
                "a collection is a directory"
                if wanted == "collection"
                else f"out_format is {wanted}"
            )
            raise InputValueError(f"{path.name} names a {named} file, but {what}")
        return named
    if wanted is not None:
        choice("out_format", wanted, get_args(OutFormat))
    return wanted or "parquet"


def url_of(out: str | Path, out_format: OutFormat | None) -> str | None:
    """The URL of an output; None if it is a path.

    Raises:
        InputValueError: the output by URL cannot have this format, or is one file.
    """
    if not isinstance(out, str) or not is_url(out):
        return None
    if out_format == "collection":
        raise InputValueError(f"a collection is a directory of a file system, not {out}")
    if name_of(out).endswith((".npy", ".parquet")):
        raise InputValueError(
            f"by URL the output is a folder of shards, not one file: name {shown(out)} without "
            ".npy or .parquet, and give the format by --out-format (out_format=)"
        )
    return out


def check_options(
    options: BulkOptions, share: tuple[int, int], is_file: bool, path: Path | None
) -> None:
    """Refuse options that are not valid.

    Args:
        options: options of the job.
        share: which share of the shards to do and of how many, from 1.
        is_file: whether the output is one file.
        path: the output; None for a URL.

    Raises:
        InputValueError: an option is not valid.
        MissingDependencyError: Parquet needs pyarrow.
    """
    check_share(share)
    choice("precision", options.precision, BULK_PRECISIONS)
    whole_number("rows_per_shard", options.rows_per_shard, 1, ONE_FILE - 1)
    choice("truncation", options.truncation, get_args(Truncation))
    text_or_none("prompt_name", options.prompt_name)
    if is_file and share[1] > 1:
        raise InputValueError("a single file cannot be divided into shares; name a folder")
    if options.out_format == "npy" and "row" in options.fields.beside_id:
        raise InputValueError("the field 'row' cannot be kept: the row map has one")
    if options.out_format == "parquet":
        imported_arrow("out_format parquet (the other is npy)")
    if path is None:
        return
    if is_file and path.is_dir():
        raise InputValueError(f"{path} is a directory")
    if is_file and not path.absolute().parent.is_dir():
        raise InputValueError(f"there is no directory {path.absolute().parent}")
    if not is_file and path.exists() and not path.is_dir():
        raise InputValueError(f"{path} is not a directory")
