"""Prompts: the text that a bundle puts before queries and documents."""

from __future__ import annotations

import numpy as np

from flowvec import (
    Encoder,
)


def test_prompts_are_put_before_the_text(tiny: Encoder) -> None:
    expected = tiny.encode(["the red cat"])
    np.testing.assert_allclose(tiny.encode(["cat"], prompt_name="query"), expected, atol=1e-6)
    np.testing.assert_allclose(tiny.encode_query(["cat"]), expected, atol=1e-6)
    np.testing.assert_allclose(tiny.encode_document("cat"), tiny.encode("a blue cat"), atol=1e-6)


def test_a_bundle_without_prompts_encodes_queries_as_they_are(mini: Encoder) -> None:
    np.testing.assert_array_equal(mini.encode_query("a cat"), mini.encode("a cat"))
    np.testing.assert_array_equal(mini.encode_document("a cat"), mini.encode("a cat"))
