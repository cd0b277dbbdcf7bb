"""Records of text files: lines of bytes, and csv records."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from typing import IO, Any, cast

__all__ = ["csv_records", "lines_of"]

_BLOCK = 1 << 20


def lines_of(file: IO[bytes], limit: int) -> Iterator[list[bytes | None]]:
    """Lines without their ends (LF or CR LF), some at a time; None stands for one over the limit.

    Memory is bounded by the limit and a block, whatever the lines are.
    """
    begun, is_long = b"", False
    while block := file.read(_BLOCK):
        first, *rest = block.split(b"\n")
        if not rest:  # no line ends here
            is_long = is_long or len(begun) + len(first) > limit + 1
            begun = b"" if is_long else begun + first
            continue
        lines: list[bytes | None] = [None if is_long else begun + first, *rest[:-1]]
        begun, is_long = rest[-1], False
        # As nearly always, where none but the first can end otherwise or be too long.
        if b"\r" not in block and len(block) <= limit:
            lines[0] = _ended(lines[0], limit)
            yield lines
        else:
            yield [_ended(line, limit) for line in lines]
    if begun or is_long:
        yield [None if is_long else _ended(begun, limit)]


def _ended(line: bytes | None, limit: int) -> bytes | None:
    if line is None:
        return None
    if line.endswith(b"\r"):
        line = line[:-1]
    return None if len(line) > limit else line


def csv_records(file: IO[bytes], limit: int) -> Iterator[list[str] | csv.Error]:
    """Records of a csv file, its header first, or what is wrong with one; blank lines are none.

    Bytes that are not UTF-8 stand in the texts as lone surrogates (`surrogateescape`).

    Args:
        file: its bytes.
        limit: a longer field is an error of its record.
    """
    csv.field_size_limit(limit)
    text = io.TextIOWrapper(
        io.BufferedReader(cast(Any, file)),
        encoding="utf-8-sig",
        errors="surrogateescape",
        newline="",
    )
    reader = csv.reader(text, strict=True)
    while True:
        try:
            record = next(reader)
        except StopIteration:
            break
        except csv.Error as error:  # it goes on with the next line
            yield error
            continue
        if record:
            yield record
    text.detach()  # what is below is closed by whoever opened it
