"""The only numerics outside the graph."""

from __future__ import annotations

import numpy as np

from flowvec.postprocess import non_finite_rows, normalize


def test_normalised_rows_have_length_one_and_keep_their_direction() -> None:
    rows = np.random.default_rng(0).standard_normal((50, 7), dtype=np.float32) * 1e3
    unit = normalize(rows)
    assert unit.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(unit, axis=1), 1.0, atol=1e-6)
    np.testing.assert_allclose(unit * np.linalg.norm(rows, axis=1, keepdims=True), rows, rtol=1e-5)


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
