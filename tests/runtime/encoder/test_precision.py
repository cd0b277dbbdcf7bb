"""Vectors in fewer bits and dimensions, through the Encoder and a bundle's own ranges."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from flowvec import BundleError, Encoder, InputValueError, SharedEncoder
from flowvec.bundle.bundle import record_file
from flowvec.bundle.manifest import RANGES

TEXTS = ["the cat", "a dog runs in the garden", "stocks fell", "", "the man eats bread"] * 9


def add_ranges(folder: Path, ranges: np.ndarray) -> Path:
    np.save(folder / RANGES, ranges)
    file = folder / "manifest.json"
    manifest = json.loads(file.read_text())
    manifest["files"][RANGES] = asdict(record_file(folder / RANGES))
    file.write_text(json.dumps(manifest))
    return folder


@pytest.fixture
def ranged(tiny_copy: Path, tiny: Encoder) -> Iterator[Encoder]:
    vectors = tiny.encode(TEXTS)
    ends = np.stack([vectors.min(0) - 0.01, vectors.max(0) + 0.01])
    with Encoder.load(add_ranges(tiny_copy, ends), provider="cpu") as encoder:
        yield encoder


@pytest.mark.parametrize("precision", ["int8", "uint8", "binary", "ubinary"])
def test_one_text_is_quantized_as_a_corpus_is(ranged: Encoder, precision) -> None:
    whole = ranged.encode(TEXTS, precision=precision)
    alone = np.stack([ranged.encode(text, precision=precision) for text in TEXTS])
    # What rounds the other way in another batch is one step, never more.
    assert np.abs(whole.astype(int) - alone.astype(int)).max() <= (1 if "8" in precision else 0)
    streamed = np.stack(list(ranged.stream(TEXTS, precision=precision)))
    np.testing.assert_array_equal(streamed, whole)
    with SharedEncoder(ranged) as shared:
        packed = shared.encode(TEXTS, precision=precision)
    assert packed.dtype == whole.dtype
    assert np.abs(whole.astype(int) - packed.astype(int)).max() <= (1 if "8" in precision else 0)
    assert ranged.encode([], precision=precision).shape == (0, whole.shape[1])
    assert ranged.encode([], precision=precision).dtype == whole.dtype


def test_eight_bits_keep_the_direction(ranged: Encoder) -> None:
    exact = ranged.encode(TEXTS)
    lower, upper = ranged.bundle.ranges()
    restored = ranged.encode(TEXTS, precision="uint8") * ((upper - lower) / 255) + lower
    cosine = (
        (exact * restored).sum(1) / np.linalg.norm(exact, axis=1) / np.linalg.norm(restored, axis=1)
    )
    assert cosine.min() >= 0.999


def test_truncate_dim_cuts_vectors(tiny: Encoder, mini: Encoder) -> None:
    np.testing.assert_array_equal(
        tiny.encode(TEXTS, truncate_dim=5), tiny.encode(TEXTS)[:, :5]
    )  # tiny does not normalize, and was not asked to
    unit = mini.encode(["a", "b c"], truncate_dim=64)
    np.testing.assert_allclose(np.linalg.norm(unit, axis=1), 1, atol=1e-6)
    whole = mini.encode(["a", "b c"])[:, :64]
    np.testing.assert_allclose((unit * whole).sum(1), np.linalg.norm(whole, axis=1), atol=1e-6)
    assert mini.encode("a", truncate_dim=12, precision="binary").shape == (2,)


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"precision": "float16"}, "precision must be one of float32, int8"),
        ({"truncate_dim": 0}, "truncate_dim must be from 1 to 16"),
        ({"truncate_dim": 17}, "truncate_dim must be from 1 to 16"),
        ({"precision": "int8", "normalize_embeddings": True}, "cannot be used with normalize_emb"),
    ],
)
def test_unsupported_options_are_errors(ranged: Encoder, options, part: str) -> None:
    with pytest.raises(InputValueError) as caught:
        ranged.encode("a", **options)
    assert part in str(caught.value)


def test_the_shipped_model_has_ranges(mini: Encoder) -> None:
    exact, small = mini.encode(TEXTS[:5]), mini.encode(TEXTS[:5], precision="int8")
    assert small.dtype == np.int8
    steps = np.diff(mini.bundle.ranges(), axis=0)[0] / 255
    back = (small.astype(np.float32) + 128.5) * steps + mini.bundle.ranges()[0]
    assert ((exact * back).sum(1) / np.linalg.norm(back, axis=1)).min() >= 0.998


def test_a_bundle_without_ranges_says_so(tiny: Encoder) -> None:
    with pytest.raises(InputValueError, match=r"tiny .*int8_ranges\.npy"):
        tiny.encode("a", precision="int8")
    assert tiny.encode("a", precision="ubinary").shape == (2,)


@pytest.mark.parametrize(
    "ranges",
    [
        np.zeros((2, 16), np.float32),
        np.zeros((2, 15), np.float32),
        np.stack([np.zeros(16), np.ones(16)]),
        np.stack([np.zeros(16), np.full(16, np.nan)]).astype(np.float32),
        np.array([object()], dtype=object),
    ],
    ids=["no spread", "another dim", "float64", "nan", "pickled"],
)
def test_invalid_ranges_are_refused(tiny_copy: Path, ranges) -> None:
    with Encoder.load(add_ranges(tiny_copy, ranges), provider="cpu") as encoder:
        with pytest.raises(BundleError, match="int8_ranges"):
            encoder.encode("a", precision="int8")
        assert encoder.encode("a").shape == (16,)
