"""The routes of Text Embeddings Inference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from flowvec import Encoder, OutOfMemoryError
from tests.runtime.gate import Gate
from tests.runtime.server.conftest import texts

pytest.importorskip("msgspec", reason="needs the extra [serve]")


@pytest.mark.parametrize("path", ["/embed", "/", "/invocations"])
def test_vectors_are_a_bare_list_of_lists(client: Any, tiny: Encoder, path: str) -> None:
    for given in ("the cat", ["the cat"], texts(50)):
        answer = client.post(path, json={"inputs": given})
        assert answer.status_code == 200, answer.text
        expected = np.atleast_2d(tiny.encode(given, normalize_embeddings=True))
        np.testing.assert_allclose(answer.json(), expected, atol=1e-5)


def test_an_answer_in_blocks_is_one_list(client: Any, mini: Encoder) -> None:
    given = texts(2000)  # more numbers than are formatted at a time
    answer = client.post("/embed", json={"inputs": given, "model": "org/mini"})
    assert "content-length" not in answer.headers
    np.testing.assert_allclose(answer.json(), mini.encode(given), atol=1e-5)


def test_options_of_the_encoder(client: Any, tiny: Encoder) -> None:
    for options, expected in (
        ({"normalize": False}, tiny.encode(["a cat"])),
        ({"normalize": False, "prompt_name": "query"}, tiny.encode_query(["a cat"])),
        ({"dimensions": 3}, tiny.encode(["a cat"], truncate_dim=3, normalize_embeddings=True)),
    ):
        answer = client.post("/embed", json={"inputs": "a cat", **options})
        np.testing.assert_allclose(answer.json(), expected, atol=1e-5)


def test_headers_say_what_it_took(client: Any, tiny: Encoder) -> None:
    answer = client.post("/embed", json={"inputs": ["the cat", "a dog"]})
    assert answer.headers["x-compute-characters"] == "12"
    tokens = sum(map(len, tiny.tokenize(["the cat", "a dog"]).ids))
    assert answer.headers["x-compute-tokens"] == str(tokens)
    for name in ("compute", "total", "tokenization", "queue", "inference"):
        assert answer.headers[f"x-{name}-time"].isdigit()
    timing = dict(part.split(";dur=") for part in answer.headers["server-timing"].split(", "))
    assert set(timing) == {"tokenize", "queue", "compute", "total"}
    parts = [float(timing[name]) for name in ("tokenize", "queue", "compute")]
    assert 0 < sum(parts) <= float(timing["total"])
    assert answer.headers["x-flowvec-fingerprint"] == tiny.fingerprint


@pytest.mark.parametrize(
    ("body", "status", "kind", "message"),
    [
        ({"inputs": []}, 400, "Empty", "inputs is empty"),
        ({"inputs": ["a", ""]}, 422, "Validation", "text 1"),
        ({"inputs": [1, 2]}, 422, "Validation", "token ids"),
        ({"inputs": ["a", "the cat " * 600], "truncate": False}, 422, "Validation", "item 1 has"),
        ({"inputs": "a", "truncation_direction": "left"}, 422, "Validation", "Right"),
        ({"inputs": "a", "dimensions": 0}, 422, "Validation", "dimensions must be from 1 to 16"),
        ({"inputs": "a", "prompt_name": "x"}, 422, "Validation", "no prompt 'x'"),
        ({"inputs": None}, 422, "Validation", r"$.inputs"),
        ({"inputs": "a", "model": "x"}, 424, "Backend", "no embedding model 'x'"),
    ],
)
def test_errors_have_its_form(
    client: Any, body: dict[str, Any], status: int, kind: str, message: str
) -> None:
    answer = client.post("/embed", json=body)
    assert (answer.status_code, answer.json()["error_type"]) == (status, kind), answer.text
    assert message in answer.json()["error"]


def test_out_of_memory_is_said_in_every_dialect_and_the_next_request_is_answered(
    client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OutOfMemoryError("out of memory on a batch of shape (1, 3)")

    with monkeypatch.context() as patched:
        Gate(patched).run = fail
        tei = client.post("/embed", json={"inputs": "the cat"})
        openai = client.post("/v1/embeddings", json={"model": "tiny", "input": "the cat"})
    assert tei.status_code == openai.status_code == 503
    assert tei.headers["retry-after"] == openai.headers["retry-after"] == "1"
    assert tei.json()["error_type"] == "Backend"
    assert openai.json()["error"]["code"] == "out_of_memory"
    assert "not enough memory" in tei.json()["error"]
    assert "shape" not in tei.text
    assert client.post("/embed", json={"inputs": "the cat"}).status_code == 200


def test_an_error_names_the_item_of_the_whole_call(client: Any, tiny: Encoder) -> None:
    given = [*["a cat"] * 2000, "the cat " * tiny.max_length]  # several parts
    answer = client.post("/embed", json={"inputs": given, "truncate": False})
    assert "item 2000 has more than" in answer.json()["error"]


@pytest.mark.parametrize("path", ["/embed_sparse", "/embed_all"])
def test_kinds_of_models_that_are_not_served(client: Any, path: str) -> None:
    answer = client.post(path, json={"inputs": "a"})
    assert (answer.status_code, answer.json()["error_type"]) == (424, "Backend")
    assert "; /embed is for its embedding model; /rerank is for its reranker" in answer.text


def test_similarities_are_cosines(client: Any, tiny: Encoder) -> None:
    others = texts(5)
    body = {"inputs": {"source_sentence": "the cat", "sentences": others}}
    vectors = tiny.encode(["the cat", *others], normalize_embeddings=True)
    answer = client.post("/similarity", json=body)
    np.testing.assert_allclose(answer.json(), vectors[1:] @ vectors[0], atol=1e-5)


def test_tokens_and_their_texts(client: Any, mini: Encoder) -> None:
    given = ["The café, again.", "cats"]
    answer = client.post("/tokenize", json={"inputs": given, "model": "org/mini"}).json()
    assert [[token["id"] for token in text] for text in answer] == mini.tokenize(given).ids
    for text, tokens in zip(given, answer, strict=True):
        assert [tokens[0]["special"], tokens[-1]["special"]] == [True, True]
        inner = tokens[1:-1]
        assert all(text[t["start"] : t["stop"]] == t["text"] for t in inner)
        assert "".join(t["text"] for t in inner) == text.replace(" ", "")
    ids = [[token["id"] for token in text] for text in answer]
    decoded = client.post("/decode", json={"ids": ids, "model": "org/mini"}).json()
    assert decoded == ["the cafe, again.", "cats"]
    one = client.post("/decode", json={"ids": ids[1], "model": "org/mini"}).json()
    assert one == ["cats"]
    plain = client.post(
        "/tokenize", json={"inputs": "cats", "add_special_tokens": False, "model": "org/mini"}
    ).json()
    assert plain == [answer[1][1:-1]]
    for wrong in ([], [1, [2]], [-1], [1 << 40]):
        assert client.post("/decode", json={"ids": wrong}).status_code == 422


def test_what_is_served(client: Any, tiny: Encoder) -> None:
    info = client.get("/info").json()
    assert info["served_model_name"] == "tiny"
    assert info["model_type"] == {"embedding": {"pooling": "mean"}}
    assert info["max_input_length"] == tiny.max_length
    assert info["fingerprint"] == tiny.fingerprint
    assert info["models"] == ["tiny", "org/mini", "sorts"]
    assert {
        "model_id", "model_sha", "model_dtype", "max_concurrent_requests", "max_batch_tokens",
        "max_batch_requests", "max_client_batch_size", "auto_truncate", "tokenization_workers",
        "version", "sha", "docker_label",
    } <= set(info)  # fmt: skip
