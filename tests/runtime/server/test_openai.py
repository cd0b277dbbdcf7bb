"""OpenAI's routes, mostly through OpenAI's own client."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import pytest

from flowvec import Encoder
from tests.runtime.server.conftest import Running, texts

openai = pytest.importorskip("openai", reason="needs the extra [serve]")


def rows(answer: Any) -> np.ndarray:
    assert [item.index for item in answer.data] == list(range(len(answer.data)))
    rows = [item.embedding for item in answer.data]
    if isinstance(rows[0], str):  # the client decodes only what it asked for by itself
        rows = [np.frombuffer(base64.b64decode(row), "<f4") for row in rows]
    return np.array(rows, np.float32)


@pytest.fixture(scope="module")
def ai(server: Running) -> Any:
    return server.openai()


@pytest.mark.parametrize("count", [1, 3, 3000])
def test_the_client_gets_the_encoders_vectors_in_order(ai: Any, tiny: Encoder, count: int) -> None:
    given = texts(count, seed=count)
    expected = tiny.encode(given, normalize_embeddings=True)
    answer = ai.embeddings.create(model="tiny", input=given)  # as base64
    np.testing.assert_allclose(rows(answer), expected, atol=1e-5)
    assert answer.object == "list"
    assert answer.model == "tiny"
    tokens = sum(map(len, tiny.tokenize(given).ids))
    assert (answer.usage.prompt_tokens, answer.usage.total_tokens) == (tokens, tokens)


def test_numbers_and_base64_are_the_same_vectors(ai: Any) -> None:
    """To the last bit, which `test_vector_bytes` shows of equal vectors: two calls may be batched
    differently."""
    given = texts(500)
    answers = [
        rows(ai.embeddings.create(model="org/mini", input=given, encoding_format=name))
        for name in ("float", "base64")
    ]
    np.testing.assert_allclose(*answers, atol=1e-5)


def test_one_text_is_a_list_of_one(ai: Any, tiny: Encoder) -> None:
    answer = ai.embeddings.create(model="tiny", input="the cat")
    expected = tiny.encode(["the cat"], normalize_embeddings=True)
    np.testing.assert_allclose(rows(answer), expected, atol=1e-6)


def test_fewer_dimensions_are_normalized_again(ai: Any, mini: Encoder) -> None:
    answer = rows(ai.embeddings.create(model="org/mini", input=["the cat", "a dog"], dimensions=7))
    assert answer.shape == (2, 7)
    np.testing.assert_allclose(np.linalg.norm(answer, axis=1), 1, atol=1e-6)
    np.testing.assert_allclose(answer, mini.encode(["the cat", "a dog"], truncate_dim=7), atol=1e-6)


def test_prompts_by_name_and_by_kind_of_input(ai: Any, tiny: Encoder) -> None:
    for extra, expected in (
        ({"prompt_name": "query"}, tiny.encode(["a"], prompt_name="query")),
        ({"input_type": "query"}, tiny.encode_query(["a"])),
        ({"input_type": "document"}, tiny.encode_document(["a"])),
    ):
        answer = ai.embeddings.create(
            model="tiny", input=["a"], extra_body={**extra, "normalize": False}
        )
        np.testing.assert_allclose(rows(answer), expected, atol=1e-6)


def test_what_was_cut_is_reported(ai: Any, tiny: Encoder) -> None:
    long = "the cat " * tiny.max_length
    raw = ai.embeddings.with_raw_response.create(model="tiny", input=["a", long, long])
    assert raw.headers["x-flowvec-truncated"] == "2"
    assert raw.parse().usage.truncated == 2
    raw = ai.embeddings.with_raw_response.create(model="tiny", input=["a"])
    assert raw.headers["x-flowvec-truncated"] == "0"
    assert not hasattr(raw.parse().usage, "truncated")


def test_models_are_listed_and_found(ai: Any, mini: Encoder) -> None:
    assert [model.id for model in ai.models.list()] == ["tiny", "org/mini", "sorts"]
    model = ai.models.retrieve("org/mini")
    assert (model.id, model.object, model.dim) == ("org/mini", "model", mini.dim)
    with pytest.raises(openai.NotFoundError, match="no model 'other'"):
        ai.models.retrieve("other")


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"model": "other"}, openai.NotFoundError, "no embedding model 'other'.*tiny, org/mini"),
        ({"input": []}, openai.BadRequestError, "input is empty"),
        ({"input": ["a", ""]}, openai.BadRequestError, r"input\[1\] is an empty text"),
        ({"input": [1, 2]}, openai.BadRequestError, "check_embedding_ctx_length=False"),
        ({"input": [[1, 2], [3]]}, openai.BadRequestError, "--accept-token-ids"),
        ({"input": {"a": 1}}, openai.BadRequestError, r"\$\.input"),
        ({"dimensions": 17}, openai.BadRequestError, "dimensions must be from 1 to 16"),
        ({"extra_body": {"prompt_name": "x"}}, openai.BadRequestError, "no prompt 'x'"),
        ({"encoding_format": "hex"}, openai.BadRequestError, "encoding_format"),
        ({"input": "a" * 2_000_001}, openai.APIStatusError, "2,000,001 characters"),
    ],
)
def test_mistakes_are_the_clients_errors(
    ai: Any, given: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message) as raised:
        ai.embeddings.create(**{"model": "tiny", "input": "a", **given})
    body = raised.value.body  # type: ignore[attr-defined]
    assert set(body) == {"message", "type", "param", "code"}


def test_ids_of_requests_are_taken_over_or_made(server: Running) -> None:
    with server.client() as client:
        body = {"input": "a", "model": "tiny"}
        given = client.post("/v1/embeddings", json=body, headers={"x-request-id": "mine-7"})
        assert given.headers["x-request-id"] == "mine-7"
        made = {client.post("/v1/embeddings", json=body).headers["x-request-id"] for _ in range(3)}
        assert len(made) == 3
        odd = client.post("/v1/embeddings", json=body, headers={"x-request-id": "x" * 200})
        assert len(odd.headers["x-request-id"]) < 200
