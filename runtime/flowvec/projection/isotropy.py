"""How evenly vectors fill their space, in a few figures and a spectrum."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from flowvec.errors import InputValueError

__all__ = ["Evenness", "evenness_of"]


@dataclass(frozen=True, slots=True)
class Evenness:
    """Figures of one set of vectors.

    Attributes:
        mean_cosine: mean cosine of all pairs of different rows (Ethayarajh 2019), as they are: 0 if
            their directions are even, 1 if they are all the same.
        isoscore: 0 to 1, of the centred vectors (Rudman et al. 2022): 1 if they vary alike in all
            directions, 0 if in one only.
        spectrum: singular values of the centred vectors relative to the first, descending.
    """

    mean_cosine: float
    isoscore: float
    spectrum: tuple[float, ...]


def evenness_of(vectors: npt.NDArray[np.floating[Any]]) -> Evenness:
    """Measure vectors, (rows, dim), in float64.

    Raises:
        InputValueError: there are fewer than two rows or dimensions, or all rows are equal.
    """
    rows = np.asarray(vectors, np.float64)
    if len(rows) < 2 or rows.shape[1] < 2:
        raise InputValueError("these figures need two rows and two dimensions at least")
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    unit = np.divide(rows, norms, where=norms > 0, out=np.zeros_like(rows))
    pairs = len(unit) * (len(unit) - 1)
    mean_cosine = float((np.square(unit.sum(0)).sum() - np.square(unit).sum()) / pairs)
    centred = rows - rows.mean(0)
    if np.square(centred).sum() <= 1e-20 * np.square(rows).sum():
        raise InputValueError("all vectors are equal: there is no spread to measure")
    variances = np.maximum(np.linalg.eigvalsh(centred.T @ centred)[::-1], 0.0)
    relative = variances / variances[0]
    # IsoScore is the participation ratio on a scale from 0 to 1: its square roots cancel.
    participation = relative.sum() ** 2 / np.square(relative).sum()
    isoscore = float((participation - 1.0) / (len(variances) - 1))
    return Evenness(mean_cosine, isoscore, tuple(np.sqrt(relative).tolist()))
