"""Reading texts for the commands: txt, jsonl and csv files, plain or compressed, or standard input.

A row that holds no text is an error that names its file and line.
"""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Any, cast

from flowvec.errors import InputTypeError, InputValueError
from flowvec.text_files import DAMAGE, TEXT_FORMATS, decompressed, format_of

__all__ = ["Row", "read_rows"]

# csv refuses longer fields by default; a document may be long.
_MAX_CSV_FIELD = 1 << 26


@dataclass(frozen=True, slots=True)
class Row:
    """One text of an input.

    Attributes:
        id: the row number where the input names none.
        text: what is embedded.
        kept: other fields that were asked for, those that the row has; None where none were.
    """

    id: str | int
    text: str
    kept: dict[str, object] | None = None


def read_rows(
    source: str,
    *,
    text_field: str = "text",
    id_field: str | None = None,
    file_format: str | None = None,
    keep: Sequence[str] = (),
    skip_blank: bool = False,
) -> Iterator[Row]:
    """Read rows one at a time, at constant memory.

    Args:
        source: a file's path, which may end in .gz, .xz, .bz2 or .zst, or `-` for standard input.
        text_field: the field of jsonl or csv that holds the text.
        id_field: the field that holds the id; None numbers the rows from 0.
        file_format: `txt` (a text a line), `jsonl` or `csv` (with a header); None goes by the
            file's extension, and by `txt` for standard input.
        keep: further fields; in jsonl a row may lack some of them.
        skip_blank: leave out blank lines of a txt; the others' numbers stay.

    Raises:
        InputValueError: an unknown format, no such file, a field is missing, a line is no JSON or
            no UTF-8, or a compressed file is damaged.
        InputTypeError: a field holds something other than a text.
    """
    kind = file_format or ("txt" if source == "-" else format_of(source))
    if kind not in TEXT_FORMATS:
        raise InputValueError(
            f"cannot tell how to read {source}; give --format {'|'.join(TEXT_FORMATS)}"
        )
    if kind == "txt" and id_field is not None:
        raise InputValueError("a txt file has no fields; --id-field needs jsonl or csv")
    if kind == "txt" and keep:
        raise InputValueError("a txt file has no fields; --keep needs jsonl or csv")
    name = "standard input" if source == "-" else source
    with _opened(source) as file:
        try:
            if kind == "txt":
                for number, line in enumerate(file):
                    if line.strip() or not skip_blank:
                        yield Row(number, line.rstrip("\r\n"))
                return
            records = _csv_records(file, name) if kind == "csv" else _json_records(file, name)
            for number, (where, record) in enumerate(records):
                text = _field(record, text_field, where)
                if not isinstance(text, str):
                    raise InputTypeError(
                        f"{where}: {text_field} is {type(text).__name__}, not a text"
                    )
                kept = {name: record[name] for name in keep if name in record} if keep else None
                if kind == "csv" and kept is not None and len(kept) < len(keep):
                    _field(record, next(name for name in keep if name not in record), where)
                yield Row(_id(record, id_field, where, number), text, kept)
        except UnicodeDecodeError as error:
            raise InputValueError(f"{name} is not UTF-8: {error}") from None
        except DAMAGE as error:
            raise InputValueError(f"{name} is damaged or cannot be read: {error}") from None


@contextmanager
def _opened(source: str) -> Iterator[IO[str]]:
    if source == "-":
        if sys.stdin is None:
            raise InputValueError("there is no standard input to read")
        # The stream stays open: it is not ours to close.
        raw = io.FileIO(sys.stdin.fileno(), closefd=False)
    else:
        try:
            raw = io.FileIO(source)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise InputValueError(f"cannot read {source}: {reason}") from None
    with raw:
        plain = io.BufferedReader(cast(Any, decompressed(source, raw)))
        with io.TextIOWrapper(plain, encoding="utf-8-sig", newline="") as file:
            yield file


def _json_records(file: IO[str], name: str) -> Iterator[tuple[str, dict[str, object]]]:
    for number, line in enumerate(file, 1):
        if not line.strip():
            continue
        where = f"{name}, line {number}"
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InputValueError(f"{where} is no JSON: {error}") from None
        if not isinstance(record, dict):
            raise InputValueError(f"{where} is no JSON object")
        yield where, record


def _csv_records(file: IO[str], name: str) -> Iterator[tuple[str, dict[str, object]]]:
    csv.field_size_limit(_MAX_CSV_FIELD)
    reader = csv.DictReader(file, strict=True)
    try:
        for record in reader:
            yield f"{name}, line {reader.line_num}", dict(record)
    except csv.Error as error:
        raise InputValueError(f"{name}, line {reader.line_num}: {error}") from None


def _field(record: dict[str, object], field: str, where: str) -> object:
    if field not in record:
        known = ", ".join(str(key) for key in record) or "none"
        raise InputValueError(f"{where} has no field {field!r}; it has {known}")
    return record[field]


def _id(record: dict[str, object], field: str | None, where: str, number: int) -> str | int:
    if field is None:
        return number
    value = _field(record, field, where)
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise InputTypeError(f"{where}: {field} is {type(value).__name__}, not a text or number")
    return value
