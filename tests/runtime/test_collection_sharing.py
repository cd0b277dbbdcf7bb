"""A collection among threads and processes, and what keeps it in order."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import threading
import unicodedata
from collections.abc import Iterator, Sequence
from contextlib import closing
from datetime import UTC, date, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from flowvec import Collection, CollectionError, Encoder, InputTypeError, InputValueError, Item
from flowvec.collection.hybrid import fuse, match_expression
from flowvec.collection.index import vector_index as neighbours
from flowvec.collection.index.state import Cache
from flowvec.collection.store.filters import Condition
from flowvec.collection.store.store import FILE, Store
from flowvec.encoder.postprocess import normalize


def vectors(n: int, dim: int = 8, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(n, dim)).astype(np.float32)


@pytest.fixture
def small_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbours, "EXACT_BELOW", 50)


# --- one writer -----------------------------------------------------------------------------------


def test_a_second_writer_is_refused_at_once_and_may_read(tmp_path: Path) -> None:
    with Collection.create(tmp_path / "c", dim=8) as one:
        one.add_vectors([1], vectors(1))
        with Collection.open(tmp_path / "c") as other:
            for change in (lambda: other.add_vectors([2], vectors(1)), lambda: other.delete([1])):
                with pytest.raises(CollectionError, match="another handle of this process"):
                    change()
            assert len(other) == 1
            one.add_vectors([3], vectors(1, seed=3))
            assert len(other) == 2
    with Collection.open(tmp_path / "c") as other:
        other.add_vectors([2], vectors(1))
        assert len(other) == 3


WRITER = """
import sys, time
import numpy as np
from flowvec import Collection
c = Collection.open(sys.argv[1])
c.add_vectors(["theirs"], np.ones((1, 8)))
print("written", flush=True)
sys.stdin.readline()
c.close()
"""


@pytest.fixture
def another_process(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    Collection.create(tmp_path / "c", dim=8).close()
    child = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path / "c")],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert child.stdout is not None
    assert child.stdout.readline() == "written\n"
    yield child
    child.kill()
    child.communicate()


def test_the_writer_may_be_another_process(tmp_path: Path, another_process) -> None:
    with Collection.open(tmp_path / "c") as c:
        assert [hit.id for hit in c.search(np.ones(8))] == ["theirs"]
        with pytest.raises(CollectionError, match=f"by process {another_process.pid}"):
            c.add_vectors(["ours"], vectors(1))
        another_process.kill()  # it leaves nothing that must be cleared away
        another_process.wait(60)
        c.add_vectors(["ours"], vectors(1))
        assert len(c) == 2


def test_a_reader_leaves_saving_to_the_writer(tmp_path: Path, small_graphs) -> None:
    with Collection.create(tmp_path / "c", dim=8) as writer:
        writer.add_vectors(range(200), vectors(200))
        with Collection.open(tmp_path / "c") as reader:
            assert len(reader.search(vectors(1)[0])) == 10
        assert list((tmp_path / "c").glob("graph-*")) == []
        writer.search(vectors(1)[0])
    assert len(list((tmp_path / "c").glob("graph-*"))) == 1


def test_a_reader_takes_in_changes_without_reading_all_again(
    tmp_path: Path, small_graphs, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Collection.create(tmp_path / "c", dim=8) as writer:
        writer.add_vectors(range(300), vectors(300))
        with Collection.open(tmp_path / "c") as reader:
            reader.search(vectors(1)[0])
            monkeypatch.setattr(Cache, "built", lambda *_, **__: pytest.fail("it was built anew"))
            writer.delete(range(20))
            writer.add_vectors(["new"], vectors(1, seed=8))
            assert reader.search(vectors(1, seed=8)[0], k=1)[0].id == "new"
            found = {hit.id for hit in reader.search(vectors(1)[0], k=281)}
            assert found == {*range(20, 300), "new"}
            reader.refresh()
            assert len(reader) == 281


@pytest.mark.parametrize("rows", [30, 300])
def test_where_nothing_was_deleted_only_new_rows_are_read(
    tmp_path: Path, small_graphs, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    with Collection.create(tmp_path / "c", dim=8) as writer:
        writer.add_vectors(range(rows), vectors(rows))
        with Collection.open(tmp_path / "c") as reader:
            assert reader.search_ids(vectors(1), 1)[0][0]
            read: list[int] = []
            whole = Store.read

            def watched(self: Store, labels: Sequence[int]) -> dict[int, Item]:
                read.extend(labels)
                return whole(self, labels)

            monkeypatch.setattr(Store, "read", watched)
            monkeypatch.setattr(Store, "page", lambda *_: pytest.fail("all rows were read"))
            for n in range(3):
                writer.add_vectors([f"new {n}"], vectors(1, seed=8 + n))
                assert reader.search_ids(vectors(1, seed=8 + n), 1)[0] == [[f"new {n}"]]
                assert len(reader) == rows + 1 + n
            assert read == [rows + 1, rows + 2, rows + 3]


@pytest.mark.parametrize("sizes", [(150, 151, 190), (150, 600), (30, 150, 160)])
def test_ids_follow_however_many_rows_come(
    tmp_path: Path, small_graphs, sizes: tuple[int, ...]
) -> None:
    rows = vectors(sizes[-1])
    with Collection.create(tmp_path / "c", dim=8) as writer:
        writer.add_vectors(range(sizes[0]), rows[: sizes[0]])
        with Collection.open(tmp_path / "c") as reader:
            assert reader.search_ids(rows[:1], 1)[0] == [[0]]
            for before, after in pairwise(sizes):
                writer.add_vectors(range(before, after), rows[before:after])
                reader.refresh()
            assert reader.search_ids(rows, 1)[0] == [[i] for i in range(sizes[-1])]


def test_a_tuned_search_is_followed(tmp_path: Path, small_graphs) -> None:
    with Collection.create(tmp_path / "c", dim=8) as writer:
        writer.add_vectors(range(300), vectors(300))
        with Collection.open(tmp_path / "c") as reader:
            reader.search(vectors(1)[0])
            writer.tune_recall(0.2)
            assert reader.info().ef_search == writer.info().ef_search < 100


# --- filters asked again --------------------------------------------------------------------------


def test_a_filter_asked_again_follows_every_change(tmp_path: Path) -> None:
    wanted = {"kind": "x"}
    with Collection.create(tmp_path / "c", dim=8) as c, Collection.open(tmp_path / "c") as reader:
        expected: set[int] = set()
        for n in range(12):
            c.add_vectors([n], vectors(1, seed=n), metadata=[{"kind": "x" if n % 2 else "y"}])
            if n % 2:
                expected.add(n)
            if n % 4 == 3:
                c.delete([n - 2])
                expected.discard(n - 2)
            for handle in (c, reader, c, reader):
                assert {h.id for h in handle.search(vectors(1)[0], k=99, filter=wanted)} == expected


def test_a_filter_is_asked_once_until_something_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    labels = Store.labels

    def watched(self: Store, condition: Condition | None = None, after: int = 0) -> np.ndarray:
        if condition is not None:
            asked.append(condition.sql)
        return labels(self, condition, after)

    monkeypatch.setattr(Store, "labels", watched)
    with Collection.create(tmp_path / "c", dim=8) as c:
        c.add_vectors([1, 2], vectors(2), metadata=[{"n": 1}, {"n": 2}])
        for _ in range(5):
            assert [h.id for h in c.search(vectors(1)[0], filter={"n": 2})] == [2]
        assert len(asked) == 1
        for n in range(100):  # more than are kept
            c.search(vectors(1)[0], filter={"n": n})
        assert len(c._searcher._eligible) == 32


# --- many threads ---------------------------------------------------------------------------------


@pytest.mark.parametrize("exact_below", [50, 10_000])
def test_searches_go_on_while_another_thread_changes_everything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exact_below: int
) -> None:
    """What never changes is always found, and what is gone never is."""
    monkeypatch.setattr(neighbours, "EXACT_BELOW", exact_below)
    monkeypatch.setattr(neighbours, "_ADD_ROWS", 16)
    fixed = vectors(120, seed=1)
    wrong: list[str] = []
    stop = threading.Event()
    with Collection.create(tmp_path / "c", dim=8) as c:
        c.add_vectors([f"fixed-{i}" for i in range(120)], fixed)
        deleted: set[str] = set()

        def search(seed: int) -> None:
            rng = np.random.default_rng(seed)
            try:
                while not stop.is_set():
                    i = int(rng.integers(120))
                    gone = set(deleted)
                    hits = c.search(fixed[i], k=5)
                    if [hit.id for hit in hits][:1] != [f"fixed-{i}"]:
                        wrong.append(f"{i}: {hits[:1]}")
                    if len({hit.id for hit in hits}) != 5:
                        wrong.append(f"{len(hits)} hits, or twice the same")
                    if found := gone & {hit.id for hit in hits}:
                        wrong.append(f"deleted rows: {found}")
                    ids, scores = c.search_ids(fixed[i : i + 1], k=3)
                    if ids[0][0] != f"fixed-{i}" or scores.shape != (1, 3):
                        wrong.append(f"{ids}")
            except Exception as error:
                wrong.append(repr(error))

        threads = [threading.Thread(target=search, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for round_ in range(12):
            ids = [f"{round_}-{i}" for i in range(60)]
            c.add_vectors(ids, vectors(60, seed=100 + round_))
            c.delete(ids[:50])
            deleted.update(ids[:50])
            if round_ % 4 == 3:
                c.compact()
        stop.set()
        for thread in threads:
            thread.join(120)
        assert not wrong, wrong[:5]
        assert len(c) == 120 + 12 * 10
        assert len(c.search(fixed[0], k=1000)) == 240


# --- ids alone, smaller vectors -------------------------------------------------------------------


@pytest.mark.parametrize("rows", [40, 400])
def test_ids_alone_are_those_of_the_hits(tmp_path: Path, small_graphs, rows: int) -> None:
    queries = vectors(7, seed=5)
    with Collection.create(tmp_path / "c", dim=8) as c:
        c.add_vectors(range(rows), vectors(rows), metadata=[{"n": i} for i in range(rows)])
        for options in ({}, {"filter": {"n": {"<": 20}}}):
            for _ in range(2):
                hits = c.search_batch(queries, 6, **options)
                ids, scores = c.search_ids(queries, 6, **options)
                assert ids == [[hit.id for hit in line] for line in hits]
                expected = [[hit.score for hit in line] for line in hits]
                np.testing.assert_allclose(scores, expected, atol=1e-6)
                c.add_vectors(["new"], queries[:1])
                assert c.search_ids(queries[:1], 1)[0] == [["new"]]
                c.delete(["new"])
        assert c.search_ids(np.empty((0, 8)), 3)[0] == []


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
        with sqlite3.connect(tmp_path / dtype / FILE) as db:
            sizes[dtype] = db.execute("SELECT length(vector) FROM items").fetchone()[0]
            assert db.execute("PRAGMA user_version").fetchone()[0] == 2
    assert sizes == {"float32": 32, "float16": 16}
    with (
        Collection.create(tmp_path / "d", dim=2, vector_dtype="float16") as c,
        pytest.raises(InputValueError, match="65504"),
    ):
        c.add_vectors([1], [[1e5, 0]])
    with pytest.raises(InputValueError, match="vector_dtype"):
        Collection.create(tmp_path / "e", dim=2, vector_dtype="int8")  # type: ignore[arg-type]


# --- tables ---------------------------------------------------------------------------------------


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


# --- words ----------------------------------------------------------------------------------------


def test_words_are_asked_for_in_plain_text() -> None:
    assert match_expression('The "cat" NEAR (dog) the Cat') == '"cat" OR "NEAR" OR "dog" OR "Cat"'
    assert match_expression("To be, or NOT to be") == (
        '"To" OR "be" OR "or" OR "NOT" OR "to" OR "be"'  # there is nothing else
    )
    assert match_expression("... !?") is None
    # An accent may be part of a letter or follow it; both are one word.
    assert match_expression("re\u0301sume\u0301 \u0130stanbul") == '"résumé" OR "İstanbul"'
    assert match_expression("हिन्दी, snake_case") == '"हिन्दी" OR "snake_case"'
    assert match_expression(" ".join(map(str, range(500)))).count("OR") == 63


def test_a_word_that_is_asked_twice_counts_twice(tmp_path: Path) -> None:
    texts = ["a cat sleeps here", "a dog sleeps here", "nothing of it at all", "nor of that"]
    with closing(Store(tmp_path / FILE, create={})) as store:
        rows = np.zeros((4, 3), np.float32)
        with store.transaction():
            store.upsert([*"abcd"], rows, texts, [None] * 4)
            store.index_words()
        for query, first in (("cat cat dog", 1), ("dog dog cat", 2), ("of the cat", 1)):
            expression = match_expression(query)
            assert expression is not None
            assert next(iter(store.find_words(expression, 4))) == first
        # Nobody is found by words that are in all texts alone where others are asked for.
        assert list(store.find_words(match_expression("the cat of it") or "", 4)) == [1]


@pytest.mark.parametrize("text", ["résumé", "re\u0301sume\u0301", "İstanbul", "हिन्दी भाषा"])
@pytest.mark.parametrize("form", ["NFC", "NFD", "NFKC"])
def test_words_are_found_however_their_accents_are_written(
    tmp_path: Path, text: str, form: Any
) -> None:
    with closing(Store(tmp_path / FILE, create={})) as store:
        with store.transaction():
            store.upsert(["a", "b"], np.zeros((2, 3), np.float32), [text, "e r sum i stanbul"],
                         [None] * 2)  # fmt: skip
            store.index_words()
        for query in (text, text.upper(), text.lower()):
            expression = match_expression(unicodedata.normalize(form, query))
            assert list(store.find_words(expression or "", 4)) == [1]


def test_nearness_and_words_are_combined_as_said() -> None:
    near, worded = {7: 0.9, 8: 0.6, 9: 0.4, 5: 0.2}, {9: 6.0, 5: 3.0}
    found = fuse(near, worded, 9, least=0.4, own=1.0, vector_weight=0.25)
    assert [label for label, _ in found] == [9, 5, 7, 8]
    assert dict(found) == pytest.approx(
        {
            7: 0.25 * 5 / 6,
            8: 0.25 * 2 / 6,
            9: 0.75,
            5: 0.25 * -2 / 6 + 0.75 / 2,
        }
    )
    assert fuse(near, worded, 2, least=0.4, own=1.0, vector_weight=0.25) == found[:2]


@pytest.mark.parametrize(("scale", "shift"), [(0.1, 0.8), (30.0, -5.0)])
def test_what_a_models_scores_range_over_changes_nothing(scale: float, shift: float) -> None:
    near, worded = {1: 0.9, 2: 0.6, 3: 0.4}, {3: 2.0, 2: 1.0}
    plain = fuse(near, worded, 3, least=0.4, own=1.0, vector_weight=0.5)
    other = {label: scale * score + shift for label, score in near.items()}
    moved = fuse(other, worded, 3, least=scale * 0.4 + shift, own=scale + shift, vector_weight=0.5)
    assert dict(moved) == pytest.approx(dict(plain))


def test_fusing_bears_nothing_and_all_alike() -> None:
    assert fuse({}, {}, 3, least=0.0, own=1.0, vector_weight=0.5) == []
    assert fuse({1: 2.0, 2: 2.0}, {}, 3, least=2.0, own=2.0, vector_weight=0.5) == [
        (1, 0.5), (2, 0.5),
    ]  # fmt: skip
    # An inner product may lie above the query's with itself.
    assert fuse({1: 9.0, 2: 1.0}, {}, 1, least=1.0, own=2.0, vector_weight=1.0) == [(1, 1.0)]


@pytest.mark.parametrize("metric", ["cosine", "ip", "l2"])
def test_a_hybrid_score_is_nearness_and_words(tmp_path: Path, tiny: Encoder, metric) -> None:
    """Also of rows that have the words and are far: more rows than are looked at."""
    many = 150
    texts = [f"row {i}" for i in range(many)]
    texts[70], texts[71] = "zyxwv", "a text with zyxwv and ten other words that make it longer"
    with Collection.create(tmp_path / "c", encoder=tiny, metric=metric) as c:
        c.add(range(many), texts)
        c.index_texts()
        query = tiny.encode_query("zyxwv row 3")
        rows = tiny.encode_document(texts)
        if metric == "cosine":
            query, rows = normalize(query[None])[0], normalize(rows)
        nearness = -np.linalg.norm(rows - query, axis=1) if metric == "l2" else rows @ query
        own = 0.0 if metric == "l2" else float(query @ query)
        least = np.sort(nearness)[-100]
        words = np.zeros(many)
        for label, score in c._store.find_words(match_expression("zyxwv row 3") or "", 100).items():
            words[label - 1] = score
        for weight in (0.0, 0.3, 1.0):
            top = max(own, nearness.max())
            expected = (
                weight * (nearness - least) / (top - least) + (1 - weight) * words / words.max()
            )
            hits = c.search("zyxwv row 3", k=20, hybrid=True, vector_weight=weight)
            assert [hit.score for hit in hits] == pytest.approx(
                sorted(expected, reverse=True)[:20], abs=1e-4
            )
            assert [hit.score for hit in hits] == pytest.approx(
                [expected[cast(int, hit.id)] for hit in hits], abs=1e-4
            )


@pytest.mark.parametrize("weight", [-0.1, 1.1, float("nan"), "half", None, True])
def test_a_weight_that_is_no_share_is_refused(tmp_path: Path, tiny: Encoder, weight) -> None:
    with Collection.create(tmp_path / "c", encoder=tiny) as c:
        c.add(["a"], ["a cat"])
        with pytest.raises((InputValueError, InputTypeError), match="vector_weight"):
            c.search("cat", hybrid=True, vector_weight=weight)
        with pytest.raises((InputValueError, InputTypeError), match="vector_weight"):
            c.search(tiny.encode("cat"), vector_weight=weight)


def test_a_hybrid_search_finds_what_has_the_words(tmp_path: Path, mini: Encoder) -> None:
    texts = ["Stocks fell on Monday.", "The zyxwv device is blue.", "A cat sleeps.", "A dog eats."]
    with Collection.create(tmp_path / "c", encoder=mini) as c:
        c.add(range(4), texts, [{"n": i} for i in range(4)])
        hits = c.search("zyxwv", k=4, hybrid=True)
        assert hits[0].id == 1
        assert len(hits) == 4
        assert 0.5 <= hits[0].score <= 1.0
        # The index follows what comes and goes.
        c.add(["new"], ["Another zyxwv, and zyxwv again."])
        c.delete([1])
        assert [hit.id for hit in c.search("zyxwv", k=1, hybrid=True)] == ["new"]
        c.add(["new"], ["nothing of the kind"])
        assert c._store.find_words('"zyxwv"', 9) == {}
        assert {hit.id for hit in c.search("cat", k=9, hybrid=True, filter={"n": {"<": 2}})} == {0}
        assert c.search_batch(["!", "cat"], 2, hybrid=True)[0]
        assert c.verify() == []
        with pytest.raises(InputValueError, match="needs a text"):
            c.search(np.ones(mini.dim), hybrid=True)
    with Collection.open(tmp_path / "c", encoder=mini) as c:
        assert c.search("cat", k=1, hybrid=True)[0].id == 2


# --- upkeep ---------------------------------------------------------------------------------------


def test_compacting_takes_tombstones_out_and_keeps_every_row(tmp_path: Path, small_graphs) -> None:
    with Collection.create(tmp_path / "c", dim=8) as c:
        c.add_vectors(range(400), vectors(400))
        c.search(vectors(1)[0])
        c.delete(range(100))
        assert c.info().graph_rows == 400
        size = c.info().bytes
        c.compact()
        assert c.info().graph_rows == 300
        assert c.info().bytes < size
        assert {hit.id for hit in c.search(vectors(1)[0], k=400)} == set(range(100, 400))
        assert c.verify() == []
    with Collection.open(tmp_path / "c") as c:
        assert len(c.search(vectors(1)[0], k=400)) == 300


def test_recall_is_measured_and_kept(tmp_path: Path, small_graphs) -> None:
    with Collection.create(tmp_path / "c", dim=8) as c:
        c.add_vectors(range(30), vectors(30))
        assert c.tune_recall(0.99) == 1.0  # searched exactly
        c.add_vectors(range(30, 900), vectors(870, seed=1))
        assert c.info().recall is None or c.info().recall == 1.0
        low = c.tune_recall(0.3)
        first = c.info()
        high = c.tune_recall(0.99)
        second = c.info()
        assert first.recall == low >= 0.3
        assert second.recall == high >= 0.99
        assert first.ef_search <= second.ef_search
    with Collection.open(tmp_path / "c") as c:
        assert (c.info().ef_search, c.info().recall) == (second.ef_search, second.recall)
        assert len(c.search(vectors(1)[0], k=5)) == 5
        for wrong in (0, 1.1, float("nan")):
            with pytest.raises(InputValueError):
                c.tune_recall(wrong)


def test_verify_says_what_is_wrong(tmp_path: Path, small_graphs) -> None:
    with Collection.create(tmp_path / "c", dim=8) as c:
        c.add_vectors(range(200), vectors(200))
        c.search(vectors(1)[0])
    with Collection.open(tmp_path / "c") as c:
        assert c.verify() == []
    graph = next((tmp_path / "c").glob("graph-*"))
    data = bytearray(graph.read_bytes())
    data[500] ^= 1
    graph.write_bytes(data)
    (tmp_path / "c" / "stray.txt").write_text("x")
    with sqlite3.connect(tmp_path / "c" / FILE) as db:
        db.execute("UPDATE items SET text = 'x' WHERE label = 7")
    with Collection.open(tmp_path / "c") as c:
        problems = c.verify()
    assert len(problems) == 3
    assert "row 7 (id 6) does not match its checksum" in problems[0]
    assert "is damaged" in problems[1]
    assert "stray.txt is no part" in problems[2]


# --- Parquet --------------------------------------------------------------------------------------


def test_a_collection_goes_out_as_parquet_and_comes_back(tmp_path: Path, tiny: Encoder) -> None:
    pytest.importorskip("pyarrow", reason="needs the extra [files]")
    with Collection.create(tmp_path / "c", encoder=tiny, metric="ip") as c:
        c.add(["a", 1, "1", 2**70], ["x", "", "y \x00", "z"], [{"k": [1, None]}, None, {}, None])
        c.add_vectors(["no text"], vectors(1, tiny.dim))
        assert c.to_parquet(tmp_path / "c.parquet") == 5
        with Collection.from_parquet(tmp_path / "d", tmp_path / "c.parquet") as d:
            for one, other in zip(c.rows(), d.rows(), strict=True):
                assert (one.id, one.text, one.metadata) == (other.id, other.text, other.metadata)
                np.testing.assert_array_equal(one.vector, other.vector)
            assert d.info().metric == "ip"
            assert d.info().fingerprint == tiny.fingerprint
    with Collection.open(tmp_path / "d", encoder=tiny) as d:
        assert len(d.search("x", k=9)) == 5
    assert [p.name for p in tmp_path.glob("*.partial")] == []


def test_parquet_of_another_engines_making_is_read(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow", reason="needs the extra [files]")
    import pyarrow.parquet

    rows = vectors(3, 4)
    table = pa.table({"id": [10, 20, 30], "vector": rows.tolist(), "other": ["x", "y", "z"]})
    pyarrow.parquet.write_table(table, tmp_path / "t.parquet")
    with Collection.from_parquet(tmp_path / "c", tmp_path / "t.parquet", metric="l2") as c:
        assert [item.id for item in c.rows()] == [10, 20, 30]
        assert c.search(rows[1], k=1)[0].id == 20
    for columns, part in (
        ({"vector": rows.tolist()}, "no column 'id'"),
        ({"id": [1]}, "no column 'vector'"),
        ({"id": [1.5], "vector": [[1.0]]}, "row 0 has no id"),
        ({"id": [1, 2], "vector": [[1.0, 2.0], [1.0]]}, "no 2 numbers"),
        ({"id": [1], "vector": [[]]}, "holds no vectors"),
        ({"id": [1, 2, 3], "vector": [[1.0] * 4, [2.0] * 3, [3.0] * 5]}, "no 4 numbers"),
    ):
        pyarrow.parquet.write_table(pa.table(columns), tmp_path / "t.parquet")
        with pytest.raises(InputValueError, match=part):
            Collection.from_parquet(tmp_path / part.replace("'", ""), tmp_path / "t.parquet")
    (tmp_path / "t.parquet").write_text("nonsense")
    with pytest.raises(InputValueError, match="cannot read"):
        Collection.from_parquet(tmp_path / "z", tmp_path / "t.parquet")
