"""Records of text files: lines of bytes, and csv records."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

__all__ = ["BadRecord", "Blocks", "csv_records", "json_reason", "lines_of"]

_BLOCK = 1 << 20


class Blocks(Protocol):
    """A file that is read in blocks."""

    def read(self, size: int, /) -> bytes:
        """The next bytes, about this many; empty at the end."""


def lines_of(
    file: Blocks, limit: int, *, block_bytes: int = _BLOCK
) -> Iterator[list[bytes | None]]:
    """Lines without their ends (LF or CR LF), in lists; None stands for a line over the limit.

    Memory is bounded by the limit and the block size.
    """
    started, is_long = b"", False
    while block := file.read(block_bytes):
        first, *rest = block.split(b"\n")
        if not rest:  # no line ends in this block
            is_long = is_long or len(started) + len(first) > limit + 1
            started = b"" if is_long else started + first
            continue
        lines: list[bytes | None] = [None if is_long else started + first, *rest[:-1]]
        started, is_long = rest[-1], False
        # The usual case: only the first line can be special.
        if b"\r" not in block and len(block) <= limit:
            lines[0] = _ended(lines[0], limit)
            yield lines
        else:
            yield [_ended(line, limit) for line in lines]
    if started or is_long:
        yield [None if is_long else _ended(started, limit)]


def _ended(line: bytes | None, limit: int) -> bytes | None:
    if line is None:
        return None
    if line.endswith(b"\r"):
        line = line[:-1]
    return None if len(line) > limit else line


def json_reason(error: ValueError | RecursionError) -> str:
    """Why a line is not JSON. Python's own words count the line again, from 1."""
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg}, at character {error.pos + 1}"
    return str(error)


@dataclass(frozen=True, slots=True)
class BadRecord:
    """A csv record that cannot be read.

    Attributes:
        code: `too_large` or `malformed`.
        reason: what is wrong, in words.
    """

    code: str
    reason: str


def csv_records(
    file: Blocks, limit: int, *, block_bytes: int = _BLOCK
) -> Iterator[list[str] | BadRecord]:
    """Records of a csv file, its header first, or `BadRecord`; blank lines are skipped.

    Python's csv has one limit for the length of a field in the whole process, and continues in the
    middle of a longer field. So records are cut here, and memory is bounded by the limit.

    Bytes that are not UTF-8 become lone surrogates (`surrogateescape`). A record with a wrong quote
    ends with its line.

    Args:
        file: its bytes.
        limit: most bytes of a field; a longer one is a `BadRecord`.
        block_bytes: bytes that are read at once.
    """
    cutter = _CsvCutter(limit)
    while block := file.read(block_bytes):
        for record in cutter.cut(block):
            if record:
                yield record if isinstance(record, BadRecord) else _csv_fields(record, limit)
    if last := cutter.rest():
        yield last if isinstance(last, BadRecord) else _csv_fields(last, limit)


# Limit on the size of a whole record.
_FIELDS_OF_THE_LIMIT = 4
_UNQUOTED_END = re.compile(rb"[,\r\n]")
_LINE_END = re.compile(rb"[\r\n]")
# States of a scan: at the start of a field; in an unquoted field; in a quoted field; after a quote
# in a quoted field (its end, or half of a doubled quote); in the rest of a line with a wrong quote.
_BEGIN, _PLAIN, _QUOTED, _QUOTE, _WRONG = range(5)


class _CsvCutter:
    """Cuts blocks of csv into records, across block borders."""

    def __init__(self, limit: int) -> None:
        self._most = _FIELDS_OF_THE_LIMIT * limit + _BLOCK
        self._limit = limit
        self._parts: list[bytes] = []  # parts of the current record
        self._size = 0
        self._state = _BEGIN
        self._after_return = False  # a line feed then belongs to the previous record

    def cut(self, block: bytes) -> Iterator[bytes | BadRecord]:
        """Records that end in this block."""
        at = 0
        if self._after_return and block.startswith(b"\n"):
            at = 1
        self._after_return = False
        while at < len(block):
            # The usual case: one line without quotes.
            if self._state == _BEGIN and not self._size:
                end = block.find(b"\n", at)
                stop = end - 1 if end > at and block[end - 1] == _RETURN else end
                if end >= 0 and block.find(b'"', at, stop) < 0 > block.find(b"\r", at, stop):
                    yield block[at:stop]
                    at = end + 1
                    continue
            end = self._scan(block, at)
            self._add(block[at:end])
            if end == len(block):
                return
            record = self._finished()
            at = end + 1
            if block[end] == _RETURN:
                if at == len(block):
                    self._after_return = True
                elif block[at] == _FEED:
                    at += 1
            yield record

    def rest(self) -> bytes | BadRecord:
        """The record after the last line end."""
        if self._state == _QUOTED and self._size <= self._most:
            self._state, self._size = _BEGIN, 0
            self._parts = []
            return BadRecord("malformed", "the record cannot be read: a quote is not closed")
        return self._finished()

    def _scan(self, block: bytes, at: int) -> int:
        """Where the current record ends, or the end of the block."""
        state = self._state
        while at < len(block):
            if state == _QUOTED:
                at = block.find(b'"', at)
                if at < 0:
                    at = len(block)
                else:
                    at, state = at + 1, _QUOTE
            elif state in (_PLAIN, _WRONG):
                match = (_UNQUOTED_END if state == _PLAIN else _LINE_END).search(block, at)
                if match is None:
                    at = len(block)
                elif block[match.start()] == _COMMA:
                    at, state = match.end(), _BEGIN
                else:
                    self._state = state
                    return match.start()
            else:
                byte = block[at]
                if byte in (_RETURN, _FEED):
                    self._state = state
                    return at
                if byte == _COMMA:
                    at, state = at + 1, _BEGIN
                elif state == _BEGIN:
                    state = _QUOTED if byte == _MARK else _PLAIN
                    at += 1
                elif byte == _MARK:  # a doubled quote
                    at, state = at + 1, _QUOTED
                else:
                    state = _WRONG
        self._state = state
        return at

    def _add(self, part: bytes) -> None:
        self._size += len(part)
        if self._size <= self._most:
            self._parts.append(part)
        else:
            self._parts = []

    def _finished(self) -> bytes | BadRecord:
        record: bytes | BadRecord
        if self._size > self._most:
            record = _too_large(self._limit)
        elif self._state == _WRONG:
            record = BadRecord(
                "malformed", "the record cannot be read: a quoted field goes on after its quote"
            )
        else:
            record = b"".join(self._parts)
        self._parts, self._size, self._state = [], 0, _BEGIN
        return record


_COMMA, _MARK, _RETURN, _FEED = b',"\r\n'


def _too_large(limit: int) -> BadRecord:
    return BadRecord("too_large", f"the record has a field of more than {limit} bytes")


def _csv_fields(record: bytes, limit: int) -> list[str] | BadRecord:
    """The fields of a complete, valid record."""
    text = record.decode("utf-8", "surrogateescape")
    if '"' not in text:
        fields = text.split(",")
    else:
        fields, at = [], 0
        while at <= len(text):
            if text.startswith('"', at):
                parts, at = [], at + 1
                while True:
                    end = text.index('"', at)
                    parts.append(text[at:end])
                    at = end + 1
                    if not text.startswith('"', at):
                        break
                    parts.append('"')
                    at += 1
                fields.append("".join(parts))
                at += 1  # the comma
            else:
                end = text.find(",", at)
                end = len(text) if end < 0 else end
                fields.append(text[at:end])
                at = end + 1
    if len(record) > limit:
        for field in fields:
            if 4 * len(field) > limit and len(field.encode("utf-8", "surrogateescape")) > limit:
                return _too_large(limit)
    return fields
