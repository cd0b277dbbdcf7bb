"""Ollama's routes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from flowvec import Encoder
from tests.runtime.server.conftest import texts

pytest.importorskip("msgspec", reason="needs the extra [serve]")


def test_vectors_are_normalized(client: Any, tiny: Encoder) -> None:
    for given in ("the cat", texts(30), []):
        body = {"model": "tiny:latest", "input": given, "dimensions": 5, "options": {"a": 1}}
        answer = client.post("/api/embed", json=body)
        items = [given] if isinstance(given, str) else given
        expected = tiny.encode(items, normalize_embeddings=True, truncate_dim=5)
        got = answer.json()
        np.testing.assert_allclose(np.reshape(got["embeddings"], (-1, 5)), expected, atol=1e-5)
        assert got["model"] == "tiny:latest"
        assert got["prompt_eval_count"] == int(answer.headers["x-compute-tokens"])
        assert got["total_duration"] > 0


def test_the_older_route_gives_one_vector(client: Any, tiny: Encoder) -> None:
    answer = client.post("/api/embeddings", json={"model": "tiny", "prompt": "the cat"})
    np.testing.assert_allclose(answer.json()["embedding"], tiny.encode("the cat"), atol=1e-5)


def test_errors_have_its_form(client: Any) -> None:
    long = {"model": "tiny", "input": "cat " * 600, "truncate": False}
    for body, status, message in (
        (long, 400, "item 0 has more than"),
        ({"model": "x", "input": "a"}, 404, "no embedding model 'x'"),
    ):
        answer = client.post("/api/embed", json=body)
        assert (answer.status_code, list(answer.json())) == (status, ["error"])
        assert message in answer.json()["error"]
    assert client.get("/api/version").json()["version"]
