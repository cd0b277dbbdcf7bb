"""Vectors files with few records in a block, so that small tests reach many blocks."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from flowvec.collection.index.vector_file import VectorFile
from flowvec.collection.index.vector_format import Layout

__all__ = ["small_file"]


def small_file(
    folder: Path, labels: list[int], vectors: np.ndarray, number: int = 1, rows: int = 4
) -> VectorFile:
    """A file with records in blocks of `rows`, open for writing."""
    path = folder / f"vectors-{number}.f32"
    path.write_bytes(Layout(vectors.shape[1], rows).header())
    file = VectorFile.open(path, vectors.shape[1])
    file.append(0, np.asarray(labels, np.int64), vectors)
    return file
