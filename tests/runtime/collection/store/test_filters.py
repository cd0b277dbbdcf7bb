"""Searches with a filter over metadata."""

from __future__ import annotations

import sqlite3
import unicodedata
import uuid
from contextlib import closing
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowvec import InputTypeError, InputValueError
from flowvec.collection.store.filter_values import end_of_prefix
from flowvec.collection.store.filters import add_functions, compile_filter
from flowvec.collection.store.json_field import JsonField, path_of
from flowvec.collection.store.rows import encode_metadata, key_of
from tests.drawing import examples

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
        if isinstance(stored, str):
            return isinstance(value, str) and value in stored
        return isinstance(stored, list) and any(same(v, value) for v in stored)
    if operator == "starts with":
        return isinstance(stored, str) and stored.startswith(value)
    if operator == "exists":
        return (stored is not MISSING) == value
    if operator == "empty":
        return (stored is MISSING or stored is None or stored in ("", [], {})) == value
    alike = (
        isinstance(stored, str)
        if isinstance(value, str)
        else isinstance(stored, int | float) and not isinstance(stored, bool)
    )
    compare = {"<": lambda a, b: a < b, "<=": lambda a, b: a <= b,
               ">": lambda a, b: a > b, ">=": lambda a, b: a >= b}[operator]  # fmt: skip
    return alike and compare(stored, value)


def matches(wanted: dict[str, Any], metadata: Any, key: Any = 0, text: Any = None) -> bool:
    """Whether a row meets a filter, by Python."""
    row = (metadata, key, text)
    for name, value in wanted.items():
        if name == "not":
            result = not matches(value, *row)
        elif name == "and":
            result = all(matches(part, *row) for part in value)
        elif name == "or":
            result = any(matches(part, *row) for part in value)
        else:
            stored = key if name == "$id" else field(metadata, name)
            if name == "$text":
                stored = MISSING if text is None else text
            conditions = value if isinstance(value, dict) else {"=": value}
            result = all(holds(stored, o, v) for o, v in conditions.items())
        if not result:
            return False
    return True


def found_by_sql(
    wanted: dict[str, Any], rows: list[Any], ids: Any = None, texts: Any = None, indexed: Any = ()
) -> list[int]:
    """Places of the rows that meet a filter, by SQLite, with indexes over fields."""
    condition = compile_filter(wanted)
    keys = [key_of(key) for key in (range(len(rows)) if ids is None else ids)]
    with closing(sqlite3.connect(":memory:")) as db:
        add_functions(db)
        db.execute("CREATE TABLE items (n INTEGER, id TEXT, id_is_int INTEGER, text, metadata)")
        stored = [
            (i, *keys[i], None if texts is None else texts[i], encode_metadata(row, i))
            for i, row in enumerate(rows)
        ]
        db.executemany("INSERT INTO items VALUES (?, ?, ?, ?, ?)", stored)
        for i, name in enumerate(indexed):
            db.execute(f"CREATE INDEX i{i} ON items ({JsonField(path_of(name)).indexed})")
        select = f"SELECT n FROM items WHERE {condition.sql} ORDER BY n"
        return [n for (n,) in db.execute(select, condition.parameters)]


NAMES = st.sampled_from(["a", "b", "a.b", "c d", "é", "x-y", "$", "[0]", "a[1]", "it's"])


TEXTS = st.sampled_from(["", "a", "b", "é", "ab", "1", "true", "null", "'", '"', "%", "?"])


NUMBERS = st.sampled_from(
    [0, 1, -1, 2, 1.0, 1.5, -0.0, 1e300, 2**53 + 1, 2**63 - 1, -(2**63), 2**63, 2**64 - 2,
     2**64 - 1, float(2**64), float(2**63), -(2**63) - 1, -float(2**63), 2**70, 10**400]
)  # fmt: skip


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


def operators(scalars: Any, compared: Any, texts: Any) -> Any:
    """Conditions on one field or column."""
    one = st.one_of(
        st.tuples(st.sampled_from(["=", "!="]), scalars),
        st.tuples(st.sampled_from(["<", "<=", ">", ">="]), compared),
        st.tuples(st.sampled_from(["in", "not in"]), st.lists(scalars, max_size=4)),
        st.tuples(st.sampled_from(["contains", "starts with"]), texts),
        st.tuples(st.sampled_from(["exists", "empty"]), st.booleans()),
    )
    return scalars | st.lists(one, min_size=1, max_size=2).map(dict)


PARTS = TEXTS | st.sampled_from(["\ud7ff", "\U0010ffff", "a\U0010ffff", "\u00e9a"])
BIG = NUMBERS.filter(lambda n: abs(n) < 2**63 - 1)
IDS = TEXTS | WITH_NUL | st.sampled_from([0, 1, -1, 2, 2**62, 10**30, -(10**30)])
ROWS = st.tuples(METADATA, IDS, st.none() | TEXTS | WITH_NUL | PARTS)


FIELD = operators(SCALARS, TEXTS | NUMBERS, PARTS)
CONTAINS = st.dictionaries(st.just("contains"), SCALARS, min_size=1)
LEAVES = st.fixed_dictionaries(
    {}, optional={"$id": operators(IDS, TEXTS | WITH_NUL | BIG, PARTS | WITH_NUL),
                  "$text": operators(st.none() | TEXTS, TEXTS | WITH_NUL, PARTS | WITH_NUL)},
)  # fmt: skip


def nested(leaves: Any) -> Any:
    """Filters made of other filters."""
    return st.recursive(
        leaves,
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


FILTERS = nested(st.dictionaries(NAMES, FIELD | CONTAINS, max_size=2))


@examples(500)
@given(wanted=FILTERS, rows=st.lists(METADATA, min_size=1, max_size=6))
def test_filters_in_sql_agree_with_python(wanted, rows) -> None:
    # Keys are written as JSON has them; a dot in a name would lead inwards.
    expected = [i for i, row in enumerate(rows) if matches(wanted, row)]
    assert found_by_sql(wanted, rows) == expected
    assert found_by_sql(wanted, rows, indexed=["a", "b", "a.b", "c d", "é", "it's"]) == expected


@examples(500)
@given(wanted=nested(LEAVES), rows=st.lists(ROWS, min_size=1, max_size=6))
def test_filters_of_ids_and_texts_agree_with_python(wanted, rows) -> None:
    expected = [i for i, row in enumerate(rows) if matches(wanted, *row)]
    metadata, ids, texts = zip(*rows, strict=True)
    assert found_by_sql(wanted, list(metadata), ids, texts) == expected


def test_ids_texts_and_fields_of_these_names_are_kept_apart() -> None:
    rows = [{"id": "b", "text": "dog"}, {"$id": "a"}, None]
    ids, texts = ["a", "b", 3], ["a cat", None, "a cat sleeps"]
    for wanted, places in (
        ({"$id": "a"}, [0]), ({"$id": {"in": ["b", 3, "3", 9]}}, [1, 2]), ({"$id": "3"}, []),
        ({"id": "b"}, [0]), ({"\\$id": "a"}, [1]), ({"$id": {"!=": "a"}}, [1, 2]),
        ({"$text": {"contains": "cat"}}, [0, 2]), ({"$text": {"starts with": "a cat s"}}, [2]),
        ({"text": "dog"}, [0]), ({"$text": None}, [1]), ({"$text": {"exists": True}}, [0, 2]),
        ({"$id": {">": 2}}, [2]), ({"$id": {">": "a"}}, [1]), ({"$id": {"exists": False}}, []),
        ({"$id": np.int64(3)}, [2]), ({"$id": {"in": np.array([3, 4])}}, [2]),
        ({"$id": {"in": range(2, 9)}, "$text": {"contains": "sleeps"}}, [2]),
    ):  # fmt: skip
        assert found_by_sql(wanted, rows, ids, texts) == places, wanted


def test_texts_of_fields_are_searched() -> None:
    rows = [{"t": "a cat"}, {"t": "cats"}, {"t": ["cat"]}, {"t": 1}, {"t": "ca"}, {"t": "\0cat"}]
    assert found_by_sql({"t": {"contains": "cat"}}, rows) == [0, 1, 2, 5]
    assert found_by_sql({"t": {"starts with": "cat"}}, rows) == [1]
    assert found_by_sql({"t": {"starts with": ""}}, rows) == [0, 1, 4, 5]
    assert found_by_sql({"t": {"contains": "Cat"}}, rows) == []
    assert found_by_sql({"not": {"t": {"contains": "cat"}}}, rows) == [3, 4]


def test_values_of_other_types_are_compared_as_they_are_stored() -> None:
    key, day, moment = uuid.uuid4(), date(2026, 1, 2), datetime(2026, 1, 2, 9, tzinfo=UTC)
    rows = [{"key": key, "day": day, "at": moment, "price": Decimal("1.50"), "n": np.int8(3)}, {}]
    berlin = moment.astimezone(timezone(timedelta(hours=2)))
    for wanted in (
        {"key": key}, {"key": {"in": [key]}}, {"day": {"<=": np.datetime64("2026-01-02")}},
        {"at": berlin}, {"at": {">": moment - timedelta(seconds=1)}}, {"price": 1.5},
        {"price": {"<": Decimal("1.51"), ">": Decimal("1.49")}}, {"n": np.float64(3)},
        {"n": {"in": np.arange(5)}},
    ):  # fmt: skip
        assert found_by_sql(wanted, rows) == [0], wanted


@given(prefix=st.text(max_size=3), text=st.text(max_size=5))
def test_the_end_of_a_prefix_is_above_all_texts_with_it(prefix: str, text: str) -> None:
    end = end_of_prefix(prefix)
    assert end is None or prefix + text < end
    assert (text >= prefix and (end is None or text < end)) == text.startswith(prefix)


def test_filters_find_names_and_texts_of_any_script() -> None:
    rows = [{"é": "ü"}, {"日本": {"語": "x"}}, {"e": "ü"}]
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
    assert found_by_sql({"\\$and": {"exists": True}}, [{"$and": 1}, {}]) == [0]
    assert found_by_sql({"a.b": 1}, rows) == [2]


@pytest.mark.parametrize("name", ["a", "a.b", "it's", "日本", "\\or", "a\\.b", "x;--", "%s ?1"])
@pytest.mark.parametrize(
    "condition",
    [
        *({"=": value} for value in ("x", 1, 1.5, True, False, None)),
        *({sign: value} for sign in ("<", "<=", ">", ">=") for value in ("x", 2)),
        {"in": ["x", "y"]}, {"in": [1, 2.5]}, {"starts with": "x"}, {"starts with": ""},
        {"in": ["x", 3, None, True]},
    ],
    ids=str,
)  # fmt: skip
def test_operators_use_an_index_over_the_field_and_read_no_row(name: str, condition: Any) -> None:
    compiled = compile_filter({name: condition, "other": {"!=": 3}})
    with closing(sqlite3.connect(":memory:")) as db:
        add_functions(db)
        db.execute("CREATE TABLE items (label INTEGER PRIMARY KEY, id, id_is_int, text, metadata)")
        statement = f"EXPLAIN QUERY PLAN SELECT label FROM items WHERE {compiled.sql}"
        without = [row[3] for row in db.execute(statement, compiled.parameters)]
        assert not any("one" in step for step in without)
        db.execute(f"CREATE INDEX one ON items ({JsonField(path_of(name)).indexed})")
        steps = [row[3] for row in db.execute(statement, compiled.parameters)]
        assert any("SEARCH" in step and "INDEX one (<expr>" in step for step in steps), steps
        assert not any("SCAN items" in step for step in steps)


@examples(200)
@given(
    texts=st.lists(st.text("ab\0", max_size=4), min_size=1, max_size=8),
    sign=st.sampled_from(["=", "<", "<=", ">", ">=", "starts with"]),
    value=st.text("ab", max_size=3),
)
def test_texts_with_a_nul_are_compared_whole(texts: list[str], sign: str, value: str) -> None:
    rows = [{"a": text} for text in texts]
    expected = [i for i, text in enumerate(texts) if holds(text, sign, value)]
    for indexed in ((), ("a",)):
        assert found_by_sql({"a": {sign: value}}, rows, indexed=indexed) == expected


def test_long_names_of_fields_are_refused_together() -> None:
    assert found_by_sql({"x" * 10_000: 1}, [{"x" * 10_000: 1}, {}]) == [0]
    with pytest.raises(InputValueError, match="too long"):
        compile_filter({f"{i}{'x' * 10_000}": 1 for i in range(100)})


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
        ({"a": {"$gte": 1}}, InputValueError, "'\\$gte' is written '>='"),
        ({"$id": {"nin": [1]}}, InputValueError, "'nin' is written 'not in'"),
        ({"a": {"<": None}}, InputTypeError, "numbers or texts"),
        ({"a": "x\0y"}, InputValueError, "NUL"),
        ({"a": np.arange(2)}, InputTypeError, "not ndarray"),
        ({"or": [{}] * 5000}, InputValueError, "more than"),
        ({"a": {"<": True}}, InputTypeError, "numbers or texts"),
        ({"a": {"in": "abc"}}, InputTypeError, "takes a list"),
        ({"a": {"exists": 1}}, InputTypeError, "True or False"),
        ({"a": {"empty": None}}, InputTypeError, "True or False"),
        ({"a": float("nan")}, InputValueError, "nan"),
        ({"a": float("inf")}, InputValueError, "inf"),
        ({"a": b"x"}, InputTypeError, "not bytes"),
        ({"a": {"starts with": 1}}, InputTypeError, "'starts with' takes a text, not 1"),
        ({"$and": [{}]}, InputValueError, "'\\$and' is written 'and'"),
        ({"$id": 1.5}, InputTypeError, "'\\$id': an id is float"),
        ({"$id": None}, InputTypeError, "'\\$id': an id is NoneType"),
        ({"$id": {"in": [True]}}, InputTypeError, "'\\$id': an id is bool"),
        ({"$id": {"<": True}}, InputTypeError, "compares ids with"),
        ({"$id": {"<": 2**63 - 1}}, InputValueError, "compares ids with"),
        ({"$id": {"contains": 1}}, InputTypeError, "'contains' takes a text"),
        ({"$id": {"exists": None}}, InputTypeError, "True or False"),
        ({"$id": {"~": 1}}, InputValueError, "'~' is not an operator"),
        ({"$id": "\ud800"}, InputValueError, "'\\$id': an id holds a lone surrogate"),
        ({"$text": 1}, InputTypeError, "compared with texts, not 1"),
        ({"$text": {"in": "ab"}}, InputTypeError, "takes a list"),
        ({"$text": {"<": None}}, InputTypeError, "'<' takes a text"),
        ({"a": Decimal(1) / 3}, InputValueError, "more digits than a number holds"),
        ({"a": "\ud800"}, InputValueError, "surrogate"),
        ({"": 1}, InputValueError, "must not be empty"),
        ({"a..b": 1}, InputValueError, "must not be empty"),
        ({'a"': 1}, InputValueError, "quotes"),
        ({"a\n": 1}, InputValueError, "control"),
        ({str(i): i for i in range(1001)}, InputValueError, "1001 conditions, and 1000 are"),
        ({"or": [{"a": {"<": i}} for i in range(1001)]}, InputValueError, "1001 conditions"),
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


def test_as_many_conditions_as_the_limit_says() -> None:
    rows = [{"a": i} for i in range(3)]
    for part in ("<", "contains", "starts with"):
        value = (lambda i: i - 998) if part == "<" else (lambda i: f"é{i}")
        wanted = {"or": [{"a": {part: value(i)}} for i in range(1000)]}
        assert found_by_sql(wanted, rows) == ([0] if part == "<" else [])
    # Those of equal values are one: `in`.
    wanted = {"or": [{"a": i} for i in range(1, 50_000)] + [{"a": {"in": [7, 8]}}]}
    assert found_by_sql(wanted, rows) == [1, 2]
    deep: dict[str, Any] = {"a": 1}
    for _ in range(31):
        deep = {"or": [{"a": {">": i}} for i in range(5, 20)] + [deep]}
    assert found_by_sql(deep, rows) == [1]
    for _ in range(2):
        deep = {"or": [deep]}
    with pytest.raises(InputValueError, match="nested deeper than 32"):
        compile_filter(deep)
    wide: dict[str, Any] = {"a": 1}
    for _ in range(20):
        wide = {"or": [{"a": {">": i}} for i in range(5, 40)] + [wide]}
    with pytest.raises(InputValueError, match="nested deeper than 32"):
        compile_filter(wide)


@pytest.mark.parametrize("form", ["NFC", "NFD"])
@pytest.mark.parametrize("field", ["$text", "a", "list"])
def test_contains_and_starts_with_know_no_forms_of_unicode(form: Any, field: str) -> None:
    text = "Ångström café"
    rows = [{"a": stored, "list": [stored]} for stored in
            (unicodedata.normalize(f, text) for f in ("NFC", "NFD"))]  # fmt: skip
    texts = [row["a"] for row in rows]

    def found(operator: str, value: str) -> list[int]:
        asked = {field: {operator: unicodedata.normalize(form, value)}}
        return found_by_sql(asked, rows, texts=texts)

    if field == "list":
        assert found("contains", text) == [0, 1]
        return
    assert found("contains", "café") == found("starts with", "Ångs") == [0, 1]
    assert found("contains", "cafe") == found("contains", "CAFÉ") == []
