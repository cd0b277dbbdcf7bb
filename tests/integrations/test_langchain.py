"""LangChain: its own suites, and what they do not ask."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flowvec import (
    BundleError,
    ClosedError,
    Collection,
    CollectionError,
    Encoder,
    FingerprintMismatchError,
    InputTypeError,
    InputValueError,
    MultiVectorEncoder,
    Reranker,
)

pytest.importorskip("langchain_tests", reason="needs langchain, which has its environment")

from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.indexing import InMemoryRecordManager, index
from langchain_core.retrievers import BaseRetriever
from langchain_tests.integration_tests import (
    EmbeddingsIntegrationTests,
    RetrieversIntegrationTests,
    VectorStoreIntegrationTests,
)
from langchain_tests.unit_tests import EmbeddingsUnitTests

from flowvec.integrations.langchain import (
    FlowvecEmbeddings,
    FlowvecReranker,
    FlowvecRetriever,
    FlowvecVectorStore,
)

TEXTS = ["the cat sleeps", "a dog runs", "the red house", "the green garden"]


class TestEmbeddingsUnit(EmbeddingsUnitTests):
    @property
    def embeddings_class(self) -> type[FlowvecEmbeddings]:
        return FlowvecEmbeddings


class TestEmbeddings(EmbeddingsIntegrationTests):
    @property
    def embeddings_class(self) -> type[FlowvecEmbeddings]:
        return FlowvecEmbeddings


class TestVectorStore(VectorStoreIntegrationTests):
    """With vectors of another library's embeddings."""

    @pytest.fixture
    def vectorstore(self, tmp_path: Path) -> Iterator[FlowvecVectorStore]:
        store = FlowvecVectorStore(tmp_path / "c", self.get_embeddings())
        yield store
        store.close()


class TestVectorStoreOfAnEncoder(VectorStoreIntegrationTests):
    """With flowvec's embeddings."""

    @pytest.fixture
    def vectorstore(self, tmp_path: Path, mini: Encoder) -> Iterator[FlowvecVectorStore]:
        store = FlowvecVectorStore(tmp_path / "c", FlowvecEmbeddings(mini))
        yield store
        store.close()


class TestRetriever(RetrieversIntegrationTests):
    @pytest.fixture(autouse=True)
    def _store(self, store: FlowvecVectorStore) -> None:
        self.store = store

    @property
    def retriever_constructor(self) -> type[BaseRetriever]:
        return FlowvecRetriever

    @property
    def retriever_constructor_params(self) -> dict[str, Any]:
        return {"vectorstore": self.store}

    @property
    def retriever_query_example(self) -> str:
        return "a cat"


@pytest.fixture
def store(tmp_path: Path, tiny: Encoder) -> Iterator[FlowvecVectorStore]:
    """A store of four texts."""
    made = FlowvecVectorStore.from_texts(
        TEXTS,
        FlowvecEmbeddings(tiny),
        [{"n": n, "place": {"indoors": n == 2}} for n in range(4)],
        ids=list("abcd"),
        collection=tmp_path / "store",
    )
    yield made
    made.close()


def ids(documents: list[Document]) -> list[str | None]:
    return [document.id for document in documents]


def both(store: FlowvecVectorStore, method: str, *args: Any, **options: Any) -> Any:
    """What a method and its asynchronous twin both return."""
    result = getattr(store, method)(*args, **options)
    again = asyncio.run(getattr(store, f"a{method}")(*args, **options))
    pairs = zip(result, again, strict=True)
    if result and isinstance(result[0], tuple):
        assert all(a[0] == b[0] and a[1] == pytest.approx(b[1], abs=1e-5) for a, b in pairs)
    else:
        assert result == again
    return result


def test_searches_are_those_of_the_collection(
    store: FlowvecVectorStore, tiny: Encoder, reranker: Reranker
) -> None:
    collection = store.collection
    assert collection is not None
    for options in (
        {}, {"filter": {"n": {"$gte": 1}}}, {"filter": {"place.indoors": True}}, {"hybrid": True},
        {"filter": {"or": [{"n": 0}, {"n": 3}]}, "exact": True}, {"rerank": reranker},
    ):  # fmt: skip
        native = {**options, "filter": {"n": {">=": 1}}} if "$gte" in str(options) else options
        hits = collection.search("a cat", 3, **native)
        pairs = both(store, "similarity_search_with_score", "a cat", 3, **options)
        assert [(p[0].id, p[0].page_content, p[0].metadata) for p in pairs] == [
            (hit.id, hit.text, hit.metadata) for hit in hits
        ]
        assert [score for _, score in pairs] == pytest.approx([hit.score for hit in hits], abs=1e-5)
        assert [pair[0] for pair in pairs] == both(
            store, "similarity_search", "a cat", 3, **options
        )
    vector = tiny.encode_query("a cat").tolist()
    assert ids(both(store, "similarity_search_by_vector", vector, 2)) == ids(
        store.similarity_search("a cat", 2)
    )
    assert both(store, "get_by_ids", ["c", "none", "a"]) == [
        Document(id="c", page_content=TEXTS[2], metadata={"n": 2, "place": {"indoors": True}}),
        Document(id="a", page_content=TEXTS[0], metadata={"n": 0, "place": {"indoors": False}}),
    ]


def test_diverse_documents_are_those_of_the_collection(
    store: FlowvecVectorStore, tiny: Encoder
) -> None:
    collection = store.collection
    assert collection is not None
    options: dict[str, Any] = {"k": 3, "fetch_k": 4, "lambda_mult": 0.1}
    method = "max_marginal_relevance_search"
    expected = [hit.id for hit in collection.search_mmr("a cat", **options)]
    assert ids(both(store, method, "a cat", **options)) == expected
    vector = tiny.encode_query("a cat").tolist()
    assert ids(both(store, f"{method}_by_vector", vector, **options)) == expected
    found = both(store, method, "a cat", filter={"n": {"$lt": 2}})
    assert set(ids(found)) == {"a", "b"}


def test_a_hybrid_search_reads_the_text_beside_foreign_vectors(
    tmp_path: Path, reranker: Reranker
) -> None:
    store = FlowvecVectorStore(tmp_path / "c", DeterministicFakeEmbedding(size=6))
    store.add_texts(TEXTS, ids=list("abcd"))
    options = {"hybrid": True, "vector_weight": 0.0}
    for query, wanted in (("garden", "d"), ("red", "c")):
        assert ids(both(store, "similarity_search", query, 1, **options)) == [wanted]
    (document, score), *_ = both(
        store, "similarity_search_with_score", "who sleeps?", 4, rerank=reranker
    )
    best = reranker.rank("who sleeps?", TEXTS)[0]
    assert document.page_content == TEXTS[best["corpus_id"]]
    assert score == pytest.approx(best["score"], abs=1e-5)
    store.close()


@pytest.mark.parametrize("metric", ["cosine", "l2"])
def test_relevance_is_from_0_to_1_and_sorts_as_scores_do(tmp_path: Path, metric: str) -> None:
    store = FlowvecVectorStore(tmp_path / "c", DeterministicFakeEmbedding(size=6), metric=metric)
    store.add_texts(TEXTS)
    pairs = both(store, "similarity_search_with_relevance_scores", TEXTS[1], 4)
    scores = [score for _, score in pairs]
    assert pairs[0][0].page_content == TEXTS[1]
    assert scores[0] == pytest.approx(1, abs=1e-3)
    assert all(0 <= score <= 1 for score in scores)
    assert scores == sorted(scores, reverse=True)
    threshold = {"score_threshold": 0.9}
    retriever = store.as_retriever(
        search_type="similarity_score_threshold", search_kwargs=threshold
    )
    assert [d.page_content for d in retriever.invoke(TEXTS[1])] == [TEXTS[1]]
    store.close()


def test_inner_products_have_no_relevance(tmp_path: Path) -> None:
    with Collection.create(tmp_path / "c", dim=6, metric="ip") as collection:
        store = FlowvecVectorStore(collection, DeterministicFakeEmbedding(size=6))
        with pytest.raises(InputValueError, match="no bounds"):
            store.similarity_search_with_relevance_scores("a")


def test_retrievers_take_options_of_a_search(store: FlowvecVectorStore) -> None:
    retriever = store.as_retriever(k=2, search_kwargs={"filter": {"n": {"$ne": 0}}})
    assert len(retriever.invoke("a cat")) == 2
    assert len(retriever.invoke("a cat", k=9)) == 3
    assert ids(retriever.invoke("a cat", filter={"n": 0})) == ["a"]
    assert ids(store.as_retriever(search_type="mmr", k=1).invoke("a cat")) == ids(
        store.similarity_search("a cat", 1)
    )
    assert len(asyncio.run(store.as_retriever(search_kwargs={"k": 1}).ainvoke("a cat"))) == 1


def test_documents_are_deleted_by_id_and_by_filter(store: FlowvecVectorStore) -> None:
    collection = store.collection
    assert collection is not None
    store.delete(["a", "none"])
    assert collection.ids() == ["b", "c", "d"]
    asyncio.run(store.adelete(filter={"n": {"$gt": 2}}))
    assert collection.ids() == ["b", "c"]
    store.delete()
    assert len(collection) == 0


def test_the_collection_is_created_by_the_first_documents(tmp_path: Path, tiny: Encoder) -> None:
    path = tmp_path / "c"
    first = FlowvecVectorStore(path, FlowvecEmbeddings(tiny))
    assert first.similarity_search("a") == first.get_by_ids(["a"]) == []
    first.delete()
    assert first.add_texts([]) == []
    assert not path.exists()
    first.add_documents([Document(page_content=TEXTS[0], id="a"), Document(page_content="a dog")])
    assert first.collection is first.collection
    first.close()
    with pytest.raises(ClosedError, match="is closed"):
        first.similarity_search("a")
    # Another process would read as this does, and the model is recorded.
    with Collection.open(path) as collection:
        assert collection.info().fingerprint == tiny.fingerprint
    again = FlowvecVectorStore(path, FlowvecEmbeddings(tiny))
    assert ids(again.get_by_ids(["a"])) == ["a"]
    assert len(again.similarity_search("a cat")) == 2
    again.close()
    other = FlowvecVectorStore(path, FlowvecEmbeddings("mini"))
    with pytest.raises(FingerprintMismatchError):
        other.similarity_search("a")


def test_an_open_collection_stays_open(tmp_path: Path, tiny: Encoder) -> None:
    with Collection.create(tmp_path / "c", encoder=tiny) as collection:
        store = FlowvecVectorStore(collection)
        asyncio.run(store.aadd_texts(["a cat"], [{"n": 1}], ids=["a"]))
        assert collection.ids({"n": 1}) == ["a"]
        store.close()
        assert len(collection) == 1
    with Collection.open(tmp_path / "c") as collection:
        with pytest.raises(InputValueError, match="give embedding="):
            FlowvecVectorStore(collection)
        store = FlowvecVectorStore(collection, FlowvecEmbeddings(tiny))
        store.add_texts(["a dog"], ids=["b"])
        assert ids(both(store, "similarity_search", "a dog", 1)) == ["b"]


def test_wrong_ids_are_refused(store: FlowvecVectorStore) -> None:
    with pytest.raises(InputValueError, match="1 ids for 2 texts"):
        store.add_texts(["a", "b"], ids=["a"])
    with pytest.raises(TypeError, match="ids of documents are texts"):
        store.add_texts(["a"], ids=[1])  # type: ignore[list-item]
    with pytest.raises(TypeError, match="colour"):
        store.add_texts(["a"], colour="red")  # type: ignore[call-arg]


def test_langchains_indexing_adds_and_removes_what_has_changed(
    store: FlowvecVectorStore,
) -> None:
    records = InMemoryRecordManager("test")
    records.create_schema()

    def indexed(*texts: str) -> dict[str, Any]:
        documents = [Document(page_content=text, metadata={"source": "x"}) for text in texts]
        return dict(
            index(documents, records, store, cleanup="full", source_id_key="source",
                  key_encoder="sha256")
        )  # fmt: skip

    assert indexed("one", "two")["num_added"] == 2
    again = indexed("two", "three")
    assert (again["num_added"], again["num_skipped"], again["num_deleted"]) == (1, 1, 1)
    texts = [d.page_content for d in store.similarity_search("a", 10, filter={"source": "x"})]
    assert sorted(texts) == ["three", "two"]


def test_embeddings_are_the_encoders(tiny: Encoder) -> None:
    embeddings = FlowvecEmbeddings(tiny)

    async def several() -> list[Any]:
        queries = asyncio.gather(*(embeddings.aembed_query(text) for text in TEXTS))
        return [await queries, await embeddings.aembed_documents(TEXTS)]

    for _ in range(2):  # in two event loops
        queries, documents = asyncio.run(several())
        np.testing.assert_allclose(queries, tiny.encode_query(TEXTS), atol=1e-5)
        np.testing.assert_allclose(documents, tiny.encode_document(TEXTS), atol=1e-5)
    assert embeddings.embed_documents([]) == []
    embeddings.close()
    assert tiny.encode("a").shape == (16,)  # it was given, so it stays open
    with pytest.raises(InputValueError, match="streams cannot be set"):
        FlowvecEmbeddings(tiny, streams=2)
    with pytest.raises(TypeError, match="or an Encoder, not int"):
        FlowvecEmbeddings(3)  # type: ignore[arg-type]


def test_a_reranker_sorts_documents_and_scores_pairs(reranker: Reranker) -> None:
    documents = [Document(page_content=text, metadata={"n": n}) for n, text in enumerate(TEXTS)]
    compressor = FlowvecReranker(reranker, top_n=3)
    best = compressor.compress_documents(documents, "a cat")
    assert best == asyncio.run(compressor.acompress_documents(documents, "a cat"))
    expected = reranker.rank("a cat", TEXTS, top_k=3)
    assert [d.metadata["n"] for d in best] == [row["corpus_id"] for row in expected]
    assert [d.metadata["relevance_score"] for d in best] == [row["score"] for row in expected]
    assert documents[0].metadata == {"n": 0}
    assert compressor.compress_documents([], "a cat") == compressor.score([]) == []
    assert len(FlowvecReranker(reranker, top_n=None).compress_documents(documents, "a")) == 4
    pairs = [("a cat", text) for text in TEXTS]
    assert compressor.score(pairs) == pytest.approx(reranker.predict(pairs).tolist())


def test_a_multi_vector_encoder_sorts_documents(
    multi_vector: MultiVectorEncoder, multi_vector_dir: Path, tiny_dir: Path
) -> None:
    documents = [Document(page_content=text, metadata={"n": n}) for n, text in enumerate(TEXTS)]
    expected = multi_vector.rank("a cat", TEXTS, top_k=3)
    by_name = FlowvecReranker(str(multi_vector_dir), provider="cpu", streams=1)
    for compressor in (FlowvecReranker(multi_vector), by_name):
        assert isinstance(compressor.reranker, MultiVectorEncoder)
        best = compressor.compress_documents(documents, "a cat")
        assert [d.metadata["n"] for d in best] == [row["corpus_id"] for row in expected]
        scores = [d.metadata["relevance_score"] for d in best]
        assert scores == pytest.approx([row["score"] for row in expected], abs=1e-5)
    pairs = [("a cat", text) for text in TEXTS]
    assert compressor.score(pairs) == pytest.approx(multi_vector.predict(pairs).tolist(), abs=1e-5)
    by_name.close()
    with pytest.raises(InputValueError, match=r"streams .*MultiVectorEncoder"):
        FlowvecReranker(multi_vector, streams=1)
    with pytest.raises(InputTypeError, match="Reranker or a MultiVec"):
        FlowvecReranker(3)  # type: ignore[arg-type]
    with pytest.raises(BundleError, match="is an embedder"):
        FlowvecReranker(tiny_dir)


def test_a_single_text_is_not_split_into_its_letters(tmp_path: Path) -> None:
    store = FlowvecVectorStore(tmp_path / "store", "mini")
    with pytest.raises(InputTypeError, match="texts must be a list"):
        store.add_texts("hello")
    with pytest.raises(InputTypeError, match="texts must be a list"):
        store.embeddings.embed_documents("hello")  # type: ignore[arg-type]
    assert not (tmp_path / "store").exists()
    store.close()


def test_a_store_embeds_with_a_model_by_name_and_says_what_it_cannot_take(tmp_path: Path) -> None:
    store = FlowvecVectorStore.from_texts(["a cat"], "mini", collection=tmp_path / "store")
    assert store.similarity_search("cats", k=1)[0].page_content == "a cat"
    store.close()
    with pytest.raises(InputTypeError, match=r"embedding .*an Encoder"):
        FlowvecVectorStore(tmp_path / "store", 7)  # type: ignore[arg-type]
    (tmp_path / "file").touch()
    with pytest.raises(CollectionError, match="file is a file"):
        FlowvecVectorStore(tmp_path / "file", "mini").similarity_search("x")
