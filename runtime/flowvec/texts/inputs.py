"""Reads texts for commands: txt, jsonl and csv files, plain or compressed, or standard input.

The first row without a text is an error that names its file and line. `texts.readers` is not used,
because it serves bulk jobs: there a bad row becomes a dead letter, which has no line number, and
blank lines of jsonl count as rows. Both cut files into records by `texts.lines`.
"""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO

from flowvec.errors import InputTypeError, InputValueError
from flowvec.texts.column_types import check_distinct
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
        number: number of the row in its input, from 0.
        text: its text.
    """

    number: int
    text: str


def read_rows(
    source: str,
    *,
    text_field: str = "text",
    file_format: str | None = None,
    skip_blank: bool = False,
) -> Iterator[Row]:
    """Read rows one at a time, at constant memory.

    Args:
        source: a file's path, which may end in .gz, .xz, .bz2 or .zst, or `-` for standard input.
        text_field: the field of jsonl or csv that holds the text.
        file_format: `txt` (one text per line), `jsonl` or `csv` (with a header); None decides by
            the file's extension, and is `txt` for standard input.
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
    name = "standard input" if source == "-" else source
    with _opened(source) as file:
        try:
            if kind == "txt":
                for number, (where, line) in enumerate(_lines(file, name)):
                    decoded = _decoded(line, where)
                    if decoded.strip() or not skip_blank:
                        yield Row(number, decoded)
                return
            records = _json_records(file, name)
            if kind == "csv":
                records = _csv_records(file, name, text_field)
            for number, (where, record) in enumerate(records):
                text = _field(record, text_field, where)
                if not isinstance(text, str):
                    raise InputTypeError(f"{where}: {text_field} is {_kind(text)}, not a text")
                yield Row(number, text)
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
        for number, line in enumerate(lines, number + 1):  # noqa: B020 - continues counting
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


def _csv_records(
    file: IO[bytes], name: str, text_field: str
) -> Iterator[tuple[str, dict[str, object]]]:
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
            check_distinct(name, header, [text_field])
        elif len(fields) != len(header):
            raise InputValueError(f"{where} has {len(fields)} fields, and the header {len(header)}")
        else:
            yield where, dict(zip(header, fields, strict=True))


def _field(record: dict[str, object], field: str, where: str) -> object:
    if field not in record:
        names = ", ".join(str(key) for key in record) or "none"
        raise InputValueError(f"{where} has no field {field!r}; it has {names}")
    return record[field]


def _kind(value: object) -> str:
    """The name of a JSON value's type."""
    kinds = {dict: "an object", list: "a list", bool: "a truth value", type(None): "null"}
    return kinds.get(type(value), f"the number {value}")
