"""Metadata and texts from DataFrames and their columns."""

from __future__ import annotations

import uuid
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import pytest

from flowvec import (
    Collection,
    Encoder,
    InputTypeError,
    InputValueError,
)
from flowvec.collection.mining import most_similar_pairs, semantic_search
from tests.makers import vectors


def test_texts_may_come_in_any_column(tmp_path: Path, tiny: Encoder) -> None:
    pandas = pytest.importorskip("pandas", reason="needs pandas")
    with Collection.create(tmp_path / "c", encoder=tiny) as c:
        c.add(range(3), ["the cat", "the dog", "a man"])
        expected = c.search_batch(["the dog", "a man"], 2)
        for texts in (
            pandas.Series(["the dog", "a man"]), np.array(["the dog", "a man"]),
            np.array(["the dog", "a man"], dtype=object), ("the dog", "a man"),
        ):  # fmt: skip
            assert c.search_batch(texts, 2) == expected
            assert c.tune_recall(0.5, queries=texts) == 1.0
        frame = pandas.DataFrame({"tags": [["a", "b"], np.array(["c"]), []], "n": [1, 2, 3]})
        c.add(range(3), ["the cat", "the dog", "a man"], frame)
        assert [item.metadata for item in c.rows()] == [
            {"tags": ["a", "b"], "n": 1}, {"tags": ["c"], "n": 2}, {"tags": [], "n": 3},
        ]  # fmt: skip
        assert c.search("x", filter={"tags": {"contains": "c"}})[0].id == 1


def test_vectors_may_come_in_a_frame(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas", reason="needs pandas")
    polars = pytest.importorskip("polars", reason="needs polars")
    rows = vectors(20, dim=4)
    expected = semantic_search(rows[:3], rows, top_k=2)
    for frame_of in (pandas.DataFrame, polars.DataFrame):
        assert semantic_search(frame_of(rows[:3]), frame_of(rows), top_k=2) == expected
        assert most_similar_pairs(frame_of(rows), top_k=5) == most_similar_pairs(rows, top_k=5)
        with pytest.raises(InputTypeError, match="neither texts nor vectors"):
            most_similar_pairs(frame_of([["a", "b"], ["c", "d"]]))
        with Collection.create(tmp_path / frame_of.__module__, dim=4) as c:
            c.add_vectors(range(20), frame_of(rows))
            assert c.search_ids(frame_of(rows[:3]), k=1)[0] == [[0], [1], [2]]


class Frame(dict[str, list[object]]):
    """What pandas and polars have in common."""

    @property
    def columns(self) -> list[str]:
        return list(self)


def test_a_data_frames_columns_are_fields(tmp_path: Path) -> None:
    frame = Frame(
        n=[np.int64(3), np.float32(0.5)],
        text=["x", None],
        missing=[float("nan"), np.float64("nan")],
        when=[date(2026, 1, 2), datetime(2026, 1, 2, 3, 4, tzinfo=UTC)],
        flag=[np.bool_(True), False],
    )
    with Collection.create(tmp_path / "c", dim=8) as c:
        c.add_vectors(np.arange(2), vectors(2), metadata=frame)
        assert [item.metadata for item in c.rows()] == [
            {"n": 3, "text": "x", "missing": None, "when": "2026-01-02", "flag": True},
            {"n": 0.5, "text": None, "missing": None, "when": "2026-01-02T03:04:00+00:00",
             "flag": False},
        ]  # fmt: skip
        with pytest.raises(InputValueError, match="1 ids for 2 metadata"):
            c.add_vectors([1], vectors(1), metadata=frame)


def test_a_pandas_frame_goes_in(tmp_path: Path, tiny: Encoder) -> None:
    pandas = pytest.importorskip("pandas", reason="needs pandas")
    frame = pandas.DataFrame(
        {"id": ["a", "b"], "text": ["x", "y"], "n": pandas.array([1, None], dtype="Int64"),
         "when": [pandas.Timestamp("2026-01-02"), pandas.NaT]}
    )  # fmt: skip
    with Collection.create(tmp_path / "c", encoder=tiny) as c:
        c.add(frame["id"], frame["text"], frame[["n", "when"]])
        assert [item.metadata for item in c.rows()] == [
            {"n": 1, "when": "2026-01-02T00:00:00"}, {"n": None, "when": None},
        ]  # fmt: skip


def test_lists_and_frames_are_stored_alike_and_filtered_by_the_same_values(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas", reason="needs pandas")
    polars = pytest.importorskip("polars", reason="needs polars")
    arrow = pytest.importorskip("pyarrow", reason="needs the extra [files]")
    key, when = uuid.uuid4(), datetime(2026, 1, 2, 3, 4, 5, 678000)
    rows = [
        {"n": 3, "price": Decimal("1.50"), "when": when, "day": date(2026, 1, 2), "tags": ["a"]},
        {"n": 4, "price": Decimal("0.10"), "when": None, "day": None, "tags": []},
    ]
    given = {
        "list": rows,
        "numpy": [{**rows[0], "n": np.int16(3), "when": np.datetime64(when)}, rows[1]],
        "pandas": pandas.DataFrame(rows),
        "polars": polars.DataFrame(rows),
        "pyarrow": arrow.Table.from_pylist(rows),
    }
    expected = [
        {"n": 3, "price": 1.5, "when": "2026-01-02T03:04:05.678000", "day": "2026-01-02",
         "tags": ["a"]},
        {"n": 4, "price": 0.1, "when": None, "day": None, "tags": []},
    ]  # fmt: skip
    for kind, metadata in given.items():
        with Collection.create(tmp_path / kind, dim=8) as c:
            c.add_vectors([1, 2], vectors(2), metadata=metadata)
            assert [item.metadata for item in c.rows()] == expected, kind
            for wanted in (
                {"price": Decimal("1.50")}, {"price": {">": Decimal("0.1")}}, {"when": when},
                {"when": {"<=": np.datetime64(when)}}, {"day": {"in": [date(2026, 1, 2)]}},
            ):  # fmt: skip
                assert [hit.id for hit in c.search(vectors(1)[0], filter=wanted)] == [1], wanted
    with Collection.create(tmp_path / "keys", dim=8) as c:
        c.add_vectors([1], vectors(1), metadata=[{"key": key}])
        c.add_vectors([2], vectors(1), metadata=pandas.DataFrame({"key": [key]}))
        assert len(c.search(vectors(1)[0], filter={"key": key})) == 2


# --- Arrow and UUIDs ------------------------------------------------------------------------------

KEYS = [UUID(int=1), UUID(int=2)]
NAMES = ["00000000-0000-0000-0000-000000000001", "00000000-0000-0000-0000-000000000002"]


def ids_of(kind: str) -> tuple[Any, list[Any]]:
    """Ids as a caller may hold them, and as they are stored."""
    if kind == "UUIDs":
        return KEYS, NAMES
    if kind == "array of UUIDs":
        return np.array(KEYS, object), NAMES
    pa = pytest.importorskip("pyarrow", reason="needs the extra [files]")
    kinds: dict[str, tuple[Any, list[Any]]] = {
        "Arrow UUIDs": (pa.array([key.bytes for key in KEYS], pa.uuid()), NAMES),
        "Arrow numbers": (pa.array([1 << 63, 2], pa.uint64()), [1 << 63, 2]),
        "Arrow chunks": (pa.chunked_array([["a"], ["b"]]), ["a", "b"]),
        "Arrow dictionary": (pa.array(["a", "b"]).dictionary_encode(), ["a", "b"]),
        "Arrow view": (pa.array(["a", "b"], pa.string_view()), ["a", "b"]),
        "Arrow scalars": (list(pa.array(["a", "b"])), ["a", "b"]),
    }
    return kinds[kind]


@pytest.mark.parametrize(
    "kind",
    ["UUIDs", "array of UUIDs", "Arrow UUIDs", "Arrow numbers", "Arrow chunks", "Arrow dictionary",
     "Arrow view", "Arrow scalars"],
)  # fmt: skip
def test_uuids_and_arrow_arrays_are_ids(tmp_path: Path, kind: str) -> None:
    ids, stored = ids_of(kind)
    with Collection.create(tmp_path / "c", dim=2) as c:
        c.add_vectors(ids, [[1, 0], [0, 1]])
        assert c.ids() == stored
        assert [row and row.id for row in c.get(ids)] == stored
        assert c.count({"$id": {"in": ids}}) == 2
        assert c.update_metadata(ids, changes={"key": KEYS[1]}) == 2
        assert c.count({"key": KEYS[1]}) == 2
        assert c.delete(ids) == 2


def test_arrow_arrays_are_texts_and_queries(tmp_path: Path, tiny: Encoder) -> None:
    pa = pytest.importorskip("pyarrow", reason="needs the extra [files]")
    plain = ["a cat", "a dog runs"]
    vectors = tiny.encode(plain)
    arrays = [
        pa.array(plain), pa.chunked_array([plain[:1], plain[1:]]),
        *(pa.array(plain, kind) for kind in (pa.large_string(), pa.string_view())),
        pa.array(plain).dictionary_encode(),
    ]  # fmt: skip
    with Collection.create(tmp_path / "c", encoder=tiny) as c:
        for texts in arrays:
            np.testing.assert_array_equal(tiny.encode(texts), vectors)
            np.testing.assert_allclose(list(tiny.stream(texts)), vectors, atol=1e-6)
            np.testing.assert_allclose(list(tiny.stream(iter(texts))), vectors, atol=1e-6)
            assert len(most_similar_pairs(texts, encoder=tiny)) == 1
            c.add(["a", "b"], texts, pa.array([{"n": 1}, None]))
            assert [(row.text, row.metadata) for row in c.rows()] == [
                ("a cat", {"n": 1}), ("a dog runs", None)]  # fmt: skip
            c.add_vectors(["a", "b"], vectors, texts)
            assert [row.text for row in c.rows()] == plain
            assert c.search_batch(texts) == c.search_batch(plain)
    bad = pa.array([b"\xff"], pa.binary()).view(pa.string())
    with pytest.raises(InputValueError, match="not UTF-8"):
        tiny.encode(bad)


def test_a_table_with_two_columns_of_one_name_is_refused(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow", reason="needs the extra [files]")
    table = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["k", "k"])
    with Collection.create(tmp_path / "c", dim=2) as c:
        with pytest.raises(InputValueError, match="two columns of one name"):
            c.add_vectors(["a"], [[1, 0]], metadata=table)
        assert len(c) == 0
