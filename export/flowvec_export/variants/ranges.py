"""Measures the range of each dimension over calibration texts, for 8-bit vectors."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from flowvec.demo import load_passages
from flowvec.texts.sentences import split_sentences

__all__ = ["calibration_texts", "measure_ranges"]


def calibration_texts() -> list[str]:
    """English texts: the demo's passages, their sentences, and the first words of each sentence."""
    passages = [passage.text for passage in load_passages()]
    sentences = [sentence for passage in passages for sentence in split_sentences(passage)]
    # Vectors of short texts have larger values than those of long ones.
    short = [" ".join(sentence.split()[:n]) for n in (2, 5) for sentence in sentences]
    return list(dict.fromkeys([*passages, *sentences, *short]))


def measure_ranges(vectors: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Lower and upper end of each dimension, float32 (2, dim).

    The smallest and largest values of vectors, float32 (rows, dim), rounded to three digits, so
    that the last bits of another machine give the same file. A constant dimension gets a small
    range.
    """
    ends = np.stack([vectors.min(axis=0), vectors.max(axis=0)]).astype(np.float64)
    ends = np.array([[float(f"{value:.2e}") for value in row] for row in ends])
    flat = ends[0] >= ends[1]
    ends[1][flat] = ends[0][flat] + np.maximum(np.abs(ends[0][flat]), 1e-6)
    ranges: npt.NDArray[np.float32] = ends.astype(np.float32)
    return ranges
