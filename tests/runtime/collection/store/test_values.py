"""What metadata may hold, and as what it is stored."""

from __future__ import annotations

import enum
import json
import math
import uuid
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowvec import InputTypeError, InputValueError
from flowvec.collection.store.values import scalar_of, storable

BERLIN = timezone(timedelta(hours=2))
KEY = uuid.UUID("12345678-1234-5678-1234-567812345678")


class Color(enum.Enum):
    RED = "red"


class Size(enum.StrEnum):
    LARGE = "large"


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        ("a", "a"),
        (1 << 100, 1 << 100),
        (1.5, 1.5),
        (True, True),
        (None, None),
        (Size.LARGE, "large"),
        (np.int8(-3), -3),
        (np.float32(0.5), 0.5),
        (np.float64(0.1), 0.1),
        (np.longdouble(0.5), 0.5),
        (np.bool_(True), True),
        (np.str_("a"), "a"),
        (np.array(3), 3),
        (Decimal("1.50"), 1.5),
        (Decimal("0.1"), 0.1),
        (Decimal(7), 7),
        (Decimal("1E+3"), 1000),
        (Decimal("-123456789012345678"), -123456789012345678),
        (KEY, "12345678-1234-5678-1234-567812345678"),
        (date(2026, 1, 2), "2026-01-02"),
        (datetime(2026, 1, 2, 3, 4), "2026-01-02T03:04:00"),
        (datetime(2026, 1, 2, 3, 4, tzinfo=BERLIN), "2026-01-02T01:04:00+00:00"),
        (Decimal(2**64 - 1), 2**64 - 1),
        (time(3, 4), "03:04:00"),
        (time(1, 4, tzinfo=timezone(timedelta(hours=2))), "23:04:00+00:00"),
        (time(1, 4, 5, 6, tzinfo=UTC), "01:04:05.000006+00:00"),
        (np.datetime64("2026-01-02"), "2026-01-02"),
        (np.datetime64("2026-01"), "2026-01-01"),
        (np.datetime64("2026-01-02T03:04", "ns"), "2026-01-02T03:04:00"),
        (np.datetime64("2026-01-02T03:04:05.123456"), "2026-01-02T03:04:05.123456"),
        (np.datetime64("2026-01-02T03:04:05.123456789"), "2026-01-02T03:04:05.123456789"),
        (np.datetime64("NaT"), None),
        (np.arange(4).reshape(2, 2), [[0, 1], [2, 3]]),
        (np.array(["2026-01-02"], "datetime64[D]"), ["2026-01-02"]),
        ((1, [np.int64(2), {"a": KEY}]), [1, [2, {"a": str(KEY)}]]),
        ({"a": {"b": Decimal("2.5")}}, {"a": {"b": 2.5}}),
    ],
)
def test_values_are_stored_as_json_has_them(value: object, stored: Any) -> None:
    found = storable(value, "it")
    assert found == stored
    assert json.loads(json.dumps(found)) == stored  # nothing of numpy is left in it
    assert type(found) is type(stored)


@pytest.mark.parametrize("nan_is_null", [False, True])
def test_missing_values_of_pandas_are_null(nan_is_null: bool) -> None:
    pandas = pytest.importorskip("pandas", reason="needs pandas")
    given = [pandas.NA, pandas.NaT, pandas.Timestamp("2026-01-02", tz="Europe/Berlin")]
    stored = [None, None, "2026-01-01T23:00:00+00:00"]
    assert storable(given, "it", nan_is_null=nan_is_null) == stored
    assert storable(pandas.Series(given[2:]), "it") == stored[2:]


def test_nan_is_null_in_a_frame_and_refused_elsewhere() -> None:
    for value in (math.nan, np.float32("nan"), Decimal("NaN"), Decimal("sNaN")):
        assert storable({"a": [value]}, "it", nan_is_null=True) == {"a": [None]}
        with pytest.raises(InputValueError, match=r"it, field 'a'\[0\], is nan"):
            storable({"a": [value]}, "it")
    for value in (math.inf, np.float32("-inf"), Decimal("inf")):
        for nan_is_null in (False, True):
            with pytest.raises(InputValueError, match=r"it, field 'a', is -?inf"):
                storable({"a": value}, "it", nan_is_null=nan_is_null)


@pytest.mark.parametrize(
    ("value", "error", "part"),
    [
        (b"x", InputTypeError, r"is bytes, which metadata cannot hold; decode them"),
        ({1, 2}, InputTypeError, r"is set, .* sorted\(value\)"),
        (timedelta(1), InputTypeError, r"is timedelta, .*total_seconds\(\)"),
        (np.timedelta64(1, "s"), InputTypeError, r"is timedelta, .*total_seconds\(\)"),
        (1j, InputTypeError, "is complex, .*two numbers"),
        (Color.RED, InputTypeError, r"is Color, .*value\.value"),
        (object(), InputTypeError, "is object, which metadata cannot hold$"),
        (Decimal(1) / 3, InputValueError, "more digits than a number holds; round it"),
        (Decimal("1E+400"), InputValueError, "more digits than a number holds"),
        (Decimal(2**64 + 1), InputValueError, "more digits than a number holds"),
        (time(3, tzinfo=ZoneInfo("Europe/Berlin")), InputValueError, "depends on the date"),
        (np.datetime64("0000-01-01"), InputValueError, "from the year 1 to 9999"),
        (np.datetime64(1, "as"), InputValueError, "times in nanoseconds"),
        (datetime.max.replace(tzinfo=timezone(-timedelta(hours=3))), InputValueError, "UTC"),
        ({3: 1}, InputTypeError, "must have text keys, not int: 3"),
    ],
)
def test_what_cannot_be_stored_is_named_with_its_place(value, error, part: str) -> None:
    with pytest.raises(error, match=part) as raised:
        storable({"a": [0, {"b": value}]}, "metadata 3")
    assert str(raised.value).startswith("metadata 3, field 'a'[1]['b'], ")


def test_deep_and_circular_values_are_refused() -> None:
    deep: Any = 1
    for _ in range(100):
        deep = [deep]
    assert storable(deep, "it") == deep
    circle: list[Any] = []
    circle.append(circle)
    for value in ([deep], circle):
        with pytest.raises(InputValueError, match=r"it .*deeper than 100"):
            storable(value, "it")


@given(a=st.datetimes(), b=st.datetimes())
def test_texts_of_dates_sort_by_time(a: datetime, b: datetime) -> None:
    assert (scalar_of(a) < scalar_of(b)) == (a < b)  # type: ignore[operator]
    # A date is before all times of its day.
    assert scalar_of(a.date()) < scalar_of(a)  # type: ignore[operator]
    assert scalar_of(np.datetime64(a)) == scalar_of(a)


ZONES = st.integers(-23, 23).map(lambda hours: timezone(timedelta(hours=hours)))
WITHIN = {"min_value": datetime(2, 1, 1), "max_value": datetime(9998, 1, 1)}


@given(
    a=st.datetimes(timezones=ZONES, **WITHIN),  # type: ignore[arg-type]
    b=st.datetimes(timezones=ZONES, **WITHIN),  # type: ignore[arg-type]
)
def test_texts_of_dates_of_any_time_zone_sort_by_time(a: datetime, b: datetime) -> None:
    assert (scalar_of(a) < scalar_of(b)) == (a < b)  # type: ignore[operator]
    assert datetime.fromisoformat(str(scalar_of(a))) == a.astimezone(UTC)


@given(a=st.decimals(places=2, min_value=-(10**12), max_value=10**12),
       b=st.decimals(places=2, min_value=-(10**12), max_value=10**12))  # fmt: skip
def test_decimals_compare_as_their_numbers(a: Decimal, b: Decimal) -> None:
    assert (scalar_of(a) < scalar_of(b)) == (a < b)  # type: ignore[operator]
    assert Decimal(repr(scalar_of(a))) == a
