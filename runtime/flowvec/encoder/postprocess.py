"""The only numerics outside the graph: checks, truncation, L2 normalization and quantization."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

__all__ = [
    "DTYPES",
    "PRECISIONS",
    "Postprocess",
    "Precision",
    "non_finite_rows",
    "normalize",
    "quantize",
]

Floats = npt.NDArray[np.float32]

Precision = Literal["float32", "int8", "uint8", "binary", "ubinary"]
PRECISIONS: tuple[Precision, ...] = get_args(Precision)
# The type of a vector's numbers by precision; signs are packed eight to a byte.
DTYPES: dict[Precision, type[np.generic]] = {
    "float32": np.float32,
    "int8": np.int8,
    "uint8": np.uint8,
    "binary": np.int8,
    "ubinary": np.uint8,
}


# Norms whose squares are far from the limits of float32.
_LEAST_NORM, _MOST_NORM = np.float32(1e-15), np.float32(1e15)


def normalize(vectors: Floats) -> Floats:
    """Divide each row by its L2 norm; a zero row stays zero. float32 (batch, dim) in and out."""
    with np.errstate(over="ignore"):
        # As `np.linalg.norm` does it, which takes longer for one short row.
        norms = np.sqrt(np.add.reduce(vectors * vectors, axis=-1, keepdims=True))
    odd = (norms < _LEAST_NORM) | (norms > _MOST_NORM)
    if odd.any():
        # Squares of such numbers are 0 or infinite in float32: scale the largest to 1 first.
        largest = np.abs(vectors).max(axis=-1, keepdims=True, initial=0.0)
        usable = odd & (largest > 0) & np.isfinite(largest)
        vectors = np.divide(vectors, np.where(usable, largest, 1.0), dtype=np.float32)
        scaled = np.linalg.norm(vectors, axis=-1, keepdims=True)
        norms = np.where(usable, scaled, norms).astype(np.float32)
        norms[norms == 0] = 1.0
    unit: Floats = np.divide(vectors, norms, dtype=np.float32)
    return unit


def non_finite_rows(vectors: Floats) -> npt.NDArray[np.int64]:
    """Indices of rows with NaN or infinity, int64 (rows,)."""
    # A sum is finite only if all its terms are: the common case takes one pass and no mask.
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isfinite(vectors.sum(dtype=np.float64)):
            return np.empty(0, dtype=np.int64)
    return np.flatnonzero(~np.isfinite(vectors).all(axis=-1)).astype(np.int64)


def quantize(
    vectors: Floats, precision: Precision, ranges: Floats | None = None
) -> npt.NDArray[Any]:
    """Quantize vectors, each row by itself.

    Args:
        vectors: float32 (rows, dim).
        precision: `int8` and `uint8` divide each dimension's range into 255 steps and clip values
            outside; `binary` and `ubinary` keep signs, eight dimensions per byte, the first in the
            highest bit, as int8 (shifted by 128) or uint8. This is the layout of
            sentence-transformers' `quantize_embeddings`.
        ranges: float32 (2, dim), each dimension's lower and upper end; for `int8` and `uint8`.

    Returns:
        (rows, dim), or (rows, dim / 8 rounded up) for `binary` and `ubinary`.
    """
    if precision == "float32":
        return vectors
    if precision in ("binary", "ubinary"):
        unsigned = np.packbits(vectors > 0, axis=-1)
        return unsigned if precision == "ubinary" else _shifted(unsigned)
    assert ranges is not None
    lower, upper = ranges
    steps = np.clip(np.floor((vectors - lower) * (255.0 / (upper - lower))), 0, 255)
    unsigned = steps.astype(np.uint8)
    return unsigned if precision == "uint8" else _shifted(unsigned)


def _shifted(unsigned: npt.NDArray[np.uint8]) -> npt.NDArray[np.int8]:
    """Minus 128, as int8."""
    shifted: npt.NDArray[np.int8] = (unsigned ^ np.uint8(128)).view(np.int8)
    return shifted


@dataclass(frozen=True, slots=True, eq=False)
class Postprocess:
    """What is done with the graph's output, in this order.

    Attributes:
        dim: length of the input vectors.
        normalize: L2-normalize; set if the caller wants it and the graph does not do it.
        truncate_dim: keep this many dimensions; None keeps all.
        renormalize: L2-normalize truncated vectors, because they had length one before.
        precision: see `quantize`. Quantized vectors are truncated but not normalized again: the
            ranges are those of whole vectors.
        ranges: see `quantize`.
    """

    dim: int
    normalize: bool = False
    truncate_dim: int | None = None
    renormalize: bool = False
    precision: Precision = "float32"
    ranges: Floats | None = None

    @property
    def out_dim(self) -> int:
        """Length of the output vectors, in items of `dtype`."""
        dim = self.truncate_dim or self.dim
        return -(-dim // 8) if self.precision in ("binary", "ubinary") else dim

    @property
    def dtype(self) -> type[np.generic]:
        """Type of the output."""
        return DTYPES[self.precision]

    def __call__(self, vectors: Floats) -> npt.NDArray[Any]:
        """Map float32 (rows, dim) to (rows, out_dim)."""
        if self.normalize:
            vectors = normalize(vectors)
        if self.truncate_dim is not None:
            vectors = vectors[:, : self.truncate_dim]
            if self.renormalize and self.precision == "float32":
                vectors = normalize(vectors)
        ranges = self.ranges
        if ranges is not None and self.truncate_dim is not None:
            ranges = ranges[:, : self.truncate_dim]
        return quantize(vectors, self.precision, ranges)
