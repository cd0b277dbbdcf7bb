"""Reads the texts of one file for a command: the first row without a text is an error."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from flowvec.errors import InputTypeError, InputValueError, NonFiniteError
from flowvec.texts.column_types import Observed
from flowvec.texts.compression import TEXT_FORMATS, format_of
from flowvec.texts.inventory import Start
from flowvec.texts.joining import text_fields
from flowvec.texts.readers import open_reader
from flowvec.texts.sources import STDIN, Source
from flowvec.texts.window import WINDOW, DeadLetter, Fields, Window

__all__ = ["Row", "naming_rows", "read_rows"]

# Largest line, and largest field of csv.
_MOST_BYTES = 1 << 26
# Dead letters of rows whose text has another type.
_OF_TYPES = ("null", "nan", "not_text")


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
    """Read rows at constant memory, as bulk jobs read them.

    Args:
        source: a file's path, which may end in .gz, .xz, .bz2 or .zst, or `-` for standard input.
        text_field: the field of jsonl or csv that holds the text; or several, as for
            `encode_files`.
        file_format: `txt` (one text per line), `jsonl` or `csv` (with a header); None decides by
            the file's extension, and is `txt` for standard input.
        skip_blank: leave out blank lines of a txt file, as those of jsonl always are; other lines
            keep their numbers.

    Raises:
        InputValueError: the format is unknown, there is no such file, a field is missing, a line is
            not JSON or not UTF-8, or a compressed file is damaged. The message names the line, from
            1, or the row of a csv file, from 0.
        InputTypeError: a field holds something other than a text.
    """
    kind = file_format or ("txt" if source == STDIN else format_of(source))
    if kind not in TEXT_FORMATS:
        raise InputValueError(
            f"cannot tell how to read {source}; give --format {'|'.join(TEXT_FORMATS)}"
        )
    fields = Fields(text_fields(text_field), max_text_bytes=_MOST_BYTES, for_collection=skip_blank)
    with ExitStack() as stack:
        reader = open_reader(Source(source, kind), fields, stack, Start(0, 0, 0))
        while True:
            first = reader.row
            count, records = reader.take(WINDOW)
            if not count:
                return
            if first == 0:
                observed = Observed(fields)
                reader.observe(records, observed)
                observed.check()
            window = Window(first)
            reader.read(records, first, window, {})
            refused = window.dead[0] if window.dead else None
            for number, text in zip(window.numbers, window.texts, strict=True):
                if refused is not None and number > refused.row:
                    break
                yield Row(number, text)
            if refused is not None:
                raise _error_of(refused, kind)


def _error_of(refused: DeadLetter, kind: str) -> InputTypeError | InputValueError:
    place = f"row {refused.row}" if kind == "csv" else f"line {refused.row + 1}"
    error = InputTypeError if refused.code in _OF_TYPES else InputValueError
    return error(f"{refused.source}, {place}: {refused.reason}")


@contextmanager
def naming_rows(source: str, rows: Sequence[Row]) -> Iterator[None]:
    """Name rows of an input in errors about the list of their texts, which say `item 3`.

    Args:
        source: the input, as for `read_rows`.
        rows: the rows whose texts are in the list.
    """
    name = Source(source, "txt").name

    def named(match: re.Match[str]) -> str:
        numbers = [str(rows[int(item)].number) for item in match[1].split(", ")]
        return f"{name}, row {', '.join(numbers)}"

    try:
        yield
    except (InputTypeError, InputValueError, NonFiniteError) as error:
        raise type(error)(re.sub(r"\bitem (\d+(?:, \d+)*)", named, str(error))) from None
