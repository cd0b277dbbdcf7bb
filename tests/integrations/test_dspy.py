"""DSPy: an embedder and a retriever, in real programs."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flowvec import Collection, CollectionError, Encoder

pytest.importorskip("dspy", reason="needs dspy, which has its environment")

import dspy

from flowvec.integrations.dspy import FlowvecEmbedder, FlowvecRetriever

TEXTS = ["the cat sleeps", "a dog runs", "the red house", "the green garden"]


@pytest.fixture
def library(tmp_path: Path, tiny: Encoder) -> Path:
    """A collection of four texts."""
    with Collection.create(tmp_path / "c", encoder=tiny) as collection:
        collection.add(list("abcd"), TEXTS, [{"n": n} for n in range(4)])
    return tmp_path / "c"


@pytest.fixture
def retriever(library: Path, tiny: Encoder) -> Iterator[FlowvecRetriever]:
    made = FlowvecRetriever(library, tiny, k=2)
    yield made
    made.close()


def test_vectors_are_the_encoders(tiny: Encoder, mini: Encoder) -> None:
    expected = tiny.encode(TEXTS)
    embedder = FlowvecEmbedder(tiny)
    assert isinstance(embedder, dspy.Embedder)
    for caching in (True, None):
        # DSPy's cache would give the vectors of the other model.
        assert FlowvecEmbedder(mini)(TEXTS, caching=caching).shape == (4, 384)
        found = embedder(TEXTS, batch_size=1, caching=caching)
        np.testing.assert_array_equal(found, expected)
        assert found.dtype == np.float32
        np.testing.assert_allclose(
            asyncio.run(embedder.acall(TEXTS, caching=caching)), expected, atol=1e-5
        )
    np.testing.assert_array_equal(embedder(TEXTS[0]), tiny.encode(TEXTS[0]))
    queries = FlowvecEmbedder(tiny, prompt_name="query")
    np.testing.assert_array_equal(queries(TEXTS), tiny.encode_query(TEXTS))
    np.testing.assert_array_equal(
        queries(TEXTS, prompt_name=""), tiny.encode(TEXTS, prompt_name="")
    )
    assert copy.deepcopy(embedder) is embedder
    embedder.close()


def test_dspys_own_retriever_finds_what_exact_search_finds(tiny: Encoder) -> None:
    search = dspy.Embeddings(TEXTS, FlowvecEmbedder(tiny), k=3)
    vectors = tiny.encode(TEXTS, normalize_embeddings=True)
    query = tiny.encode("a dog", normalize_embeddings=True)
    found = search("a dog")
    assert found.indices == np.argsort(-(vectors @ query))[:3].tolist()


def test_a_retriever_gives_what_the_collection_finds(
    retriever: FlowvecRetriever, library: Path, tiny: Encoder
) -> None:
    with Collection.open(library, encoder=tiny) as collection:
        hits = collection.search("a dog", 2)
        found = retriever("a dog")
        assert found.passages == [hit.text for hit in hits]
        assert found.ids == [hit.id for hit in hits]
        assert found.scores == [hit.score for hit in hits]
        assert found.metadata == [hit.metadata for hit in hits]
        assert asyncio.run(retriever.acall("a dog")).ids == found.ids
        chosen: dict[str, Any] = {"filter": {"n": {">=": 2}}, "hybrid": True}
        expected = [hit.id for hit in collection.search("a garden", 9, **chosen)]
        assert retriever("a garden", k=9, **chosen).ids == expected
        assert FlowvecRetriever(collection, k=9, **chosen)("a garden").ids == expected


def test_a_retriever_is_part_of_a_program(retriever: FlowvecRetriever, tmp_path: Path) -> None:
    class Answers(dspy.Module):
        def __init__(self) -> None:
            super().__init__()
            self.search = retriever

        def forward(self, question: str) -> Any:
            return dspy.Prediction(answer=self.search(question).passages[0])

    program = Answers()
    assert program(question="the green garden").answer == TEXTS[3]
    again = program.deepcopy()
    again.search.k = 1
    again.save(tmp_path / "program.json")
    assert len(again.search("a dog").ids) == 1
    assert len(retriever("a dog").ids) == 2
    assert again.search.collection is retriever.collection
    program.load(tmp_path / "program.json")
    assert len(retriever("a dog").ids) == 1


def test_a_retriever_needs_a_collection(tmp_path: Path, tiny: Encoder) -> None:
    retriever = FlowvecRetriever(tmp_path / "none", tiny)
    with pytest.raises(CollectionError, match=r"none is not a collection"):
        retriever("a dog")
