"""Isotropy: laws of the figures, and known cases."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

pytest.importorskip("scipy", reason="needs the extra [bench]")

from hypothesis import given
from hypothesis import strategies as st

from flowvec.errors import InputValueError
from flowvec_bench.quality.isotropy import (
    alignment,
    covariance_eigenvalues,
    effective_rank,
    isoscore,
    mean_cosine,
    measure_isotropy,
    participation_ratio,
    random_cosines,
    singular_spectrum,
    top_share,
    uniformity,
)
from tests.drawing import examples


def rotation(dim: int, seed: int) -> np.ndarray:
    return np.linalg.qr(np.random.default_rng(seed).normal(size=(dim, dim)))[0]


def uneven(seed: int, rows: int = 200, dim: int = 6) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(rows, dim)) * rng.uniform(0.1, 4, dim) + rng.normal(size=dim)


@given(seed=st.integers(0, 2**32 - 1))
@examples(25)
def test_rotation_shift_and_scale_change_no_spectral_figure(seed: int) -> None:
    vectors = uneven(seed)
    moved = 3.7 * vectors @ rotation(6, seed) + 5.0
    before, after = covariance_eigenvalues(vectors), covariance_eigenvalues(moved)
    for figure in (isoscore, effective_rank, participation_ratio):
        assert figure(after) == pytest.approx(figure(before), rel=1e-9)
    np.testing.assert_allclose(singular_spectrum(after), singular_spectrum(before), rtol=1e-8)


@given(seed=st.integers(0, 2**32 - 1))
@examples(25)
def test_cosine_figures_depend_on_neither_rotation_nor_length(seed: int) -> None:
    vectors, other = uneven(seed), uneven(seed + 1)
    turn = rotation(6, seed)
    lengths = np.random.default_rng(seed).uniform(0.1, 9, (len(vectors), 1))
    for figure in (mean_cosine, uniformity):
        assert figure(lengths * vectors @ turn) == pytest.approx(figure(vectors), abs=1e-9)
    turned = alignment(lengths * vectors @ turn, other @ turn)
    assert turned == pytest.approx(alignment(vectors, other))


@pytest.mark.parametrize(("equal", "dim"), [(1, 2), (1, 8), (3, 8), (8, 8)])
def test_k_equal_variances_count_as_k(equal: int, dim: int) -> None:
    # Rows along the axes, both ways: a mean of zero and exactly equal variances.
    axes = np.eye(dim)[:equal]
    eigenvalues = covariance_eigenvalues(np.concatenate((axes, -axes)) + 2.0)
    assert participation_ratio(eigenvalues) == pytest.approx(equal)
    assert effective_rank(eigenvalues) == pytest.approx(equal)
    # With k equal variances of n IsoScore is (k - 1) / (n - 1), as its paper derives.
    assert isoscore(eigenvalues) == pytest.approx((equal - 1) / (dim - 1), abs=1e-9)


@given(seed=st.integers(0, 2**32 - 1), dim=st.integers(2, 40))
@examples(50)
def test_isoscore_is_its_papers_formula(seed: int, dim: int) -> None:
    variances = np.sort(np.random.default_rng(seed).exponential(size=dim) ** 2)[::-1]
    scaled = np.sqrt(dim) * variances / np.linalg.norm(variances)
    defect = np.linalg.norm(scaled - 1) / np.sqrt(2 * (dim - np.sqrt(dim)))
    used = (dim - defect**2 * (dim - np.sqrt(dim))) ** 2 / dim**2
    assert isoscore(variances) == pytest.approx((dim * used - 1) / (dim - 1), abs=1e-9)


def test_a_gaussian_is_isotropic_and_a_line_is_not() -> None:
    rng = np.random.default_rng(0)
    even = measure_isotropy(rng.normal(size=(20_000, 16)).astype(np.float32))
    assert even.isoscore > 0.99
    assert even.effective_rank > 15.9
    assert abs(even.mean_cosine) < 0.01
    assert even.top1_share is None
    assert even.uniformity < -3
    line = measure_isotropy(np.outer(rng.normal(size=500), rng.normal(size=16)) + 1.0)
    assert line.isoscore == pytest.approx(0, abs=1e-9)
    assert line.effective_rank == pytest.approx(1, abs=1e-6)
    assert line.spectrum[0] == 1
    assert max(line.spectrum[1:]) < 1e-6


def test_the_spectrum_is_of_centred_vectors() -> None:
    vectors = uneven(1) + 100.0
    values = np.linalg.svd(vectors - vectors.mean(0), compute_uv=False)
    isotropy = measure_isotropy(vectors)
    np.testing.assert_allclose(isotropy.spectrum, values / values[0], rtol=1e-8)
    # The mean cosine is of the vectors as they are: all of these point one way.
    assert isotropy.mean_cosine > 0.99


def test_the_mean_cosine_is_that_of_all_pairs() -> None:
    vectors = uneven(2, rows=40) + 2.0
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    products = np.array([unit[i] * unit[j] for i, j in combinations(range(40), 2)])
    assert mean_cosine(vectors) == pytest.approx(products.sum(1).mean())
    shares = np.sort(products.mean(0))[::-1] / products.sum(1).mean()
    for top in (1, 3, 5):
        assert top_share(vectors, top) == pytest.approx(shares[:top].sum())
    assert top_share(vectors, 6) == pytest.approx(1)


def test_one_loud_dimension_has_the_largest_share() -> None:
    vectors = np.random.default_rng(0).normal(size=(500, 16))
    vectors[:, 7] += 30
    assert top_share(vectors, 1) == pytest.approx(1, abs=0.01)


def test_random_pairs_are_seeded_and_of_different_rows() -> None:
    vectors = np.eye(5)
    assert random_cosines(vectors, 2000, 0).tolist() == [0.0] * 2000
    vectors = uneven(3)
    np.testing.assert_array_equal(random_cosines(vectors, 50, 1), random_cosines(vectors, 50, 1))
    assert not np.array_equal(random_cosines(vectors, 50, 1), random_cosines(vectors, 50, 2))
    many = random_cosines(vectors, 50_000, 0)
    assert many.mean() == pytest.approx(mean_cosine(vectors), abs=0.02)


@pytest.mark.parametrize("rows", [2, 511, 513, 700])
def test_uniformity_is_that_of_all_pairs(rows: int) -> None:
    vectors = uneven(4, rows=rows)
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    squared = np.square(unit[:, None] - unit[None]).sum(2)[np.triu_indices(rows, 1)]
    assert uniformity(vectors) == pytest.approx(np.log(np.exp(-2 * squared).mean()))


def test_alignment_is_the_mean_squared_distance_of_unit_vectors() -> None:
    left, right = np.array([[2.0, 0.0], [0.0, 3.0]]), np.array([[5.0, 0.0], [-1.0, 0.0]])
    assert alignment(left, right) == pytest.approx((0 + 2) / 2)
    assert alignment(left, -left) == pytest.approx(4)
    with pytest.raises(InputValueError):
        alignment(left[:0], right[:0])


def test_labelled_sentences_are_measured_where_they_are_given() -> None:
    vectors, sentences = uneven(5), uneven(6, rows=30)
    positives = np.array([[0, 1], [2, 2]])
    isotropy = measure_isotropy(vectors, sentences=sentences, positives=positives)
    assert isotropy.uniformity == pytest.approx(uniformity(sentences))
    assert isotropy.alignment == pytest.approx(alignment(sentences[[0, 2]], sentences[[1, 2]]))
    assert (isotropy.rows, isotropy.uniformity_rows, isotropy.alignment_pairs) == (200, 30, 2)
    plain = measure_isotropy(vectors)
    assert plain.uniformity == pytest.approx(uniformity(vectors))
    assert (plain.alignment, plain.alignment_pairs) == (None, 0)


def test_uniformity_over_many_rows_is_sampled_with_the_seed() -> None:
    vectors = np.random.default_rng(0).normal(size=(5000, 4)) + 1
    one, same, other = (measure_isotropy(vectors, seed=s) for s in (0, 0, 1))
    assert one == same
    assert one.uniformity_rows == 4000
    assert one.uniformity != other.uniformity
    assert one.uniformity == pytest.approx(uniformity(vectors), abs=0.02)


def test_zero_vectors_give_numbers() -> None:
    vectors = uneven(7)
    vectors[::3] = 0
    isotropy = measure_isotropy(vectors, sentences=vectors, positives=np.array([[0, 1], [0, 3]]))
    for value in (isotropy.mean_cosine, isotropy.uniformity, isotropy.alignment, isotropy.isoscore):
        assert np.isfinite(value)


@pytest.mark.parametrize(
    "vectors",
    [np.ones((50, 4)), np.full((50, 4), 0.1, np.float32), np.ones((1, 4)), uneven(0)[:, :1]],
    ids=["equal", "equal float32", "one row", "one dimension"],
)
def test_what_has_no_spread_is_an_error(vectors: np.ndarray) -> None:
    with pytest.raises(InputValueError):
        measure_isotropy(vectors)
