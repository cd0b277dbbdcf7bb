"""MaxSim by its definition, whatever the blocks."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from flowvec import InputTypeError, InputValueError, maxsim
from flowvec.multi_vector.scoring import scored


def token_vectors(count: int, seed: int, dim: int = 8) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [
        rng.normal(size=(int(n), dim)).astype(np.float32) for n in rng.integers(0, 9, size=count)
    ]


@pytest.mark.parametrize("block", [1, 30, 1 << 22])
def test_scores_are_sums_of_the_largest_products(block: int) -> None:
    queries, documents = token_vectors(7, 0), token_vectors(60, 1)
    assert any(len(document) == 0 for document in documents)
    expected = [
        [sum(max(q @ t for t in document) for q in query) if len(document) else 0.0
         for document in documents]
        for query in queries
    ]  # fmt: skip
    for scores in (
        scored(queries, documents, 8, products_at_once=block),
        maxsim(queries, documents),
    ):
        assert (scores.shape, scores.dtype) == ((7, 60), np.float32)
        np.testing.assert_allclose(scores, expected, rtol=1e-5, atol=1e-5)


def test_a_short_query_does_not_copy_all_documents() -> None:
    documents, query = [np.ones((50, 64), np.float32)] * 400, np.ones((1, 64), np.float32)
    expected = maxsim(query, documents)
    tracemalloc.start()
    scores = scored([query], documents, 64, numbers_at_once=64 * 500)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    np.testing.assert_allclose(scores, expected)
    assert peak < sum(document.nbytes for document in documents) / 4
    assert maxsim([], []).shape == (0, 0)


def test_a_single_text_is_one_row() -> None:
    queries, documents = token_vectors(3, 2), token_vectors(4, 3)
    np.testing.assert_allclose(
        maxsim(queries[0], documents), maxsim(queries, documents)[:1], atol=1e-5
    )
    assert maxsim([], documents).shape == (0, 4)
    assert maxsim(queries, []).shape == (3, 0)


def test_wrong_arguments() -> None:
    documents = token_vectors(4, 4)
    with pytest.raises(InputTypeError, match="queries must be token vectors"):
        maxsim(3, documents)  # type: ignore[arg-type]
    with pytest.raises(InputTypeError, match="must be arrays of numbers"):
        maxsim(["a text"], documents)
    with pytest.raises(InputValueError, match=r"tokens, dim\), not \(8"):
        maxsim([np.ones(8)], documents)
    with pytest.raises(InputValueError, match=r"differ in dim: \[7, 8\]"):
        maxsim(np.ones((2, 7)), documents)
