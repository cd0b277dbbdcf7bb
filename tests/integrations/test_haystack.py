"""Haystack: its own suites, and what they do not ask."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowvec import (
    Collection,
    Encoder,
    InputTypeError,
    InputValueError,
    MultiVectorEncoder,
    Reranker,
    SparseEncoder,
)

pytest.importorskip("haystack", reason="needs haystack, which has its environment")

from haystack import Document, Pipeline
from haystack.dataclasses import ByteStream, SparseEmbedding
from haystack.document_stores.errors import DuplicateDocumentError
from haystack.document_stores.types import DuplicatePolicy
from haystack.errors import FilterError
from haystack.testing import document_store as suite
from haystack.testing import document_store_async as async_suite
from haystack.utils.filters import document_matches_filter

from flowvec.integrations.filters import from_haystack
from flowvec.integrations.haystack import (
    FlowvecDocumentEmbedder,
    FlowvecDocumentStore,
    FlowvecEmbeddingRetriever,
    FlowvecHybridRetriever,
    FlowvecRanker,
    FlowvecSparseDocumentEmbedder,
    FlowvecSparseTextEmbedder,
    FlowvecTextEmbedder,
)
from tests.drawing import examples
from tests.runtime.collection.store.test_filters import found_by_sql

TEXTS = ["the cat sleeps", "a dog runs", "the red house", "the green garden"]


class OfAStore:
    """A store for each test. Embeddings are compared as float32, which they are kept as."""

    @pytest.fixture
    def document_store(self, tmp_path: Path) -> Iterator[FlowvecDocumentStore]:
        store = FlowvecDocumentStore(tmp_path / "c", embedding_dim=768)
        yield store
        store.close()

    @staticmethod
    def assert_documents_are_equal(received: list[Document], expected: list[Document]) -> None:
        def rounded(document: Document) -> dict[str, Any]:
            fields = document.to_dict(flatten=False)
            if document.embedding is not None:
                fields["embedding"] = np.asarray(document.embedding, np.float32).tolist()
            return fields

        assert [rounded(d) for d in received] == [rounded(d) for d in expected]


class TestStore(OfAStore, suite.DocumentStoreBaseExtendedTests):
    def test_write_documents(self, document_store: Any) -> None:
        document = Document(content="a text", meta={"n": 1})
        assert document_store.write_documents([document]) == 1
        self.assert_documents_are_equal(document_store.filter_documents(), [document])
        with pytest.raises(DuplicateDocumentError):
            document_store.write_documents([document])


class TestMetadata(
    OfAStore,
    suite.CountDocumentsByFilterTest,
    suite.CountUniqueMetadataByFilterTest,
    suite.GetMetadataFieldsInfoTest,
    suite.GetMetadataFieldMinMaxTest,
    suite.GetMetadataFieldUniqueValuesTest,
):
    pass


class TestAsyncStore(
    OfAStore,
    async_suite.CountDocumentsAsyncTest,
    async_suite.CountDocumentsByFilterAsyncTest,
    async_suite.DeleteAllAsyncTest,
    async_suite.DeleteByFilterAsyncTest,
    async_suite.DeleteDocumentsAsyncTest,
    async_suite.FilterDocumentsAsyncTest,
    async_suite.UpdateByFilterAsyncTest,
    async_suite.WriteDocumentsAsyncTest,
    suite.FilterableDocsFixtureMixin,
):
    async def test_write_documents_async(self, document_store: Any) -> None:
        document = Document(content="a text", meta={"n": 1})
        assert await document_store.write_documents_async([document]) == 1
        found = await document_store.filter_documents_async()
        self.assert_documents_are_equal(found, [document])
        with pytest.raises(DuplicateDocumentError):
            await document_store.write_documents_async([document])


@pytest.fixture
def store(tmp_path: Path, tiny: Encoder) -> Iterator[FlowvecDocumentStore]:
    """A store of four documents with embeddings, and one without."""
    made = FlowvecDocumentStore(tmp_path / "store")
    documents = [Document(id=str(n), content=t, meta={"n": n}) for n, t in enumerate(TEXTS)]
    embedded = FlowvecDocumentEmbedder(tiny).run(documents)["documents"]
    made.write_documents([*embedded, Document(id="bare", content="a bare garden", meta={"n": 9})])
    yield made
    made.close()


def ids(documents: list[Document]) -> list[str]:
    return [document.id for document in documents]


def both(component: Any, **inputs: Any) -> Any:
    """What `run` and `run_async` both return."""
    result = component.run(**inputs)
    again = asyncio.run(component.run_async(**inputs))
    assert result.keys() == again.keys()
    if "documents" in result:
        assert ids(result["documents"]) == ids(again["documents"])
    return result


# To Python, True is 1; to a collection, it is not.
VALUES = st.sampled_from([None, 0, 1, 2.5, "a", "b", "2024-01-02"])
ORDERED = st.sampled_from([0, 1, 2.5, -1])


def comparisons() -> Any:
    fields = st.sampled_from(["meta.a", "meta.b", "b", "meta.c.d"])
    return st.one_of(
        st.fixed_dictionaries({"field": fields, "operator": op, "value": values})
        for op, values in (
            (st.sampled_from(["==", "!="]), VALUES),
            (st.sampled_from(["in", "not in"]), st.lists(VALUES, max_size=3)),
        )
    ) | st.fixed_dictionaries(
        {"field": st.just("meta.number"), "operator": st.sampled_from([">", ">=", "<", "<="]),
         "value": ORDERED | st.none()}
    )  # fmt: skip


FILTERS = st.recursive(
    comparisons(),
    lambda inner: st.fixed_dictionaries(
        {
            "operator": st.sampled_from(["AND", "OR", "NOT"]),
            "conditions": st.lists(inner, max_size=3),
        }
    ),
    max_leaves=5,
)
METAS = st.fixed_dictionaries(
    {}, optional={"a": VALUES, "b": VALUES, "c": st.fixed_dictionaries({}, optional={"d": VALUES}),
                  "number": ORDERED},
)  # fmt: skip


@examples(300)
@given(wanted=FILTERS, metas=st.lists(METAS, min_size=1, max_size=5))
def test_filters_find_what_haystacks_own_function_finds(wanted: Any, metas: list[Any]) -> None:
    expected = [
        place
        for place, meta in enumerate(metas)
        if document_matches_filter(wanted, Document(content="", meta=meta))
    ]
    assert found_by_sql(from_haystack(wanted), metas) == expected


def test_documents_come_back_as_they_were(tmp_path: Path) -> None:
    documents = [
        Document(
            id="a", content="a text", meta={"n": 1, "made": {"by": ["x"]}}, embedding=[1.0, 2]
        ),
        Document(id="b", blob=ByteStream(b"\x00\xff", meta={"k": 1}, mime_type="image/png")),
        Document(id="c", content="", sparse_embedding=SparseEmbedding([1, 5], [0.5, 0.25])),
    ]
    store = FlowvecDocumentStore(tmp_path / "c")
    assert store.write_documents(documents) == 3
    assert store.filter_documents() == documents
    again = FlowvecDocumentStore.from_dict(store.to_dict())
    store.close()
    assert again.filter_documents() == documents
    assert again.filter_documents({"field": "id", "operator": "in", "value": ["b"]}) == [
        documents[1]
    ]
    again.close()


def test_the_first_embedding_tells_the_dimension(tmp_path: Path) -> None:
    store = FlowvecDocumentStore(tmp_path / "c")
    assert store.filter_documents() == store.search([1.0]) == []
    with pytest.raises(InputValueError, match="embedding_dim="):
        store.write_documents([Document(content="a")])
    assert not (tmp_path / "c").exists()
    store.write_documents([Document(content="a"), Document(content="b", embedding=[1.0, 2.0])])
    assert store.collection is not None
    assert store.collection.info().dim == 2
    with pytest.raises(InputValueError, match=r"3 dimensions; .* has 2"):
        store.write_documents([Document(content="c", embedding=[1.0, 2.0, 3.0])])
    with pytest.raises(InputValueError, match="_haystack"):
        store.write_documents([Document(content="c", meta={"_haystack": 1})])
    store.close()


def test_nothing_is_written_if_one_document_is_there(tmp_path: Path) -> None:
    store = FlowvecDocumentStore(tmp_path / "c", embedding_dim=2)
    one, two = Document(id="1", content="one"), Document(id="2", content="two")
    store.write_documents([one])
    for policy in (DuplicatePolicy.NONE, DuplicatePolicy.FAIL):
        with pytest.raises(DuplicateDocumentError, match="'1'"):
            store.write_documents([two, one], policy)
        with pytest.raises(DuplicateDocumentError, match="'2'"):
            store.write_documents([two, two], policy)
    assert store.filter_documents() == [one]
    assert store.write_documents([two, one, two], DuplicatePolicy.SKIP) == 1
    assert store.write_documents([two, two], DuplicatePolicy.OVERWRITE) == 2
    assert store.count_documents() == 2
    store.close()


def test_retrievers_search_the_collection(store: FlowvecDocumentStore, tiny: Encoder) -> None:
    collection = store.collection
    assert collection is not None
    embedding = both(FlowvecTextEmbedder(tiny), text="a garden")["embedding"]
    np.testing.assert_allclose(embedding, tiny.encode_query("a garden"), atol=1e-5)
    inputs = {"query_embedding": embedding}
    found = both(FlowvecEmbeddingRetriever(store), **inputs)["documents"]
    hits = collection.search(embedding, 4, filter={"$id": {"!=": "bare"}})
    assert [(d.id, d.score) for d in found] == [(hit.id, hit.score) for hit in hits]
    assert all(document.embedding is None for document in found)
    one = FlowvecEmbeddingRetriever(store, top_k=1, return_embedding=True)
    (best,) = both(one, **inputs)["documents"]
    item = collection.get([best.id])[0]
    assert item is not None
    assert best.embedding == item.vector.tolist()
    hybrid = FlowvecHybridRetriever(store, vector_weight=0.0, top_k=2)
    found = both(hybrid, query="garden", **inputs)["documents"]
    assert set(ids(found)) == {"3", "bare"}


def test_filters_of_a_run_replace_or_are_added(store: FlowvecDocumentStore) -> None:
    first = {"field": "meta.n", "operator": ">=", "value": 1}
    second = {"field": "id", "operator": "in", "value": ["0", "1", "2"]}
    inputs = {"query_embedding": [1.0] * 16, "filters": second}
    for policy, expected in (("replace", {"0", "1", "2"}), ("merge", {"1", "2"})):
        retriever = FlowvecEmbeddingRetriever(store, filters=first, filter_policy=policy)
        assert set(ids(both(retriever, **inputs)["documents"])) == expected
    with pytest.raises(FilterError, match="ISO 8601"):
        store.search([1.0] * 16, filters={"field": "n", "operator": "<", "value": "x"})


def test_a_ranker_sorts_documents(reranker: Reranker) -> None:
    documents = [Document(content=text, meta={"title": text[:5]}) for text in TEXTS]
    found = both(FlowvecRanker(reranker, top_k=3), query="a cat", documents=documents)["documents"]
    expected = reranker.rank("a cat", TEXTS, top_k=3)
    assert [d.content for d in found] == [TEXTS[row["corpus_id"]] for row in expected]
    assert [d.score for d in found] == [row["score"] for row in expected]
    assert all(document.score is None for document in documents)
    strict = FlowvecRanker(reranker, score_threshold=expected[0]["score"])
    assert len(strict.run("a cat", documents)["documents"]) == 1
    assert FlowvecRanker(reranker).run("a cat", []) == {"documents": []}
    titled = FlowvecRanker(reranker, meta_fields_to_embed=["title"], embedding_separator=" ")
    read = [f"{text[:5]} {text}" for text in TEXTS]
    best = reranker.rank("a cat", read)[0]
    assert titled.run("a cat", documents)["documents"][0].content == TEXTS[best["corpus_id"]]


def test_a_multi_vector_encoder_sorts_documents(
    multi_vector: MultiVectorEncoder, multi_vector_dir: Path
) -> None:
    documents = [Document(content=text) for text in TEXTS]
    expected = multi_vector.rank("a cat", TEXTS, top_k=3)
    named = FlowvecRanker(multi_vector_dir, top_k=3, load_options={"provider": "cpu"})
    named = FlowvecRanker.from_dict(named.to_dict())
    for ranker in (FlowvecRanker(multi_vector, top_k=3), named):
        found = both(ranker, query="a cat", documents=documents)["documents"]
        assert [d.content for d in found] == [TEXTS[row["corpus_id"]] for row in expected]
        scores = [document.score for document in found]
        assert scores == pytest.approx([row["score"] for row in expected], abs=1e-5)
    named.close()


def test_sparse_embedders_give_the_weights_of_the_model(
    tmp_path: Path, sparse_encoder: SparseEncoder, sparse_dir: Path
) -> None:
    documents = [Document(content=text, meta={"title": text[:5]}) for text in TEXTS]
    embedder = FlowvecSparseDocumentEmbedder(sparse_encoder)
    found = both(embedder, documents=documents)["documents"]
    expected = sparse_encoder.encode_document(TEXTS).as_dicts()
    assert [weights_of(document) for document in found] == expected
    assert all(document.sparse_embedding is None for document in documents)
    # A store keeps them.
    store = FlowvecDocumentStore(tmp_path / "c", embedding_dim=2)
    store.write_documents(found)
    kept = {document.content: weights_of(document) for document in store.filter_documents()}
    assert kept == dict(zip(TEXTS, expected, strict=True))
    store.close()
    options = {"provider": "cpu"}
    titled = FlowvecSparseDocumentEmbedder(sparse_dir, ["title"], " ", options)
    again = FlowvecSparseDocumentEmbedder.from_dict(titled.to_dict())
    read = [f"{text[:5]} {text}" for text in TEXTS]
    for document, weights in zip(
        again.run(documents)["documents"], sparse_encoder.encode(read).as_dicts(), strict=True
    ):
        assert weights_of(document) == pytest.approx(weights, abs=1e-5)
    again.close()
    pipeline = Pipeline()
    pipeline.add_component("embedder", FlowvecSparseTextEmbedder(sparse_dir, options))
    pipeline = Pipeline.loads(pipeline.dumps(), allowed_modules=["flowvec.integrations.*"])
    (made,) = pipeline.run({"embedder": {"text": "a cat"}}).values()
    (query,) = sparse_encoder.encode_query("a cat").as_dicts()
    embedding = made["sparse_embedding"]
    assert dict(zip(embedding.indices, embedding.values, strict=True)) == pytest.approx(query)
    assert both(FlowvecSparseTextEmbedder(sparse_encoder), text="a cat")["meta"]
    with pytest.raises(InputTypeError, match="FlowvecSparseDocumentEmbedder"):
        FlowvecSparseTextEmbedder(sparse_encoder).run(documents)  # type: ignore[arg-type]


def weights_of(document: Document) -> dict[int, float]:
    embedding = document.sparse_embedding
    assert embedding is not None
    return dict(zip(embedding.indices, embedding.values, strict=True))


def test_a_pipeline_can_be_written_and_read_again(
    store: FlowvecDocumentStore, tiny_dir: Path, reranker_dir: Path
) -> None:
    pipeline = Pipeline()
    options = {"provider": "cpu"}
    pipeline.add_component("embedder", FlowvecTextEmbedder(tiny_dir, options))
    pipeline.add_component("retriever", FlowvecHybridRetriever(store, top_k=3))
    pipeline.add_component("ranker", FlowvecRanker(reranker_dir, top_k=2, load_options=options))
    pipeline.connect("embedder.embedding", "retriever.query_embedding")
    pipeline.connect("retriever.documents", "ranker.documents")
    inputs = {"embedder": {"text": "a cat"}, "retriever": {"query": "a cat"},
              "ranker": {"query": "a cat"}}  # fmt: skip
    found = pipeline.run(inputs)["ranker"]["documents"]
    assert len(found) == 2
    again = Pipeline.loads(pipeline.dumps(), allowed_modules=["flowvec.integrations.*"])
    assert again.run(inputs)["ranker"]["documents"] == found
    data = FlowvecDocumentEmbedder(tiny_dir, ["title"], " ", options).to_dict()
    embedded = FlowvecDocumentEmbedder.from_dict(data).run([Document(content="a cat")])
    assert len(embedded["documents"][0].embedding) == 16
    assert embedded["meta"] == {"model": str(tiny_dir)}
    one = FlowvecEmbeddingRetriever(store, top_k=1)
    assert FlowvecEmbeddingRetriever.from_dict(one.to_dict()).to_dict() == one.to_dict()


def test_wrong_arguments_are_named(store: FlowvecDocumentStore, tiny: Encoder) -> None:
    with pytest.raises(InputTypeError, match="must be a FlowvecDocumentStore"):
        FlowvecEmbeddingRetriever("store")  # type: ignore[arg-type]
    with pytest.raises(InputTypeError, match="query_embedding"):
        FlowvecEmbeddingRetriever(store).run("cats")  # type: ignore[arg-type]
    with pytest.raises(InputTypeError, match="FlowvecDocumentEmbedder"):
        FlowvecTextEmbedder(tiny).run([Document(content="a")])  # type: ignore[arg-type]
    with pytest.raises(InputTypeError, match="a list of Documents"):
        FlowvecDocumentEmbedder(tiny).run(["a"])  # type: ignore[list-item]
    with Collection.open(store.to_dict()["init_parameters"]["collection"]) as collection:
        assert FlowvecDocumentStore(collection).count_documents() == 5


def test_dates_are_filtered_as_they_are_written(tmp_path: Path) -> None:
    store = FlowvecDocumentStore(tmp_path / "c", embedding_dim=2)
    days = [datetime(2024, 1, 2), datetime(2025, 1, 2)]
    store.write_documents([Document(content=str(d), meta={"on": d.isoformat()}) for d in days])
    for value in ("2024-06-01T00:00:00", datetime(2024, 6, 1)):
        found = store.filter_documents({"field": "meta.on", "operator": ">", "value": value})
        assert [d.content for d in found] == [str(days[1])]
    store.close()
