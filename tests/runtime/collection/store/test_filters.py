"""Searches with a filter over metadata."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowvec import InputTypeError, InputValueError
from flowvec.collection.store.filters import add_functions, compile_filter
from flowvec.collection.store.rows import encode_metadata

MISSING = object()


def field(metadata: Any, key: str) -> Any:
    for name in key.split("."):
        if not isinstance(metadata, dict) or name not in metadata:
            return MISSING
        metadata = metadata[name]
    return metadata


def same(stored: Any, value: Any) -> bool:
    if value is None:
        return stored is MISSING or stored is None
    if isinstance(value, bool) or isinstance(stored, bool):
        return stored is value
    if isinstance(value, str):
        return isinstance(stored, str) and stored == value
    return isinstance(stored, int | float) and stored == value


def holds(stored: Any, operator: str, value: Any) -> bool:
    if operator == "=":
        return same(stored, value)
    if operator == "!=":
        return not same(stored, value)
    if operator == "in":
        return any(same(stored, v) for v in value)
    if operator == "not in":
        return not any(same(stored, v) for v in value)
    if operator == "contains":
        return isinstance(stored, list) and any(same(v, value) for v in stored)
    if operator == "exists":
        return (stored is not MISSING) == value
    alike = (
        isinstance(stored, str)
        if isinstance(value, str)
        else isinstance(stored, int | float) and not isinstance(stored, bool)
    )
    compare = {"<": lambda a, b: a < b, "<=": lambda a, b: a <= b,
               ">": lambda a, b: a > b, ">=": lambda a, b: a >= b}[operator]  # fmt: skip
    return alike and compare(stored, value)


def matches(wanted: dict[str, Any], metadata: Any) -> bool:
    for key, value in wanted.items():
        if key == "not":
            result = not matches(value, metadata)
        elif key == "and":
            result = all(matches(part, metadata) for part in value)
        elif key == "or":
            result = any(matches(part, metadata) for part in value)
        else:
            conditions = value if isinstance(value, dict) else {"=": value}
            result = all(holds(field(metadata, key), o, v) for o, v in conditions.items())
        if not result:
            return False
    return True


def found_by_sql(wanted: dict[str, Any], rows: list[Any]) -> list[int]:
    condition = compile_filter(wanted)
    with closing(sqlite3.connect(":memory:")) as db:
        add_functions(db)
        db.execute("CREATE TABLE items (n INTEGER, metadata TEXT)")
        stored = [(i, encode_metadata(row, i)) for i, row in enumerate(rows)]
        db.executemany("INSERT INTO items VALUES (?, ?)", stored)
        select = f"SELECT n FROM items WHERE {condition.sql} ORDER BY n"
        return [n for (n,) in db.execute(select, condition.parameters)]


NAMES = st.sampled_from(["a", "b", "a.b", "c d", "é", "x-y", "$", "[0]", "a[1]"])


TEXTS = st.sampled_from(["", "a", "b", "é", "ab", "1", "true", "null", "'", '"', "%", "?"])


NUMBERS = st.sampled_from([0, 1, -1, 2, 1.0, 1.5, -0.0, 1e300, 2**53 + 1, 2**63 - 1, -(2**63)])


SCALARS = st.none() | st.booleans() | TEXTS | NUMBERS


# SQLite's own functions stop at a NUL; a text that looks like an escaped NUL is not one.
WITH_NUL = st.sampled_from(["a\0", "a\0b", "\0", "ab\0", "\\u0000", "a\\u0000"])


VALUES = st.recursive(
    SCALARS | WITH_NUL,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
)


METADATA = st.none() | st.dictionaries(
    NAMES.filter(lambda name: "." not in name), VALUES, max_size=4
)


OPERATORS = st.one_of(
    st.tuples(st.sampled_from(["=", "!=", "contains"]), SCALARS),
    st.tuples(st.sampled_from(["<", "<=", ">", ">="]), TEXTS | NUMBERS),
    st.tuples(st.sampled_from(["in", "not in"]), st.lists(SCALARS, max_size=4)),
    st.tuples(st.just("exists"), st.booleans()),
)


FILTERS = st.recursive(
    st.dictionaries(
        NAMES, SCALARS | st.lists(OPERATORS, min_size=1, max_size=2).map(dict), max_size=2
    ),
    lambda inner: st.fixed_dictionaries(
        {},
        optional={
            "and": st.lists(inner, max_size=2),
            "or": st.lists(inner, max_size=2),
            "not": inner,
            "a": SCALARS,
        },
    ),
    max_leaves=6,
)


@settings(deadline=None, max_examples=500)
@given(wanted=FILTERS, rows=st.lists(METADATA, min_size=1, max_size=6))
def test_filters_in_sql_agree_with_python(wanted, rows) -> None:
    # Keys are written as JSON has them; a dot in a name would lead inwards.
    expected = [i for i, row in enumerate(rows) if matches(wanted, row)]
    assert found_by_sql(wanted, rows) == expected


def test_filters_find_names_and_texts_of_any_script() -> None:
    rows = [{"é": "ü"}, {"日本": {"語": "x\ud800"}}, {"e": "ü"}]
    assert found_by_sql({"é": "ü"}, rows) == [0]
    assert found_by_sql({"日本.語": {"exists": True}}, rows) == [1]
    assert found_by_sql({"é": {"exists": False}}, rows) == [1, 2]


def test_a_filter_and_its_opposite_share_the_rows() -> None:
    rows = [None, {}, {"a": None}, {"a": 1}, {"a": "1"}, {"a": True}, {"a": [1]}, {"a": {"b": 1}}]
    every = list(range(len(rows)))
    for value in (None, 1, "1", True, 1.0):
        pairs = [
            ({"a": {"=": value}}, {"a": {"!=": value}}),
            ({"a": {"in": [value]}}, {"a": {"not in": [value]}}),
        ]
        for one, other in pairs:
            assert sorted(found_by_sql(one, rows) + found_by_sql(other, rows)) == every
            assert found_by_sql({"not": one}, rows) == found_by_sql(other, rows)
    assert found_by_sql({}, rows) == every
    assert found_by_sql({"or": []}, rows) == []
    assert found_by_sql({"a.b": 1}, rows) == [7]


def test_a_field_may_be_named_like_an_operator_or_hold_a_dot() -> None:
    rows = [{"or": 1}, {"a.b": 1}, {"a": {"b": 1}}]
    assert found_by_sql({"\\or": 1}, rows) == [0]
    assert found_by_sql({"a\\.b": 1}, rows) == [1]
    assert found_by_sql({"a.b": 1}, rows) == [2]


def test_long_lists_are_few_parameters() -> None:
    rows = [{"n": n} for n in range(100)]
    assert found_by_sql({"n": {"in": list(range(0, 50_000, 2))}}, rows) == list(range(0, 100, 2))


def test_numbers_of_numpy_are_numbers() -> None:
    rows = [{"n": 1}, {"n": 2.5}]
    assert found_by_sql({"n": np.int64(1)}, rows) == [0]
    assert found_by_sql({"n": {">": np.float32(2)}}, rows) == [1]


@pytest.mark.parametrize(
    ("wanted", "error", "part"),
    [
        ([], InputTypeError, "must be a dict, not list"),
        ("a = 1", InputTypeError, "must be a dict, not str"),
        ({1: 2}, InputTypeError, "keys are texts"),
        ({"or": {"a": 1}}, InputTypeError, "'or' takes a list"),
        ({"or": [1]}, InputTypeError, "must be a dict, not int"),
        ({"not": [{"a": 1}]}, InputTypeError, "must be a dict, not list"),
        ({"a": [1]}, InputTypeError, "not list"),
        ({"a": {}}, InputValueError, "without an operator"),
        ({"a": {"~": 1}}, InputValueError, "'~' is not an operator"),
        ({"a": {1: 1}}, InputValueError, "1 is not an operator"),
        ({"a": {"<": None}}, InputTypeError, "numbers or texts"),
        ({"a": "x\0y"}, InputValueError, "NUL"),
        ({"a": np.arange(2)}, InputTypeError, "not ndarray"),
        ({"or": [{}] * 5000}, InputValueError, "more than"),
        ({"a": {"<": True}}, InputTypeError, "numbers or texts"),
        ({"a": {"in": "abc"}}, InputTypeError, "takes a list"),
        ({"a": {"exists": 1}}, InputTypeError, "True or False"),
        ({"a": float("nan")}, InputValueError, "nan"),
        ({"a": float("inf")}, InputValueError, "inf"),
        ({"a": 1 << 63}, InputValueError, "64 bits"),
        ({"a": b"x"}, InputTypeError, "not bytes"),
        ({"a": Decimal(1) / 3}, InputValueError, "more digits than a number holds"),
        ({"a": "\ud800"}, InputValueError, "surrogate"),
        ({"": 1}, InputValueError, "must not be empty"),
        ({"a..b": 1}, InputValueError, "must not be empty"),
        ({'a"': 1}, InputValueError, "quotes"),
        ({"a\n": 1}, InputValueError, "control"),
        ({str(i): i for i in range(500)}, InputValueError, "more than 900"),
    ],
)  # fmt: skip
def test_an_invalid_filter_is_an_error(wanted, error, part: str) -> None:
    with pytest.raises(error, match=part):
        compile_filter(wanted)


def test_the_depth_of_a_filter_is_limited() -> None:
    wanted: dict[str, Any] = {"a": 1}
    for _ in range(32):
        wanted = {"not": wanted}
    assert found_by_sql(wanted, [{"a": 1}, {}]) == [0]
    with pytest.raises(InputValueError, match="deeper than 32"):
        compile_filter({"not": wanted})
