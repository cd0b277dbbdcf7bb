"""Reads training data: columns of a TSV or JSONL file, with every value checked."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from flowvec.errors import InputValueError

Columns = dict[str, list[Any]]
Reader = Callable[[object], Any]


def text(value: object) -> str:
    """A text that is not blank."""
    if not isinstance(value, str) or not value.strip():
        raise ValueError("is not a text")
    return value


def number(value: object) -> float:
    """A finite number, from JSON or as text."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError("is not a number")
    try:
        result = float(value)
    except ValueError:
        raise ValueError("is not a number") from None
    if not math.isfinite(result):
        raise ValueError("is not a number")
    return result


def class_number(value: object) -> int:
    """A whole number from 0."""
    result = number(value)
    if result < 0 or result != int(result):
        raise ValueError("is not a whole number from 0")
    return int(result)


def read_columns(path: Path, readers: Mapping[str, Reader]) -> Columns:
    """The named fields of every row, in the order of `readers`, which a loss depends on.

    Args:
        path: `.tsv` (UTF-8, a header, tabs, no quoting) or `.jsonl` (one object per line). Other
            fields are ignored.
        readers: for each field, the function that reads its value.

    Raises:
        InputValueError: the file cannot be read, has no rows or lacks a field, or a value is not
            valid; the message names the line.
    """
    rows = {".tsv": _tsv_rows, ".jsonl": _jsonl_rows}.get(path.suffix)
    if rows is None:
        raise InputValueError(f"{path} must be a .tsv or .jsonl file")
    columns: Columns = {name: [] for name in readers}
    for number_of_line, row in rows(_lines(path), path):
        for name, reader in readers.items():
            where = f"{path}, line {number_of_line}"
            if name not in row:
                raise InputValueError(f"{where} has no {name}; needed are {', '.join(readers)}")
            try:
                columns[name].append(reader(row[name]))
            except ValueError as error:
                raise InputValueError(f"{where}: the {name} {row[name]!r} {error}") from None
    if not next(iter(columns.values())):
        raise InputValueError(f"{path} has no rows")
    return columns


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8-sig").split("\n")
    except OSError as error:
        raise InputValueError(f"cannot read {path}: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise InputValueError(f"{path} is not UTF-8: {error}") from None


def _tsv_rows(lines: list[str], path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    header = lines[0].rstrip("\r").split("\t")
    for place, line in enumerate(lines[1:], 2):
        if not line.strip():
            continue
        fields = line.rstrip("\r").split("\t")
        if len(fields) != len(header):
            raise InputValueError(
                f"{path}, line {place} has {len(fields)} columns, the header {len(header)}"
            )
        yield place, dict(zip(header, fields, strict=True))


def _jsonl_rows(lines: list[str], path: Path) -> Iterator[tuple[int, dict[str, object]]]:
    for place, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise InputValueError(f"{path}, line {place} is not JSON: {error}") from None
        if not isinstance(row, dict):
            raise InputValueError(f"{path}, line {place} is not a JSON object")
        yield place, row


def write_tsv(path: Path, columns: Columns) -> None:
    """Write columns of equal length, as `read_columns` reads them."""
    rows = zip(*columns.values(), strict=True)
    lines = ["\t".join(columns), *("\t".join(map(str, row)) for row in rows)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
