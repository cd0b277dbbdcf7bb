"""What of a bundle is measured on texts: the range of each dimension, for vectors in 8 bits."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from flowvec.demo import load_passages
from flowvec.texts.sentences import split_sentences

__all__ = ["calibration_texts", "measure_ranges"]


def calibration_texts() -> list[str]:
    """The demonstration's passages, their sentences, and the first words of those: English."""
    passages = [passage.text for passage in load_passages()]
    sentences = [sentence for passage in passages for sentence in split_sentences(passage)]
    # Short texts lie further out than long ones.
    short = [" ".join(sentence.split()[:n]) for n in (2, 5) for sentence in sentences]
    return list(dict.fromkeys([*passages, *sentences, *short]))


def measure_ranges(vectors: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Each dimension's lower and upper end, float32 (2, dim).

    Smallest and largest value of vectors, float32 (rows, dim), rounded to three digits so that
    another machine's last bits make the same file; a dimension without spread gets one of its own.
    """
    ends = np.stack([vectors.min(axis=0), vectors.max(axis=0)]).astype(np.float64)
    ends = np.array([[float(f"{value:.2e}") for value in row] for row in ends])
    flat = ends[0] >= ends[1]
    ends[1][flat] = ends[0][flat] + np.maximum(np.abs(ends[0][flat]), 1e-6)
    ranges: npt.NDArray[np.float32] = ends.astype(np.float32)
    return ranges
