"""Sparse vectors of a collection: kept like the rows, searched exactly, and fused."""

from __future__ import annotations

import asyncio
import logging
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flowvec import (
    AsyncCollection,
    Collection,
    CollectionError,
    CorruptCollectionError,
    Encoder,
    FingerprintMismatchError,
    InputTypeError,
    InputValueError,
    SparseEncoder,
    SparseVectors,
)
from flowvec.collection.index import sparse_index
from flowvec.collection.index.sparse_index import SparseIndex
from flowvec.collection.store.store import FILE
from tests.inside import access_of, run_sql, sparse_index_of, store_of
from tests.makers import vectors

DIM = 40
Weights = dict[int, float]


def _sparse(*rows: Weights) -> SparseVectors:
    ordered = [sorted(row.items()) for row in rows]
    pairs = [pair for row in ordered for pair in row]
    return SparseVectors(
        np.cumsum([0, *map(len, ordered)]).astype(np.int64),
        np.array([term for term, _ in pairs], np.int32),
        np.array([weight for _, weight in pairs], np.float32),
        DIM,
    )


def _random_row(rng: random.Random) -> Weights:
    # Few weights, so that many scores are equal: their order must be that of the rows.
    return {rng.randrange(DIM): float(rng.randint(1, 3)) for _ in range(rng.randint(0, 6))}


def _dense(count: int) -> Any:
    return np.random.default_rng(count).random((count, 3), np.float32) + 0.1


class _Model:
    """What a collection should hold, in the order in which rows were added."""

    def __init__(self) -> None:
        self.rows: dict[str, Weights | None] = {}

    def add(self, item: str, weights: Weights | None) -> None:
        self.rows.pop(item, None)
        self.rows[item] = weights

    def best(self, query: Weights, k: int) -> list[tuple[str, float]]:
        found = [
            (item, float(sum(weight * (row or {}).get(t, 0.0) for t, weight in query.items())))
            for item, row in self.rows.items()
        ]
        return sorted((hit for hit in found if hit[1] > 0), key=lambda hit: -hit[1])[:k]


@pytest.mark.parametrize("seed", range(6))
def test_searches_are_exact_through_any_changes(
    tmp_path: Path, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    rng, model = random.Random(seed), _Model()
    Collection.create(tmp_path / "c", dim=3).close()
    with Collection.open(tmp_path / "c") as first, Collection.open(tmp_path / "c") as second:
        for _ in range(60):
            c = rng.choice((first, second))
            ids = [f"r{rng.randrange(40)}" for _ in range(rng.randint(1, 6))]
            rows = [_random_row(rng) for _ in ids]
            kind = rng.choice(("add", "add", "plain", "set", "delete", "metadata", "compact"))
            if kind == "add":
                c.add_vectors(ids, _dense(len(ids)), sparse=_sparse(*rows))
                for item, _row in dict(zip(ids, rows, strict=True)).items():
                    model.rows.pop(item, None)
                # Of equal ids the last is kept, in its place.
                for place, item in enumerate(ids):
                    if item not in ids[place + 1 :]:
                        model.add(item, rows[place])
            elif kind == "plain":
                c.add_vectors(ids, _dense(len(ids)))
                for place, item in enumerate(ids):
                    if item not in ids[place + 1 :]:
                        model.add(item, None)
            elif kind == "set":
                there = {item: row for item, row in zip(ids, rows, strict=True)
                         if item in model.rows}  # fmt: skip
                assert c.set_sparse(ids, _sparse(*rows)) == len(there)
                model.rows |= there
            elif kind == "delete":
                c.delete(ids)
                for item in ids:
                    model.rows.pop(item, None)
            elif kind == "metadata":
                c.update_metadata(ids, {"n": rng.random()})
            elif rng.random() < 0.2:
                c.compact()
            query, k = _random_row(rng), rng.choice((1, 3, 50))
            for searched in (first, second):
                hits = searched.search_sparse(_sparse(query), k)
                assert [(hit.id, hit.score) for hit in hits] == model.best(query, k)
        given = {item: row for item, row in model.rows.items() if row is not None}
        found = first.get_sparse(list(model.rows))
        assert [None if one is None else one.as_dicts()[0] for one in found] == [
            given.get(item) for item in model.rows
        ]
        info = second.info()
        assert (info.sparse_rows, info.sparse_dim) == (len(given), DIM if given else None)
        assert first.verify() == []
    assert "read again" not in caplog.text  # only what changed was read


def test_parts_are_joined_as_they_grow(tmp_path: Path) -> None:
    rng = random.Random(3)
    rows = [_random_row(rng) for _ in range(300)]
    with Collection.create(tmp_path / "c", dim=3) as c:
        c.add_vectors(range(300), _dense(300), sparse=_sparse(*rows))
        index = SparseIndex(store_of(c), weights_at_once=10)
        for i in range(41):
            with store_of(c).reading():
                state = index.state()
            c.set_sparse([i], _sparse(rows[i]))
        assert state.count == 300
        assert len(state.parts) < 8
        for part in state.parts:
            assert part.live is None or 2 * part.count >= len(part.labels)
        assert index.memory_bytes >= 8 * sum(map(len, rows))
        query = _sparse(dict.fromkeys(range(DIM), 1.0))
        expected = {e["corpus_id"] + 1: e["score"] for e in _sparse(*rows).search(query, 300)[0]}
        assert [*state.search(query, 300).items()] == [*expected.items()]


def test_old_states_do_not_hold_much_memory(tmp_path: Path) -> None:
    with Collection.create(tmp_path / "c", dim=3) as c:
        for i in range(0, 40, 2):
            c.add_vectors([i, i + 1], _dense(2), sparse=_sparse({1: 1.0, 2: 1.0}, {3: 1.0}))
            c.search_sparse(_sparse({1: 1.0}))
        assert len(sparse_index_of(c)._states) == sparse_index._KEPT_STATES
        index = SparseIndex(store_of(c), most_besides=0)
        states = index._states
        for i in range(4):
            c.delete([i])  # which moves no row
            with store_of(c).reading():
                newest = index.state()
            assert all(state.besides(newest) == 0 for state in states.values())
        assert len(states) > 1


def test_filters_offsets_and_scores_choose_among_the_hits(tmp_path: Path) -> None:
    rng = random.Random(1)
    rows = [_random_row(rng) for _ in range(200)]
    query = _sparse(dict.fromkeys(range(0, DIM, 2), 1.0))
    with Collection.create(tmp_path / "c", dim=3) as c:
        metadata = [{"even": i % 2 == 0} for i in range(200)]
        c.add_vectors(range(200), _dense(200), metadata=metadata, sparse=_sparse(*rows))
        c.delete([0, 1])
        c.search_sparse(query)
        c.set_sparse([2, 4], _sparse({0: 99.0}, {}))  # another weight, and none
        ranking = c.search_sparse(query, 200)
        assert (ranking[0].id, 4 in {hit.id for hit in ranking}) == (2, False)
        even = [hit for hit in ranking if hit.id % 2 == 0]
        assert c.search_sparse(query, 200, filter={"even": True}) == even
        assert c.search_sparse(query, 7, filter={"even": True}) == even[:7]
        assert c.search_sparse(query, 7, offset=5) == ranking[5:12]
        least = ranking[20].score
        assert c.search_sparse(query, 200, min_score=least) == [
            hit for hit in ranking if hit.score >= least
        ]
        with pytest.raises(InputValueError, match="k must be at least 1"):
            c.search_sparse(query, 0)
        both = SparseVectors.joined([query, _sparse({1: 1.0})])
        assert c.search_sparse_batch(both, 9) == [
            ranking[:9],
            c.search_sparse(_sparse({1: 1.0}), 9),
        ]
        assert c.search_sparse_batch(both[:0], 9) == c.search_sparse_batch([], 9) == []
        assert c.search_sparse_batch(list(both), 9) == c.search_sparse_batch(both, 9)
        c.set_sparse([7, 8], [v for v in c.get_sparse([8, 7]) if v is not None])
        swapped = [v.as_dicts()[0] for v in c.get_sparse([7, 8]) if v is not None]
        assert swapped == [rows[8], rows[7]]
        (hit, *_) = c.search_sparse(query, 1, with_vectors=True)
        assert hit.vector is not None
        assert hit.vector.tolist() == _dense(200)[hit.id].tolist()


# --- hybrid searches ------------------------------------------------------------------------------


def test_a_hybrid_score_is_the_sum_of_three_parts(tmp_path: Path) -> None:
    vectors = [[1, 0], [0.8, 0.6], [0, 1], [-1, 0]]
    texts = ["a cat", "a dog", "a cat and a cat", "a bird"]
    with Collection.create(tmp_path / "c", dim=2) as c:
        c.add_vectors(
            list("wxyz"), vectors, texts, sparse=_sparse({1: 1.0}, {}, {1: 4.0}, {2: 1.0})
        )
        ask: dict[str, Any] = {"text": "cat", "hybrid": True, "sparse": _sparse({1: 2.0})}
        hits = {hit.id: hit for hit in c.search([1, 0], **ask)}
        words = {hit.id: hit.score for hit in c.search(
            [1, 0], text="cat", hybrid=True, vector_weight=0.0)}  # fmt: skip
        # Nearness is 1 for the query itself, and 0 for the last of the nearest.
        near = {"w": 1.0, "x": 0.9, "y": 0.5, "z": 0.0}
        dots = {"w": 0.25, "x": 0.0, "y": 1.0, "z": 0.0}
        for item, hit in hits.items():
            assert hit.score == pytest.approx((near[item] + dots[item] + words[item]) / 3)
            assert hit.sparse_score == pytest.approx(dots[item] / 3)
            assert hit.word_score == pytest.approx(words[item] / 3)
        alone = c.search([1, 0], **ask, vector_weight=0.0, sparse_weight=1.0)
        assert [(hit.id, hit.score) for hit in alone][:2] == [("y", 1.0), ("w", 0.25)]
        # Without words no text is needed.
        pair = c.search([1, 0], hybrid=True, sparse=_sparse({1: 2.0}), vector_weight=0.4,
                        sparse_weight=0.6)  # fmt: skip
        assert {hit.id: hit.score for hit in pair} == pytest.approx(
            {item: 0.4 * near[item] + 0.6 * dots[item] for item in near}
        )
        assert all(hit.word_score == 0.0 for hit in pair)
        plain = c.search([1, 0], text="cat", hybrid=True)
        assert all(hit.sparse_score is None for hit in plain)


def test_ranks_are_fused_as_documented(tmp_path: Path) -> None:
    vectors, texts = [[1, 0], [0.8, 0.6], [0, 1]], ["a cat", "a dog", "a cat and a cat"]
    with Collection.create(tmp_path / "c", dim=2) as c:
        c.add_vectors(list("wxy"), vectors, texts, sparse=_sparse({}, {1: 1.0}, {1: 4.0}))
        hits = c.search([1, 0], text="dog", hybrid=True, fusion="ranks", sparse=_sparse({1: 1.0}),
                        vector_weight=0.5, sparse_weight=0.3)  # fmt: skip
        place = {1: 1.0, 2: 61 / 62, 3: 61 / 63}
        assert {hit.id: hit.score for hit in hits} == pytest.approx(
            {
                "w": 0.5 * place[1],
                "x": 0.5 * place[2] + 0.3 * place[2] + 0.2 * place[1],
                "y": 0.5 * place[3] + 0.3 * place[1],
            }
        )
        assert [hit.id for hit in hits] == ["x", "y", "w"]


@pytest.mark.parametrize("fusion", ["weights", "ranks"])
def test_pages_of_a_hybrid_search_fit_together(tmp_path: Path, fusion: Any) -> None:
    rng = random.Random(5)
    count = 700  # more than each ranking has
    texts = [f"text {i % 9} of {i}" for i in range(count)]
    rows = [_random_row(rng) for _ in range(count)]
    with Collection.create(tmp_path / "c", dim=3) as c:
        metadata = [{"group": i % 5, "low": i < 100} for i in range(count)]
        c.add_vectors(range(count), _dense(count), texts, metadata, sparse=_sparse(*rows))
        ask: dict[str, Any] = {
            "text": "text 3", "hybrid": True, "fusion": fusion,
            "sparse": _sparse(dict.fromkeys(range(0, DIM, 3), 1.0)),
        }  # fmt: skip
        query = _dense(count)[17]
        ranking = c.search(query, count, **ask)
        assert len({hit.id for hit in ranking}) == count
        assert [hit.score for hit in ranking] == sorted((h.score for h in ranking), reverse=True)
        for size in (10, 170):
            pages = [c.search(query, size, offset=o, **ask) for o in range(0, 510, size)]
            flat = [hit for page in pages for hit in page]
            assert flat == ranking[: len(flat)]
        grouped = c.search(query, 5, group_by="group", **ask)
        assert len({hit.metadata["group"] for hit in grouped if hit.metadata}) == 5
        assert grouped[0] == ranking[0]
        low = c.search(query, 20, filter={"low": True}, **ask)
        assert all(hit.metadata == {"group": hit.id % 5, "low": True} for hit in low)


def test_wrong_arguments_of_a_search_are_named(tmp_path: Path) -> None:
    query = _sparse({1: 1.0})
    with Collection.create(tmp_path / "c", dim=2) as c:
        c.add_vectors(["a"], [[1, 0]], ["a text"], sparse=query)
        wrong = SparseVectors(query.indptr, query.indices, query.values, DIM + 1)
        cases: list[tuple[type[Exception], str, dict[str, Any]]] = [
            (InputValueError, "sparse is for a hybrid search", {"sparse": query}),
            (InputValueError, "sparse_weight is for a hybrid", {"sparse_weight": 0.5}),
            (InputValueError, "fusion is for a hybrid", {"fusion": "ranks"}),
            (InputValueError, "needs a sparse vector", {"hybrid": True, "sparse_weight": 0.5}),
            (InputValueError, "needs a text", {"hybrid": True, "sparse": query}),
            (InputValueError, "needs 40|have 40", {"hybrid": True, "text": "a", "sparse": wrong}),
            (InputTypeError, "sparse must be SparseVectors", {"hybrid": True, "sparse": [1.0]}),
            (InputValueError, "2 sparse vectors for 1", {
                "hybrid": True, "text": "a", "sparse": _sparse({1: 1.0}, {})}),
            (InputValueError, "together at most 1, not 0.7 [+] 0.5", {
                "hybrid": True, "text": "a", "sparse": query, "vector_weight": 0.7,
                "sparse_weight": 0.5}),
            (InputValueError, "sparse_weight must be from 0 to 1", {
                "hybrid": True, "text": "a", "sparse": query, "sparse_weight": 1.5}),
            (InputValueError, "weights.*ranks", {"hybrid": True, "text": "a", "fusion": "sum"}),
        ]  # fmt: skip
        for kind, message, options in cases:
            with pytest.raises(kind, match=message):
                c.search([1, 0], **options)
        for kind, message, given in [
            (CollectionError, "opened without a sparse encoder", "a text"),
            (InputTypeError, "query must be SparseVectors", {1: 1.0}),
            (InputValueError, "must have 40 dimensions", wrong),
            (InputValueError, "not 2 sparse vectors; search_sparse_batch", _sparse({1: 1.0}, {})),
            (
                InputValueError,
                "one text or one sparse vector, not 2 texts; search_sparse_batch",
                ["a", "b"],
            ),
        ]:
            with pytest.raises(kind, match=message):
                c.search_sparse(given)
        with pytest.raises(InputTypeError, match="not one text"):
            c.search_sparse_batch("a text")


# --- writing --------------------------------------------------------------------------------------


def test_wrong_sparse_vectors_change_nothing(tmp_path: Path) -> None:
    def csr(indptr: list[int], terms: list[int], weights: list[float], dim: int = DIM) -> Any:
        return SparseVectors(
            np.array(indptr, np.int64), np.array(terms, np.int32), np.array(weights, np.float32),
            dim,
        )  # fmt: skip

    def raw(indptr: Any, terms: Any, weights: Any) -> Any:
        return SparseVectors(indptr, terms, weights, DIM)

    with Collection.create(tmp_path / "c", dim=2) as c:
        c.add_vectors(["a"], [[1, 0]], sparse=_sparse({1: 1.0}))
        before = c.info().sparse_rows, c.list()
        for message, given in [
            ("a b|2 sparse vectors for 1|1 ids for 2", _sparse({}, {})),
            ("41", csr([0, 1], [1], [1.0], DIM + 1)),
            ("index that is not below 40", csr([0, 1], [DIM], [1.0])),
            ("index that is not below 40", csr([0, 1], [-1], [1.0])),
            ("do not ascend", csr([0, 2], [3, 3], [1.0, 1.0])),
            ("do not ascend", csr([0, 2], [4, 3], [1.0, 1.0])),
            ("NaN or infinity", csr([0, 1], [1], [float("nan")])),
            ("NaN or infinity", csr([0, 1], [1], [float("inf")])),
            ("indptr does not fit", csr([0, 2], [1], [1.0])),
            ("indptr does not fit", csr([1, 1], [1], [1.0])),
            ("dimensions", csr([0, 0], [], [], 0)),
            # Arrays of other dtypes than those of SparseVectors.
            ("do not ascend", raw(np.array([0, 2]), np.array([4, 3], np.uint32), np.ones(2))),
            ("not below 40", raw(np.array([0, 1]), np.array([2**32 + 1]), np.ones(1))),
            ("NaN or infinity in float32", raw(np.array([0, 1]), np.array([1]), np.array([1e39]))),
            ("indptr does not fit", raw(np.array([0, 2, 1], np.uint64), np.array([1]), np.ones(1))),
            ("of one axis", raw(np.array([0, 1]), np.array([[1]]), np.ones((1, 1)))),
        ]:
            with pytest.raises(InputValueError, match=message):
                c.set_sparse(["a"], given)
            with pytest.raises(InputValueError):
                c.add_vectors(["b"], [[1, 0]], sparse=given)
        for not_sparse, named in (
            ([1.0], "a list with float"), ([], "an empty list"), ({1: 1.0}, "dict"),
            ([_sparse({}), None], "a list with NoneType"), (np.ones((1, DIM)), "ndarray"),
        ):  # fmt: skip
            with pytest.raises(InputTypeError, match=f"matrix of scipy, not {named}"):
                c.set_sparse(["a"], not_sparse)
        for message, not_numbers in [
            ("indices of vectors must be whole numbers", raw([0, 1], [1.5], [1.0])),
            ("values of vectors must be numbers", raw([0, 1], [1], ["a"])),
            ("values of vectors must be numbers", raw([0, 1], [1], [1j])),
        ]:
            with pytest.raises(InputTypeError, match=message):
                c.set_sparse(["a"], not_numbers)
        assert (c.info().sparse_rows, c.list()) == before
        assert c.set_sparse(["unknown"], _sparse({1: 1.0})) == 0
        assert c.set_sparse([], _sparse()) == 0


@pytest.mark.parametrize("order", ["<", ">"])
def test_arrays_of_other_dtypes_are_the_same_vectors(tmp_path: Path, order: str) -> None:
    given = SparseVectors(
        np.array([0, 2, 3], f"{order}u8"), np.array([1, 30, 2], f"{order}u4"),
        np.array([1.5, 2.5, 0.1], f"{order}f8"), DIM,
    )  # fmt: skip
    with Collection.create(tmp_path / "c", dim=2) as c:
        c.add_vectors(["a", "b"], [[1, 0], [0, 1]])
        c.set_sparse(["a", "b"], given)
        stored = c.get_sparse(["a", "b"])
        assert [hit.score for hit in c.search_sparse(given[0])] == [1.5**2 + 2.5**2]
        assert c.verify() == []
    for i, vector in enumerate(stored):
        assert vector is not None
        np.testing.assert_array_equal(vector.indices, given[i].indices)
        np.testing.assert_array_equal(vector.values, given[i].values.astype(np.float32))


def test_a_matrix_of_scipy_is_taken(tmp_path: Path) -> None:
    scipy = pytest.importorskip("scipy.sparse", reason="needs the extra [export]")
    matrix = scipy.random(5, DIM, density=0.3, random_state=0, format="coo")
    with Collection.create(tmp_path / "c", dim=3) as c:
        c.add_vectors(range(5), _dense(5), sparse=matrix)
        (hits,) = c.search_sparse_batch(matrix.tocsr()[2], 1)
        expected = (matrix.tocsr() @ matrix.tocsr()[2].T).toarray()[:, 0]
        assert hits[0].id == int(expected.argmax())
        assert hits[0].score == pytest.approx(expected.max(), rel=1e-6)


def test_the_layout_changes_with_the_first_sparse_vector_alone(tmp_path: Path) -> None:
    path = tmp_path / "c"
    with Collection.create(path, dim=2) as c:
        c.add_vectors(["a"], [[1, 0]])
        assert c.search_sparse(_sparse({1: 1.0})) == []
        assert c.get_sparse(["a", "b"]) == [None, None]
        c.set_sparse(["unknown"], _sparse({1: 1.0}))
    before = (path / FILE).read_bytes()
    with Collection.open(path) as c:
        assert c.search_sparse(_sparse({1: 1.0})) == []
        assert c.verify() == []
    assert (path / FILE).read_bytes() == before
    with Collection.open(path) as c:
        c.set_sparse(["a"], _sparse({1: 1.0}))
    with Collection.open(path) as c:
        assert [hit.id for hit in c.search_sparse(_sparse({1: 1.0}))] == ["a"]


_KILLED = """
import os, signal, sys
import numpy as np
from flowvec import Collection, SparseVectors
from flowvec.collection.store.meta import MetaTable

write = MetaTable.write
def killing(self, values):
    write(self, values)
    if "sparse_rows" in values:  # the last statement of the first sparse vectors
        os.kill(os.getpid(), signal.SIGKILL)
MetaTable.write = killing
one = SparseVectors(np.array([0, 1]), np.array([1], np.int32), np.ones(1, np.float32), 40)
with Collection.open(sys.argv[1]) as c:
    c.set_sparse(["a"], one)
"""


@pytest.mark.process
@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs SIGKILL")
def test_a_kill_leaves_the_collection_whole(tmp_path: Path) -> None:
    path = tmp_path / "c"
    with Collection.create(path, dim=2) as c:
        c.add_vectors(["a"], [[1, 0]], ["kept"])
    done = subprocess.run([sys.executable, "-c", _KILLED, str(path)], check=False)
    assert done.returncode == -signal.SIGKILL
    with Collection.open(path) as c:
        assert c.verify() == []
        assert c.info().sparse_dim is None
        assert [row.text for row in c.list()] == ["kept"]
        assert c.set_sparse(["a"], _sparse({1: 1.0})) == 1
        assert [hit.id for hit in c.search_sparse(_sparse({1: 1.0}))] == ["a"]


# --- damage ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("UPDATE sparse_vectors SET weights = zeroblob(8) WHERE n = 2", "row 2 does not match"),
        ("UPDATE sparse_vectors SET label = 9 WHERE n = 2", "row 9 does not match"),
        ("UPDATE sparse_vectors SET weights = 'text' WHERE n = 2", "row 2 does not match"),
        ("DELETE FROM sparse_vectors WHERE n = 2", "holds 3 sparse vectors, but 4 were written"),
    ],
)
def test_damage_is_found_and_salvaged(
    tmp_path: Path, statement: str, message: str, caplog: pytest.LogCaptureFixture
) -> None:
    path, rows = tmp_path / "c", [{1: 1.0}, {1: 2.0}, {}, {1: 4.0}]
    with Collection.create(path, dim=3) as c:
        c.add_vectors(list("abcd"), _dense(4), sparse=_sparse(*rows))
        c.add_vectors(list("e"), _dense(1))
    run_sql(path, statement)
    with Collection.open(path) as c:
        assert any(message in problem for problem in c.verify())
        with pytest.raises(CorruptCollectionError, match=message):
            c.search_sparse(_sparse({1: 1.0}))
        assert len(c.search([1, 0, 0])) == 5  # dense searches do not read them
    with caplog.at_level(logging.WARNING):
        assert Collection.salvage(path, tmp_path / "new") == 0
    assert "1 sparse vectors were lost" in caplog.text
    with Collection.open(tmp_path / "new") as new:
        assert new.verify() == []
        assert [hit.id for hit in new.search_sparse(_sparse({1: 1.0}))] == ["d", "a"]
        found = new.get_sparse(list("abcde"))
        assert [one is None for one in found] == [False, True, False, False, True]
        assert new.info().sparse_rows == 3


def test_parquet_files_keep_sparse_vectors(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow", reason="needs the extra [files]")
    rows = [{1: 0.1, 7: 2.5}, {}, {3: -1.0}]
    with Collection.create(tmp_path / "c", dim=3) as c:
        c.add_vectors(list("abc"), _dense(3), sparse=_sparse(*rows))
        c.add_vectors(list("d"), _dense(1))
        assert c.to_parquet(tmp_path / "c.parquet") == 4
    with Collection.from_parquet(tmp_path / "new", tmp_path / "c.parquet") as new:
        found = new.get_sparse(list("abcd"))
        assert [None if one is None else one.as_dicts()[0] for one in found] == [
            {1: np.float32(0.1), 7: 2.5}, {}, {3: -1.0}, None
        ]  # fmt: skip
        assert new.info().sparse_dim == DIM
        assert new.list()[0].metadata is None
    # A row that comes again replaces all of the first, and of a file that has none nothing stays.
    with Collection.create(tmp_path / "plain", dim=3) as plain:
        plain.add_vectors(list("a"), _dense(1))
        plain.to_parquet(tmp_path / "plain.parquet")
    both = [tmp_path / "c.parquet", tmp_path / "plain.parquet"]
    with Collection.from_parquet(tmp_path / "both", both) as joined:
        assert [one is None for one in joined.get_sparse(list("abcd"))] == [
            True,
            False,
            False,
            True,
        ]


@pytest.mark.parametrize(
    ("indices", "values", "message"),
    [
        ([[1], None], [[1.0], [2.0]], "row 1: its sparse vector does not have a weight for each"),
        ([[1], [2, 3]], [[1.0], [2.0]], "row 1: its sparse vector does not have a weight for each"),
        (
            [[1], [1 << 40]],
            [[1.0], [2.0]],
            "row 1: its sparse vector has an index that is not below 40",
        ),
        (
            [[1], [3, 2]],
            [[1.0], [2.0, 1.0]],
            "row 1: its sparse vector has indices that do not ascend",
        ),
        ([[1], [2]], [[1.0], [float("nan")]], "row 1: its sparse vector holds NaN"),
        ([[1], [2]], [[1.0], [None]], "row 1: its sparse vector holds NaN"),
        ([[1], [None]], [[1.0], [1.0]], "row 1: .* must be whole numbers"),
        (["1", "2"], ["1", "2"], "rows from 0 on cannot be read"),
    ],
)
def test_wrong_sparse_vectors_of_a_parquet_file_are_named(
    tmp_path: Path, indices: Any, values: Any, message: str
) -> None:
    pq = pytest.importorskip("pyarrow.parquet", reason="needs the extra [files]")
    with Collection.create(tmp_path / "c", dim=3) as c:
        c.add_vectors(list("ab"), _dense(2), sparse=_sparse({1: 1.0}, {2: 1.0}))
        c.to_parquet(tmp_path / "c.parquet")
    table = pq.read_table(tmp_path / "c.parquet")
    for name, column in (("sparse_indices", indices), ("sparse_values", values)):
        place = table.schema.get_field_index(name)
        table = table.set_column(place, name, [column])
    pq.write_table(table, tmp_path / "wrong.parquet")
    with pytest.raises((InputTypeError, InputValueError), match=message):
        Collection.from_parquet(tmp_path / "new", tmp_path / "wrong.parquet")


# --- with models ----------------------------------------------------------------------------------


def test_texts_get_both_vectors_of_models(
    tmp_path: Path, tiny: Encoder, sparse_encoder: SparseEncoder
) -> None:
    texts = ["A dog swims.", "Stocks fell today.", "Cats sleep all day."]
    options: dict[str, Any] = {"encoder": tiny, "sparse_encoder": sparse_encoder}
    with Collection.create(tmp_path / "c", **options) as c:
        assert c.sparse_encoder is sparse_encoder
        assert c.info().sparse_model is None
        c.add(["x", "a", "b", "c"], ["A bird sings.", *texts])
        c.add(["x"], ["Birds."])
        expected = sparse_encoder.encode_document(texts)
        found = [one for one in c.get_sparse(list("abc")) if one is not None]
        for mine, its in zip(found, expected, strict=True):
            np.testing.assert_array_equal(mine.indices, its.indices)
            np.testing.assert_allclose(mine.values, its.values, rtol=1e-4, atol=1e-5)
        assert c.info().sparse_model == sparse_encoder.bundle.handle
        query = sparse_encoder.encode_query("A dog swims.")
        assert c.search_sparse("A dog swims.", 2) == c.search_sparse(query, 2)
        assert c.search_sparse_batch(["A dog swims."], 2) == [c.search_sparse(query, 2)]
        by_text = c.search("A dog swims.", hybrid=True)
        given = c.search("A dog swims.", hybrid=True, sparse=query)
        assert [hit.id for hit in by_text] == [hit.id for hit in given]
        assert sum(hit.sparse_score or 0 for hit in by_text) > 0
        assert by_text == c.search_batch(["A dog swims."], hybrid=True)[0]
        words = c.search("A dog swims.", hybrid=True, sparse_weight=0.0, vector_weight=0.5)
        with Collection.open(tmp_path / "c", encoder=tiny) as without:
            assert words == without.search("A dog swims.", hybrid=True)
            without.add(["plain"], ["A new text."])
            assert without.get_sparse(["plain"]) == [None]
    with pytest.raises(InputTypeError, match="sparse_encoder must be"):
        Collection.open(tmp_path / "c", sparse_encoder=tiny)  # type: ignore[arg-type]


def test_rows_without_a_sparse_vector_get_theirs(
    tmp_path: Path, tiny: Encoder, sparse_encoder: SparseEncoder
) -> None:
    count = 1100  # more than are encoded at once
    texts = [f"A text about number {i}." for i in range(count)]
    with Collection.create(tmp_path / "c", encoder=tiny) as c:
        c.add_vectors(range(count), vectors(count, dim=tiny.dim), texts)
        c.add_vectors(["plain"], np.ones((1, tiny.dim)))
        with pytest.raises(CollectionError, match="without a sparse encoder"):
            c.add_missing_sparse()
    stop = threading.Event()
    stop.set()
    with Collection.open(tmp_path / "c", encoder=tiny, sparse_encoder=sparse_encoder) as c:
        assert c.add_missing_sparse(stop=stop) == 0
        c.add([5], ["Another text."])
        assert c.add_missing_sparse() == count - 1
        assert c.add_missing_sparse() == 0
        found = [one for one in c.get_sparse(range(count)) if one is not None]
        expected = sparse_encoder.encode_document([*texts[:5], "Another text.", *texts[6:]])
        assert [one.indices.tolist() for one in found] == [v.indices.tolist() for v in expected]
        assert c.get_sparse(["plain"]) == [None]
        assert c.info().sparse_model == sparse_encoder.bundle.handle
        assert {hit.id for hit in c.search_sparse(texts[3], count)} == set(range(count))
        assert c.verify() == []


def test_a_sparse_vector_that_was_given_meanwhile_stays(
    tmp_path: Path, tiny: Encoder, sparse_encoder: SparseEncoder, sparse_dir: Path
) -> None:
    """Another writer gives a row its sparse vector while this one has encoded the row's text."""

    class Late(SparseEncoder):
        def encode_document(self, texts: Any, **options: Any) -> Any:
            vectors = super().encode_document(texts, **options)
            other.set_sparse([1], given)
            other.delete([2])
            return vectors

    with Collection.create(tmp_path / "c", encoder=tiny) as c:
        c.add(range(3), ["A dog swims.", "Stocks fell.", "Cats sleep."])
    given = sparse_encoder.encode_document(["Something else."])
    with (
        Late.load(sparse_dir, provider="cpu") as late,
        Collection.open(tmp_path / "c", encoder=tiny, sparse_encoder=late) as c,
        Collection.open(tmp_path / "c") as other,
    ):
        assert c.add_missing_sparse() == 1
        (stored,) = c.get_sparse([1])
        assert stored is not None
        np.testing.assert_array_equal(stored.indices, given.indices)
        assert c.verify() == []


def test_another_model_of_sparse_vectors_is_refused(
    tmp_path: Path, tiny: Encoder, sparse_encoder: SparseEncoder
) -> None:
    with Collection.create(tmp_path / "c", encoder=tiny) as c:
        c.add(["a"], ["A dog."])
        c.set_sparse(["a"], _sparse({1: 1.0}))
    with pytest.raises(FingerprintMismatchError, match="40 dimensions, made els"):
        Collection.open(tmp_path / "c", encoder=tiny, sparse_encoder=sparse_encoder)
    with Collection.create(tmp_path / "d", encoder=tiny, sparse_encoder=sparse_encoder) as c:
        c.add(["a"], ["A dog."])
    kept = run_sql(tmp_path / "d", "SELECT value FROM meta WHERE key = 'sparse_fingerprint'")
    assert kept == [(sparse_encoder.fingerprint,)]
    with Collection.open(tmp_path / "d") as c:
        store_of(c).meta.write_settings({"sparse_fingerprint": "0" * 64})
    with pytest.raises(FingerprintMismatchError, match="is another model"):
        Collection.open(tmp_path / "d", encoder=tiny, sparse_encoder=sparse_encoder)


def test_tasks_find_what_threads_find(
    tmp_path: Path, tiny: Encoder, sparse_encoder: SparseEncoder
) -> None:
    texts = ["A dog swims.", "Stocks fell today.", "Cats sleep all day."]
    query, text = sparse_encoder.encode_query("A dog swims."), "A dog swims."

    async def main() -> None:
        async with AsyncCollection.open_or_create(
            tmp_path / "c", encoder=tiny, sparse_encoder=sparse_encoder
        ) as tasks:
            c = tasks.collection
            await tasks.add(["a", "b", "c"], texts)
            other = ["A bird sings."]
            vectors = tiny.encode_document(other)
            await tasks.add_vectors(["d"], vectors, other, sparse=query)
            assert [one is None for one in c.get_sparse(["a", "d", "e"])] == [False, False, True]
            assert await tasks.search_sparse(text, 2) == c.search_sparse(text, 2)
            assert await tasks.search_sparse(query, 2) == c.search_sparse(query, 2)
            assert await tasks.search_sparse_batch([text]) == c.search_sparse_batch([text])
            assert await tasks.set_sparse(["b", "none"], sparse_encoder.encode(["a", "b"])) == 1
            (read, *_) = await tasks.get_sparse(["b"])
            assert read is not None
            assert read.as_dicts() == sparse_encoder.encode("a").as_dicts()
            options: dict[str, Any] = {"hybrid": True, "fusion": "ranks", "sparse_weight": 0.6}
            for given in ({}, {"sparse": query}):
                mine = await tasks.search(text, **options, **given)
                assert mine == c.search(text, **options, **given)
                assert max(hit.sparse_score or 0.0 for hit in mine) == pytest.approx(0.6)
            assert await tasks.search_batch([text], **options) == c.search_batch([text], **options)
            with pytest.raises(InputValueError, match="sparse is for a hybrid search"):
                await tasks.search(text, sparse=query)

    asyncio.run(main())


# --- threads --------------------------------------------------------------------------------------


def test_searches_see_one_state_while_others_write(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rng = random.Random(9)
    with Collection.create(tmp_path / "c", dim=3) as c:
        texts = [f"text {i}" for i in range(50)]
        c.add_vectors(range(50), _dense(50), texts, sparse=_sparse(*[{1: 1.0}] * 50))
        c.index_texts()
        failures: list[BaseException] = []
        stop = threading.Event()

        def search() -> None:
            while not stop.is_set():
                try:
                    hits = c.search_sparse(_sparse({1: 1.0}), 100)
                    # Every change keeps the number of rows that have the term.
                    assert len(hits) == 50, len(hits)
                    assert all(hit.score == 1.0 for hit in hits)
                    mixed = c.search([1, 0, 0], 100, text="text", hybrid=True,
                                     sparse=_sparse({1: 1.0}))  # fmt: skip
                    assert len(mixed) == 50, len(mixed)
                    assert all(hit.sparse_score == pytest.approx(1 / 3) for hit in mixed)
                except BaseException as error:
                    failures.append(error)
                    return

        threads = [threading.Thread(target=search) for _ in range(3)]
        for thread in threads:
            thread.start()
        for turn in range(60):
            some = sorted({rng.randrange(50) for _ in range(3)})
            new = _sparse(*[{1: 1.0, 2: float(turn)}] * len(some))
            if turn % 2:
                c.set_sparse(some, new)
            else:
                c.add_vectors(some, _dense(len(some)), ["text"] * len(some), sparse=new)
        stop.set()
        for thread in threads:
            thread.join()
        assert failures == []
    assert "read again" not in caplog.text


def test_a_view_that_memory_has_left_behind_is_renewed(tmp_path: Path) -> None:
    with Collection.create(tmp_path / "c", dim=3) as c:
        c.add_vectors([0], _dense(1), sparse=_sparse({1: 1.0}))

        def write() -> None:
            for i in range(1, 9):
                c.add_vectors([i], _dense(1), sparse=_sparse({1: 1.0}))
                c.search_sparse(_sparse({1: 1.0}))

        with access_of(c).reading():
            before = store_of(c).meta.state()
            writer = threading.Thread(target=write)
            writer.start()
            writer.join()
            assert store_of(c).meta.state() == before
            state = sparse_index_of(c).state()
            assert state.number == store_of(c).meta.state() == before + 8
            assert state.count == store_of(c).sparse.count == 9
