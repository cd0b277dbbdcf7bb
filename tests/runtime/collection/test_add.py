"""Adding, replacing and deleting rows: what is accepted, what is refused, what is returned."""

from __future__ import annotations

import enum
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flowvec import (
    Added,
    Collection,
    CollectionError,
    Encoder,
    InputTypeError,
    InputValueError,
)
from flowvec.collection.index.hnsw import Graph
from tests.inside import run_sql
from tests.makers import vectors
from tests.runtime.collection.conftest import TEXTS


def test_texts_are_added_and_found(tmp_path: Path, tiny: Encoder) -> None:
    with Collection.create(tmp_path / "c", encoder=tiny) as c:
        c.add(["a", 2, "c", "d"], TEXTS, [{"n": 1}, None, {}, {"tags": ["x"]}])
        assert len(c) == 4
        query = tiny.encode_query("the cat sleeps")
        stored = tiny.encode_document(TEXTS)
        hits = c.search("the cat sleeps", k=4)
        scores = stored @ query / np.linalg.norm(stored, axis=1) / np.linalg.norm(query)
        order = np.argsort(-scores)
        assert [hit.id for hit in hits] == [["a", 2, "c", "d"][i] for i in order]
        np.testing.assert_allclose([hit.score for hit in hits], scores[order], atol=1e-5)
        assert {hit.id: hit.text for hit in hits} == dict(
            zip(["a", 2, "c", "d"], TEXTS, strict=True)
        )
        assert {hit.id: hit.metadata for hit in hits} == {
            "a": {"n": 1},
            2: None,
            "c": {},
            "d": {"tags": ["x"]},
        }
        assert c.search_batch(["the cat sleeps"], k=4) == [hits]


def test_everything_is_there_after_opening_again(tmp_path: Path, tiny: Encoder) -> None:
    with Collection.create(tmp_path / "c", encoder=tiny) as c:
        c.add([1, 2], TEXTS[:2])
        before = c.search(TEXTS[0], k=2)
    with Collection.open(tmp_path / "c", encoder=tiny) as c:
        assert c.search(TEXTS[0], k=2) == before
        assert c.info().fingerprint == tiny.fingerprint
    with Collection.open(tmp_path / "c") as c:
        assert [hit.id for hit in c.search(tiny.encode_query(TEXTS[0]), k=2)] == [
            hit.id for hit in before
        ]
        with pytest.raises(CollectionError, match="without an encoder"):
            c.search("text")
        with pytest.raises(CollectionError, match="without an encoder"):
            c.add([3], ["text"])


def test_lone_surrogates_are_replaced(tmp_path: Path, tiny: Encoder) -> None:
    with Collection.create(tmp_path / "c", encoder=tiny) as c:
        c.add(["a"], ["the \ud800 cat"], [{"raw": "\U0001f600"}])
        hit = c.search("\udfff", k=1)[0]
        assert hit.text == "the \ufffd cat"
        assert hit.metadata == {"raw": "\U0001f600"}


@pytest.mark.parametrize(
    ("field", "place"),
    [
        ({"a": "\ud800"}, "'a'"),
        ({"\ud800": 1}, r"'\ud800'"),
        ({"a": [{"b": "x"}, {"b": ["\udfff y"]}]}, r"'a'[1]['b'][0]"),
        ({"a": {"b": {"\udc00": None}}}, r"'a'['b']['\udc00']"),
    ],
)
def test_a_lone_surrogate_in_metadata_is_refused_by_row_and_field(
    tmp_path: Path, field: dict[str, Any], place: str
) -> None:
    rest = re.escape(f", field {place}, holds a lone surrogate")
    with Collection.create(tmp_path / "c", dim=2) as c:
        with pytest.raises(InputValueError, match=f"metadata 1{rest}"):
            c.add_vectors([1, 2], [[1, 0], [0, 1]], metadata=[{"\\ud800": "\\ud800"}, field])
        assert len(c) == 0
        c.add_vectors([1], [[1, 0]])
        with pytest.raises(InputValueError, match=f"changes{rest}"):
            c.update_metadata([1], field)
        with pytest.raises(InputValueError, match=f"changes 0{rest}"):
            c.update_metadata([1], [field])


def test_ids_are_kept_apart_by_type_and_of_any_size(tmp_path: Path) -> None:
    ids = [1, "1", -1, 2**63, 10**30, "", "é", "a b/c"]
    with Collection.create(tmp_path / "c", dim=8) as c:
        c.add_vectors(ids, vectors(len(ids)))
        assert len(c) == len(ids)
        for i, vector in enumerate(vectors(len(ids))):
            hit_id = c.search(vector, k=1)[0].id
            assert (hit_id, type(hit_id)) == (ids[i], type(ids[i]))
        assert [item.id for item in c.get(["1", 1]) if item] == ["1", 1]
        assert c.get([7, "1"])[0] is None
        assert c.delete([1, 99]) == 1
        assert c.get([1, "1"])[0] is None
        assert c.get(["1"])[0] is not None


def test_of_equal_ids_the_last_counts(tmp_path: Path, tiny: Encoder) -> None:
    with Collection.create(tmp_path / "c", encoder=tiny) as c:
        c.add(["a", "b", "a"], ["the cat", "a dog", "stocks fell"], [{"n": 1}, None, {"n": 2}])
        assert len(c) == 2
        (item,) = c.get(["a"])
        assert item is not None
        assert (item.text, item.metadata) == ("stocks fell", {"n": 2})
        c.add(["a"], ["bread"])
        assert len(c) == 2
        assert [hit.text for hit in c.search("bread", k=10) if hit.id == "a"] == ["bread"]


@pytest.mark.parametrize("ids", ["abc", b"abc"])
def test_a_single_text_is_refused_as_ids(tmp_path: Path, ids, tiny: Encoder) -> None:
    with Collection.create(tmp_path / "c", encoder=tiny) as c:
        with pytest.raises(InputTypeError, match="ids must be a list"):
            c.add(ids, ["x", "y", "z"])
        with pytest.raises(InputTypeError, match="texts must be a list"):
            c.add([1, 2, 3], "abc")  # type: ignore[arg-type]
        c.add(["a", "b", "c", "abc"], ["x", "y", "z", "abc"])
        for method, found in ((c.get, ["abc"]), (c.delete, 1)):
            if isinstance(ids, str):  # it is one id
                result = method(ids)
                named = [row and row.id for row in result] if isinstance(result, list) else result
                assert named == found
            else:
                with pytest.raises(InputTypeError, match="ids must be a list"):
                    method(ids)


@pytest.mark.parametrize(
    ("ids", "rows", "options", "error"),
    [
        ([1, 2], [[1, 0]], {}, InputValueError),
        ([1], [[1, 0, 0]], {}, InputValueError),
        ([1], [1, 0], {}, InputValueError),
        ([1], [[1, float("nan")]], {}, InputValueError),
        ([1], [[1, float("-inf")]], {}, InputValueError),
        ([1, 2], [[1, 0], [1e25, 0]], {}, InputValueError),  # its norm would be infinite
        ([1], [["a", "b"]], {}, InputTypeError),
        ([None], [[1, 0]], {}, InputTypeError),
        ([1.5], [[1, 0]], {}, InputTypeError),
        ([1], [[1, 0]], {"texts": ["a", "b"]}, InputValueError),
        ([1], [[1, 0]], {"texts": [3]}, InputTypeError),
        ([1], [[1, 0]], {"metadata": [3]}, InputTypeError),
        ([1], [[1, 0]], {"metadata": []}, InputValueError),
        ([1], [[1, 0]], {"metadata": [{"a": float("nan")}]}, InputValueError),
    ],
)
def test_a_bad_row_refuses_the_whole_call(tmp_path: Path, ids, rows, options, error) -> None:
    with Collection.create(tmp_path / "c", dim=2) as c:
        with pytest.raises(error):
            c.add_vectors(ids, rows, **options)
        assert len(c) == 0


def test_a_sum_over_rows_that_overflows_is_not_a_fault_of_theirs(tmp_path: Path) -> None:
    with Collection.create(tmp_path / "c", dim=2, metric="l2") as c:
        c.add_vectors([1, 2, 3], [[1.5e19, 0], [0, 1.5e19], [1.5e19, 1]])
        assert [hit.id for hit in c.search(np.array([1.5e19, 0], np.float32), k=1)] == [1]
        with pytest.raises(InputValueError, match="row 1 of vectors"):
            c.add_vectors([4, 5], [[1.5e19, 0], [float("nan"), 1]])


def test_adding_nothing_changes_nothing(tmp_path: Path, tiny: Encoder) -> None:
    with Collection.create(tmp_path / "c", encoder=tiny) as c:
        c.add([], [])
        c.add_vectors([], [])
        c.add_vectors([], np.empty((0, 16)))
        assert c.delete([]) == 0
        assert len(c) == 0


def test_an_add_that_the_graph_cannot_follow_is_still_an_add(tmp_path: Path, monkeypatch) -> None:
    with Collection.create(tmp_path / "c", dim=8, index="graph", exact_below=50) as c:
        c.add_vectors(range(200), vectors(200))
        c.search(vectors(1)[0])

        def fail(*_: object) -> None:
            raise MemoryError("no room")

        c.prepare()
        monkeypatch.setattr(Graph, "add", fail)
        c.add_vectors(["new"], vectors(1, seed=8))
        c.search(vectors(1, seed=8)[0])
        assert c.prepare()
        assert len(c) == 201
        assert c.search(vectors(1, seed=8)[0], k=1)[0].id == "new"
        assert len(c.search(vectors(1, seed=8)[0], k=500)) == 201


class Kind(str, enum.Enum):  # noqa: UP042 - a StrEnum's text is its value already
    CAT = "cat"


class Number(enum.IntEnum):
    ONE = 1


def test_an_enum_counts_as_its_value(tmp_path: Path) -> None:
    with Collection.create(tmp_path / "c", dim=4) as c:
        c.add_vectors([Kind.CAT, Number.ONE], vectors(2, dim=4), metadata=[{"k": Kind.CAT}, None])
        assert [item.id for item in c.rows()] == ["cat", 1]
        assert c.search(vectors(1, dim=4)[0], filter={"k": Kind.CAT})[0].metadata == {"k": "cat"}
        assert c.search(vectors(1, dim=4)[0], filter={"k": {"in": [Kind.CAT]}})[0].id == "cat"
        assert c.delete([Kind.CAT, 1]) == 2


class Twice:
    """A DataFrame with two columns of one name, of which it gives both for one."""

    columns = ("a", "a")

    def __getitem__(self, _: str) -> list[str]:
        return ["a", "a"]


@pytest.mark.parametrize(
    "call",
    [
        lambda c: c.add_vectors(7, vectors(1, dim=4)),
        lambda c: c.add_vectors([1], vectors(1, dim=4), metadata=7),
        lambda c: c.add_vectors([1], vectors(1, dim=4), metadata="x"),
        lambda c: c.add_vectors([1], [[10**400, 0, 0, 0]]),
        lambda c: c.add_vectors([1], "text"),
        lambda c: c.add_vectors("id", vectors(2, dim=4)),
        lambda c: c.delete(7.5),
        lambda c: c.search(vectors(1, dim=4)[0], k=0),
        lambda c: c.search([1, 2, 3]),
        lambda c: c.search([[1, 2, 3, 4]]),
        lambda c: c.search([1, 2, 3, [4]]),
        lambda c: c.search(vectors(1, dim=4)[0], k=1.5),
        lambda c: c.search(vectors(1, dim=4)[0], k=-1),
        lambda c: c.search_ids(vectors(1, dim=4)[0], 1),
        lambda c: c.search_batch("text"),
        lambda c: c.tune_recall(0.9, seed=-1),
        lambda c: c.tune_recall(0.9, queries=0),
        lambda c: c.tune_recall(0.9, queries=2.5),
        lambda c: c.tune_recall("x"),
        lambda c: c.tune_recall(0.9, queries=vectors(0, dim=4)),
        lambda c: c.tune_recall(0.9, queries=np.ones((2, 3))),
        lambda c: c.add_vectors([1], [[1j, 0, 0, 0]]),
        lambda c: c.add_vectors([1], [["1", "2", "3", "4"]]),
        lambda c: c.add_vectors([1], vectors(1, dim=4), metadata={"a": 1}),
        lambda c: c.search(vectors(1, dim=4)[0], min_score="0.1"),
        lambda c: c.search_batch(vectors(1, dim=4), min_score=float("nan")),
        lambda c: c.add_vectors([1, 2], vectors(2, dim=4), metadata=Twice()),
    ],
)
def test_senseless_arguments_are_refused_and_change_nothing(
    tmp_path: Path, call: Callable[[Collection], Any]
) -> None:
    with Collection.create(tmp_path / "c", dim=4) as c:
        c.add_vectors(["i", "d"], vectors(2, dim=4))
        with pytest.raises((InputTypeError, InputValueError)):
            call(c)
        assert len(c) == 2


def test_deletions_before_there_is_a_graph_are_harmless(tmp_path: Path) -> None:
    with Collection.create(tmp_path / "c", dim=4, index="graph", exact_below=20) as c:
        c.add_vectors(range(30), vectors(30, dim=4))
        c.prepare()
    (tmp_path / "c" / "graph-1.hnsw").unlink()
    with Collection.open(tmp_path / "c", index="graph", exact_below=20) as c:
        c.delete(range(9))
        c.compact()
        c.delete(range(30))
        assert c.search(vectors(1, dim=4)[0]) == []
        c.compact()
        c.add_vectors(range(30), vectors(30, dim=4))
        assert len(c.search(vectors(1, dim=4)[0], k=99)) == 30


def test_an_add_says_what_it_did(tmp_path: Path, tiny: Encoder, caplog: Any) -> None:
    with Collection.create(tmp_path / "c", encoder=tiny) as c:
        assert c.add([1, 2, 2], ["a cat", "a dog", "the cat " * 100]) == Added(2, 0, 1)
        assert c.add([1, 3], ["the cat " * 100, "a"]) == Added(2, 1, 1)
        assert c.add_vectors([3, 4], np.ones((2, 16))) == Added(2, 1, 0)
        assert c.add([], []) == Added(0, 0, 0)
    (record,) = caplog.records  # once
    assert "1 of 2 texts have more than 64 tokens and were cut" in record.getMessage()


def test_float16_takes_half_the_room_and_is_the_same_after_opening(tmp_path: Path) -> None:
    rows = vectors(50)
    sizes = {}
    for dtype in ("float32", "float16"):
        with Collection.create(tmp_path / dtype, dim=8, vector_dtype=dtype) as c:  # type: ignore[arg-type]
            c.add_vectors(range(50), rows)
            before = c.search(rows[3], k=5)
            assert c.info().vector_dtype == dtype
        with Collection.open(tmp_path / dtype) as c:
            assert c.search(rows[3], k=5) == before
            item = c.get([3])[0]
            assert item is not None
            np.testing.assert_allclose(item.vector, rows[3], atol=0 if dtype == "float32" else 2e-3)
        sizes[dtype] = run_sql(tmp_path / dtype, "SELECT length(vector) FROM items")[0][0]
    assert sizes == {"float32": 32, "float16": 16}
    with (
        Collection.create(tmp_path / "d", dim=2, vector_dtype="float16") as c,
        pytest.raises(InputValueError, match="65504"),
    ):
        c.add_vectors([1], [[1e5, 0]])
    with pytest.raises(InputValueError, match="vector_dtype"):
        Collection.create(tmp_path / "e", dim=2, vector_dtype="int8")  # type: ignore[arg-type]
