"""A window of a bulk job: rows that are embedded together, and those that cannot be."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

from flowvec.arrow import imported_arrow

__all__ = ["WINDOW", "Columns", "DeadLetter", "Fields", "Window", "of_rows"]

# Texts tokenized, sorted and computed together: enough for tight batches, little to hold.
WINDOW = 4096


@dataclass(frozen=True, slots=True)
class Fields:
    """What is read of a row.

    Attributes:
        text: the field that is embedded; txt has but one.
        id: the field that holds the id; None numbers the rows from 0, over all inputs.
        keep: further fields.
        max_text_bytes: the most bytes of a text; of jsonl, of a line.
        kept_as_json: whether kept values are written as JSON, which has neither NaN nor bytes.
    """

    text: str = "text"
    id: str | None = None
    keep: tuple[str, ...] = ()
    max_text_bytes: int = 1 << 24
    kept_as_json: bool = False

    @property
    def named(self) -> tuple[str, ...]:
        """The fields beside the text that are written out, each once."""
        return tuple(dict.fromkeys(name for name in (self.id, *self.keep) if name is not None))

    @property
    def beside_id(self) -> tuple[str, ...]:
        """Those but for the id."""
        return tuple(name for name in self.named if name != self.id)


# What a field holds: `int64`, `double`, `bool`, `string`, `json` (of which the text is kept), `id`
# (texts and whole numbers), or the name of an Arrow type where the input is Parquet.
Columns = dict[str, str]


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A row that cannot be embedded.

    Attributes:
        source: the file.
        row: its number there: of a line, of a csv record after the header, of a row of Parquet.
        id: its id, where that could be read.
        code: `null`, `nan`, `not_text`, `invalid_utf8`, `too_large`, `malformed`, `missing_field`,
            `bad_id`, `bad_field`, `duplicate_id`, `too_long` or `non_finite`.
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
        origins: (number, source, row in it) of the first row of each run of neighbours of a file.
        dead: the others.
        columns: what the named fields hold.
        duplicates: rows that were left out, because another row has their id.
        replacing: numbers of the rows that replace an earlier row of the job, which has their id.
        repeated_ids: the ids of these two kinds of rows.
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
    replacing: set[int] = field(default_factory=set)
    repeated_ids: list[Any] = field(default_factory=list)

    def begin(self, source: str, row: int, rows: int) -> int:
        """Count rows of a file from `row` on, and give the number of the first."""
        first = self.first + self.rows
        self.origins.append((first, source, row))
        self.rows += rows
        return first

    def place(self, index: int) -> tuple[str, int]:
        """The file of the row that `numbers[index]` numbers, and its number there."""
        number = self.numbers[index]
        run = bisect_right(self.origins, number, key=itemgetter(0)) - 1
        first, source, row = self.origins[run]
        return source, row + number - first

    def ids(self, fields: Fields) -> list[Any]:
        """The id of each row that can be embedded."""
        if fields.id is None:
            return list(self.numbers)
        values = self.values[fields.id]
        found: list[Any] = values if isinstance(values, list) else values.to_pylist()
        return found

    def remove(self, places: Sequence[int]) -> None:
        """Take out rows that can be embedded.

        Args:
            places: their indices among those, ascending.
        """
        if not places:
            return
        gone = set(places)
        kept = [i for i in range(len(self.numbers)) if i not in gone]
        self.numbers = [self.numbers[i] for i in kept]
        self.texts = [self.texts[i] for i in kept]
        self.values = {name: of_rows(values, kept) for name, values in self.values.items()}


def of_rows(values: Any, rows: Sequence[int]) -> Any:
    """Values of some rows: of a list a list, of an Arrow array an array."""
    if isinstance(values, list):
        return [values[i] for i in rows]
    return values.take(imported_arrow().array(rows, "int64"))
