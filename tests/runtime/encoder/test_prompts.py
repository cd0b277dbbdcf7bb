"""Prompts: the text that a bundle puts before queries and documents."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flowvec import AsyncEncoder, Encoder, InputValueError, SharedEncoder
from flowvec.spelled import json_message


def test_prompts_are_put_before_the_text(tiny: Encoder) -> None:
    expected = tiny.encode(["the red cat"])
    np.testing.assert_allclose(tiny.encode(["cat"], prompt_name="query"), expected, atol=1e-5)
    np.testing.assert_allclose(tiny.encode_query(["cat"]), expected, atol=1e-5)
    np.testing.assert_allclose(tiny.encode_document("cat"), tiny.encode("a blue cat"), atol=1e-5)


def test_a_bundle_without_prompts_encodes_queries_as_they_are(mini: Encoder) -> None:
    np.testing.assert_array_equal(mini.encode_query("a cat"), mini.encode("a cat"))
    np.testing.assert_array_equal(mini.encode_document("a cat"), mini.encode("a cat"))


def test_shared_encoders_use_the_encoders_prompts(tiny: Encoder) -> None:
    async def queries_and_documents() -> tuple[Any, Any, Any]:
        async with AsyncEncoder(tiny) as model:
            return await asyncio.gather(
                model.encode_query(["cat"], timeout=60),
                model.encode_document("cat", timeout=60),
                model.encode_query("cat", prompt_name="document", normalize_embeddings=True),
            )

    expected = (
        tiny.encode_query(["cat"]),
        tiny.encode_document("cat"),
        tiny.encode_query("cat", prompt_name="document", normalize_embeddings=True),
    )
    with SharedEncoder(tiny) as shared:
        of_threads = (
            shared.encode_query(["cat"], timeout=60),
            shared.encode_document("cat", timeout=60),
            shared.encode_query("cat", prompt_name="document", normalize_embeddings=True),
        )
    for results in (of_threads, asyncio.run(queries_and_documents())):
        for result, vectors in zip(results, expected, strict=True):
            np.testing.assert_allclose(result, vectors, atol=1e-5)


def test_a_prompt_that_the_bundle_lacks(tiny: Encoder, tiny_copy: Path) -> None:
    with pytest.raises(InputValueError, match="'x'; it has document, query"):
        tiny.encode("a cat", prompt_name="x")
    manifest = tiny_copy / "manifest.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"prompts": {}}))
    with (
        Encoder.load(tiny_copy, provider="cpu", streams=1) as plain,
        pytest.raises(InputValueError) as raised,
    ):
        plain.encode("a cat", prompt_name="query")
    message = "the bundle has no prompts; leave prompt_name out"
    assert str(raised.value) == f"{message}, or call encode_query"
    assert json_message(raised.value) == message
