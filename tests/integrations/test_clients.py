"""The packages that people use with other servers, against `flowvec serve`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flowvec import Encoder, Reranker
from flowvec.multi_vector import MultiVectorEncoder

pytest.importorskip("cohere", reason="needs cohere, which has its environment")

import cohere
import litellm
import ollama
import openai
from huggingface_hub import InferenceClient
from huggingface_hub.errors import HfHubHTTPError
from langchain_openai import OpenAIEmbeddings
from llama_index.embeddings.openai_like import OpenAILikeEmbedding
from llama_index.embeddings.text_embeddings_inference import TextEmbeddingsInference

from flowvec.server import create_app
from tests.runtime.server.conftest import running, texts

KEY = "any"  # the server asks for none
QUERY = "the cat sleeps"
TEXTS = texts(70)


@pytest.fixture(scope="module")
def url(tiny: Encoder, mini: Encoder, reranker: Reranker) -> Iterator[str]:
    with running(create_app({"tiny": tiny, "mini": mini}, {"sorts": reranker})) as server:
        yield server.url


@pytest.fixture(scope="module")
def vectors(tiny: Encoder) -> np.ndarray[Any, Any]:
    return np.asarray(tiny.encode(TEXTS, normalize_embeddings=True))


@pytest.fixture(scope="module")
def ranked(reranker: Reranker) -> list[tuple[int, float]]:
    rows = reranker.rank(QUERY, TEXTS, top_k=4, activation="sigmoid")
    return [(row["corpus_id"], pytest.approx(row["score"], abs=1e-5)) for row in rows]


def test_openai(url: str, vectors: Any) -> None:
    client = openai.OpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0)
    answer = client.embeddings.create(model="tiny", input=TEXTS)
    np.testing.assert_allclose([item.embedding for item in answer.data], vectors, atol=1e-5)
    assert client.models.retrieve("tiny").id == "tiny"
    with pytest.raises(openai.NotFoundError, match="no embedding model 'x'") as wrong:
        client.embeddings.create(model="x", input="a")
    assert wrong.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError, match=r"dimensions .*from 1 to 16"):
        client.embeddings.create(model="tiny", input="a", dimensions=17)

    async def several() -> Any:
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=KEY) as client:
            calls = [client.embeddings.create(model="tiny", input=text) for text in TEXTS]
            return [answer.data[0].embedding for answer in await asyncio.gather(*calls)]

    np.testing.assert_allclose(asyncio.run(several()), vectors, atol=1e-5)


def test_cohere(url: str, mini: Encoder, ranked: list[tuple[int, float]]) -> None:
    client = cohere.ClientV2(api_key=KEY, base_url=url, max_retries=0)
    answer = client.embed(
        model="mini", input_type="search_document", texts=TEXTS,
        embedding_types=["float", "int8", "ubinary", "base64"],
    )  # fmt: skip
    vectors = mini.encode(TEXTS, normalize_embeddings=True)
    np.testing.assert_allclose(answer.embeddings.float_, vectors, atol=1e-5)
    for kind in ("int8", "ubinary"):
        given = mini.encode(TEXTS, precision=kind)  # type: ignore[arg-type]
        assert np.mean(np.array(getattr(answer.embeddings, kind)) != given) < 0.01
    results = client.rerank(model="sorts", query=QUERY, documents=TEXTS, top_n=4).results
    assert [(row.index, row.relevance_score) for row in results] == ranked
    with pytest.raises(cohere.NotFoundError, match="no reranker 'x'"):
        client.rerank(model="x", query=QUERY, documents=TEXTS)
    with pytest.raises(cohere.BadRequestError, match="END or NONE"):
        client.embed(model="mini", input_type="search_query", texts=["a"], truncate="START")


def test_huggingface_hub(url: str, vectors: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # Offline mode, in which the tests run, refuses loopback too.
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    client = InferenceClient(model=url)
    np.testing.assert_allclose(client.feature_extraction(TEXTS), vectors, atol=1e-5)
    one = client.feature_extraction(TEXTS[0], prompt_name="document", truncate=True)
    assert one.shape == (1, 16)
    similar = InferenceClient(model=f"{url}/similarity")
    cosines = similar.sentence_similarity(TEXTS[0], TEXTS[1:])
    np.testing.assert_allclose(cosines, vectors[1:] @ vectors[0], atol=1e-5)
    with pytest.raises(HfHubHTTPError, match="no prompt 'x'"):
        client.feature_extraction("a", prompt_name="x")


def test_huggingface_hub_with_a_multi_vector_encoder(
    multi_vector_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its base URL answers what the server's only model gives: a vector for each token."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    with (
        MultiVectorEncoder.load(multi_vector_dir, provider="cpu") as model,
        running(create_app({"tokens": model})) as server,
    ):
        for url in (server.url, f"{server.url}/embed_all"):
            client = InferenceClient(model=url)
            given = client.feature_extraction(QUERY, prompt_name="query")
            np.testing.assert_allclose(given, [model.encode_query(QUERY)], atol=1e-5)
            with pytest.raises(HfHubHTTPError, match="`normalize` does not apply"):
                client.feature_extraction("a", normalize=True)


def test_ollama(url: str, vectors: Any) -> None:
    client = ollama.Client(host=url)
    np.testing.assert_allclose(client.embed("tiny", TEXTS).embeddings, vectors, atol=1e-5)
    assert len(client.embeddings("tiny", TEXTS[0]).embedding) == 16
    with pytest.raises(ollama.ResponseError, match="no embedding model 'x'") as wrong:
        client.embed("x", "a")
    assert wrong.value.status_code == 404


def test_langchain_openai(url: str, vectors: Any) -> None:
    given = {"base_url": f"{url}/v1", "api_key": KEY, "check_embedding_ctx_length": False}
    client = OpenAIEmbeddings(model="tiny", **given)  # type: ignore[arg-type]
    np.testing.assert_allclose(client.embed_documents(TEXTS), vectors, atol=1e-5)
    np.testing.assert_allclose(asyncio.run(client.aembed_query(TEXTS[0])), vectors[0], atol=1e-5)


def test_llama_index(url: str, vectors: Any) -> None:
    alike = OpenAILikeEmbedding(
        model_name="tiny", api_base=f"{url}/v1", api_key=KEY, embed_batch_size=64
    )
    np.testing.assert_allclose(alike.get_text_embedding_batch(TEXTS), vectors, atol=1e-5)
    tei = TextEmbeddingsInference(
        model_name="tiny", base_url=url, text_instruction="", query_instruction=""
    )
    stripped = [text.strip() for text in TEXTS]
    np.testing.assert_allclose(tei.get_text_embedding_batch(stripped), vectors, atol=1e-5)
    np.testing.assert_allclose(tei.get_query_embedding(TEXTS[0]), vectors[0], atol=1e-5)


def test_litellm(url: str, vectors: Any, ranked: list[tuple[int, float]]) -> None:
    answer = litellm.embedding("openai/tiny", TEXTS, api_base=f"{url}/v1", api_key=KEY)
    np.testing.assert_allclose([item["embedding"] for item in answer.data], vectors, atol=1e-5)
    for model, base, with_documents in (
        ("infinity/sorts", url, False),  # it takes documents as bare texts only
        ("hosted_vllm/sorts", f"{url}/v1/rerank", True),
        ("jina_ai/sorts", url, True),
        ("cohere/sorts", f"{url}/v2/rerank", True),
    ):
        rows = litellm.rerank(
            model, query=QUERY, documents=TEXTS, top_n=4, api_base=base, api_key=KEY,
            return_documents=with_documents,
        ).results  # fmt: skip
        assert [(row["index"], row["relevance_score"]) for row in rows] == ranked, model
