"""The only numerics outside the graph."""

from __future__ import annotations

import numpy as np
import pytest

from flowvec.encoder.postprocess import (
    PRECISIONS,
    Postprocess,
    non_finite_rows,
    normalize,
    quantize,
)
from tests.makers import vectors


def test_normalized_rows_have_length_one_and_keep_their_direction() -> None:
    rows = np.random.default_rng(0).standard_normal((50, 7), dtype=np.float32) * 1e3
    unit = normalize(rows)
    assert unit.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(unit, axis=1), 1.0, atol=1e-6)
    np.testing.assert_allclose(unit * np.linalg.norm(rows, axis=1, keepdims=True), rows, rtol=1e-5)


@pytest.mark.parametrize("scale", [1e-42, 1e-30, 1e-19, 1.0, 1e19, 1e37])
def test_rows_of_any_length_become_one_long(scale: float) -> None:
    """Their squares may be 0 or infinite in float32."""
    rows = np.array([[3, 4], [0, 0], [1, 0]]) * scale
    unit = normalize(rows.astype(np.float32))
    assert unit.dtype == np.float32
    np.testing.assert_allclose(
        unit, [[0.6, 0.8], [0, 0], [1, 0]], atol=2e-3 if scale < 1e-40 else 1e-6
    )


def test_zero_and_subnormal_rows_stay_finite() -> None:
    unit = normalize(np.array([[0, 0], [1e-45, 0]], dtype=np.float32))
    assert np.isfinite(unit).all()


def test_rows_with_nan_or_infinity_are_named() -> None:
    rows = np.zeros((4, 3), dtype=np.float32)
    rows[1, 2], rows[3, 0] = np.nan, -np.inf
    assert non_finite_rows(rows).tolist() == [1, 3]
    assert non_finite_rows(np.full((2, 3), 3e38, dtype=np.float32)).tolist() == []
    opposite = np.array([[np.inf, -np.inf]], dtype=np.float32)
    assert non_finite_rows(opposite).tolist() == [0]


# --- fewer bits -----------------------------------------------------------------------------------


RANGES = np.stack([np.full(13, -1.5), np.linspace(0.5, 2.5, 13)]).astype(np.float32)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_row_has_the_same_bytes_alone_and_in_a_batch(precision) -> None:
    rows = vectors(40, 13, seed=1)
    whole = quantize(rows, precision, RANGES)
    alone = np.concatenate([quantize(rows[i : i + 1], precision, RANGES) for i in range(len(rows))])
    np.testing.assert_array_equal(whole, alone)
    assert whole.dtype == {"float32": "f4", "int8": "i1", "uint8": "u1", "binary": "i1",
                           "ubinary": "u1"}[precision]  # fmt: skip


def test_eight_bits_are_steps_of_the_range_and_what_is_outside_is_clipped() -> None:
    ranges = np.array([[0.0, -1.0], [255.0, 1.0]], dtype=np.float32)
    rows = np.array([[0, -1], [1.5, 0], [254.9, 0.999], [300, 5], [-9, -5]], dtype=np.float32)
    expected = [[0, 0], [1, 127], [254, 254], [255, 255], [0, 0]]
    assert quantize(rows, "uint8", ranges).tolist() == expected
    assert (quantize(rows, "int8", ranges).astype(int) + 128).tolist() == expected


def test_eight_bits_keep_a_vector_within_a_step() -> None:
    rows = vectors(40, 13, seed=1)
    clipped = np.clip(rows, *RANGES)
    step = (RANGES[1] - RANGES[0]) / 255
    back = quantize(rows, "uint8", RANGES) * step + RANGES[0]
    assert (clipped - back <= step * 1.001).all()
    assert (clipped - back >= -1e-5).all()


def test_signs_are_bits_the_first_dimension_in_the_highest() -> None:
    rows = np.array([[1, -1, 0, 2, -3, 1, 1, -1, 5]], dtype=np.float32)
    assert quantize(rows, "ubinary").tolist() == [[0b10010110, 0b10000000]]
    assert quantize(rows, "binary").tolist() == [[0b10010110 - 128, 0]]


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("cut", [None, 1, 8, 13])
def test_the_result_has_the_declared_length_and_type(precision, cut) -> None:
    steps = Postprocess(13, True, cut, True, precision, RANGES)
    result = steps(vectors(40, 13, seed=1))
    assert result.shape == (40, steps.out_dim)
    assert result.dtype == steps.dtype


def test_truncated_vectors_are_normalized_again() -> None:
    rows = vectors(40, 13, seed=1)
    cut = Postprocess(13, truncate_dim=5, renormalize=True)(rows)
    np.testing.assert_allclose(cut, normalize(rows[:, :5]), atol=1e-7)
    np.testing.assert_array_equal(Postprocess(13, truncate_dim=5)(rows), rows[:, :5])
    # In 8 bits a cut vector is the beginning of the whole one.
    whole = Postprocess(13, precision="int8", ranges=RANGES)(rows)
    cut = Postprocess(13, truncate_dim=5, renormalize=True, precision="int8", ranges=RANGES)(rows)
    np.testing.assert_array_equal(cut, whole[:, :5])
