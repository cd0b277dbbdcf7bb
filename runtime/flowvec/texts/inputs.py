"""Reads texts for commands: txt, jsonl and csv files, plain or compressed, or standard input.

A row without a text is an error that names its file and line.
"""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO

from flowvec.errors import InputTypeError, InputValueError
from flowvec.texts.compression import DAMAGE, TEXT_FORMATS, decompressed, format_of
from flowvec.texts.lines import BadRecord, csv_records, lines_of

__all__ = ["Row", "read_rows"]

# Largest line, and largest field of csv.
_MOST_BYTES = 1 << 26
_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class Row:
    """One text of an input.

    Attributes:
        id: its id, or the row number if the input has no ids.
        text: its text.
        kept: the requested other fields that the row has; None if none were requested.
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
        file_format: `txt` (one text per line), `jsonl` or `csv` (with a header); None decides by
            the file's extension, and is `txt` for standard input.
        keep: other fields to read; in jsonl, a row may lack some of them.
        skip_blank: leave out blank lines of a txt file; other lines keep their numbers.

    Raises:
        InputValueError: the format is unknown, there is no such file, a field is missing, a line is
            not JSON or not UTF-8, or a compressed file is damaged.
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
                for number, (where, line) in enumerate(_lines(file, name)):
                    decoded = _decoded(line, where)
                    if decoded.strip() or not skip_blank:
                        yield Row(number, decoded)
                return
            records = _csv_records(file, name) if kind == "csv" else _json_records(file, name)
            for number, (where, record) in enumerate(records):
                text = _field(record, text_field, where)
                if not isinstance(text, str):
                    raise InputTypeError(f"{where}: {text_field} is {_kind(text)}, not a text")
                kept = {name: record[name] for name in keep if name in record} if keep else None
                if kind == "csv" and kept is not None and len(kept) < len(keep):
                    _field(record, next(name for name in keep if name not in record), where)
                yield Row(_id(record, id_field, where, number), text, kept)
        except DAMAGE as error:
            reason = getattr(error, "strerror", None) or error
            raise InputValueError(f"{name} is damaged or cannot be read: {reason}") from None


@contextmanager
def _opened(source: str) -> Iterator[IO[bytes]]:
    if source == "-":
        if sys.stdin is None:
            raise InputValueError("there is no standard input to read")
        # Standard input is not closed here.
        raw = io.FileIO(sys.stdin.fileno(), closefd=False)
    else:
        try:
            raw = io.FileIO(source)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise InputValueError(f"cannot read {source}: {reason}") from None
    with raw:
        yield decompressed(source, raw)


def _lines(file: IO[bytes], name: str) -> Iterator[tuple[str, bytes]]:
    """Position and bytes of each line. As in bulk jobs, only a line feed ends a line."""
    number = 0
    for lines in lines_of(file, _MOST_BYTES):
        for number, line in enumerate(lines, number + 1):  # noqa: B020 - it goes on
            where = f"{name}, line {number}"
            if line is None:
                raise InputValueError(f"{where} has more than {_MOST_BYTES} bytes")
            yield where, line.removeprefix(_BOM) if number == 1 else line


def _decoded(line: bytes, where: str) -> str:
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        raise InputValueError(f"{where} is not UTF-8: {error}") from None


def _json_records(file: IO[bytes], name: str) -> Iterator[tuple[str, dict[str, object]]]:
    for where, line in _lines(file, name):
        text = _decoded(line, where)
        if not text.strip():
            continue
        try:
            record = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise InputValueError(f"{where} is not JSON: {error}") from None
        if not isinstance(record, dict):
            raise InputValueError(f"{where} is not a JSON object")
        yield where, record


def _csv_records(file: IO[bytes], name: str) -> Iterator[tuple[str, dict[str, object]]]:
    header: list[str] | None = None
    for number, fields in enumerate(csv_records(file, _MOST_BYTES)):
        where = f"{name}, record {number}" if number else f"the header of {name}"
        if isinstance(fields, BadRecord):
            raise InputValueError(f"{where}: {fields.reason}")
        try:
            "".join(fields).encode()
        except UnicodeEncodeError:
            raise InputValueError(f"{where} is not UTF-8") from None
        if header is None:
            header = fields
        elif len(fields) != len(header):
            raise InputValueError(f"{where} has {len(fields)} fields, and the header {len(header)}")
        else:
            yield where, dict(zip(header, fields, strict=True))


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
        raise InputTypeError(
            f"{where}: {field} is {_kind(value)}, and an id is a text or a whole number"
        )
    return value


def _kind(value: object) -> str:
    """The name of a JSON value's type."""
    kinds = {dict: "an object", list: "a list", bool: "a truth value", type(None): "null"}
    return kinds.get(type(value), f"the number {value}")
