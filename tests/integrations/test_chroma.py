"""Chroma: its embedding function, in real collections."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from flowvec import Encoder, FingerprintMismatchError, InputTypeError, SparseEncoder

pytest.importorskip("chromadb", reason="needs chromadb, which has its environment")

import chromadb
from chromadb import K, Schema, SparseVectorIndexConfig
from chromadb.api.types import (
    validate_embedding_function,
    validate_sparse_embedding_function,
    validate_sparse_vectors,
)
from chromadb.utils.embedding_functions import config_to_embedding_function

from flowvec.integrations.chroma import FlowvecEmbeddingFunction, FlowvecSparseEmbeddingFunction

TEXTS = ["the cat sleeps", "a dog runs", "the red house", "the green garden"]


def test_vectors_are_the_encoders(tiny: Encoder) -> None:
    function = FlowvecEmbeddingFunction(tiny)
    validate_embedding_function(function)
    for found, expected in (
        (function(TEXTS), tiny.encode_document(TEXTS)),
        (function.embed_query(TEXTS), tiny.encode_query(TEXTS)),
    ):
        assert {type(vector) for vector in found} == {np.ndarray}
        np.testing.assert_array_equal(found, expected)
    assert not np.allclose(function(TEXTS), function.embed_query(TEXTS))  # it has prompts


def test_its_configuration_builds_it_again(tiny_dir: Path) -> None:
    function = FlowvecEmbeddingFunction(tiny_dir, load_options={"provider": "cpu"})
    assert not function.is_legacy()
    config = function.get_config()
    again = config_to_embedding_function({"name": function.name(), "config": config})
    assert isinstance(again, FlowvecEmbeddingFunction)
    assert again.get_config() == config
    np.testing.assert_array_equal(again(TEXTS), function(TEXTS))
    for made in (function, again):
        made.close()
    with pytest.raises(InputTypeError, match="cannot store load_options"):
        FlowvecEmbeddingFunction(tiny_dir, load_options={"provider": object()})


def test_a_collection_keeps_its_model(tmp_path: Path, tiny_dir: Path, mini: Encoder) -> None:
    model = tmp_path / "model"
    shutil.copytree(tiny_dir, model)
    client = chromadb.PersistentClient(str(tmp_path / "chroma"))
    made = client.create_collection("texts", embedding_function=FlowvecEmbeddingFunction(model))
    made.add(ids=list("abcd"), documents=TEXTS)
    assert made.configuration["hnsw"]["space"] == "cosine"
    # Chroma builds the function from what it stored.
    again = client.get_collection("texts")
    found = again.query(query_texts=["a dog"], n_results=4, include=["distances"])
    with Encoder.load(model) as encoder:
        a, b = encoder.encode_query(["a dog"]), encoder.encode_document(TEXTS)
    cosines = (b @ a[0]) / np.linalg.norm(a) / np.linalg.norm(b, axis=1)
    order = np.argsort(-cosines)
    assert found["ids"][0] == ["abcd"[i] for i in order]
    np.testing.assert_allclose(found["distances"][0], 1 - cosines[order], atol=1e-5)
    # Another model under the same name gives other vectors, and is refused.
    shutil.rmtree(model)
    shutil.copytree(mini.bundle.path, model)
    with pytest.raises(FingerprintMismatchError, match="cannot be compared"):
        client.get_collection("texts").query(query_texts=["a dog"])
    # So is a change of the model; a move is not.
    function = FlowvecEmbeddingFunction(model)
    old = function.get_config()
    function.validate_config_update(old, old | {"model": "elsewhere"})
    with pytest.raises(FingerprintMismatchError, match="another collection"):
        function.validate_config_update(old | {"fingerprint": "another"}, old)
    function.close()


def test_sparse_vectors_are_the_encoders(sparse_encoder: SparseEncoder) -> None:
    function = FlowvecSparseEmbeddingFunction(sparse_encoder)
    validate_sparse_embedding_function(function)
    for found, expected in (
        (function(TEXTS), sparse_encoder.encode_document(TEXTS)),
        (function.embed_query(TEXTS), sparse_encoder.encode_query(TEXTS)),
    ):
        validate_sparse_vectors(found)
        weights = [dict(zip(vector.indices, vector.values, strict=True)) for vector in found]
        assert weights == expected.as_dicts()


def test_a_schema_keeps_its_sparse_model(tmp_path: Path, sparse_dir: Path, tiny: Encoder) -> None:
    model = tmp_path / "model"
    shutil.copytree(sparse_dir, model)
    function = FlowvecSparseEmbeddingFunction(model, load_options={"provider": "cpu"})
    index = SparseVectorIndexConfig(embedding_function=function, source_key=K.DOCUMENT)
    schema = Schema().create_index(config=index, key="words")
    # Chroma builds the function from what it stored.
    read = Schema.deserialize_from_json(schema.serialize_to_json())
    again = read.keys["words"].sparse_vector.sparse_vector_index.config.embedding_function
    assert isinstance(again, FlowvecSparseEmbeddingFunction)
    assert again.get_config() == function.get_config()
    assert again(TEXTS) == function(TEXTS)
    for made in (function, again):
        made.close()
    config = function.get_config() | {"fingerprint": "another"}
    with pytest.raises(FingerprintMismatchError, match="cannot be compared"):
        FlowvecSparseEmbeddingFunction.build_from_config(config)(TEXTS)
    with pytest.raises(InputTypeError, match="a SparseEncoder, not Encoder"):
        FlowvecSparseEmbeddingFunction(tiny)  # type: ignore[arg-type]
