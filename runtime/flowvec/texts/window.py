"""A window of a bulk job: rows that are embedded together, and rows that cannot be embedded."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import PurePath
from typing import Any

from flowvec.arrow import imported_arrow

__all__ = [
    "DEAD_LETTERS",
    "WINDOW",
    "Columns",
    "DeadLetter",
    "Fields",
    "Part",
    "Window",
    "is_dead_letters",
    "of_rows",
]

# Texts that are tokenized, sorted and computed together: enough for little padding, in little
# memory.
WINDOW = 4096
# The end of the name of a file of dead letters that is beside an output.
DEAD_LETTERS = ".dead_letter.jsonl"
# In a folder of shards: `_dead_letter.jsonl`, and `_dead_letter.2-of-8.jsonl` of a share.
_IN_FOLDERS = re.compile(r"_?dead_letter(?:\.\d+-of-\d+)?\.jsonl")


def is_dead_letters(path: str) -> bool:
    """Whether a path or URL is named as the dead letters of a bulk job."""
    name = PurePath(path).name
    return name.endswith(DEAD_LETTERS) or _IN_FOLDERS.fullmatch(name) is not None


@dataclass(frozen=True, slots=True)
class Fields:
    """The fields that are read.

    Attributes:
        text: the field that is embedded, or several that are joined, in their order; txt has no
            fields.
        id: the field with the id; None numbers the rows from 0 over all inputs.
        keep: other fields to write.
        max_text_bytes: most bytes of a text; for jsonl, of a line.
        kept_as_json: whether kept values are written as JSON, which has no NaN and no bytes.
        for_collection: whether rows go into a collection: then blank lines of txt are left out
            (other lines keep their numbers), ids may be texts and numbers in one input, and kept
            fields are optional and have a type for each row.
    """

    text: str | tuple[str, ...] = "text"
    id: str | None = None
    keep: tuple[str, ...] = ()
    max_text_bytes: int = 1 << 24
    kept_as_json: bool = False
    for_collection: bool = False

    @property
    def texts(self) -> tuple[str, ...]:
        """The fields that are embedded."""
        return (self.text,) if isinstance(self.text, str) else self.text

    @property
    def wanted_text(self) -> str:
        """The field of the text in messages about names, quoted; of several one is enough."""
        return " or ".join(map(repr, self.texts))

    @property
    def text_name(self) -> str:
        """What messages call the text."""
        names = " and ".join(self.texts)
        return names if len(self.texts) == 1 else f"the text of {names}"

    @property
    def named(self) -> tuple[str, ...]:
        """The fields that are written besides the text, each once."""
        return tuple(dict.fromkeys(name for name in (self.id, *self.keep) if name is not None))

    @property
    def required(self) -> tuple[str, ...]:
        """Those of these fields that some row must have; otherwise they are misspelt."""
        if self.for_collection:
            return () if self.id is None else (self.id,)
        return self.named

    @property
    def beside_id(self) -> tuple[str, ...]:
        """The fields that are written besides the text and the id."""
        return tuple(name for name in self.named if name != self.id)


# Types of the fields: `int64`, `uint64`, `double`, `bool`, `string`, `json`, `id` (texts and whole
# numbers), for a collection `value` (as it is), or an Arrow type for Parquet inputs.
Columns = dict[str, Any]


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A row that cannot be embedded.

        >>> size = Path("dead.jsonl").write_text('{"text": "The cat sleeps."}\\n{"text": null}\\n')
        >>> summary = encode_files("mini", "dead.jsonl", "dead")
        >>> letter = DeadLetter(**json.loads(Path("dead/_dead_letter.jsonl").read_text()))
        >>> letter.row, letter.code, letter.reason
        (1, 'null', 'text is null')

    Attributes:
        source: the file.
        row: its number in the file: line, csv record after the header, or Parquet row.
        id: its id, if it could be read.
        code: `null`, `nan`, `not_text`, `invalid_utf8`, `too_large`, `malformed`, `missing_field`,
            `bad_id`, `bad_field`, `duplicate_id`, `too_long`, `non_finite` or
            `no_row`.
        reason: what is wrong, in words.
    """

    source: str
    row: int
    id: str | int | None
    code: str
    reason: str


@dataclass(frozen=True, slots=True)
class Part:
    """A chunk of a row whose text was split.

    Attributes:
        id: the chunk's own id.
        parent: the row's id.
        start: where the chunk begins in the row's text, in characters.
        end: where it ends.
    """

    id: str
    parent: str | int
    start: int
    end: int


@dataclass(slots=True)
class Window:
    """Rows that are embedded together.

    Attributes:
        first: number of the first row, over all inputs.
        rows: how many input rows it covers.
        blank: blank lines among them, which are not rows.
        numbers: for each row that can be embedded, its number over all inputs.
        texts: texts of these rows.
        values: values of these rows by field: a list, or an Arrow array.
        origins: (number, source, row in it) of the first row of each run of consecutive rows of a
            file.
        dead: dead letters of the other rows.
        columns: types of the fields.
        duplicates: rows that were left out because another row has the same id.
        unchanged: rows that were left out because the output already has them.
        replacing: numbers of rows that replace an earlier row of the job with the same id.
        repeated_ids: ids of both kinds of rows.
        parts: for each chunk, its place in the row that was split; None if texts are not split.
            Then numbers, texts and values are those of chunks, and several have the same number.
        stale: ids of chunks of an earlier, longer text.
        fields: kept fields that a row or a file has; null counts. Only for a collection.
    """

    first: int
    rows: int = 0
    blank: int = 0
    numbers: list[int] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    values: dict[str, Any] = field(default_factory=dict)
    origins: list[tuple[int, str, int]] = field(default_factory=list)
    dead: list[DeadLetter] = field(default_factory=list)
    columns: Columns = field(default_factory=dict)
    duplicates: int = 0
    unchanged: int = 0
    replacing: set[int] = field(default_factory=set)
    repeated_ids: list[Any] = field(default_factory=list)
    parts: list[Part] | None = None
    stale: list[str | int] = field(default_factory=list)
    fields: set[str] = field(default_factory=set)

    def begin(self, source: str, row: int, rows: int) -> int:
        """Count rows of a file from `row` on, and return the number of the first."""
        first = self.first + self.rows
        self.origins.append((first, source, row))
        self.rows += rows
        return first

    def extend(self, name: str, values: Any) -> None:
        """Add a field's values of further rows: a list, or an Arrow array."""
        before = self.values.get(name)
        if isinstance(before, list) and isinstance(values, list):
            before += values
        elif before is None or not len(before):
            self.values[name] = values
        elif len(values):
            arrow = imported_arrow()
            kind = values.type if isinstance(before, list) else before.type
            parts = (before, values)
            arrays = [arrow.array(p, kind) if isinstance(p, list) else p for p in parts]
            self.values[name] = arrow.concat_arrays(arrays)

    def place(self, index: int) -> tuple[str, int]:
        """The file of the row with the number `numbers[index]`, and its number in the file."""
        number = self.numbers[index]
        run = bisect_right(self.origins, number, key=itemgetter(0)) - 1
        first, source, row = self.origins[run]
        return source, row + number - first

    def ids(self, fields: Fields) -> list[Any]:
        """The id of each row that can be embedded, or of each chunk."""
        if self.parts is not None:
            return [part.id for part in self.parts]
        if fields.id is None:
            return list(self.numbers)
        values = self.values[fields.id]
        ids: list[Any] = values if isinstance(values, list) else values.to_pylist()
        return ids

    def remove(self, places: Sequence[int]) -> None:
        """Remove rows that can be embedded.

        Args:
            places: their indices among these rows, ascending.
        """
        if not places:
            return
        gone = set(places)
        kept = [i for i in range(len(self.numbers)) if i not in gone]
        self.numbers = [self.numbers[i] for i in kept]
        self.texts = [self.texts[i] for i in kept]
        self.values = {name: of_rows(values, kept) for name, values in self.values.items()}
        if self.parts is not None:
            self.parts = [self.parts[i] for i in kept]


def of_rows(values: Any, rows: Sequence[int]) -> Any:
    """Values of some rows: a list from a list, an array from an Arrow array."""
    if isinstance(values, list):
        return [values[i] for i in rows]
    return values.take(imported_arrow().array(rows, "int64"))
