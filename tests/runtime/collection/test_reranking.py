"""The second stage of a search: a reranker sorts the best hits again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from flowvec import (
    Collection,
    Encoder,
    InputTypeError,
    InputValueError,
    Reranker,
    SharedReranker,
)
from tests.makers import texts_of

QUERY = "the red cat sleeps"


@pytest.fixture
def notes(tmp_path: Path, tiny: Encoder) -> Iterator[Collection]:
    texts = [text or "cat" for text in texts_of(120, seed=3)]
    with Collection.create(tmp_path / "notes", encoder=tiny) as collection:
        collection.add(range(120), texts, [{"even": i % 2 == 0} for i in range(120)])
        yield collection


def test_the_best_hits_are_sorted_by_the_reranker(notes: Collection, reranker: Reranker) -> None:
    first = notes.search(QUERY, 50)
    hits = notes.search(QUERY, 10, rerank=reranker)
    scores = reranker.predict([(QUERY, hit.text or "") for hit in first])
    best = np.argsort(-scores, kind="stable")[:10]
    assert [hit.id for hit in hits] == [first[i].id for i in best]
    np.testing.assert_allclose([hit.score for hit in hits], scores[best], atol=1e-5)
    assert [hit.search_score for hit in hits] == [first[i].score for i in best]
    assert [hit.metadata for hit in hits] == [first[i].metadata for i in best]


def test_only_so_many_hits_are_read(notes: Collection, reranker: Reranker) -> None:
    first = {hit.id for hit in notes.search(QUERY, 5)}
    assert {hit.id for hit in notes.search(QUERY, 5, rerank=reranker, rerank_from=5)} == first
    assert len(notes.search(QUERY, 20, rerank=reranker, rerank_from=5)) == 20


@pytest.mark.parametrize("options", [{"hybrid": True}, {"filter": {"even": True}}])
def test_with_the_other_options(
    notes: Collection, reranker: Reranker, options: dict[str, object]
) -> None:
    first = notes.search(QUERY, 30, **options)  # type: ignore[arg-type]
    hits = notes.search(QUERY, 30, rerank=reranker, rerank_from=30, **options)  # type: ignore[arg-type]
    assert {hit.id for hit in hits} == {hit.id for hit in first}
    assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)


def test_min_score_is_the_rerankers(notes: Collection, reranker: Reranker, tiny: Encoder) -> None:
    """All cosines are below it here."""
    opposite = -tiny.encode(QUERY)
    hits = notes.search(opposite, 50, text=QUERY, rerank=reranker)
    least = hits[4].score
    assert all(hit.search_score is not None and hit.search_score < least for hit in hits)
    kept = notes.search(opposite, 50, text=QUERY, rerank=reranker, min_score=least)
    assert [hit.id for hit in kept] == [hit.id for hit in hits if hit.score >= least]


def test_a_batch_is_each_query_by_itself(notes: Collection, reranker: Reranker) -> None:
    queries = [QUERY, "stocks fell", "a man eats bread"]
    together = notes.search_batch(queries, 7, rerank=reranker)
    for query, hits in zip(queries, together, strict=True):
        alone = notes.search(query, 7, rerank=reranker)
        assert [hit.id for hit in hits] == [hit.id for hit in alone]


def test_a_shared_reranker(notes: Collection, reranker: Reranker) -> None:
    with SharedReranker(reranker) as shared:
        hits = notes.search(QUERY, 5, rerank=shared)
    assert [h.id for h in hits] == [h.id for h in notes.search(QUERY, 5, rerank=reranker)]


def test_nothing_found(notes: Collection, reranker: Reranker) -> None:
    assert notes.search(QUERY, 5, filter={"even": None}, rerank=reranker) == []
    assert notes.search_batch([], 5, rerank=reranker) == []


def test_what_cannot_be_reranked_is_refused(
    notes: Collection, reranker: Reranker, tiny: Encoder
) -> None:
    with pytest.raises(InputValueError, match="cannot read a vector"):
        notes.search(np.ones(16), rerank=reranker)
    with pytest.raises(InputTypeError, match=r"load\('my-reranker'\)"):
        notes.search(QUERY, rerank="my-reranker")  # type: ignore[arg-type]
    with pytest.raises(InputTypeError, match=r"a Reranker or .*not Encoder"):
        notes.search(QUERY, rerank=tiny)  # type: ignore[arg-type]
    with pytest.raises(InputValueError, match="rerank_from"):
        notes.search(QUERY, rerank=reranker, rerank_from=0)


def test_a_row_without_a_text_is_named(tmp_path: Path, tiny: Encoder, reranker: Reranker) -> None:
    with Collection.create(tmp_path / "plain", encoder=tiny) as collection:
        collection.add_vectors(["a"], tiny.encode(["cat"]))
        with pytest.raises(InputValueError, match="row 'a' has no text"):
            collection.search("cat", rerank=reranker)
