"""LlamaIndex: contracts of its public classes, which have no official suite."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowvec import (
    Collection,
    Encoder,
    InputValueError,
    MultiVectorEncoder,
    Reranker,
    SparseEncoder,
)

pytest.importorskip("llama_index.core", reason="needs llama_index, which has its environment")

from llama_index.core import Document, StorageContext, VectorStoreIndex
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.base.embeddings.base_sparse import BaseSparseEmbedding
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.schema import (
    ImageNode,
    IndexNode,
    NodeRelationship,
    NodeWithScore,
    RelatedNodeInfo,
    TextNode,
)
from llama_index.core.vector_stores.simple import SimpleVectorStore
from llama_index.core.vector_stores.types import (
    BasePydanticVectorStore,
    FilterOperator,
    MetadataFilter,
    MetadataFilters,
    VectorStoreQuery,
)
from llama_index.core.vector_stores.types import VectorStoreQueryMode as Mode
from llama_index.core.vector_stores.utils import build_metadata_filter_fn

from flowvec.integrations.filters import from_llama_index
from flowvec.integrations.llama_index import (
    FlowvecEmbedding,
    FlowvecRerank,
    FlowvecSparseEmbedding,
    FlowvecVectorStore,
)
from tests.drawing import examples
from tests.makers import vectors
from tests.runtime.collection.store.test_filters import found_by_sql

TEXTS = ["the cat sleeps", "a dog runs", "the red house", "the green garden"]


def node(n: int, parent: str | None = None, **more: Any) -> TextNode:
    made = TextNode(
        id_=f"n{n}", text=TEXTS[n % 4], metadata={"n": n, "tags": ["a"] * (n % 2)},
        embedding=vectors(8, 4)[n].tolist(), **more,
    )  # fmt: skip
    if parent is not None:
        made.relationships[NodeRelationship.SOURCE] = RelatedNodeInfo(node_id=parent)
    return made


NODES = [node(n, f"doc{n // 2}") for n in range(6)]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[FlowvecVectorStore]:
    """A store of six nodes of three documents."""
    made = FlowvecVectorStore(tmp_path / "c")
    assert made.add(NODES) == [f"n{n}" for n in range(6)]
    yield made
    made.close()


def only(key: str, value: Any, operator: str = "==") -> MetadataFilters:
    return MetadataFilters(
        filters=[MetadataFilter(key=key, value=value, operator=FilterOperator(operator))]
    )


def both(store: FlowvecVectorStore, query: VectorStoreQuery, **options: Any) -> list[str]:
    """Ids that `query` and `aquery` both find."""
    result = store.query(query, **options)
    again = asyncio.run(store.aquery(query, **options))
    assert result.ids == again.ids == [n.node_id for n in result.nodes or []]
    assert result.similarities == again.similarities
    return list(result.ids or [])


def test_classes_are_llama_indexs(tiny: Encoder, reranker: Reranker, tmp_path: Path) -> None:
    for made, base in (
        (FlowvecEmbedding(tiny), BaseEmbedding),
        (FlowvecVectorStore(tmp_path / "c"), BasePydanticVectorStore),
        (FlowvecRerank(reranker), BaseNodePostprocessor),
    ):
        assert isinstance(made, base)
        assert type(made).class_name() == type(made).__name__


def test_embeddings_are_the_encoders(tiny: Encoder) -> None:
    embedding = FlowvecEmbedding(tiny)
    queries, documents = tiny.encode_query(TEXTS), tiny.encode_document(TEXTS)

    async def several() -> list[Any]:
        found = await asyncio.gather(*map(embedding.aget_query_embedding, TEXTS))
        return [found, await embedding.aget_text_embedding_batch(TEXTS)]

    for found, expected in (
        ([embedding.get_query_embedding(text) for text in TEXTS], queries),
        ([embedding.get_text_embedding(text) for text in TEXTS], documents),
        (embedding.get_text_embedding_batch(TEXTS), documents),
        *zip(asyncio.run(several()), (queries, documents), strict=True),
    ):
        np.testing.assert_allclose(found, expected, atol=1e-5)
        assert isinstance(found[0][0], float)
    assert embedding.embed_batch_size == 2048
    embedding.close()


def test_nodes_come_back_as_they_were(tmp_path: Path) -> None:
    nodes = [
        node(0, "doc", start_char_idx=3, excluded_embed_metadata_keys=["n"]),
        IndexNode(id_="i", text="an index", index_id="x", embedding=[1.0, 0, 0, 0]),
        ImageNode(id_="p", text="a picture", image_url="x.png", embedding=[0.0, 1, 0, 0]),
    ]
    store = FlowvecVectorStore(tmp_path / "c")
    assert store.get_nodes() == []
    store.add(nodes)
    for found, before in zip(store.get_nodes(), nodes, strict=True):
        assert type(found) is type(before)
        assert found.to_dict() | {"embedding": None} == before.to_dict() | {"embedding": None}
    store.close()


def test_queries_find_what_the_simple_store_finds(store: FlowvecVectorStore) -> None:
    simple = SimpleVectorStore()
    simple.add(NODES)
    vector = vectors(1, 4, seed=1)[0].tolist()
    for filters in (None, only("n", 2, ">="), only("n", [0, 1], "nin")):
        query = VectorStoreQuery(vector, 3, filters=filters)
        expected = simple.query(query)
        assert both(store, query) == expected.ids
        assert store.query(query).similarities == pytest.approx(expected.similarities, abs=1e-5)
    chosen = VectorStoreQuery(vector, 9, node_ids=["n1", "n4", "none"], doc_ids=["doc0", "doc1"])
    assert both(store, chosen) == ["n1"]


def test_modes_search_words_too(store: FlowvecVectorStore) -> None:
    vector = NODES[0].embedding
    for mode in (Mode.TEXT_SEARCH, Mode.SPARSE):
        query = VectorStoreQuery(query_str="green garden", similarity_top_k=9, mode=mode)
        assert both(store, query) == ["n3"]
    for alpha, expected in ((0.0, "n3"), (1.0, "n0")):
        query = VectorStoreQuery(vector, 1, query_str="garden", mode=Mode.HYBRID, alpha=alpha)
        assert both(store, query) == [expected]
    query = VectorStoreQuery(vector, 9, query_str="garden", mode=Mode.HYBRID, hybrid_top_k=2)
    assert len(both(store, query)) == 2
    assert store.client is not None
    for share in (1.0, 0.2):
        spread = VectorStoreQuery(vector, 3, mode=Mode.MMR, mmr_threshold=share)
        hits = store.client.search_mmr(vector, 3, lambda_mult=share)
        assert both(store, spread) == [hit.id for hit in hits]
    spread = VectorStoreQuery(vector, 3, mode=Mode.MMR)
    assert both(store, spread, mmr_threshold=1.0) == both(store, VectorStoreQuery(vector, 3))
    for wrong, part in (
        (VectorStoreQuery(vector, mode=Mode.SVM), "'svm' are not supported"),
        (VectorStoreQuery(vector, mode=Mode.HYBRID), "needs query_str"),
        (VectorStoreQuery(query_str="a"), "needs query_embedding"),
    ):
        with pytest.raises(InputValueError, match=part):
            store.query(wrong)


def test_nodes_are_deleted(store: FlowvecVectorStore) -> None:
    def left() -> list[str]:
        return [n.node_id for n in asyncio.run(store.aget_nodes())]

    store.delete("doc1")
    assert left() == ["n0", "n1", "n4", "n5"]
    asyncio.run(store.adelete_nodes(["n0", "n4"], only("n", 0)))
    assert left() == ["n1", "n4", "n5"]
    with pytest.raises(InputValueError, match="clear"):
        store.delete_nodes()
    assert [n.node_id for n in store.get_nodes(["n1", "n5"], only("n", 5))] == ["n5"]
    asyncio.run(store.aclear())
    assert left() == []


def test_an_index_over_a_store(tmp_path: Path, mini: Encoder, reranker: Reranker) -> None:
    embedding = FlowvecEmbedding(mini)
    store = FlowvecVectorStore(tmp_path / "c")
    documents = [Document(text=t, doc_id=str(n), metadata={"n": n}) for n, t in enumerate(TEXTS)]
    storage = StorageContext.from_defaults(vector_store=store)
    index = VectorStoreIndex.from_documents(documents, storage, embed_model=embedding)
    (best,) = index.as_retriever(similarity_top_k=1).retrieve("a sleeping cat")
    assert best.node.get_content() == TEXTS[0]
    store.close()
    again = FlowvecVectorStore(tmp_path / "c")
    index = VectorStoreIndex.from_vector_store(again, embed_model=embedding)
    retriever = index.as_retriever(
        similarity_top_k=2, vector_store_query_mode="hybrid", filters=only("n", 0, "!=")
    )
    assert asyncio.run(retriever.aretrieve("the garden"))[0].node.get_content() == TEXTS[3]
    index.delete_ref_doc("3")
    index.insert(Document(text="a new text", doc_id="5"))
    assert {n.get_content() for n in again.get_nodes()} == {*TEXTS[:3], "a new text"}
    again.close()
    with Collection.open(tmp_path / "c") as collection:
        assert collection.count({"n": {">=": 1}}) == 2


def test_a_sparse_embedding_gives_the_weights_of_the_model(
    sparse_encoder: SparseEncoder, sparse_dir: Path
) -> None:
    embedding = FlowvecSparseEmbedding(sparse_encoder)
    assert isinstance(embedding, BaseSparseEmbedding)
    assert embedding.model_name == str(sparse_dir)
    expected = sparse_encoder.encode_document(TEXTS).as_dicts()
    (query,) = sparse_encoder.encode_query("a cat").as_dicts()
    assert embedding.get_text_embedding_batch(TEXTS) == expected
    assert asyncio.run(embedding.aget_text_embedding_batch(TEXTS)) == expected
    one = embedding.get_text_embedding(TEXTS[0])
    assert one == pytest.approx(expected[0], abs=1e-5)
    assert asyncio.run(embedding.aget_text_embedding(TEXTS[0])) == one
    assert embedding.get_query_embedding("a cat") == query
    assert asyncio.run(embedding.aget_query_embedding("a cat")) == query
    assert embedding.similarity(one, one) == pytest.approx(1.0)
    named = FlowvecSparseEmbedding(sparse_dir, load_options={"provider": "cpu"})
    assert named.get_query_embedding("a cat") == pytest.approx(query, abs=1e-5)
    named.close()


def test_a_multi_vector_encoder_sorts_nodes(
    multi_vector: MultiVectorEncoder, multi_vector_dir: Path
) -> None:
    nodes = [NodeWithScore(node=TextNode(text=text), score=0.5) for text in TEXTS]
    expected = multi_vector.rank("a cat", TEXTS, top_k=2)
    for model, options in ((multi_vector, None), (multi_vector_dir, {"provider": "cpu"})):
        postprocessor = FlowvecRerank(model, top_n=2, load_options=options)
        found = postprocessor.postprocess_nodes(nodes, query_str="a cat")
        assert [n.node.get_content() for n in found] == [TEXTS[r["corpus_id"]] for r in expected]
        scores = [n.score for n in found]
        assert scores == pytest.approx([row["score"] for row in expected], abs=1e-5)
        postprocessor.close()


def test_a_reranker_sorts_nodes(reranker: Reranker) -> None:
    nodes = [NodeWithScore(node=TextNode(text=text), score=0.5) for text in TEXTS]
    postprocessor = FlowvecRerank(reranker, top_n=2)
    found = postprocessor.postprocess_nodes(nodes, query_str="a cat")
    expected = reranker.rank("a cat", TEXTS, top_k=2)
    assert [(n.node.get_content(), n.score) for n in found] == [
        (TEXTS[row["corpus_id"]], row["score"]) for row in expected
    ]
    assert asyncio.run(postprocessor.apostprocess_nodes(nodes, query_str="a cat")) == found
    assert all(n.score == 0.5 for n in nodes)
    assert postprocessor.postprocess_nodes([], query_str="a cat") == []
    with pytest.raises(InputValueError, match="query_str"):
        postprocessor.postprocess_nodes(nodes)


TEXT = st.sampled_from(["a", "b", "ab", "A"])
NUMBER = st.sampled_from([0, 1, 2.5])
TAGS = st.lists(TEXT, max_size=2)


def filter_of(key: str, operator: Any, value: Any) -> Any:
    keys = st.sampled_from(key.split())
    return st.builds(MetadataFilter, key=keys, operator=operator.map(FilterOperator), value=value)


ONE = st.one_of(
    filter_of("number", st.sampled_from([">", "<", ">=", "<=", "==", "!="]), NUMBER),
    filter_of("number", st.sampled_from(["in", "nin"]), st.lists(st.sampled_from([0, 1]))),
    filter_of("text", st.sampled_from(["==", "!=", "text_match", "contains"]), TEXT),
    filter_of("tags", st.sampled_from(["any", "all"]), TAGS),
    filter_of("tags", st.just("contains"), TEXT),
    filter_of("tags text a.b", st.just("is_empty"), st.none()),
)
METADATA = st.fixed_dictionaries(
    {}, optional={"number": NUMBER, "text": TEXT | st.just(""), "tags": TAGS, "a.b": TEXT}
)


@examples(300)
@given(
    parts=st.lists(ONE, max_size=3),
    condition=st.sampled_from(["and", "or", "not"]),
    metadata=st.lists(METADATA, min_size=1, max_size=5),
)
def test_filters_find_what_llama_indexs_own_function_finds(
    parts: list[MetadataFilter], condition: str, metadata: list[Any]
) -> None:
    wanted = MetadataFilters(filters=parts, condition=condition)
    meets = build_metadata_filter_fn(lambda place: metadata[int(place)], wanted)
    expected = [place for place in range(len(metadata)) if meets(str(place))]
    assert found_by_sql(from_llama_index(wanted), metadata) == expected
