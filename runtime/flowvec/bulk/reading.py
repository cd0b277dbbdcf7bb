"""Reading a bulk job's rows, a window at a time: what can be embedded, and what cannot and why."""

from __future__ import annotations

import csv
import json
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from flowvec.bulk.records import csv_records, lines_of
from flowvec.bulk.sources import STDIN, Source, open_binary, pyarrow_parquet
from flowvec.bulk.survey import Start
from flowvec.errors import InputValueError
from flowvec.pipeline import WINDOW
from flowvec.tokenizer import replace_surrogates

__all__ = ["Columns", "DeadLetter", "Fields", "Window", "first_columns", "read_windows"]

_INT64 = 1 << 63


@dataclass(frozen=True, slots=True)
class Fields:
    """What is read of a row.

    Attributes:
        text: the field that is embedded; txt has but one.
        id: the field that holds the id; None numbers the rows from 0, over all inputs.
        keep: further fields.
        max_text_bytes: the most bytes of a text; of jsonl, of a line.
    """

    text: str = "text"
    id: str | None = None
    keep: tuple[str, ...] = ()
    max_text_bytes: int = 1 << 24

    @property
    def named(self) -> tuple[str, ...]:
        """The fields beside the text that are written out, each once."""
        return tuple(dict.fromkeys(name for name in (self.id, *self.keep) if name is not None))

    @property
    def beside_id(self) -> tuple[str, ...]:
        """Those but for the id."""
        return tuple(name for name in self.named if name != self.id)


# What a field holds: `int64`, `double`, `bool`, `string`, `json` (of which the text is kept), or
# the name of an Arrow type where the input is Parquet.
Columns = dict[str, str]


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A row that cannot be embedded.

    Attributes:
        source: the file.
        row: its number there: of a line, of a csv record after the header, of a row of Parquet.
        id: its id, where that could be read.
        code: `null`, `nan`, `not_text`, `invalid_utf8`, `too_large`, `malformed`, `missing_field`,
            `bad_id`, `bad_field`, `too_long` or `non_finite`.
        reason: what is wrong, in words.
    """

    source: str
    row: int
    id: str | int | None
    code: str
    reason: str


@dataclass(slots=True)
class Window:
    """Rows that are embedded together.

    Attributes:
        first: number of the first row, over all inputs.
        rows: how many rows it stands for.
        blank: blank lines of jsonl among them, which are no rows to anybody.
        numbers: number over all inputs of each row that can be embedded.
        texts: of those.
        values: of each named field, the values of those: a list, or an Arrow array.
        places: (source, row in it) of those.
        dead: the others.
        columns: what the named fields hold.
    """

    first: int
    rows: int = 0
    blank: int = 0
    numbers: list[int] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    values: dict[str, Any] = field(default_factory=dict)
    places: list[tuple[str, int]] = field(default_factory=list)
    dead: list[DeadLetter] = field(default_factory=list)
    columns: Columns = field(default_factory=dict)

    def ids(self, fields: Fields) -> list[Any]:
        """The id of each row that can be embedded."""
        if fields.id is None:
            return list(self.numbers)
        values = self.values[fields.id]
        found: list[Any] = values if isinstance(values, list) else values.to_pylist()
        return found


class _RefusedError(Exception):
    """A row cannot be embedded."""

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


# --- windows ------------------------------------------------------------------------------------


def read_windows(
    sources: Sequence[Source],
    fields: Fields,
    *,
    rows_per_shard: int,
    start: Start | None = None,
    first: int = 0,
    stop: int | None = None,
    columns: Columns | None = None,
) -> Iterator[Window]:
    """Rows a window at a time, at constant memory. A window ends where a shard does.

    Args:
        sources: the files.
        fields: what is read of a row.
        rows_per_shard: a shard ends at every so many rows.
        start: where to begin; None is the beginning of all.
        first: number of the first row, over all inputs.
        stop: number of the row to end before; None reads all.
        columns: what the named fields hold; None goes by the first window.

    Raises:
        InputValueError: a file cannot be read, lacks a field, or is damaged.
    """
    place = Start(0, 0, 0) if start is None else start
    row = first
    window = Window(row)
    raw: list[tuple[_Reader, int, Any]] = []  # of this window: who read it, from which row, what
    end = _window_end(row, rows_per_shard, stop)
    for index in range(place.source, len(sources)):
        is_first = index == place.source
        with ExitStack() as stack:
            reader = _open(sources[index], fields, stack, place if is_first else Start(index, 0, 0))
            while True:
                begun = reader.row
                got, records = reader.take(end - row)
                if got:
                    raw.append((reader, begun, records))
                    row += got
                if row < end:
                    break  # this file is at its end
                window = _read(window, raw, row, fields, columns)
                columns = window.columns
                yield window
                if row == stop:
                    return
                window, raw, end = Window(row), [], _window_end(row, rows_per_shard, stop)
            if raw:  # its records cannot wait until the file is closed
                window = _read(window, raw, row, fields, columns)
                columns, raw = window.columns, []
    if window.rows:
        yield window


def first_columns(sources: Sequence[Source], fields: Fields, rows_per_shard: int) -> Columns | None:
    """What the named fields hold, by the first window; None of standard input.

    Raises:
        InputValueError: as `read_windows`; or files whose fields cannot stand in one column.
    """
    if sources[0].path == STDIN:
        return None
    if fields.named:
        _check_alike(sources, fields)
    return next(read_windows(sources, fields, rows_per_shard=rows_per_shard), Window(0)).columns


def _check_alike(sources: Sequence[Source], fields: Fields) -> None:
    """Refuse files whose fields cannot stand in one column."""
    formats = {source.format for source in sources}
    if len(formats) > 1:
        raise InputValueError(
            "to keep fields or ids all inputs must be of one format, not "
            + " and ".join(sorted(formats))
        )
    if formats == {"parquet"}:
        known: dict[str, tuple[str, str]] = {}
        for source in sources:
            schema = _schema(source)
            for name in fields.named:
                kind = str(schema.field(name).type) if name in schema.names else "nothing"
                where, before = known.setdefault(name, (source.path, kind))
                if before != kind:
                    raise InputValueError(
                        f"{name} is {before} in {where}, but {kind} in {source.path}"
                    )


def _window_end(row: int, rows_per_shard: int, stop: int | None) -> int:
    shard = row // rows_per_shard * rows_per_shard
    end = min(row + WINDOW - (row - shard) % WINDOW, shard + rows_per_shard)
    return end if stop is None else min(end, stop)


def _read(
    window: Window,
    raw: Sequence[tuple[_Reader, int, Any]],
    row: int,
    fields: Fields,
    columns: Columns | None,
) -> Window:
    """Add records to a window; `row` is the number of the row after them."""
    if columns is None:
        columns = raw[0][0].columns(raw[0][2])
    window.columns = columns
    for reader, begun, records in raw:
        reader.read(records, begun, window, columns)
    window.rows = row - window.first
    return window


# --- readers of each format ---------------------------------------------------------------------


class _Reader:
    """Takes records of one file, and reads them into windows."""

    def __init__(self, source: Source, fields: Fields) -> None:
        self.name = "standard input" if source.path == STDIN else source.path
        self.fields = fields
        self.row = 0  # of the next record

    def take(self, rows: int) -> tuple[int, Any]:
        """So many records, fewer at the end of the file, and how many."""
        raise NotImplementedError

    def columns(self, records: Any) -> Columns:
        """What the named fields hold, going by some records."""
        raise NotImplementedError

    def read(self, records: Any, begun: int, window: Window, columns: Columns) -> None:
        """Add records to a window; `begun` is the row of the first."""
        raise NotImplementedError

    def skip(self, rows: int) -> None:
        """Leave out so many records."""
        while rows > 0:
            got, _ = self.take(min(rows, 1 << 16))
            if not got:
                raise InputValueError(f"{self.name} has become shorter")
            rows -= got


def _open(source: Source, fields: Fields, stack: ExitStack, place: Start) -> _Reader:
    if source.format == "parquet":
        found: _Reader = _ParquetReader(source, fields, stack)
        found.skip(place.row)
        return found
    file = stack.enter_context(open_binary(source, place.offset or 0))
    if source.format == "csv":
        found = _CsvReader(source, fields, csv_records(file, fields.max_text_bytes))
        found.skip(place.row)
        return found
    kind = _TxtReader if source.format == "txt" else _JsonReader
    found = kind(source, fields, lines_of(file, fields.max_text_bytes))
    if place.offset is None:
        found.skip(place.row)
    found.row = place.row
    return found


class _LineReader(_Reader):
    def __init__(self, source: Source, fields: Fields, lines: Iterator[list[bytes | None]]) -> None:
        super().__init__(source, fields)
        self._lines = lines
        self._ready: list[bytes | None] = []
        self._used = 0

    def take(self, rows: int) -> tuple[int, list[bytes | None]]:
        found: list[bytes | None] = []
        while len(found) < rows:
            if self._used == len(self._ready):
                more = next(self._lines, None)
                if more is None:
                    break
                self._ready, self._used = more, 0
            part = self._ready[self._used : self._used + rows - len(found)]
            found += part
            self._used += len(part)
        if self.row == 0 and found and found[0] is not None:
            found[0] = found[0].removeprefix(b"\xef\xbb\xbf")
        self.row += len(found)
        return len(found), found


class _TxtReader(_LineReader):
    def __init__(self, source: Source, fields: Fields, lines: Iterator[list[bytes | None]]) -> None:
        super().__init__(source, fields, lines)
        if fields.named:
            raise InputValueError(f"{self.name} is a txt file, and has no fields to keep")

    def columns(self, records: Sequence[bytes | None]) -> Columns:
        return {}

    def read(
        self, records: Sequence[bytes | None], begun: int, window: Window, columns: Columns
    ) -> None:
        first = window.first + window.rows
        try:
            texts = [record.decode() for record in records]  # type: ignore[union-attr]
        except (UnicodeDecodeError, AttributeError):
            for place, record in enumerate(records):
                try:
                    text = _decoded(record, self.fields)
                except _RefusedError as refused:
                    window.dead.append(_letter(self.name, begun + place, None, refused))
                else:
                    window.numbers.append(first + place)
                    window.places.append((self.name, begun + place))
                    window.texts.append(text)
        else:
            window.numbers += range(first, first + len(texts))
            window.places += [(self.name, begun + place) for place in range(len(texts))]
            window.texts += texts
        window.rows += len(records)


class _RecordReader(_Reader):
    """A reader of records whose fields are Python values."""

    def fields_of(self, record: Any) -> dict[str, Any] | None:
        """A record's fields; None where it is blank.

        Raises:
            _RefusedError: it has none.
        """
        raise NotImplementedError

    def kind_of(self, values: Sequence[Any]) -> str:
        """What a field holds, going by some of its values."""
        raise NotImplementedError

    def columns(self, records: Sequence[Any]) -> Columns:
        known: list[dict[str, Any]] = []
        for record in records:
            try:
                found = self.fields_of(record)
            except _RefusedError:
                continue
            if found is not None:
                known.append(found)
        if known and not any(self.fields.text in record for record in known):
            names = ", ".join(dict.fromkeys(str(name) for name in known[0])) or "none"
            raise InputValueError(
                f"{self.name} has no field {self.fields.text!r} in its first rows; it has {names}"
            )
        for name in self.fields.named:
            if known and not any(name in record for record in known):
                raise InputValueError(f"{self.name} has no field {name!r} in its first rows")
        return {
            name: self.kind_of([record[name] for record in known if record.get(name) is not None])
            for name in self.fields.named
        }

    def read(self, records: Sequence[Any], begun: int, window: Window, columns: Columns) -> None:
        first = window.first + window.rows
        window.rows += len(records)
        fields = self.fields
        values: list[list[Any]] = [window.values.setdefault(name, []) for name in columns]
        for place, record in enumerate(records):
            key: str | int | None = None
            try:
                found = self.fields_of(record)
                if found is None:
                    window.blank += 1
                    continue
                key = first + place if fields.id is None else _id(found.get(fields.id), fields.id)
                text = _text(found, fields)
                row = [_fitted(found.get(name), kind, name) for name, kind in columns.items()]
            except _RefusedError as refused:
                window.dead.append(_letter(self.name, begun + place, key, refused))
                continue
            for column, value in zip(values, row, strict=True):
                column.append(value)
            window.numbers.append(first + place)
            window.places.append((self.name, begun + place))
            window.texts.append(text)


class _JsonReader(_RecordReader, _LineReader):
    def fields_of(self, record: bytes | None) -> dict[str, Any] | None:
        line = _decoded(record, self.fields)
        if not line or line.isspace():
            return None
        try:
            found = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise _RefusedError("malformed", f"the line is no JSON: {error}") from None
        if not isinstance(found, dict):
            raise _RefusedError("malformed", "the line is no JSON object")
        return found

    def kind_of(self, values: Sequence[Any]) -> str:
        # What most are: one row that is wrong must not decide for all.
        known = {bool: "bool", int: "number", float: "number", str: "string"}
        counts = Counter(known.get(type(value), "json") for value in values)
        kind, most = counts.most_common(1)[0] if counts else ("json", 0)
        if 2 * most <= len(values):
            return "json"
        if kind == "number":
            return "double" if any(type(value) is float for value in values) else "int64"
        return kind


class _CsvReader(_RecordReader):
    def __init__(
        self, source: Source, fields: Fields, records: Iterator[list[str] | csv.Error]
    ) -> None:
        super().__init__(source, fields)
        self._records = records
        header = next(records, [])
        if isinstance(header, csv.Error):
            raise InputValueError(f"the header of {self.name} cannot be read: {header}")
        self._header = header
        for name in (fields.text, *fields.named):
            if header and name not in header:
                raise InputValueError(
                    f"{self.name} has no field {name!r}; it has {', '.join(header)}"
                )

    def take(self, rows: int) -> tuple[int, list[list[str] | csv.Error]]:
        found = [record for _, record in zip(range(rows), self._records, strict=False)]
        self.row += len(found)
        return len(found), found

    def fields_of(self, record: list[str] | csv.Error) -> dict[str, Any]:
        if isinstance(record, csv.Error):
            code = "too_large" if "field larger" in str(record) else "malformed"
            raise _RefusedError(code, f"the record cannot be read: {record}")
        if len(record) != len(self._header):
            raise _RefusedError(
                "malformed", f"the record has {len(record)} fields, the header {len(self._header)}"
            )
        found = dict(zip(self._header, record, strict=True))
        for name in (self.fields.text, *self.fields.named):
            if not found[name].isascii():
                try:
                    found[name].encode()
                except UnicodeEncodeError:
                    raise _RefusedError("invalid_utf8", f"{name} is not UTF-8") from None
        return found

    def kind_of(self, values: Sequence[Any]) -> str:
        return "string"


class _ParquetReader(_Reader):
    def __init__(self, source: Source, fields: Fields, stack: ExitStack) -> None:
        super().__init__(source, fields)
        self._arrow = pyarrow_parquet()
        schema = _schema(source)
        for name in (fields.text, *fields.named):
            if name not in schema.names:
                raise InputValueError(
                    f"{self.name} has no column {name!r}; it has {', '.join(schema.names)}"
                )
        self._schema = schema
        kind = schema.field(fields.text).type
        if not _is_text(self._arrow, kind):
            raise InputValueError(f"{self.name}: {fields.text} is {kind}, not text")
        if fields.id is not None:
            self._check_id(schema.field(fields.id).type)
        self._file = stack.enter_context(self._arrow.parquet.ParquetFile(source.file))
        self._names = list(dict.fromkeys((fields.text, *fields.named)))
        self._batches = self._file.iter_batches(batch_size=WINDOW, columns=self._names)
        self._ready: Any = None

    def _check_id(self, kind: Any) -> None:
        types = self._arrow.types
        if not (types.is_integer(kind) or types.is_string(kind) or types.is_large_string(kind)):
            raise InputValueError(
                f"{self.name}: {self.fields.id} is {kind}, and an id is a text or a whole number"
            )

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

    def take(self, rows: int) -> tuple[int, list[Any]]:
        found: list[Any] = []
        got = 0
        while got < rows:
            if self._ready is None or not len(self._ready):
                self._ready = self._next()
                if self._ready is None:
                    break
            part = self._ready.slice(0, rows - got)
            self._ready = self._ready.slice(len(part))
            found.append(part)
            got += len(part)
        self.row += got
        return got, found

    def _next(self) -> Any:
        try:
            return next(self._batches, None)
        except (OSError, self._arrow.ArrowException) as error:
            raise InputValueError(
                f"{self.name} is damaged from row {self.row} on: {error}"
            ) from None

    def columns(self, records: Any) -> Columns:
        return {name: str(self._schema.field(name).type) for name in self.fields.named}

    def read(self, records: Sequence[Any], begun: int, window: Window, columns: Columns) -> None:
        for batch in records:
            self._read_batch(batch, begun, window)
            begun += len(batch)

    def _read_batch(self, batch: Any, begun: int, window: Window) -> None:
        fields, first = self.fields, window.first + window.rows
        window.rows += len(batch)
        texts = _pylist(self._arrow, batch.column(fields.text))
        ids = None if fields.id is None else _pylist(self._arrow, batch.column(fields.id))
        good: list[int] = []
        for place, text in enumerate(texts):
            key: Any = first + place if ids is None else ids[place]
            try:
                if ids is not None:
                    key = _id(_decoded_value(key), str(fields.id))
                checked = _checked_text(_decoded_value(text), fields)
            except _RefusedError as refused:
                shown = key if isinstance(key, str | int) else None
                window.dead.append(_letter(self.name, begun + place, shown, refused))
                continue
            good.append(place)
            window.texts.append(checked)
        window.numbers += [first + place for place in good]
        window.places += [(self.name, begun + place) for place in good]
        for name in fields.named:
            column = batch.column(name)
            if len(good) < len(batch):
                column = column.take(self._arrow.array(good, self._arrow.int64()))
            before = window.values.get(name)
            if before is not None:
                column = self._arrow.concat_arrays([before, column])
            window.values[name] = column


def _schema(source: Source) -> Any:
    arrow = pyarrow_parquet()
    try:
        return arrow.parquet.read_schema(source.file)
    except (OSError, arrow.ArrowException) as error:
        raise InputValueError(f"cannot read {source.path}: {error}") from None


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
    """Values of a column; bytes where they are not UTF-8."""
    try:
        found: list[Any] = column.to_pylist()
    except UnicodeDecodeError:
        if arrow.types.is_dictionary(column.type):
            column = column.dictionary_decode()
        large = arrow.types.is_large_string(column.type)
        found = column.view(arrow.large_binary() if large else arrow.binary()).to_pylist()
    return found


def _decoded_value(value: Any) -> Any:
    """A value that may stand as bytes."""
    if not isinstance(value, bytes):
        return value
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise _RefusedError("invalid_utf8", f"the value is not UTF-8: {error}") from None


# --- values -------------------------------------------------------------------------------------


def _letter(source: str, row: int, key: str | int | None, refused: _RefusedError) -> DeadLetter:
    if isinstance(key, str):
        key = replace_surrogates(key)
    return DeadLetter(source, row, key, refused.code, replace_surrogates(refused.reason))


def _decoded(line: bytes | None, fields: Fields) -> str:
    if line is None:
        raise _RefusedError("too_large", f"the line has more than {fields.max_text_bytes} bytes")
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        raise _RefusedError("invalid_utf8", f"the line is not UTF-8: {error}") from None


def _text(record: dict[str, Any], fields: Fields) -> str:
    if fields.text not in record:
        raise _RefusedError("missing_field", f"there is no field {fields.text!r}")
    return _checked_text(record[fields.text], fields)


def _checked_text(value: Any, fields: Fields) -> str:
    if isinstance(value, str):
        most = fields.max_text_bytes
        # A character is at most four bytes.
        if len(value) * 4 > most and len(value.encode("utf-8", "surrogatepass")) > most:
            raise _RefusedError("too_large", f"{fields.text} has more than {most} bytes")
        return value
    if value is None:
        raise _RefusedError("null", f"{fields.text} is null")
    if isinstance(value, float) and math.isnan(value):
        raise _RefusedError("nan", f"{fields.text} is NaN")
    raise _RefusedError("not_text", f"{fields.text} is {_named(value)}, not a text")


def _named(value: Any) -> str:
    kinds = {dict: "an object", list: "a list", bool: "a truth value"}
    return kinds.get(type(value), "a number" if isinstance(value, int | float) else "something")


def _id(value: Any, name: str) -> str | int:
    if isinstance(value, bool) or not isinstance(value, str | int):
        given = "missing" if value is None else _named(value)
        raise _RefusedError("bad_id", f"{name} is {given}, and an id is a text or a whole number")
    return value


def _fitted(value: Any, kind: str, name: str) -> Any:
    """A value as a column of its kind takes it."""
    if kind == "json":
        return None if value is None else json.dumps(value, ensure_ascii=True)
    if value is None:
        return None
    if kind == "string" and isinstance(value, str):
        return replace_surrogates(value)
    if kind == "bool" and isinstance(value, bool):
        return value
    if not isinstance(value, bool):
        if kind == "int64" and isinstance(value, int) and -_INT64 <= value < _INT64:
            return value
        if kind == "double" and isinstance(value, int | float):
            try:
                return float(value)
            except OverflowError:
                pass
    raise _RefusedError("bad_field", f"{name} is {_named(value)}, and was {kind} in the first rows")
