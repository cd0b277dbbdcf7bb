"""Hybrid searches: words and vectors together, and the full-text index."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from flowvec import (
    Collection,
    CollectionBusyError,
    Encoder,
    Hit,
    InputTypeError,
    InputValueError,
    Reranker,
)
from flowvec.collection.hybrid import fuse, query_terms, scaled
from flowvec.collection.store.store import FILE, Store
from flowvec.collection.store.writer_locks import WriterTurn
from flowvec.encoder.postprocess import normalize
from tests.inside import access_of, store_of
from tests.runtime.collection.conftest import SETTINGS


def test_a_hybrid_search_creates_the_index_beside_other_handles(
    tmp_path: Path, mini: Encoder
) -> None:
    with (
        Collection.create(tmp_path / "c", encoder=mini) as writer,
        Collection.open(tmp_path / "c", encoder=mini, write_timeout=0) as reader,
    ):
        writer.add(["a", "b"], ["a cat sleeps", "stocks fell"])
        with (
            access_of(writer).writing(),
            pytest.raises(CollectionBusyError, match=r"created now: .*written by"),
        ):
            reader.search("cat", hybrid=True)
        assert reader.search("cat", k=1, hybrid=True)[0].id == "a"  # it made the index
        writer.index_texts()  # which does nothing
        writer.add(["c"], ["a zyxwv sleeps"])
        assert reader.search("zyxwv", k=1, hybrid=True)[0].id == "c"


def test_a_hybrid_search_waits_for_the_full_text_index_of_another(
    tmp_path: Path, tiny: Encoder
) -> None:
    with Collection.create(tmp_path / "c", encoder=tiny) as c:
        c.add(list(range(20)), [f"a cat {i}" for i in range(20)])
    hit_counts: list[int] = []
    holder = WriterTurn(tmp_path / "c")
    holder.acquire(0)  # as one that makes the index

    def search() -> None:
        with Collection.open(tmp_path / "c", encoder=tiny) as other:
            hit_counts.append(len(other.search("a cat", k=3, hybrid=True)))

    thread = threading.Thread(target=search)
    thread.start()
    thread.join(0.5)
    assert thread.is_alive(), hit_counts
    holder.release()
    thread.join(60)
    assert hit_counts == [3]


def test_a_hybrid_query_is_plain_text() -> None:
    assert query_terms('The "cat" NEAR (dog) the Cat', "unicode61") == (
        ['"the"', '"cat"', '"near"', '"dog"', '"the"', '"cat"'],
        [],
    )
    assert query_terms("... !? \ud800", "unicode61") == ([], [])
    # An accent may be part of a letter or follow it; both are one word.
    assert query_terms("re\u0301sume\u0301 \u0130stanbul", "unicode61")[0] == [
        '"resume"',
        '"istanbul"',
    ]
    assert query_terms("हिन्दी, snake_case", "unicode61")[0] == ['"हिन्दी"', '"snake_case"']
    assert len(query_terms(" ".join(map(str, range(500))), "unicode61")[0]) == 500


def ranked(store: Store, query: str) -> list[int]:
    """Labels of the rows that share words with a query, best first."""
    terms, _ = query_terms(query, "unicode61")
    return list(store.full_text.search(" OR ".join(terms), 4))


def test_a_repeated_query_word_counts_twice_in_hybrid_searches(tmp_path: Path) -> None:
    texts = ["a cat sleeps here", "a dog sleeps here", "nothing of it at all", "nor of that"]
    with closing(Store(tmp_path / FILE, create=SETTINGS)) as store:
        rows = np.zeros((4, 3), np.float32)
        with store.transaction():
            store.upsert([*"abcd"], rows, texts, [None] * 4)
            store.full_text.build()
        for query, first in (("cat cat dog", 1), ("dog dog cat", 2), ("of the cat", 1)):
            assert ranked(store, query)[0] == first
        assert sorted(ranked(store, "the cat of it")) == [1, 3, 4]


@pytest.mark.parametrize("exact_below", [None, 1], ids=["exact", "graph"])
def test_pages_of_a_hybrid_search_are_parts_of_one_ranking(
    tmp_path: Path, mini: Encoder, exact_below: int | None
) -> None:
    subjects, verbs, rows = ("cat", "dog", "bird", "fish"), ("sleeps", "runs", "eats"), 1500
    texts = [f"{subjects[i % 4]} {verbs[i % 3]} number {i // 2}" for i in range(rows)]  # some twice
    with Collection.create(
        tmp_path / "c", encoder=mini, index="graph", exact_below=exact_below
    ) as c:
        c.add(list(range(rows)), texts)
        c.prepare()
        for weight in (0.0, 0.3, 0.5, 1.0):

            def search(k: int, offset: int = 0, **options: Any) -> list[Hit]:
                options |= {"hybrid": True, "vector_weight": weight}  # noqa: B023 - called here
                return c.search("cat number 77", k, offset=offset, **options)

            ranking = search(rows)
            assert sorted(hit.id for hit in ranking) == list(range(rows))
            assert all(a.score >= b.score for a, b in pairwise(ranking))
            for size, until in ((10, 120), (170, rows)):  # across the depth, too
                pages = [search(size, offset) for offset in range(0, until, size)]
                assert [hit for page in pages for hit in page][:rows] == ranking[: max(until, size)]
            least = ranking[25].score
            above = [hit for hit in ranking if hit.score >= least]
            assert search(rows, min_score=least) == above
            assert search(10, 20, min_score=least) == above[20:30]


def test_hybrid_scores_are_fused_as_documented() -> None:
    near, worded = {7: 0.9, 8: 0.6, 9: 0.4, 5: 0.2}, {9: 6.0, 5: 3.0}
    fused = fuse(near, [scaled(0.75, worded)], 9, least=0.4, self_score=1.0, vector_weight=0.25)
    assert [label for label, _ in fused] == [9, 5, 7, 8]
    assert dict(fused) == pytest.approx(
        {
            7: 0.25 * 5 / 6,
            8: 0.25 * 2 / 6,
            9: 0.75,
            5: 0.25 * -2 / 6 + 0.75 / 2,
        }
    )
    two = fuse(near, [scaled(0.75, worded)], 2, least=0.4, self_score=1.0, vector_weight=0.25)
    assert two == fused[:2]


@pytest.mark.parametrize(("scale", "shift"), [(0.1, 0.8), (30.0, -5.0)])
def test_the_range_of_scores_does_not_change_hybrid_ranks(scale: float, shift: float) -> None:
    near, worded = {1: 0.9, 2: 0.6, 3: 0.4}, {3: 2.0, 2: 1.0}
    given = scaled(0.5, worded)
    plain = fuse(near, [given], 3, least=0.4, self_score=1.0, vector_weight=0.5)
    other = {label: scale * score + shift for label, score in near.items()}
    moved = fuse(
        other, [given], 3, least=scale * 0.4 + shift, self_score=scale + shift, vector_weight=0.5
    )
    assert dict(moved) == pytest.approx(dict(plain))


def test_hybrid_fusion_accepts_no_rows_and_equal_scores() -> None:
    assert fuse({}, [], 3, least=0.0, self_score=1.0, vector_weight=0.5) == []
    assert fuse({1: 2.0, 2: 2.0}, [], 3, least=2.0, self_score=2.0, vector_weight=0.5) == [
        (1, 0.5), (2, 0.5),
    ]  # fmt: skip
    # All rows of the vector ranking equal the query; the words found one that does not.
    assert fuse({1: 2.0, 2: 2.0, 3: 0.5}, [{3: 0.5}], 3, least=2.0, self_score=2.0,
                vector_weight=0.5) == [(1, 0.5), (2, 0.5), (3, 0.5)]  # fmt: skip
    # An inner product may lie above the query's with itself.
    assert fuse({1: 9.0, 2: 1.0}, [], 1, least=1.0, self_score=2.0, vector_weight=1.0) == [(1, 1.0)]


@pytest.mark.parametrize("metric", ["cosine", "ip", "l2"])
def test_a_hybrid_score_combines_nearness_and_words(tmp_path: Path, tiny: Encoder, metric) -> None:
    """Including distant rows that have the words; there are more rows than candidates."""
    many = 650
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
        self_score = 0.0 if metric == "l2" else float(query @ query)
        least = np.sort(nearness)[-500]
        words = np.zeros(many)
        for label, score in store_of(c).full_text.search('"zyxwv" OR "row" OR "3"', 500).items():
            words[label - 1] = score
        for weight in (0.0, 0.3, 1.0):
            top = max(self_score, nearness.max())
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


@pytest.mark.parametrize("weight", [-0.1, 1.1, float("nan"), "half", True])
def test_an_invalid_hybrid_weight_is_refused(tmp_path: Path, tiny: Encoder, weight) -> None:
    with Collection.create(tmp_path / "c", encoder=tiny) as c:
        c.add(["a"], ["a cat"])
        with pytest.raises((InputValueError, InputTypeError), match="vector_weight"):
            c.search("cat", hybrid=True, vector_weight=weight)
        with pytest.raises((InputValueError, InputTypeError), match="vector_weight"):
            c.search(tiny.encode("cat"), vector_weight=weight)


def test_a_hybrid_search_finds_rows_with_the_words(tmp_path: Path, mini: Encoder) -> None:
    texts = ["Stocks fell on Monday.", "The zyxwv device is blue.", "A cat sleeps.", "A dog eats."]
    with Collection.create(tmp_path / "c", encoder=mini) as c:
        c.add(range(4), texts, [{"n": i} for i in range(4)])
        hits = c.search("zyxwv", k=4, hybrid=True)
        assert hits[0].id == 1
        assert len(hits) == 4
        assert 0.5 <= hits[0].score <= 1.0
        # The index follows rows that are added and deleted.
        c.add(["new"], ["Another zyxwv, and zyxwv again."])
        c.delete([1])
        assert [hit.id for hit in c.search("zyxwv", k=1, hybrid=True)] == ["new"]
        c.add(["new"], ["nothing of the kind"])
        assert c.search("zyxwv", 9, hybrid=True, vector_weight=0.0, min_score=1e-9) == []
        assert {hit.id for hit in c.search("cat", k=9, hybrid=True, filter={"n": {"<": 2}})} == {0}
        assert c.search_batch(["!", "cat"], 2, hybrid=True)[0]
        assert c.verify() == []
        with pytest.raises(InputValueError, match="needs a text"):
            c.search(np.ones(mini.dim), hybrid=True)
    with Collection.open(tmp_path / "c", encoder=mini) as c:
        assert c.search("cat", k=1, hybrid=True)[0].id == 2


@pytest.fixture
def notes(tmp_path: Path, tiny: Encoder) -> Iterator[Collection]:
    texts = [f"row {i}" for i in range(150)]
    texts[70] = "a zyxwv row"
    with Collection.create(tmp_path / "notes", encoder=tiny) as collection:
        collection.add(range(150), texts, [{"even": i % 2 == 0} for i in range(150)])
        yield collection


def test_a_vector_with_its_text_is_the_text(
    notes: Collection, tiny: Encoder, reranker: Reranker
) -> None:
    """And nothing is embedded: the collection has no Encoder."""
    queries = ["zyxwv row 3", "of the", ""]
    vectors = tiny.encode_query(queries)
    with Collection.open(notes.info().path) as plain:
        notes.index_texts()
        for options in (
            {"hybrid": True, "vector_weight": 0.3, "filter": {"even": True}},
            {"rerank": reranker, "rerank_from": 20},
            {"hybrid": True, "rerank": reranker},
        ):
            expected = notes.search_batch(queries, 7, **options)  # type: ignore[arg-type]
            assert plain.search_batch(vectors, 7, texts=queries, **options) == expected  # type: ignore[arg-type]
            for query, vector, hits in zip(queries, vectors, expected, strict=True):
                alone = plain.search(vector, 7, text=query, **options)  # type: ignore[arg-type]
                assert [hit.id for hit in alone] == [hit.id for hit in hits]
        assert plain.search_batch([], texts=[], hybrid=True) == []


def test_words_other_than_those_of_the_vector(notes: Collection, tiny: Encoder) -> None:
    vector = tiny.encode_query("row 3")
    hits = notes.search(vector, 1, text="zyxwv", hybrid=True, vector_weight=0.0)
    assert [hit.id for hit in hits] == [70]


def test_texts_that_are_of_no_use_are_refused(notes: Collection, tiny: Encoder) -> None:
    vectors = tiny.encode_query(["row 3", "row 4"])
    with pytest.raises(InputValueError, match=r"no words\. .*text="):
        notes.search(vectors[0], hybrid=True)
    with pytest.raises(InputValueError, match="hybrid=True or rerank"):
        notes.search(vectors[0], text="row 3")
    with pytest.raises(InputValueError, match="query holds texts"):
        notes.search("row 3", text="row 3", hybrid=True)
    with pytest.raises(InputValueError, match="queries holds texts"):
        notes.search_batch(["row 3"], texts=["row 3"], hybrid=True)
    with pytest.raises(InputValueError, match="1 texts for 2 queries"):
        notes.search_batch(vectors, texts=["row 3"], hybrid=True)
    with pytest.raises(InputTypeError, match=r"texts .*item 1 is int"):
        notes.search_batch(vectors, texts=["row 3", 4], hybrid=True)  # type: ignore[list-item]
    with pytest.raises(InputTypeError, match="texts must be a list"):
        notes.search_batch(vectors, texts="row 3", hybrid=True)
    with pytest.raises(InputTypeError, match="text must be a text, not bytes"):
        notes.search(vectors[0], text=b"row 3", hybrid=True)  # type: ignore[arg-type]
