"""Figures for how evenly vectors fill their space, computed in float64.

Spectrum, participation ratio, effective rank and IsoScore use CENTRED vectors (their covariance);
mean cosine, alignment and uniformity use the vectors as they are, as a search does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from flowvec.errors import InputValueError

__all__ = [
    "UNIFORMITY_ROWS",
    "Isotropy",
    "alignment",
    "covariance_eigenvalues",
    "effective_rank",
    "isoscore",
    "mean_cosine",
    "measure_isotropy",
    "participation_ratio",
    "random_cosines",
    "singular_spectrum",
    "top_share",
    "uniformity",
    "unit_rows",
]

Vectors = npt.NDArray[np.floating[Any]]
Doubles = npt.NDArray[np.float64]

# All pairs of 4,000 rows are 8 million: they take seconds, and the third digit is stable.
UNIFORMITY_ROWS = 4000
_BLOCK = 512
# Shares of a mean cosine below this are not meaningful.
_LEAST_MEAN_COSINE = 0.01


@dataclass(frozen=True, slots=True)
class Isotropy:
    """The figures of one set of vectors; see the function of each.

    Attributes:
        rows: number of vectors of all figures except alignment and uniformity.
        dim: their length.
        mean_norm: mean L2 norm.
        mean_cosine: mean cosine of all pairs of rows; 0 if directions are even.
        top1_share: share of the mean cosine that its largest dimension contributes; None if the
            mean is below .01.
        top3_share: the same of the three largest.
        top5_share: the same of the five largest.
        participation_ratio: 1 to dim.
        effective_rank: 1 to dim.
        isoscore: 0 to 1.
        spectrum: sigma_i / sigma_1 of the centred vectors, descending.
        uniformity: lower is more uniform, 0 at most.
        uniformity_rows: number of vectors it was measured on.
        alignment: lower is closer; None without pairs that mean the same.
        alignment_pairs: number of pairs it was measured on.
    """

    rows: int
    dim: int
    mean_norm: float
    mean_cosine: float
    top1_share: float | None
    top3_share: float | None
    top5_share: float | None
    participation_ratio: float
    effective_rank: float
    isoscore: float
    spectrum: tuple[float, ...]
    uniformity: float
    uniformity_rows: int
    alignment: float | None
    alignment_pairs: int


def unit_rows(vectors: Vectors) -> Doubles:
    """Each row divided by its L2 norm, float64; a zero row stays zero."""
    rows = np.asarray(vectors, dtype=np.float64)
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    unit: Doubles = np.divide(rows, norms, where=norms > 0, out=np.zeros_like(rows))
    return unit


def _cosine_contributions(vectors: Vectors) -> Doubles:
    """Contribution of each dimension to the mean cosine of all pairs; float64 (dim,)."""
    unit = unit_rows(vectors)
    _require_rows(unit, 2)
    # Over pairs i != j the products u_i u_j sum to (sum u)^2 - sum u^2, dimension by dimension.
    sums = np.square(unit.sum(0)) - np.square(unit).sum(0)
    contributions: Doubles = sums / (len(unit) * (len(unit) - 1))
    return contributions


def mean_cosine(vectors: Vectors) -> float:
    """Mean cosine of two different rows, over all pairs: (|sum u|^2 - n) / (n (n - 1)).

    The average cosine of random pairs, which Ethayarajh (2019, section 3.3) calls anisotropy. With
    all pairs of a seeded sample, there is no second sampling error. NOT centred.

    Args:
        vectors: (rows, dim); at least two rows.
    """
    return float(_cosine_contributions(vectors).sum())


def top_share(vectors: Vectors, top: int) -> float | None:
    """Share of the mean cosine that the `top` dimensions with the largest contributions give.

    The contribution of a dimension is the mean of u_i v_i over pairs of unit rows u, v; all sum to
    the mean cosine (Timkey and van Schijndel 2021, section 3). A share above 1 is possible, since
    other dimensions may contribute below 0.

    Returns:
        None if the mean cosine is below .01, where shares are not meaningful.
    """
    contributions = _cosine_contributions(vectors)
    total = float(contributions.sum())
    if total < _LEAST_MEAN_COSINE:
        return None
    return float(np.sort(contributions)[::-1][:top].sum()) / total


def random_cosines(vectors: Vectors, count: int, seed: int) -> Doubles:
    """Cosines of `count` random pairs of different rows, seeded; float64 (count,). NOT centred."""
    _require_rows(vectors, 2)
    rng = np.random.default_rng(seed)
    left = rng.integers(0, len(vectors), count)
    # The second row of a pair is drawn from the other rows.
    right = (left + rng.integers(1, len(vectors), count)) % len(vectors)
    unit = unit_rows(vectors)
    cosines: Doubles = np.einsum("ij,ij->i", unit[left], unit[right])
    return cosines


def covariance_eigenvalues(vectors: Vectors) -> Doubles:
    """Eigenvalues of the covariance (of the CENTRED rows), descending, float64 (dim,), none < 0.

    Raises:
        InputValueError: fewer than two rows, fewer than two dimensions, or rows that are all equal.
    """
    rows = np.asarray(vectors, dtype=np.float64)
    _require_rows(rows, 2)
    if rows.shape[1] < 2:
        raise InputValueError("isotropy needs vectors of at least 2 dimensions")
    centred = rows - rows.mean(0)
    # The variance of equal rows is only the rounding of their mean.
    if np.square(centred).sum() <= 1e-20 * np.square(rows).sum():
        raise InputValueError("all vectors are equal: there is no spread to measure")
    values = np.linalg.eigvalsh(centred.T @ centred / (len(rows) - 1))[::-1]
    eigenvalues: Doubles = np.maximum(values, 0.0)
    return eigenvalues


def singular_spectrum(eigenvalues: Doubles) -> Doubles:
    """sigma_i / sigma_1 of the CENTRED vectors: the root of eigenvalues relative to the first."""
    spectrum: Doubles = np.sqrt(eigenvalues / eigenvalues.max())
    return spectrum


def participation_ratio(eigenvalues: Doubles) -> float:
    """(sum l)^2 / sum l^2 over the covariance's eigenvalues l: k for k equal ones, 1 to dim.

    Gao et al. (2017), "A theory of multineuronal dimensionality, dynamics and measurement".
    """
    relative = eigenvalues / eigenvalues.max()
    return float(relative.sum() ** 2 / np.square(relative).sum())


def effective_rank(eigenvalues: Doubles) -> float:
    """exp of the entropy of the covariance's eigenvalues l / sum l: 1 to dim.

    Roy and Vetterli (2007), "The effective rank"; they use singular values, this uses variances.
    """
    shares = eigenvalues / eigenvalues.sum()
    shares = shares[shares > 0]
    return float(np.exp(-(shares * np.log(shares)).sum()))


def isoscore(eigenvalues: Doubles) -> float:
    """IsoScore of the variances v along the principal axes: 1 for equal ones, 0 for a single one.

    With n dimensions, v^ = sqrt(n) v / |v| and d = |v^ - 1| / sqrt(2 (n - sqrt n)), the score is
    ((n - d^2 (n - sqrt n))^2 - n) / (n (n - 1)). Rudman et al. (2022), "IsoScore: measuring the
    uniformity of embedding space utilization". After substitution n - sqrt n cancels, and
    |v^ - 1|^2 is 2 n - 2 sqrt(n) sum v / |v|. What remains is (participation ratio - 1) / (n - 1),
    the same figure on a scale that does not depend on n.
    """
    return (participation_ratio(eigenvalues) - 1.0) / (len(eigenvalues) - 1)


def alignment(left: Vectors, right: Vectors) -> float:
    """Mean of |u - v|^2 over the unit rows of pairs that mean the same; lower is better.

    Wang and Isola (2020); SimCSE takes the STS-B pairs scored above 4. NOT centred.

    Args:
        left: (pairs, dim).
        right: (pairs, dim).

    Raises:
        InputValueError: no pairs.
    """
    _require_rows(left, 1)
    return float(np.square(unit_rows(left) - unit_rows(right)).sum(1).mean())


def uniformity(vectors: Vectors) -> float:
    """log of the mean of exp(-2 |u - v|^2) over all pairs of different unit rows; lower is better.

    Wang and Isola (2020). NOT centred. Memory is bounded; time grows with the square of the rows.
    """
    unit = unit_rows(vectors)
    _require_rows(unit, 2)
    squares = np.square(unit).sum(1)  # 1, or 0 for a zero row
    total = 0.0
    for start in range(0, len(unit), _BLOCK):
        block = slice(start, start + _BLOCK)
        distances = squares[block, None] + squares[None, :] - 2.0 * (unit[block] @ unit.T)
        total += float(np.exp(-2.0 * np.maximum(distances, 0.0)).sum())
    # Each row has distance 0 from itself, and adds 1.
    return float(np.log((total - len(unit)) / (len(unit) * (len(unit) - 1))))


def measure_isotropy(
    vectors: Vectors,
    *,
    seed: int = 0,
    sentences: Vectors | None = None,
    positives: npt.NDArray[np.int64] | None = None,
) -> Isotropy:
    """All figures of one model's vectors.

    Args:
        vectors: vectors of a sample of a corpus, (rows, dim).
        seed: seed for the rows of uniformity, if there are more than 4,000.
        sentences: vectors of labelled sentences, (sentences, dim), for uniformity; None takes
            `vectors`.
        positives: int64 (pairs, 2), rows of `sentences` that mean the same, for alignment; None or
            none at all leaves alignment None.

    Raises:
        InputValueError: fewer than two rows or dimensions, or rows that are all equal.
    """
    eigenvalues = covariance_eigenvalues(vectors)
    labelled = vectors if sentences is None else sentences
    spread = labelled
    if len(spread) > UNIFORMITY_ROWS:
        chosen = np.random.default_rng(seed).choice(len(spread), UNIFORMITY_ROWS, replace=False)
        spread = spread[chosen]
    pairs = np.empty((0, 2), dtype=np.int64) if positives is None else positives
    aligned = alignment(labelled[pairs[:, 0]], labelled[pairs[:, 1]]) if len(pairs) else None
    norms = np.linalg.norm(np.asarray(vectors, dtype=np.float64), axis=1)
    return Isotropy(
        rows=len(vectors),
        dim=vectors.shape[1],
        mean_norm=float(norms.mean()),
        mean_cosine=mean_cosine(vectors),
        top1_share=top_share(vectors, 1),
        top3_share=top_share(vectors, 3),
        top5_share=top_share(vectors, 5),
        participation_ratio=participation_ratio(eigenvalues),
        effective_rank=effective_rank(eigenvalues),
        isoscore=isoscore(eigenvalues),
        spectrum=tuple(map(float, singular_spectrum(eigenvalues))),
        uniformity=uniformity(spread),
        uniformity_rows=len(spread),
        alignment=aligned,
        alignment_pairs=len(pairs),
    )


def _require_rows(vectors: Vectors, least: int) -> None:
    if vectors.ndim != 2 or len(vectors) < least:
        raise InputValueError(f"isotropy needs (rows, dim) with {least} rows or more")
