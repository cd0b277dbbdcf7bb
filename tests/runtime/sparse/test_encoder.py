"""SparseEncoder: a text's weights depend on the text alone, and calls are checked."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest

from flowvec import (
    BundleError,
    Encoder,
    InputTypeError,
    InputValueError,
    Reranker,
    SparseEncoder,
    SparseVectors,
)

TEXTS = ["the cat sleeps", "", "stocks fell", "a dog runs fast " * 9, "red", "x" * 300] * 3


@pytest.fixture(scope="module")
def encoder(sparse_dir: Path) -> SparseEncoder:
    return SparseEncoder.load(sparse_dir, provider="cpu", compute="float32", streams=2)


def same(a: SparseVectors, b: SparseVectors) -> None:
    np.testing.assert_array_equal(a.indptr, b.indptr)
    np.testing.assert_array_equal(a.indices, b.indices)
    np.testing.assert_allclose(a.values, b.values, rtol=1e-5, atol=1e-6)


def test_weights_depend_on_the_text_alone(sparse_dir: Path, provider: str) -> None:
    with SparseEncoder.load(sparse_dir, provider=provider, compute="float32") as encoder:
        together = encoder.encode(TEXTS)
        alone = SparseVectors.joined([encoder.encode(text) for text in TEXTS])
        same(together, alone)
        same(together, encoder.encode(TEXTS, max_batch_tokens=1))
        same(together, SparseVectors.joined(list(encoder.stream(iter(TEXTS)))))
    assert together.shape == (len(TEXTS), encoder.dim)
    assert 0 < together.active_dims.min() < encoder.dim / 2


def test_the_largest_weights_are_kept(encoder: SparseEncoder) -> None:
    every, few = encoder.encode(TEXTS), encoder.encode(TEXTS, max_active_dims=3)
    assert every.active_dims.max() > 3
    for weights, kept in zip(every.as_dicts(), few.as_dicts(), strict=True):
        largest = sorted(weights, key=lambda token: (-weights[token], token))[:3]
        assert sorted(kept) == sorted(largest)


def test_tokens_are_named_by_the_bundles_vocabulary(encoder: SparseEncoder) -> None:
    vectors = encoder.encode(["the cat"])
    ((token, weight), *_), *_ = vectors.decode(top_k=2)
    assert weight == vectors.values.max()
    assert encoder.vocabulary[vectors.indices[vectors.values.argmax()]] == token
    assert "cat" in encoder.vocabulary


def test_similarity_is_the_dot_product(encoder: SparseEncoder) -> None:
    a, b = encoder.encode(TEXTS[:4]), encoder.encode(TEXTS)
    expected = a.to_dense() @ b.to_dense().T
    np.testing.assert_allclose(encoder.similarity(a, b), expected, rtol=1e-5)
    hits = b.search(a, top_k=1)
    assert [hit[0]["score"] for hit in hits] == pytest.approx(expected.max(axis=1).tolist())


def test_nothing_gives_nothing_and_a_single_text_one_vector(encoder: SparseEncoder) -> None:
    assert encoder.encode([]).shape == (0, encoder.dim)
    assert encoder.encode("the cat").shape == (1, encoder.dim)


def test_statistics_count_texts_and_truncation(sparse_dir: Path) -> None:
    calls = []
    with SparseEncoder.load(sparse_dir, provider="cpu", on_statistics=calls.append) as encoder:
        encoder.encode(["the cat", "dog " * 200])
        with pytest.raises(InputValueError, match="item 1 has more than 64 tokens"):
            encoder.encode(["the cat", "dog " * 200], truncation="error")
    assert (calls[0].texts, calls[0].truncated) == (2, 1)


def test_a_pickled_encoder_gives_the_same(encoder: SparseEncoder) -> None:
    with pickle.loads(pickle.dumps(encoder)) as again:
        same(again.encode(TEXTS[:3]), encoder.encode(TEXTS[:3]))


def test_a_small_budget_holds_the_logits_of_a_batch(
    encoder: SparseEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert encoder.max_batch_tokens == 512
    monkeypatch.setattr("flowvec.sparse.encoder._MOST_LOGITS", 4 * encoder.dim * 40)
    with SparseEncoder.load(encoder.bundle.path, provider="cpu") as smaller:
        assert smaller.max_batch_tokens == 40
    with SparseEncoder.load(encoder.bundle.path, provider="cpu", max_batch_tokens=99) as given:
        assert given.max_batch_tokens == 99


def test_another_kind_is_refused_by_the_class_that_opens_it(
    sparse_dir: Path, tiny_dir: Path
) -> None:
    for kind in (Encoder, Reranker):
        with pytest.raises(BundleError, match=r"flowvec\.SparseEncoder"):
            kind.load(sparse_dir)
    with pytest.raises(BundleError, match=r"an embedder.*flowvec\.Encoder"):
        SparseEncoder.load(tiny_dir)


def test_wrong_arguments(encoder: SparseEncoder) -> None:
    with pytest.raises(InputTypeError, match="item 1"):
        encoder.encode(["the cat", 1])  # type: ignore[list-item]
    with pytest.raises(InputValueError, match="max_active_dims"):
        encoder.encode("the cat", max_active_dims=0)
    with pytest.raises(InputValueError, match="no prompt 'other'"):
        encoder.encode("the cat", prompt_name="other")
    with pytest.raises(InputTypeError, match="batched by their tokens"):
        encoder.encode("the cat", batch_size=4)  # type: ignore[call-arg]
    with pytest.raises(InputTypeError, match="b must be SparseVectors"):
        encoder.similarity(encoder.encode("the cat"), np.ones((1, 3)))  # type: ignore[arg-type]
