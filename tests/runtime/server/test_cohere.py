"""Cohere's `/v2/embed`."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import pytest

from flowvec import Encoder
from tests.runtime.server.conftest import texts

pytest.importorskip("msgspec", reason="needs the extra [serve]")

TYPES = ["float", "int8", "uint8", "binary", "ubinary", "base64"]


@pytest.mark.parametrize("dim", [None, 16])
def test_every_type_is_that_of_the_encoder(client: Any, mini: Encoder, dim: int | None) -> None:
    given = texts(30)
    body = {"model": "org/mini", "texts": given, "embedding_types": TYPES, "output_dimension": dim}
    answer = client.post("/v2/embed", json=body)
    assert answer.status_code == 200, answer.text
    got = answer.json()["embeddings"]
    assert list(got) == TYPES
    expected = mini.encode(given, normalize_embeddings=True, truncate_dim=dim)
    np.testing.assert_allclose(got["float"], expected, atol=1e-5)
    raw = [np.frombuffer(base64.b64decode(row), "<f4") for row in got["base64"]]
    np.testing.assert_array_equal(raw, np.float32(got["float"]))
    for kind in TYPES[1:5]:
        vectors = mini.encode(given, precision=kind, truncate_dim=dim)  # type: ignore[arg-type]
        assert np.mean(np.array(got[kind]) != vectors) < 0.01, kind  # batches differ in noise
    assert answer.json()["texts"] == given
    assert answer.json()["meta"]["billed_units"] == {
        "input_tokens": int(answer.headers["x-compute-tokens"])
    }


def test_the_input_type_chooses_the_prompt(client: Any, tiny: Encoder) -> None:
    for kind, vectors in (
        ("search_query", tiny.encode_query(["a cat"], normalize_embeddings=True)),
        ("search_document", tiny.encode_document(["a cat"], normalize_embeddings=True)),
        (None, tiny.encode(["a cat"], normalize_embeddings=True)),
    ):
        inputs = [{"content": [{"type": "text", "text": "a cat"}]}]
        answer = client.post("/v2/embed", json={"inputs": inputs, "input_type": kind})
        np.testing.assert_allclose(answer.json()["embeddings"]["float"], vectors, atol=1e-5)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"texts": []}, "no texts"),
        ({"texts": ["a"], "truncate": "START"}, "END or NONE"),
        ({"texts": ["cat " * 600], "truncate": "NONE"}, "item 0 has more than"),
        ({"texts": ["a"], "output_dimension": 17}, "output_dimension must be from 1 to 16"),
        ({"texts": ["a"], "embedding_types": ["float64"]}, "embedding_types"),
        ({"inputs": [{"content": [{"type": "image_url"}]}]}, "no images"),
    ],
)
def test_errors_have_its_form(client: Any, body: dict[str, Any], message: str) -> None:
    answer = client.post("/v2/embed", json=body)
    assert answer.status_code == 400
    assert list(answer.json()) == ["message"]
    assert message in answer.json()["message"]
