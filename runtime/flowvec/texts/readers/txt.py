"""Reads txt: one text per line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from flowvec.compat import override
from flowvec.errors import InputValueError
from flowvec.texts.column_types import Observed
from flowvec.texts.readers.base import LineReader
from flowvec.texts.row_checks import RefusedError, dead_letter_of, decoded_line
from flowvec.texts.sources import Source
from flowvec.texts.window import Columns, Fields, Window

__all__ = ["TxtReader"]


class TxtReader(LineReader):
    """Reads txt, which has no fields."""

    def __init__(self, source: Source, fields: Fields, lines: Iterator[list[bytes | None]]) -> None:
        super().__init__(source, fields, lines)
        if fields.named or len(fields.texts) > 1:
            raise InputValueError(
                f"{self.name} is read as txt, which has no fields: give its format (jsonl, csv), "
                "or no fields"
            )

    @override
    def observe(self, records: Any, observed: Observed) -> None:
        observed.note_names(self.name, self.fields.texts)

    @override
    def read(
        self, records: Sequence[bytes | None], first_row: int, window: Window, columns: Columns
    ) -> None:
        first = window.begin(self.name, first_row, len(records))
        texts: list[str] | None
        try:
            texts = [record.decode() for record in records]  # type: ignore[union-attr]
        except (UnicodeDecodeError, AttributeError):
            texts = None
        skip_blank = self.fields.for_collection
        if texts is None or (skip_blank and not all(map(str.strip, texts))):
            for place, record in enumerate(records):
                try:
                    text = decoded_line(record, self.fields)
                except RefusedError as refused:
                    window.dead.append(dead_letter_of(self.name, first_row + place, None, refused))
                else:
                    if skip_blank and not text.strip():
                        window.blank += 1
                        continue
                    window.numbers.append(first + place)
                    window.texts.append(text)
        else:
            window.numbers += range(first, first + len(texts))
            window.texts += texts
