"""Reads Parquet files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import timedelta
from typing import Any

from flowvec.arrow import imported_arrow
from flowvec.compat import override
from flowvec.errors import InputValueError
from flowvec.texts.arrow_values import (
    arrow_type,
    cast_exactly,
    check_times,
    id_kind,
    open_parquet,
    plain,
    plain_type,
    text_of_bytes,
    text_of_id,
)
from flowvec.texts.column_types import FieldValues, Observed, check_distinct
from flowvec.texts.readers.base import Reader
from flowvec.texts.row_checks import RefusedError, dead_letter_of, fitted, id_of, joined_text
from flowvec.texts.sources import Source
from flowvec.texts.window import WINDOW, Columns, Fields, Window, of_rows

__all__ = ["ParquetReader"]


class ParquetReader(Reader):
    """Reads Parquet; kept fields stay Arrow arrays."""

    def __init__(self, source: Source, fields: Fields, stack: ExitStack) -> None:
        super().__init__(source, fields)
        self._arrow = imported_arrow()
        self._file = stack.enter_context(_opened(source))
        schema = self._file.schema_arrow
        check_distinct(self.name, schema.names, (*fields.texts, *fields.named))
        self._texts = [name for name in fields.texts if name in schema.names]
        missing = [] if self._texts else [fields.wanted_text]
        if fields.id is not None and fields.id not in schema.names:
            missing.append(repr(fields.id))
        if missing:
            raise InputValueError(
                f"{self.name} has no column {missing[0]}; it has {', '.join(schema.names)}"
            )
        self._schema = schema
        for name in self._texts:
            kind = plain_type(schema.field(name).type)
            if not _is_text(self._arrow, kind):
                raise InputValueError(
                    f"{self.name}: {name} holds {_in_words(self._arrow, kind)}, not texts"
                )
        if fields.id is not None:
            self._check_id(plain_type(schema.field(fields.id).type))
        self._names = [
            name for name in dict.fromkeys((*fields.texts, *fields.named)) if name in schema.names
        ]
        self._batches = self._file.iter_batches(batch_size=WINDOW, columns=self._names)
        self._ready: Any = None

    def _check_id(self, kind: Any) -> None:
        if not id_kind(kind):
            raise InputValueError(
                f"{self.name}: {self.fields.id} holds {_in_words(self._arrow, kind)}, and an id is "
                "a text or a whole number"
            )

    @override
    def skip(self, rows: int) -> None:
        groups, metadata = 0, self._file.metadata
        while groups < metadata.num_row_groups and (
            metadata.row_group(groups).num_rows <= rows - self.row
        ):
            self.row += metadata.row_group(groups).num_rows
            groups += 1
        left = range(groups, metadata.num_row_groups)
        self._batches = self._file.iter_batches(
            batch_size=WINDOW, columns=self._names, row_groups=list(left)
        )
        super().skip(rows - self.row)

    @override
    def take(self, rows: int) -> tuple[int, list[Any]]:
        tables: list[Any] = []
        count = 0
        while count < rows:
            if self._ready is None or not len(self._ready):
                self._ready = self._next()
                if self._ready is None:
                    break
            part = self._ready.slice(0, rows - count)
            self._ready = self._ready.slice(len(part))
            tables.append(part)
            count += len(part)
            self.row += len(part)
        return count, tables

    def _next(self) -> Any:
        try:
            return next(self._batches, None)
        except (OSError, self._arrow.ArrowException) as error:
            raise InputValueError(
                f"{self.name} is damaged from row {self.row} on: {error}"
            ) from None

    @override
    def observe(self, records: Any, observed: Observed) -> None:
        observed.note_names(self.name, self._schema.names)
        for name, one in observed.values.items():
            if name in self._names:
                one.files.setdefault(plain_type(self._schema.field(name).type), self.name)

    def count_numbers(self, name: str, values: FieldValues) -> None:
        """Count the numbers of a column, if it has any."""
        if name not in self._schema.names:
            return
        kind, types = plain_type(self._schema.field(name).type), self._arrow.types
        if types.is_integer(kind) or types.is_floating(kind):
            self._batches = self._file.iter_batches(batch_size=WINDOW, columns=[name])
            while (batch := self._next()) is not None:
                values.add_array(plain(batch.column(0)))

    @override
    def read(
        self, records: Sequence[Any], first_row: int, window: Window, columns: Columns
    ) -> None:
        for batch in records:
            self._read_batch(batch, first_row, window, columns)
            first_row += len(batch)

    def _read_batch(self, batch: Any, first_row: int, window: Window, columns: Columns) -> None:
        fields, first = self.fields, window.begin(self.name, first_row, len(batch))
        texts = [_pylist(self._arrow, plain(batch.column(name))) for name in self._texts]
        key_name = fields.id
        ids = None if key_name is None else _pylist(self._arrow, plain(batch.column(key_name)))
        good: list[int] = []
        keys: list[Any] = []
        kept, bad_fields = self._kept(batch, columns)
        for place, parts in enumerate(zip(*texts, strict=True)):
            key: Any = first + place if ids is None else text_of_id(ids[place])
            try:
                if key_name is not None:
                    key = id_of(_decoded_value(key), key_name)
                    key = fitted(key, columns[key_name], key_name)
                decoded = dict(zip(self._texts, map(_decoded_value, parts), strict=True))
                checked = joined_text(decoded, fields)
                if place in bad_fields:
                    raise RefusedError("bad_field", bad_fields[place])
            except RefusedError as refused:
                shown = key if isinstance(key, str | int) else None
                window.dead.append(dead_letter_of(self.name, first_row + place, shown, refused))
                continue
            good.append(place)
            keys.append(key)
            window.texts.append(checked)
        window.numbers += [first + place for place in good]
        if key_name is not None:
            window.extend(key_name, keys)
        for name, values in kept.items():
            window.extend(name, values if len(good) == len(batch) else of_rows(values, good))
            if fields.for_collection and name in self._names:
                window.fields.add(name)

    def _kept(self, batch: Any, columns: Columns) -> tuple[dict[str, Any], dict[int, str]]:
        """Kept values, and what is wrong with some of them, by row."""
        kept: dict[str, Any] = {}
        reasons: dict[int, str] = {}
        for name in self.fields.beside_id:
            if name not in self._names:
                kept[name] = [None] * len(batch)
                continue
            column, kind = plain(batch.column(name)), columns[name]
            bad: dict[int, str] = {}
            if self._may_be_bad(column, kind):
                found = ((place, self._why_bad(value, kind)) for place, value in enumerate(column))
                bad = {place: f"{name} {reason}" for place, reason in found if reason is not None}
            if self._is_json(kind):
                if bad:
                    values = [None if p in bad else one.as_py() for p, one in enumerate(column)]
                else:
                    values = column.to_pylist()
                if not self.fields.kept_as_json:  # a column of JSON
                    values = [None if one is None else json.dumps(one) for one in values]
                kept[name] = values
            else:
                kept[name], places = cast_exactly(column, arrow_type(kind))
                for place in places:
                    bad[place] = f"{name} is {column[place]}, which the type {kind} cannot hold"
            for place, reason in bad.items():
                reasons.setdefault(place, reason)
        return kept, reasons

    def _may_be_bad(self, column: Any, written_as: Any) -> bool:
        """Whether values must be checked one by one."""
        arrow, kind = self._arrow, column.type
        as_json = self._is_json(written_as)
        if arrow.types.is_floating(kind):
            return as_json and not (
                arrow.compute.all(arrow.compute.is_finite(column), min_count=0).as_py()
            )
        try:
            column.validate(full=True)
            if self.fields.kept_as_json and arrow.types.is_temporal(kind):
                column.to_pylist()  # Python's dates end before Arrow's
                check_times(column)
        except (arrow.ArrowInvalid, OverflowError, ValueError):
            return True
        types = arrow.types
        fine = (types.is_integer, types.is_boolean, types.is_string, types.is_large_string,
                types.is_date, types.is_time, types.is_timestamp, types.is_null)  # fmt: skip
        return as_json and not any(is_kind(kind) for is_kind in fine)

    def _is_json(self, kind: Any) -> bool:
        return self.fields.kept_as_json or (isinstance(kind, str) and kind == "json")

    def _why_bad(self, value: Any, written_as: Any) -> str | None:
        """What is wrong with a kept value; None if nothing is."""
        try:
            python = value.as_py()
            if self._is_json(written_as):
                check_times(value)
        except UnicodeDecodeError:
            return "is not UTF-8"
        except (OverflowError, ValueError) as error:
            return f"cannot be read: {error}"
        if self._is_json(written_as):
            try:
                json.dumps(python, allow_nan=False, default=_text_in_json)
            except RefusedError as refused:
                return refused.reason
            except ValueError:
                return "holds NaN or infinity"
        return None


def _opened(source: Source) -> Any:
    """A file, which `with` closes.

    Raises:
        InputValueError: it cannot be read.
    """
    arrow = imported_arrow()
    try:
        return open_parquet(source.for_arrow())
    except (OSError, arrow.ArrowException) as error:
        raise InputValueError(f"cannot read {source.name}: {error}") from None


def _text_in_json(value: Any) -> str:
    """The text of a value that JSON lacks, such as a date.

    Raises:
        RefusedError: it has no text that could be read again.
    """
    if isinstance(value, bytes):
        reason = "holds bytes, which JSON cannot hold; write them as text, for example in hex"
        raise RefusedError("bad_field", reason)
    if isinstance(value, timedelta):
        reason = "holds a duration, which JSON cannot hold; write its seconds as a number"
        raise RefusedError("bad_field", reason)
    return str(value)


def _in_words(arrow: Any, kind: Any) -> str:
    """What values of an Arrow type are."""
    types = arrow.types
    for is_kind, words in (
        (types.is_integer, "whole numbers"),
        (types.is_floating, "numbers"),
        (types.is_boolean, "truth values"),
        (types.is_binary, "bytes"),
        (types.is_large_binary, "bytes"),
        (types.is_string, "texts"),
        (types.is_large_string, "texts"),
    ):
        if is_kind(kind):
            return words
    return f"values of the type {kind}"


def _is_text(arrow: Any, kind: Any) -> bool:
    types = arrow.types
    return any(
        is_kind(kind)
        for is_kind in (types.is_string, types.is_large_string, types.is_binary,
                        types.is_large_binary, types.is_null)
    )  # fmt: skip


def _pylist(arrow: Any, column: Any) -> list[Any]:
    """Values of a column; bytes if they are not UTF-8."""
    try:
        values: list[Any] = column.to_pylist()
    except UnicodeDecodeError:
        large = arrow.types.is_large_string(column.type)
        values = column.view(arrow.large_binary() if large else arrow.binary()).to_pylist()
    return values


def _decoded_value(value: Any) -> Any:
    """A value that may be bytes."""
    try:
        return text_of_bytes(value)
    except UnicodeDecodeError as error:
        raise RefusedError("invalid_utf8", f"the value is not UTF-8: {error}") from None
