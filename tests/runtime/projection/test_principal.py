"""Principal axes are those of an eigendecomposition."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowvec.projection.principal import principal_axes
from tests.drawing import examples


@examples(30)
@given(
    seed=st.integers(0, 1000), rows=st.integers(1, 60), dim=st.integers(1, 20),
    components=st.integers(1, 4),
)  # fmt: skip
def test_axes_hold_as_much_variance_as_any(seed: int, rows: int, dim: int, components: int) -> None:
    vectors = np.random.default_rng(seed).normal(3, np.geomspace(9, 0.1, dim), (rows, dim))
    made = principal_axes(vectors, components)
    centred = vectors - vectors.mean(0)
    best = np.linalg.eigvalsh(centred.T @ centred)[::-1][:components]
    total = np.square(centred).sum()
    expected = best / total if total > 0 else np.zeros_like(best)
    assert made.shares[: len(best)] == pytest.approx(expected, abs=2e-3)
    assert made.axes.shape == (dim, components)
    projected = made.project(vectors.astype(np.float32))
    assert projected.mean(0) == pytest.approx(np.zeros(components), abs=1e-3)
    kept = np.square(projected, dtype=np.float64).sum(0)
    assert kept == pytest.approx(np.array(made.shares) * total, rel=1e-2, abs=1e-2)


def test_the_same_vectors_give_the_same_axes() -> None:
    vectors = np.random.default_rng(1).normal(size=(50, 8))
    first, second = principal_axes(vectors), principal_axes(vectors.copy())
    assert (first.axes == second.axes).all()
    # The sign is fixed: the largest coordinate of an axis is positive.
    assert (first.axes[np.abs(first.axes).argmax(0), [0, 1]] > 0).all()


def test_equal_vectors_have_no_axes() -> None:
    made = principal_axes(np.ones((5, 3)))
    assert made.shares == (0.0, 0.0)
    assert not made.project(np.ones((5, 3), np.float32)).any()
