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
from flowvec.texts.readers.base import Reader
from flowvec.texts.row_checks import RefusedError, dead_letter_of, id_of, joined_text
from flowvec.texts.sources import Source
from flowvec.texts.window import WINDOW, Columns, Fields, Window

__all__ = ["ParquetReader", "schema_of"]


class ParquetReader(Reader):
    """Reads Parquet; kept fields stay Arrow arrays."""

    def __init__(self, source: Source, fields: Fields, stack: ExitStack) -> None:
        super().__init__(source, fields)
        self._arrow = imported_arrow()
        schema = schema_of(source)
        self._texts = [name for name in fields.texts if name in schema.names]
        missing = [] if self._texts else [" or ".join(map(repr, fields.texts))]
        missing += [repr(name) for name in fields.required if name not in schema.names]
        if missing:
            raise InputValueError(
                f"{self.name} has no column {missing[0]}; it has {', '.join(schema.names)}"
            )
        self._schema = schema
        for name in self._texts:
            kind = schema.field(name).type
            if not _is_text(self._arrow, kind):
                raise InputValueError(
                    f"{self.name}: {name} holds {_in_words(self._arrow, kind)}, not texts"
                )
        if fields.id is not None:
            self._check_id(schema.field(fields.id).type)
        self._file = stack.enter_context(self._arrow.parquet.ParquetFile(source.for_arrow()))
        self._names = [
            name for name in dict.fromkeys((*fields.texts, *fields.named)) if name in schema.names
        ]
        self._batches = self._file.iter_batches(batch_size=WINDOW, columns=self._names)
        self._ready: Any = None

    def _check_id(self, kind: Any) -> None:
        types = self._arrow.types
        if not (types.is_integer(kind) or types.is_string(kind) or types.is_large_string(kind)):
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
    def texts_in(self, records: Any) -> set[str]:
        return set(self._texts)

    @override
    def columns(self, records: Any) -> Columns:
        return {
            name: str(self._schema.field(name).type) if name in self._names else "null"
            for name in self.fields.named
        }

    @override
    def read(
        self, records: Sequence[Any], first_row: int, window: Window, columns: Columns
    ) -> None:
        for batch in records:
            self._read_batch(batch, first_row, window)
            first_row += len(batch)

    def _read_batch(self, batch: Any, first_row: int, window: Window) -> None:
        fields, first = self.fields, window.begin(self.name, first_row, len(batch))
        texts = [_pylist(self._arrow, batch.column(name)) for name in self._texts]
        ids = None if fields.id is None else _pylist(self._arrow, batch.column(fields.id))
        good: list[int] = []
        bad_fields = self._bad_fields(batch)
        for place, parts in enumerate(zip(*texts, strict=True)):
            key: Any = first + place if ids is None else ids[place]
            try:
                if ids is not None:
                    key = id_of(_decoded_value(key), str(fields.id))
                decoded = dict(zip(self._texts, map(_decoded_value, parts), strict=True))
                checked = joined_text(decoded, fields)
                if place in bad_fields:
                    raise RefusedError("bad_field", bad_fields[place])
            except RefusedError as refused:
                shown = key if isinstance(key, str | int) else None
                window.dead.append(dead_letter_of(self.name, first_row + place, shown, refused))
                continue
            good.append(place)
            window.texts.append(checked)
        window.numbers += [first + place for place in good]
        for name in fields.named:
            if name not in self._names:
                window.values.setdefault(name, []).extend([None] * len(good))
                continue
            column = batch.column(name)
            if len(good) < len(batch):
                column = column.take(self._arrow.array(good, self._arrow.int64()))
            if fields.for_collection and name != fields.id:  # files may have different types
                window.fields.add(name)
                window.values.setdefault(name, []).extend(column.to_pylist())
                continue
            before = window.values.get(name)
            if before is not None:
                column = self._arrow.concat_arrays([before, column])
            window.values[name] = column

    def _bad_fields(self, batch: Any) -> dict[int, str]:
        """What is wrong with kept values, by row."""
        reasons: dict[int, str] = {}
        for name in self.fields.beside_id:
            if name not in self._names:
                continue
            column = batch.column(name)
            if self._may_be_bad(column):
                for place in range(len(column)):
                    if (reason := self._why_bad(column[place])) is not None:
                        reasons.setdefault(place, f"{name} {reason}")
        return reasons

    def _may_be_bad(self, column: Any) -> bool:
        """Whether values must be checked one by one."""
        arrow, kind = self._arrow, column.type
        if arrow.types.is_floating(kind):
            return self.fields.kept_as_json and not (
                arrow.compute.all(arrow.compute.is_finite(column), min_count=0).as_py()
            )
        try:
            column.validate(full=True)
            if self.fields.kept_as_json and arrow.types.is_temporal(kind):
                column.to_pylist()  # Python's dates end before Arrow's
        except (arrow.ArrowInvalid, OverflowError, ValueError):
            return True
        types = arrow.types
        plain = (types.is_integer, types.is_boolean, types.is_string, types.is_large_string,
                 types.is_date, types.is_time, types.is_timestamp, types.is_null)  # fmt: skip
        return self.fields.kept_as_json and not any(is_kind(kind) for is_kind in plain)

    def _why_bad(self, value: Any) -> str | None:
        """What is wrong with a kept value; None if nothing is."""
        try:
            plain = value.as_py()
        except UnicodeDecodeError:
            return "is not UTF-8"
        except (OverflowError, ValueError) as error:
            return f"cannot be read: {error}"
        if self.fields.kept_as_json:
            try:
                json.dumps(plain, allow_nan=False, default=_text_in_json)
            except RefusedError as refused:
                return refused.reason
            except ValueError:
                return "holds NaN or infinity"
        return None


def schema_of(source: Source) -> Any:
    """The schema of a file.

    Raises:
        InputValueError: it cannot be read.
    """
    arrow = imported_arrow()
    try:
        return arrow.parquet.read_schema(source.for_arrow())
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
    if types.is_dictionary(kind):
        kind = kind.value_type
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
        if arrow.types.is_dictionary(column.type):
            column = column.dictionary_decode()
        large = arrow.types.is_large_string(column.type)
        values = column.view(arrow.large_binary() if large else arrow.binary()).to_pylist()
    return values


def _decoded_value(value: Any) -> Any:
    """A value that may be bytes."""
    if not isinstance(value, bytes):
        return value
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise RefusedError("invalid_utf8", f"the value is not UTF-8: {error}") from None
