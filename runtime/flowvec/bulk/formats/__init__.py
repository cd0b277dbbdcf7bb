"""Readers of a bulk job's inputs, one for each format."""

from __future__ import annotations

from contextlib import ExitStack

from flowvec.bulk.formats.csv_records import CsvReader
from flowvec.bulk.formats.json_lines import JsonReader
from flowvec.bulk.formats.parquet import ParquetReader, schema_of
from flowvec.bulk.formats.reader import Reader
from flowvec.bulk.formats.txt import TxtReader
from flowvec.bulk.sources import Source, open_binary
from flowvec.bulk.survey import Start
from flowvec.bulk.window import Fields
from flowvec.records import csv_records, lines_of

__all__ = ["Reader", "open_reader", "schema_of"]


def open_reader(source: Source, fields: Fields, stack: ExitStack, place: Start) -> Reader:
    """A reader of a file that stands at a place; the stack closes it.

    Raises:
        InputValueError: the file cannot be read, or lacks a field.
    """
    if source.format == "parquet":
        found: Reader = ParquetReader(source, fields, stack)
        found.skip(place.row)
        return found
    file = stack.enter_context(open_binary(source, place.offset or 0))
    if source.format == "csv":
        found = CsvReader(source, fields, csv_records(file, fields.max_text_bytes))
        found.skip(place.row)
        return found
    kind = TxtReader if source.format == "txt" else JsonReader
    found = kind(source, fields, lines_of(file, fields.max_text_bytes))
    if place.offset is None:
        found.skip(place.row)
    found.row = place.row
    return found
