"""MultiVectorEncoder: a text's vectors depend on the text alone, and it reranks a search."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest

from flowvec import (
    AsyncCollection,
    BundleError,
    Collection,
    Encoder,
    InputTypeError,
    InputValueError,
    MultiVectorEncoder,
    TokenIds,
    maxsim,
)
from flowvec.multi_vector.rows import expanded

TEXTS = ["the cat sleeps", "", "stocks fell, fast.", "a dog runs fast " * 9, "red", "x" * 300] * 3


@pytest.fixture(scope="module")
def model(multi_vector_dir: Path) -> MultiVectorEncoder:
    return MultiVectorEncoder.load(multi_vector_dir, provider="cpu", compute="float32", streams=2)


def same(a: list[np.ndarray], b: list[np.ndarray]) -> None:
    assert [len(x) for x in a] == [len(x) for x in b]
    for x, y in zip(a, b, strict=True):
        np.testing.assert_allclose(x, y, rtol=0, atol=1e-5)


def test_vectors_depend_on_the_text_alone(multi_vector_dir: Path, provider: str) -> None:
    with MultiVectorEncoder.load(multi_vector_dir, provider=provider, compute="float32") as model:
        queries, documents = model.encode_query(TEXTS), model.encode_document(TEXTS)
        same(queries, [model.encode_query(text) for text in TEXTS])
        same(documents, [model.encode_document(text) for text in TEXTS])
        same(documents, list(model.stream_documents(iter(TEXTS), max_batch_tokens=1)))
    assert {len(query) for query in queries} == {24}
    assert len({len(document) for document in documents}) > 3
    norms = [np.linalg.norm(row) for array in (*queries, *documents) for row in array]
    np.testing.assert_allclose(norms, 1.0, atol=1e-5)


def test_added_tokens_do_not_change_the_others(model: MultiVectorEncoder) -> None:
    """They are not attended to: a query's own tokens have the vectors that they have alone."""
    head = model.late_interaction
    ids = model.tokenize(["[Q] the cat sleeps"]).token_ids
    alone = model.run(ids, [_all(ids)])
    filled = expanded(ids, 24, head.expansion_token or 0, attended=False)
    (query,) = model.encode_query(["the cat sleeps"])
    np.testing.assert_allclose(model.run(filled, [_all(filled)]), query, atol=1e-5)
    np.testing.assert_allclose(query[: len(alone)], alone, atol=1e-5)
    seen = expanded(ids, 24, head.expansion_token or 0, attended=True)
    assert not np.allclose(model.run(seen, [_all(seen)])[: len(alone)], alone, atol=1e-3)


def _all(ids: TokenIds):
    from flowvec.encoder.batching import Batch

    return Batch(tuple(range(len(ids))), int(ids.lengths.max()))


def test_punctuation_has_no_vector_in_documents_only(model: MultiVectorEncoder) -> None:
    with_marks, without = model.encode_document(["red, cat.", "red cat"])
    assert len(with_marks) == len(without)
    ids = model.tokenize(["[Q] red, cat.", "[Q] red cat"]).token_ids
    assert ids.lengths[0] == ids.lengths[1] + 2


def test_a_ranking_is_that_of_maxsim(model: MultiVectorEncoder) -> None:
    documents = [text for text in TEXTS[:6] if text]
    scores = maxsim(model.encode_query("a fast cat"), model.encode_document(documents))[0]
    ranked = model.rank("a fast cat", documents, top_k=3, return_documents=True)
    assert [row["corpus_id"] for row in ranked] == np.argsort(-scores, kind="stable")[:3].tolist()
    assert ranked[0]["text"] == documents[ranked[0]["corpus_id"]]
    assert ranked[0]["score"] == pytest.approx(float(scores.max()), rel=1e-5)
    pairs = [(q, d) for d in documents for q in ("red", "a fast cat")]
    np.testing.assert_allclose(model.predict(pairs)[1::2], scores, rtol=1e-5)
    assert model.rank("red", []) == []


def test_it_sorts_the_hits_of_a_search_again(
    model: MultiVectorEncoder, tiny_dir: Path, tmp_path: Path
) -> None:
    texts = ["the cat sleeps", "a dog runs fast", "stocks fell", "a woman eats bread"]
    with (
        Encoder.load(tiny_dir, provider="cpu") as encoder,
        Collection.create(tmp_path / "c", encoder=encoder) as notes,
    ):
        notes.add(range(4), texts)
        hits = notes.search("a cat runs", 3, rerank=model)
        ranked = model.rank("a cat runs", texts, top_k=3)
        assert [hit.id for hit in hits] == [row["corpus_id"] for row in ranked]
        assert [hit.score for hit in hits] == pytest.approx([row["score"] for row in ranked])
        assert all(hit.search_score is not None for hit in hits)
        with pytest.raises(InputValueError, match="rerank needs a text"):
            notes.search(encoder.encode("a cat"), 3, rerank=model)


async def _search(folder: Path, encoder: Encoder, model: MultiVectorEncoder) -> list[object]:
    async with AsyncCollection.open(folder, encoder=encoder) as notes:
        return [hit.id for hit in await notes.search("a cat runs", 2, rerank=model)]


def test_it_does_so_in_asyncio_too(
    model: MultiVectorEncoder, tiny_dir: Path, tmp_path: Path
) -> None:
    import asyncio

    texts = ["the cat sleeps", "a dog runs fast", "stocks fell", "a woman eats bread"]
    with Encoder.load(tiny_dir, provider="cpu") as encoder:
        with Collection.create(tmp_path / "c", encoder=encoder) as notes:
            notes.add(range(4), texts)
            expected = [hit.id for hit in notes.search("a cat runs", 2, rerank=model)]
        assert asyncio.run(_search(tmp_path / "c", encoder, model)) == expected


def test_lengths_are_those_of_queries_and_of_documents(model: MultiVectorEncoder) -> None:
    long = "dog " * 200
    assert (len(model.encode_query(long)), len(model.encode_document(long))) == (24, 64)
    for encode, most in ((model.encode_query, 24), (model.encode_document, 64)):
        with pytest.raises(InputValueError, match=f"item 1 .* {most} tokens"):
            encode(["red", long], truncation="error")


def test_a_pickled_encoder_gives_the_same(model: MultiVectorEncoder) -> None:
    with pickle.loads(pickle.dumps(model)) as again:
        same(again.encode_query(TEXTS[:3]), model.encode_query(TEXTS[:3]))


def test_another_kind_is_refused_by_the_class_that_opens_it(
    multi_vector_dir: Path, tiny_dir: Path
) -> None:
    with pytest.raises(BundleError, match=r"multi-vector.*\.MultiVector"):
        Encoder.load(multi_vector_dir)
    with pytest.raises(BundleError, match=r"an embedder.*flowvec\.Encoder"):
        MultiVectorEncoder.load(tiny_dir)


def test_wrong_arguments(model: MultiVectorEncoder) -> None:
    assert model.encode_document([]) == []
    with pytest.raises(InputTypeError, match="item 1"):
        model.encode_query(["red", 1])
    with pytest.raises(InputTypeError, match="call encode_query or"):
        model.encode_query("red", is_query=True)  # type: ignore[call-arg]
    with pytest.raises(InputTypeError, match="query must be a str"):
        model.rank(1, ["red"])  # type: ignore[arg-type]
    with pytest.raises(InputValueError, match="activation"):
        model.predict([("red", "cat")], activation="sigmoid")
    with pytest.raises(InputTypeError, match="pairs"):
        model.predict("red")
