"""Readers of a bulk job's inputs, one for each format."""

from __future__ import annotations

from contextlib import ExitStack

from flowvec.texts.inventory import Start
from flowvec.texts.lines import csv_records, lines_of
from flowvec.texts.readers.base import Reader
from flowvec.texts.readers.csv import CsvReader
from flowvec.texts.readers.jsonl import JsonReader
from flowvec.texts.readers.parquet import ParquetReader
from flowvec.texts.readers.txt import TxtReader
from flowvec.texts.sources import Source, open_binary
from flowvec.texts.window import Fields

__all__ = ["ParquetReader", "Reader", "open_reader"]


def open_reader(source: Source, fields: Fields, stack: ExitStack, place: Start) -> Reader:
    """A reader of a file, at a given place; the stack closes it.

    Raises:
        InputValueError: the file cannot be read, or lacks a field.
    """
    if source.format == "parquet":
        reader: Reader = ParquetReader(source, fields, stack)
        reader.skip(place.row)
        return reader
    file = stack.enter_context(open_binary(source, place.offset or 0))
    if source.format == "csv":
        reader = CsvReader(source, fields, csv_records(file, fields.max_text_bytes))
        reader.skip(place.row)
        return reader
    kind = TxtReader if source.format == "txt" else JsonReader
    reader = kind(source, fields, lines_of(file, fields.max_text_bytes))
    if place.offset is None:
        reader.skip(place.row)
    reader.row = place.row
    return reader
