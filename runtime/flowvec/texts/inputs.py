"""Reads texts for commands: txt, jsonl and csv files, plain or compressed, or standard input.

The first row without a text is an error that names its file and line. `texts.readers` is not used,
because it serves bulk jobs: there a bad row becomes a dead letter, which has no line number, and
blank lines of jsonl count as rows. Both cut files into records by `texts.lines`.
"""

from __future__ import annotations

import io
import json
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

from flowvec.errors import InputTypeError, InputValueError, NonFiniteError
from flowvec.files import BYTE_ORDER_MARK, lfs_advice
from flowvec.texts.column_types import check_distinct
from flowvec.texts.compression import DAMAGE, TEXT_FORMATS, decompressed, format_of
from flowvec.texts.encodings import OtherEncodingError, Utf8File
from flowvec.texts.joining import join_texts, text_fields
from flowvec.texts.lines import BadRecord, csv_records, json_reason, lines_of

__all__ = ["Row", "naming_rows", "read_rows"]

# Largest line, and largest field of csv.
_MOST_BYTES = 1 << 26


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
    text_field: str | Sequence[str] = "text",
    file_format: str | None = None,
    skip_blank: bool = False,
) -> Iterator[Row]:
    """Read rows one at a time, at constant memory.

    Args:
        source: a file's path, which may end in .gz, .xz, .bz2 or .zst, or `-` for standard input.
        text_field: the field of jsonl or csv that holds the text; or several, as for
            `encode_files`.
        file_format: `txt` (one text per line), `jsonl` or `csv` (with a header); None decides by
            the file's extension, and is `txt` for standard input.
        skip_blank: leave out blank lines of a txt file; other lines keep their numbers.

    Raises:
        InputValueError: the format is unknown, there is no such file, a field is missing, a line is
            not JSON or not UTF-8, or a compressed file is damaged. The message names the line, from
            1, or the row of a csv file, from 0.
        InputTypeError: a field holds something other than a text.
    """
    names = text_fields(text_field)
    names = (names,) if isinstance(names, str) else names
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
                records = _csv_records(file, name, names)
            for number, (where, record) in enumerate(records):
                yield Row(number, _text_of(record, names, where))
        except OtherEncodingError as error:
            raise InputValueError(f"{name} {error}") from None
        except DAMAGE as error:
            reason = getattr(error, "strerror", None) or error
            raise InputValueError(f"{name} is damaged or cannot be read: {reason}") from None


@contextmanager
def naming_rows(source: str, rows: Sequence[Row]) -> Iterator[None]:
    """Name rows of an input in errors about the list of their texts, which say `item 3`.

    Args:
        source: the input, as for `read_rows`.
        rows: the rows whose texts are in the list.
    """
    name = "standard input" if source == "-" else source

    def named(match: re.Match[str]) -> str:
        numbers = [str(rows[int(item)].number) for item in match[1].split(", ")]
        return f"{name}, row {', '.join(numbers)}"

    try:
        yield
    except (InputTypeError, InputValueError, NonFiniteError) as error:
        raise type(error)(re.sub(r"\bitem (\d+(?:, \d+)*)", named, str(error))) from None


@contextmanager
def _opened(source: str) -> Iterator[IO[bytes]]:
    if source == "-":
        if sys.stdin is None:
            raise InputValueError("there is no standard input to read")
        # Standard input is not closed here.
        raw = io.FileIO(sys.stdin.fileno(), closefd=False)
    else:
        if advice := lfs_advice(Path(source)):
            raise InputValueError(advice)
        try:
            raw = io.FileIO(source)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise InputValueError(f"cannot read {source}: {reason}") from None
    with raw:
        yield cast(IO[bytes], Utf8File(decompressed(source, raw)))


def _lines(file: IO[bytes], name: str) -> Iterator[tuple[str, bytes]]:
    """Position and bytes of each line. As in bulk jobs, only a line feed ends a line."""
    number = 0
    for lines in lines_of(file, _MOST_BYTES):
        for number, line in enumerate(lines, number + 1):  # noqa: B020 - continues counting
            where = f"{name}, line {number}"
            if line is None:
                raise InputValueError(f"{where} has more than {_MOST_BYTES} bytes")
            yield where, line.removeprefix(BYTE_ORDER_MARK) if number == 1 else line


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
            raise InputValueError(f"{where} is not JSON: {json_reason(error)}") from None
        if not isinstance(record, dict):
            raise InputValueError(f"{where} is not a JSON object")
        yield where, record


def _csv_records(
    file: IO[bytes], name: str, texts: Sequence[str]
) -> Iterator[tuple[str, dict[str, object]]]:
    header: list[str] | None = None
    for number, fields in enumerate(csv_records(file, _MOST_BYTES)):
        where = f"{name}, row {number - 1}" if number else f"the header of {name}"
        if isinstance(fields, BadRecord):
            raise InputValueError(f"{where}: {fields.reason}")
        try:
            "".join(fields).encode()
        except UnicodeEncodeError:
            raise InputValueError(f"{where} is not UTF-8") from None
        if header is None:
            header = fields
            check_distinct(name, header, texts)
        elif len(fields) != len(header):
            raise InputValueError(f"{where} has {len(fields)} fields, and the header {len(header)}")
        else:
            yield where, dict(zip(header, fields, strict=True))


def _text_of(record: dict[str, object], names: Sequence[str], where: str) -> str:
    there = {name: record[name] for name in names if name in record}
    if not there:
        has = ", ".join(str(key) for key in record) or "none"
        raise InputValueError(f"{where} has no field {' or '.join(map(repr, names))}; it has {has}")
    if len(names) > 1:  # of several, null is left out
        there = {name: part for name, part in there.items() if part is not None} or there
    for name, part in there.items():
        if not isinstance(part, str):
            raise InputTypeError(f"{where}: {name} is {_kind(part)}, not a text")
    parts = cast(dict[str, str], there)
    return parts[names[0]] if len(names) == 1 else join_texts(parts.values()) or ""


def _kind(value: object) -> str:
    """The name of a JSON value's type."""
    kinds = {dict: "an object", list: "a list", bool: "a truth value", type(None): "null"}
    return kinds.get(type(value), f"the number {value}")
