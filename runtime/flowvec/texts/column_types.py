"""Types of the columns that a bulk job writes.

A type is decided over all rows of all inputs, so that neither the order of files nor that of rows
matters, and no value is changed. It is the type of most values: a truth value, a text, a whole
number, or a number with a point; rows with another one are dead letters. If there is no such
majority, or no type of numbers holds all of them exactly, values are written as JSON, and ids as
texts. Values of csv are texts. Types of Parquet files combine as Arrow's permissive promotion does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

from flowvec.arrow import imported_arrow
from flowvec.errors import InputValueError
from flowvec.texts.arrow_values import promoted
from flowvec.texts.window import Columns, Fields

__all__ = ["FieldValues", "Observed", "check_distinct", "is_exact_float"]

_LEAST, _MOST = -(1 << 63), 1 << 64  # 64 bits, with or without a sign
_MOST_SIGNED = (1 << 63) - 1
_EXACT = 1 << 53  # float64 holds all whole numbers up to this
_CLASSES = {"int64": "number", "uint64": "number", "double": "number"}


def is_exact_float(number: int) -> bool:
    """Whether float64 holds a whole number exactly."""
    try:
        return abs(number) <= _EXACT or int(float(number)) == number
    except OverflowError:
        return False


def check_distinct(source: str, columns: Sequence[str], names: Iterable[str]) -> None:
    """Check that no two columns of a file have one of some names.

    Raises:
        InputValueError: two have, so that it is not clear which is meant.
    """
    for name in names:
        if columns.count(name) > 1:
            raise InputValueError(
                f"{source} has {columns.count(name)} columns named {name!r}; rename all but one"
            )


class FieldValues:
    """What the values of a field are, over all inputs.

    Attributes:
        is_present: whether a record or a file has the field; null counts.
        from_csv: whether a csv file has it.
        files: Arrow types of Parquet files, each with the first file that has it.
    """

    def __init__(self) -> None:
        self.is_present = False
        self.from_csv = False
        self.files: dict[Any, str] = {}
        self._counts: Counter[str] = Counter()
        self._lowest = self._highest = 0
        self._has_floats = False
        self._is_exact = True  # float64 holds all whole numbers

    def add(self, value: Any) -> None:
        """Count a value of JSON."""
        if value is None:
            return
        if isinstance(value, bool):
            self._counts["bool"] += 1
        elif isinstance(value, str):
            self._counts["string"] += 1
        elif isinstance(value, float):
            self._counts["number"] += 1
            self._has_floats = True
        elif isinstance(value, int) and _LEAST <= value < _MOST:
            self._counts["number"] += 1
            self._add_range(value, value, (value,))
        else:
            self._counts["json"] += 1

    def add_array(self, array: Any) -> None:
        """Count the values of an Arrow array of numbers, truth values, texts or nulls."""
        arrow = imported_arrow()
        count = len(array) - array.null_count
        if not count:
            return
        if arrow.types.is_integer(array.type):
            ends = arrow.compute.min_max(array).as_py()
            self._add_range(ends["min"], ends["max"], array)
        self._has_floats = self._has_floats or arrow.types.is_floating(array.type)
        is_other = arrow.types.is_boolean(array.type) or arrow.types.is_string(array.type)
        self._counts[str(array.type) if is_other else "number"] += count

    def _add_range(self, lowest: int, highest: int, values: Any) -> None:
        self._lowest = min(self._lowest, lowest)
        self._highest = max(self._highest, highest)
        if self._is_exact and not -_EXACT <= lowest <= highest <= _EXACT:
            plain = values if isinstance(values, tuple) else values.drop_null().to_pylist()
            self._is_exact = all(map(is_exact_float, plain))

    def kind(self, mixed: str) -> str:
        """The type of values that were counted: `null`, or `mixed` if none holds most of them."""
        total = self._counts.total()
        if not total:
            return "null"
        kind, most = self._counts.most_common(1)[0]
        if 2 * most <= total or kind == "json":
            return mixed
        if kind != "number":
            return kind
        if self._has_floats:
            return "double" if self._is_exact else mixed
        if self._highest <= _MOST_SIGNED:
            return "int64"
        return "uint64" if self._lowest >= 0 else mixed


class Observed:
    """What inputs hold, as far as they were read.

    Attributes:
        fields: the fields that are read.
        values: what each of them holds.
    """

    def __init__(self, fields: Fields) -> None:
        self.fields = fields
        self.values = {name: FieldValues() for name in fields.named}
        self._absent = list(fields.texts)
        self._first: tuple[str, list[str]] | None = None

    @property
    def has_text(self) -> bool:
        """Whether each field of the text is in a record or a file."""
        return not self._absent

    @property
    def is_enough(self) -> bool:
        """Whether further rows decide nothing: in a collection each row has its own types."""
        is_typed = self.values and not self.fields.for_collection
        return self.has_text and not is_typed and all(map(self._is_present, self.fields.required))

    @property
    def is_complete(self) -> bool:
        """Whether each field was in a record or a file."""
        return self.has_text and all(one.is_present for one in self.values.values())

    def _is_present(self, name: str) -> bool:
        return self.values[name].is_present

    def note_names(self, source: str, its: Collection[Any]) -> None:
        """Note the names of a record's or a file's fields."""
        if self._first is None:
            self._first = source, list(dict.fromkeys(map(str, its)))
        self._absent = [name for name in self._absent if name not in its]
        for name, one in self.values.items():
            one.is_present = one.is_present or name in its

    def check(self, where: str = "") -> None:
        """Check that each field that the job needs is in a record or a file.

        Args:
            where: what was read of the input, for the message.

        Raises:
            InputValueError: one is not: its name is probably misspelt.
        """
        if self._first is None:  # there is no row that can be read
            return
        missing = [name for name in self.fields.required if not self._is_present(name)]
        for name in missing if self.has_text else self._absent:
            source, names = self._first
            raise InputValueError(
                f"{source} has no field {name!r}{where}; it has {', '.join(names) or 'none'}"
            )

    def columns(
        self,
        count_numbers: Callable[[str], None] = lambda name: None,
        *,
        unknown: str | None = None,
    ) -> Columns:
        """Types of the fields.

        Args:
            count_numbers: counts the numbers that Parquet files have in a field.
            unknown: type of a field without a value; None is the one that holds any value.

        Raises:
            InputValueError: Parquet files have types that cannot be combined.
        """
        if self.fields.for_collection:
            return {name: "id" if name == self.fields.id else "value" for name in self.values}
        return {name: self._column(name, count_numbers, unknown) for name in self.values}

    def _column(self, name: str, count_numbers: Callable[[str], None], unknown: str | None) -> Any:
        one, is_id = self.values[name], name == self.fields.id
        mixed = "id" if is_id else "json"
        of_records = one.kind(mixed)
        classes = {_CLASSES.get(of_records, of_records), "string" if one.from_csv else "null"}
        for_files: Any = "null"
        if one.files and self.fields.kept_as_json and not is_id:
            return mixed  # JSON holds all of Arrow's types that it can hold side by side
        if one.files:
            for_files = promoted(one.files, name, is_id=is_id, is_alone=classes == {"null"})
            classes |= {_CLASSES.get(for_files, for_files)}
        classes -= {"null"}
        if classes == {"number"}:
            if for_files == "number" or {of_records, for_files}.isdisjoint({"null"}):
                count_numbers(name)
                return one.kind(mixed)
            return of_records if for_files == "null" else for_files
        if not classes:
            return unknown or mixed
        return classes.pop() if len(classes) == 1 else mixed
