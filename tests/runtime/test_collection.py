"""Promises of the Collection."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from flowvec import (
    ClosedError,
    Collection,
    CollectionError,
    CorruptCollectionError,
    Encoder,
    FingerprintMismatchError,
    Hit,
    InputTypeError,
    InputValueError,
)
from flowvec.collection.index import vector_index as neighbours
from flowvec.collection.index.state import Cache
from flowvec.vectors import Metric, top_k

TEXTS = ["the cat sleeps", "a dog runs", "stocks fell", "a man eats bread"]


def vectors(n: int, dim: int = 8, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((n, dim), dtype=np.float32)


@pytest.fixture
def small_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let collections of more than 50 rows use a graph."""
    monkeypatch.setattr(neighbours, "EXACT_BELOW", 50)


# --- texts ----------------------------------------------------------------------------------------


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


def test_another_model_is_refused(tmp_path: Path, tiny: Encoder, nan_dir: Path) -> None:
    Collection.create(tmp_path / "c", encoder=tiny).close()
    Collection.create(tmp_path / "v", dim=16).close()
    Collection.create(tmp_path / "w", dim=3).close()
    with Encoder.load(nan_dir, provider="cpu") as other:
        with pytest.raises(FingerprintMismatchError, match="nan is another model"):
            Collection.open(tmp_path / "c", encoder=other)
        # Plain vectors may have been made by any model of their length.
        Collection.open(tmp_path / "v", encoder=other).close()
        with pytest.raises(FingerprintMismatchError, match="3 dimensions"):
            Collection.open(tmp_path / "w", encoder=other)


def test_the_first_texts_decide_whose_vectors_a_plain_collection_holds(
    tmp_path: Path, tiny: Encoder, nan_dir: Path
) -> None:
    Collection.create(tmp_path / "c", dim=16).close()
    with Encoder.load(nan_dir, provider="cpu") as other:
        with Collection.open(tmp_path / "c", encoder=other) as late:
            with Collection.open(tmp_path / "c", encoder=tiny) as c:
                c.add([1], ["the cat"])
                assert c.info().fingerprint == tiny.fingerprint
            with pytest.raises(FingerprintMismatchError):
                late.add([2], ["a dog"])
            assert len(late) == 1
        with pytest.raises(FingerprintMismatchError):
            Collection.open(tmp_path / "c", encoder=other)


def test_another_compute_type_warns(tmp_path: Path, tiny: Encoder, caplog) -> None:
    with Collection.create(tmp_path / "c", encoder=tiny) as c, c._store.transaction():
        c._store.write_settings({"compute": "bfloat16"})
    assert not caplog.records
    Collection.open(tmp_path / "c", encoder=tiny).close()
    assert "made in bfloat16 and is now used in float32" in caplog.text


def test_lone_surrogates_are_replaced(tmp_path: Path, tiny: Encoder) -> None:
    with Collection.create(tmp_path / "c", encoder=tiny) as c:
        c.add(["a"], ["the \ud800 cat"], [{"raw": "\ud800"}])
        hit = c.search("\udfff", k=1)[0]
        assert hit.text == "the \ufffd cat"
        assert hit.metadata == {"raw": "\ud800"}


# --- ids ------------------------------------------------------------------------------------------


def test_ids_are_kept_apart_by_type_and_of_any_size(tmp_path: Path) -> None:
    ids = [1, "1", -1, 2**63, 10**30, "", "é", "a b/c"]
    with Collection.create(tmp_path / "c", dim=8) as c:
        c.add_vectors(ids, vectors(len(ids)))
        assert len(c) == len(ids)
        for i, vector in enumerate(vectors(len(ids))):
            found = c.search(vector, k=1)[0].id
            assert (found, type(found)) == (ids[i], type(ids[i]))
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
def test_a_bare_text_is_no_list_of_ids(tmp_path: Path, ids, tiny: Encoder) -> None:
    with Collection.create(tmp_path / "c", encoder=tiny) as c:
        with pytest.raises(InputTypeError, match="ids must be a list"):
            c.add(ids, ["x", "y", "z"])
        with pytest.raises(InputTypeError, match="texts must be a list"):
            c.add([1, 2, 3], "abc")  # type: ignore[arg-type]
        for method in (c.delete, c.get):
            with pytest.raises(InputTypeError, match="ids must be a list"):
                method(ids)


# --- searching ------------------------------------------------------------------------------------


def test_a_search_gives_min_k_n_hits_best_first(tmp_path: Path) -> None:
    with Collection.create(tmp_path / "c", dim=8) as c:
        assert c.search(vectors(1)[0], k=5) == []
        c.add_vectors(range(30), vectors(30))
        for k in (0, 1, 29, 30, 31, 1000):
            hits = c.search(vectors(1, seed=4)[0], k=k)
            assert len(hits) == min(k, 30)
            assert len({hit.id for hit in hits}) == len(hits)
            assert [h.score for h in hits] == sorted((h.score for h in hits), reverse=True)
        assert c.search_batch(np.empty((0, 8)), k=3) == []
        assert c.search_batch([], k=3) == []


def test_min_score_drops_the_rest(tmp_path: Path) -> None:
    with Collection.create(tmp_path / "c", dim=2) as c:
        c.add_vectors(["same", "half", "other"], [[1, 0], [1, 1], [0, 1]])
        assert [h.id for h in c.search([2, 0], k=3, min_score=0.5)] == ["same", "half"]
        assert c.search([1, 0], min_score=1.1) == []


@pytest.mark.parametrize(
    ("metric", "scores"),
    [
        ("cosine", {"a": 1.0, "b": 0.6, "c": 0.0}),
        ("ip", {"a": 2.0, "b": 3.0, "c": 0.0}),
        ("l2", {"a": -1.0, "b": -np.sqrt(20), "c": -np.sqrt(2)}),
    ],
)
def test_scores_are_the_metrics(tmp_path: Path, metric, scores) -> None:
    with Collection.create(tmp_path / "c", dim=2, metric=metric) as c:
        c.add_vectors(["a", "b", "c"], [[2, 0], [3, 4], [0, 1]])
        hits = c.search([1, 0], k=3)
        assert {hit.id: pytest.approx(hit.score, abs=1e-6) for hit in hits} == scores
        assert [hit.id for hit in hits] == sorted(scores, key=lambda i: -scores[i])
    with Collection.open(tmp_path / "c") as c:
        item = c.get(["b"])[0]
        assert item is not None
        assert item.vector.tolist() == [3, 4]  # kept as given


def test_a_zero_vector_scores_zero_under_cosine(tmp_path: Path) -> None:
    with Collection.create(tmp_path / "c", dim=2) as c:
        c.add_vectors(["zero", "one"], [[0, 0], [1, 0]])
        assert [(h.id, h.score) for h in c.search([1, 0])] == [("one", 1.0), ("zero", 0.0)]


@pytest.mark.parametrize(
    ("query", "k", "error"),
    [
        ([1.0], 1, InputValueError),
        ([[1.0, 2.0]], 1, InputValueError),
        ([1.0, float("nan")], 1, InputValueError),
        ([1.0, float("inf")], 1, InputValueError),
        ([1e30, 0.0], 1, InputValueError),
        (["a", None], 1, InputTypeError),
        ({"a": 1}, 1, InputTypeError),
        ([1.0, 2.0], -1, InputValueError),
        ([1.0, 2.0], 1.5, InputTypeError),
        ([1.0, 2.0], True, InputTypeError),
    ],
)
def test_a_query_that_cannot_be_served_is_refused(tmp_path: Path, query, k, error) -> None:
    with Collection.create(tmp_path / "c", dim=2) as c:
        c.add_vectors([1], [[1, 0]])
        with pytest.raises(error):
            c.search(query, k=k)
        assert len(c.search([1, 0])) == 1


# --- adding ---------------------------------------------------------------------------------------


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


def test_a_sum_over_rows_that_overflows_is_no_fault_of_theirs(tmp_path: Path) -> None:
    with Collection.create(tmp_path / "c", dim=2, metric="l2") as c:
        c.add_vectors([1, 2, 3], [[1.5e19, 0], [0, 1.5e19], [1.5e19, 1]])
        assert [hit.id for hit in c.search(np.array([1.5e19, 0], np.float32), k=1)] == [1]
        with pytest.raises(InputValueError, match="row 1 of vectors"):
            c.add_vectors([4, 5], [[1.5e19, 0], [float("nan"), 1]])


def test_adding_nothing_is_nothing(tmp_path: Path, tiny: Encoder) -> None:
    with Collection.create(tmp_path / "c", encoder=tiny) as c:
        c.add([], [])
        c.add_vectors([], [])
        c.add_vectors([], np.empty((0, 16)))
        assert c.delete([]) == 0
        assert len(c) == 0


# --- files ----------------------------------------------------------------------------------------


def test_create_refuses_what_is_not_empty(tmp_path: Path) -> None:
    Collection.create(tmp_path / "c", dim=2).close()
    with pytest.raises(CollectionError, match="not empty"):
        Collection.create(tmp_path / "c", dim=2)
    (tmp_path / "file").write_text("x")
    with pytest.raises(CollectionError, match="cannot create"):
        Collection.create(tmp_path / "file", dim=2)


@pytest.mark.parametrize(
    "options",
    [{}, {"dim": 0}, {"dim": -1}, {"dim": 8.0}, {"dim": 2, "metric": "hamming"}, {"dim": True}],
)
def test_create_refuses_impossible_options(tmp_path: Path, options) -> None:
    kind = InputTypeError if type(options.get("dim", 0)) is not int else InputValueError
    with pytest.raises(kind):
        Collection.create(tmp_path / "c", **options)
    assert not (tmp_path / "c" / "collection.sqlite").exists()


def test_open_refuses_what_is_no_collection(tmp_path: Path) -> None:
    with pytest.raises(CollectionError, match="no collection"):
        Collection.open(tmp_path)
    with pytest.raises(CollectionError, match="no collection"):
        Collection.open(tmp_path / "nowhere")


def test_a_closed_collection_refuses_work(tmp_path: Path) -> None:
    c = Collection.create(tmp_path / "c", dim=2)
    c.close()
    c.close()
    for call in (lambda: c.search([1, 0]), lambda: len(c), lambda: c.get([1]), c.info):
        with pytest.raises(ClosedError):
            call()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_child_is_told_to_open_again(python) -> None:
    code = """
import os, threading, time, warnings
warnings.simplefilter("ignore")
from flowvec import Collection, CollectionError
began = threading.Event()
def hold(c):  # another thread is writing, and in the child it never ends
    with c._turn:
        began.set()
        time.sleep(600)
c = Collection.create("c", dim=2)
c.add_vectors([1], [[1, 0]])
threading.Thread(target=hold, args=(c,), daemon=True).start()
began.wait()
child = os.fork()
if child == 0:
    for use in (lambda: c.search([1, 0]), lambda: c.add_vectors([2], [[1, 0]]), c.compact):
        try:
            use()
        except CollectionError as error:
            if "open it again" not in str(error):
                os._exit(8)
        else:
            os._exit(9)
    c.close()
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""
    done = python(code)
    assert done.returncode == 0, done.stderr


def test_a_damaged_row_is_a_typed_error_never_a_wrong_row(tmp_path: Path) -> None:
    with Collection.create(tmp_path / "c", dim=2) as c:
        c.add_vectors([1, 2], [[1, 0], [0, 1]], ["one", "two"])
        c._store._db.execute("UPDATE items SET text = 'tvo' WHERE label = 2")
    with Collection.open(tmp_path / "c") as c:
        with pytest.raises(CorruptCollectionError, match="row 2"):
            c.get([2])
        with pytest.raises(CorruptCollectionError, match="row 2"):
            c.search([1, 0])


@pytest.mark.parametrize(
    "change",
    [
        "DELETE FROM meta WHERE key = 'dim'",
        "UPDATE meta SET value = 'many' WHERE key = 'dim'",
        "UPDATE meta SET value = 'hamming' WHERE key = 'metric'",
        "UPDATE meta SET value = '' WHERE key = 'M'",
    ],
)
def test_damaged_settings_are_a_typed_error(tmp_path: Path, change: str) -> None:
    with Collection.create(tmp_path / "c", dim=2) as c:
        c._store._db.execute(change)
    with pytest.raises(CorruptCollectionError, match="meta"):
        Collection.open(tmp_path / "c")


@pytest.mark.parametrize("rows", [5, 200])
def test_another_handle_sees_what_was_committed(tmp_path: Path, small_graphs, rows: int) -> None:
    with (
        Collection.create(tmp_path / "c", dim=8) as writer,
        Collection.open(tmp_path / "c") as reader,
    ):
        assert reader.search(vectors(1)[0]) == []
        writer.add_vectors(range(rows), vectors(rows))
        assert len(reader.search(vectors(1)[0], k=1000)) == len(reader) == rows
        writer.delete(range(rows - 2))
        writer.add_vectors(["new"], vectors(1, seed=8))
        assert reader.search(vectors(1, seed=8)[0], k=1)[0].id == "new"
        assert len(reader.search(vectors(1)[0], k=1000)) == len(reader) == 3
        assert reader.get([0]) == [None]


def test_info_tells_what_it_is(tmp_path: Path, tiny: Encoder) -> None:
    with Collection.create(tmp_path / "c", encoder=tiny) as c:
        c.add([1], ["a"])
        info = c.info()
    assert (info.rows, info.dim, info.metric, info.search) == (1, 16, "cosine", "exact")
    assert (info.model, info.compute) == (str(tiny.bundle.path), "float32")
    assert info.bytes > 0


# --- graphs ---------------------------------------------------------------------------------------


@pytest.mark.usefixtures("small_graphs")
def test_a_large_collection_uses_its_graph_and_keeps_recall(tmp_path: Path) -> None:
    rows = vectors(400)
    queries = vectors(40, seed=9)
    with Collection.create(tmp_path / "c", dim=8) as c:
        c.add_vectors(range(300), rows[:300])
        c.search(queries[0])  # builds the graph, which later adds must follow
        c.add_vectors(range(300, 400), rows[300:])
        c.delete(range(0, 400, 7))
        assert c.info().search == "hnsw"
        assert c.info().graph_rows == 400
        before = [[h.id for h in hits] for hits in c.search_batch(queries, k=5)]
    assert [p.name for p in (tmp_path / "c").glob("graph-*")] == ["graph-1.hnsw"]
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    live = [i for i in range(400) if i % 7]
    exact = [{live[j] for j in np.argsort(-(unit[live] @ q))[:5]} for q in queries]
    recall = np.mean([len(set(a) & b) / 5 for a, b in zip(before, exact, strict=True)])
    assert recall >= 0.99
    with Collection.open(tmp_path / "c") as c:
        after = [[h.id for h in hits] for hits in c.search_batch(queries, k=5)]
        assert c.info().graph_rows == 400  # loaded, not rebuilt
        assert after == before


@pytest.mark.usefixtures("small_graphs")
@pytest.mark.parametrize("metric", ["cosine", "ip", "l2"])
def test_an_exact_search_misses_nothing(tmp_path: Path, metric: Metric) -> None:
    rng = np.random.default_rng(0)
    rows, queries = (rng.normal(size=(n, 24)).astype(np.float32) for n in (3000, 20))
    with Collection.create(tmp_path / "c", dim=24, metric=metric) as c:
        c.add_vectors(range(3000), rows, metadata=[{"half": i % 2} for i in range(3000)])
        assert c.info().search == "hnsw"
        left, right = (
            (a / np.linalg.norm(a, axis=1, keepdims=True) if metric == "cosine" else a)
            for a in (queries, rows)
        )
        for condition, stride in ((None, 1), ({"half": 0}, 2)):
            best, _ = top_k(left, right[::stride], 10, metric)
            true = (best * stride).tolist()
            if condition is None:  # a filter fetches more, and may well miss none
                assert c.search_ids(queries, 10, ef=10)[0] != true
            assert c.search_ids(queries, 10, filter=condition, exact=True)[0] == true
            found = c.search_batch(queries, 10, filter=condition, exact=True)
            assert [[hit.id for hit in line] for line in found] == true
            one = c.search(queries[0], 10, filter=condition, exact=True)
            assert [hit.id for hit in one] == true[0]


def test_how_far_a_search_goes_is_its_own(tmp_path: Path) -> None:
    """Searches with other `ef` at the same time give what each gives alone."""
    rows, queries = vectors(4000, 24), vectors(30, 24, seed=1)
    with Collection.create(tmp_path / "c", dim=24, metric="ip", exact_below=0) as c:
        c.add_vectors(range(4000), rows, metadata=[{"half": i % 2} for i in range(4000)])
        efs = (1, 10, 40, 400)
        alone = {ef: c.search_ids(queries, 10, ef=ef)[0] for ef in efs}
        true = c.search_ids(queries, 10, exact=True)[0]
        recalls = [np.mean([x == y for x, y in zip(alone[ef], true, strict=True)]) for ef in efs]
        assert recalls[0] == recalls[1] < recalls[2] < recalls[3]  # ten are asked for in any case
        assert alone[400] != alone[10]
        assert c.search_ids(queries, 10)[0] == c.search_ids(queries, 10, ef=c.info().ef_search)[0]
        with ThreadPoolExecutor(4) as pool:
            found = list(
                pool.map(
                    lambda ef: (ef, c.search_ids(queries, 10, ef=ef)[0]), [*efs * 25], chunksize=1
                )
            )
        assert all(ids == alone[ef] for ef, ids in found)
        for ef in (10, 400):
            batch = c.search_batch(queries, 10, ef=ef)
            assert [[hit.id for hit in line] for line in batch] == alone[ef]
            assert [hit.id for hit in c.search(queries[0], 10, ef=ef)] == alone[ef][0]
            assert len(c.search(queries[0], 5000, ef=ef)) == 4000
            assert len(c.search(queries[0], 10, ef=ef, filter={"half": 1})) == 10


def test_a_search_goes_no_further_than_there_are_rows(tmp_path: Path) -> None:
    with Collection.create(tmp_path / "c", dim=8, exact_below=0) as c:
        c.add_vectors(range(20), vectors(20))
        c.delete(range(15))
        assert c.info().search == "hnsw"
        for k in (1, 5, 9):
            assert len(c.search(vectors(1)[0], k, ef=1000)) == min(k, 5)


def test_up_to_how_many_rows_a_search_is_exact_is_the_callers(tmp_path: Path) -> None:
    with Collection.create(tmp_path / "c", dim=8, exact_below=60) as c:
        c.add_vectors(range(60), vectors(60))
        assert c.info().search == "exact"
        c.add_vectors([60], vectors(1))
        assert c.info().search == "hnsw"
    with Collection.open(tmp_path / "c") as c:
        assert c.info().search == "exact"
    with Collection.open(tmp_path / "c", exact_below=0) as c:
        assert c.info().search == "hnsw"
    with Collection.open_or_create(tmp_path / "c", dim=8, exact_below=0) as c:
        assert c.info().search == "hnsw"


@pytest.mark.usefixtures("small_graphs")
def test_an_exact_search_is_exact_however_much_another_handle_has_added(tmp_path: Path) -> None:
    rows, queries = vectors(3000, 24), vectors(20, 24, seed=1)
    with Collection.create(tmp_path / "c", dim=24, metric="ip") as c:
        c.add_vectors(range(40), rows[:40])
        with Collection.open(tmp_path / "c") as reader:
            assert reader.info().search == "exact"
            c.add_vectors(range(40, 3000), rows[40:])
            c.tune_recall(0.01)  # the graph is searched as little as can be from now on
            true = top_k(queries, rows, 10, "ip")[0].tolist()
            assert reader.search_ids(queries, 10, exact=True)[0] == true
            assert reader.search_ids(queries, 10)[0] != true


@pytest.mark.usefixtures("small_graphs")
@pytest.mark.parametrize("damage", ["flip", "cut", "missing", "link", "swapped", "stale"])
def test_a_damaged_graph_file_is_never_used(tmp_path: Path, damage: str, caplog) -> None:
    folder = tmp_path / "c"
    rows = vectors(200)
    with Collection.create(folder, dim=8) as c:
        c.add_vectors(range(200), rows)
        expected = [h.id for h in c.search(rows[3], k=10)]
    file = folder / "graph-1.hnsw"
    data = bytearray(file.read_bytes())
    if damage == "flip":
        data[len(data) // 2] ^= 4
        file.write_bytes(data)
    elif damage == "cut":
        file.write_bytes(data[:-8])
    elif damage == "missing":
        file.unlink()
    elif damage == "link":
        file.rename(tmp_path / "elsewhere")
        file.symlink_to(tmp_path / "elsewhere")
    elif damage == "swapped":
        file.write_bytes(bytes(len(data)))
    with Collection.open(folder) as c:
        if damage == "stale":
            # Rows added after the file was written, by a process that was killed before saving.
            c.add_vectors(range(200, 260), vectors(60, seed=5))
            assert c.search(vectors(60, seed=5)[0], k=1)[0].id == 200
        else:
            assert [h.id for h in c.search(rows[3], k=10)] == expected
            assert "rebuilt from the store" in caplog.text
        assert len(c.search(rows[3], k=1000)) == len(c)
    with Collection.open(folder) as c:
        assert c.search(rows[3], k=1)[0].id == 3


@pytest.mark.usefixtures("small_graphs")
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize("metric", ["ip", "l2", "cosine"])
def test_a_graph_keeps_recall_and_scores_at_any_scale(tmp_path: Path, metric, scale) -> None:
    rows, queries = vectors(400) * np.float32(scale), vectors(20, seed=3) * np.float32(scale)
    with Collection.create(tmp_path / "c", dim=8, metric=metric) as c:
        c.add_vectors(range(400), rows)
        for _ in range(2):  # built, then loaded
            found = c.search_batch(queries, k=5)
            c.close()
            c = Collection.open(tmp_path / "c")
        c.close()
    a, b = rows.astype(np.float64), queries.astype(np.float64)
    if metric == "cosine":
        a /= np.linalg.norm(a, axis=1, keepdims=True)
        b /= np.linalg.norm(b, axis=1, keepdims=True)
    exact = b @ a.T if metric != "l2" else -np.linalg.norm(b[:, None] - a[None], axis=2)
    recall = [
        len({h.id for h in hits} & set(np.argsort(-line)[:5].tolist())) / 5
        for hits, line in zip(found, exact, strict=True)
    ]
    assert np.mean(recall) >= 0.98
    for hits, line in zip(found, exact, strict=True):
        scores = [hit.score for hit in hits]
        expected = [line[hit.id] for hit in hits]
        np.testing.assert_allclose(scores, expected, atol=2e-6 * np.abs(exact).max())


@pytest.mark.usefixtures("small_graphs")
@pytest.mark.parametrize(
    "damage", ["file = 7", "file = '../graph-1.hnsw'", "bytes = 'x'", "M = 'x'", "max_label = 10"]
)
def test_a_damaged_record_of_a_graph_is_never_followed(tmp_path: Path, damage: str) -> None:
    with Collection.create(tmp_path / "c", dim=8) as c:
        c.add_vectors(range(200), vectors(200))
        expected = [h.id for h in c.search(vectors(1)[0], k=10)]
    with Collection.open(tmp_path / "c") as c:
        c._store._db.execute(f"UPDATE snapshots SET {damage}")
    with Collection.open(tmp_path / "c") as c:
        assert [h.id for h in c.search(vectors(1)[0], k=10)] == expected
        assert len(c.search(vectors(1)[0], k=1000)) == 200


@pytest.mark.usefixtures("small_graphs")
def test_a_record_that_claims_rows_its_graph_lacks_is_not_believed(tmp_path: Path, caplog) -> None:
    with Collection.create(tmp_path / "c", dim=8) as c:
        c.add_vectors(range(200), vectors(200))
        c.search(vectors(1)[0])
    with Collection.open(tmp_path / "c") as c:
        c.add_vectors(["new"], vectors(1, seed=8))
        c._store._db.execute("UPDATE snapshots SET max_label = 1000000")
    with Collection.open(tmp_path / "c") as c:
        assert c.search(vectors(1, seed=8)[0], k=1)[0].id == "new"
    assert "lacks rows" in caplog.text


@pytest.mark.usefixtures("small_graphs")
def test_a_graph_of_mostly_tombstones_is_rebuilt(tmp_path: Path) -> None:
    with Collection.create(tmp_path / "c", dim=8) as c:
        c.add_vectors(range(400), vectors(400))
        c.search(vectors(1)[0])
        c.delete(range(150))
        assert c.info().graph_rows == 400
        c.delete(range(150, 250))
        assert len(c.search(vectors(1)[0], k=1000)) == 150  # by the old one, until the new is there
        c._neighbours._rebuilding.wait()
        assert c.info().graph_rows == 150
        assert {h.id for h in c.search(vectors(1)[0], k=140)} <= set(range(250, 400))


@pytest.mark.usefixtures("small_graphs")
def test_an_add_that_the_graph_cannot_follow_is_still_an_add(tmp_path: Path, monkeypatch) -> None:
    with Collection.create(tmp_path / "c", dim=8) as c:
        c.add_vectors(range(200), vectors(200))
        c.search(vectors(1)[0])

        def fail(*_: object) -> None:
            raise MemoryError("no room")

        monkeypatch.setattr(neighbours.Graph, "add", fail)
        c.add_vectors(["new"], vectors(1, seed=8))
        monkeypatch.undo()
        monkeypatch.setattr(neighbours, "EXACT_BELOW", 50)
        assert len(c) == 201
        assert c.search(vectors(1, seed=8)[0], k=1)[0].id == "new"


@pytest.mark.usefixtures("small_graphs")
def test_a_graph_is_not_saved_as_holding_rows_of_another_handle(tmp_path: Path, caplog) -> None:
    with Collection.create(tmp_path / "c", dim=8) as c:
        c.add_vectors(range(200), vectors(200))
    late = Collection.open(tmp_path / "c")
    late.search(vectors(1)[0])  # builds the graph, and will save it
    with Collection.open(tmp_path / "c") as other:
        other.add_vectors(["new"], vectors(1, seed=8))
    late.close()
    assert len(list((tmp_path / "c").glob("graph-*"))) == 1
    with Collection.open(tmp_path / "c") as c:
        assert c.search(vectors(1, seed=8)[0], k=1)[0].id == "new"
    assert "lacks rows" not in caplog.text


@pytest.mark.usefixtures("small_graphs")
def test_the_newest_two_graph_files_are_kept(tmp_path: Path) -> None:
    for n in (1, 2, 3, 4):
        opener = Collection.create if n == 1 else Collection.open
        options = {"dim": 8} if n == 1 else {}
        with opener(tmp_path / "c", **options) as c:
            c.add_vectors([f"{n}-{i}" for i in range(100)], vectors(100, seed=n))
            c.search(vectors(1)[0])
            assert [snapshot.n for snapshot in c._store.snapshots()] == [*range(n - 1, 0, -1)][:2]
        names = {file.name for file in (tmp_path / "c").glob("graph-*")}
        assert names == {f"graph-{i}.hnsw" for i in (n - 1, n) if i}


@pytest.mark.usefixtures("small_graphs")
def test_the_older_graph_serves_where_the_newer_is_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in (1, 2):
        opener = Collection.create if n == 1 else Collection.open
        options = {"dim": 8, "metric": "ip"} if n == 1 else {}
        with opener(tmp_path / "c", **options) as c:
            c.add_vectors([f"{n}-{i}" for i in range(100)], vectors(100, seed=n))
            c.delete([f"{n}-0"])
            c.search(vectors(1)[0])
    (tmp_path / "c" / "graph-2.hnsw").write_bytes(b"nonsense")
    monkeypatch.setattr(Cache, "built", lambda *_, **__: pytest.fail("it was built anew"))
    with Collection.open(tmp_path / "c") as c:
        found = {hit.id for hit in c.search(vectors(1)[0], k=198)}
        assert found == {f"{n}-{i}" for n in (1, 2) for i in range(1, 100)}


@pytest.mark.usefixtures("small_graphs")
def test_k_above_what_a_graph_reaches_is_searched_exactly(tmp_path: Path) -> None:
    with Collection.create(tmp_path / "c", dim=8) as c:
        c.add_vectors(range(200), vectors(200))
        c.search(vectors(1)[0])
        c.delete(range(90))
        assert len(c.search(vectors(1)[0], k=500)) == 110
        c.delete(range(90, 149))
        assert len(c.search(vectors(1)[0], k=500)) == 51
        c.delete(range(149, 199))
        assert [h.id for h in c.search(vectors(1)[0], k=500)] == [199]


def test_many_threads_take_turns(tmp_path: Path) -> None:
    with Collection.create(tmp_path / "c", dim=8) as c, ThreadPoolExecutor(8) as pool:
        c.add_vectors(range(100), vectors(100))

        def work(i: int) -> None:
            if i % 4 == 0:
                c.add_vectors([1000 + i], vectors(1, seed=i))
            elif i % 4 == 1:
                c.delete([i])
            else:
                assert len(c.search(vectors(1, seed=i)[0], k=5)) == 5

        list(pool.map(work, range(200)))
        assert len(c) == 100 + 50 - 25


# --- a model in the sense of testing --------------------------------------------------------------

IDS = st.one_of(st.integers(-2, 8), st.sampled_from(["1", "2", "x", "é"]))
VECTOR = st.lists(st.integers(-3, 3), min_size=2, max_size=2)


class CollectionAgainstADict(RuleBasedStateMachine):
    """Any sequence of calls, with reopening, against a dict and a sort."""

    @initialize()
    def start(self) -> None:
        import tempfile

        self.folder = tempfile.TemporaryDirectory()
        self.path = Path(self.folder.name) / "c"
        self.collection = Collection.create(self.path, dim=2, metric="ip")
        self.rows: dict[tuple[type, object], tuple[list[int], str | None]] = {}

    @rule(rows=st.lists(st.tuples(IDS, VECTOR, st.one_of(st.none(), st.text(max_size=3)))))
    def add(self, rows) -> None:
        ids, vecs, texts = [list(x) for x in zip(*rows, strict=True)] if rows else ([], [], [])
        self.collection.add_vectors(ids, vecs, texts)
        for i, v, t in rows:
            clean = (
                None
                if t is None
                else t.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
            )
            self.rows[type(i), i] = (v, clean)

    @rule(ids=st.lists(IDS))
    def delete(self, ids) -> None:
        expected = {(type(i), i) for i in ids} & self.rows.keys()
        assert self.collection.delete(ids) == len(expected)
        for key in expected:
            del self.rows[key]

    @rule(query=VECTOR, k=st.integers(0, 12))
    def search(self, query, k) -> None:
        hits: list[Hit] = self.collection.search(query, k=k)
        scores = sorted((float(np.dot(v, query)) for v, _ in self.rows.values()), reverse=True)
        # A graph scales vectors, so that its scores are rounded.
        assert [hit.score for hit in hits] == pytest.approx(scores[:k], abs=1e-4)
        assert len({(type(h.id), h.id) for h in hits}) == len(hits)
        for hit in hits:
            vector, text = self.rows[type(hit.id), hit.id]
            assert float(np.dot(vector, query)) == pytest.approx(hit.score, abs=1e-4)
            assert text == hit.text

    @rule(graph=st.booleans())
    def reopen(self, graph: bool) -> None:
        neighbours.EXACT_BELOW = 3 if graph else 10_000
        self.collection.close()
        self.collection = Collection.open(self.path)

    @invariant()
    def size(self) -> None:
        if hasattr(self, "collection"):
            assert len(self.collection) == len(self.rows)

    def teardown(self) -> None:
        neighbours.EXACT_BELOW = 10_000
        if hasattr(self, "collection"):
            self.collection.close()
            self.folder.cleanup()


TestAgainstADict = CollectionAgainstADict.TestCase
TestAgainstADict.settings = settings(max_examples=40, stateful_step_count=15, deadline=None)
