"""How vectors are shifted and turned before they are encoded."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["Frame"]

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]

# Shorter vectors are compared at once, in octets.
_LEAST_DIVIDED = 20
# With fewer vectors a basis says little of others; more do not make it better. With more numbers,
# turning a query takes longer than a basis saves.
_LEAST_SAMPLED, _MOST_SAMPLED, _MOST_NUMBERS = 1000, 4096, 512
# The share of the variance that may be missing in the first part, and the share of the numbers that
# it may have: see bench/log/2026-11-30.md.
_MOST_MISSING, _MOST_OF_NUMBERS = 0.08, 0.75
# A first part is a multiple of so many octets, which a scan compares at once.
_STEP = 4
_HEAD_BYTES = 8
_TINY = 1e-30
# A vector of many times the median length is not looked at.
_MOST_USUAL = 16


@dataclass(frozen=True, eq=False)
class Frame:
    """A centre, which is subtracted, and how the differences are turned.

    A scan compares the first part of the numbers with all rows, and the others only where that is
    not enough. So the first part should say most: with a basis it is the part of the vectors that
    has most of their variance (principal components). Where all parts have as much, there is no
    basis, and vectors are rotated at random.

    Attributes:
        centre: float32 (dim,).
        basis: an orthogonal matrix, float32 (dim, dim), by rows; or None.
        part: octets of numbers of the first part.
    """

    centre: Floats
    basis: Floats | None
    part: int

    @classmethod
    def at_random(cls, vectors: Floats, share: float = 0.5) -> Frame:
        """A frame without a basis, which is made in a moment.

        Args:
            vectors: float32 (vectors, dim); it may be empty. Of very many, some are looked at.
            share: how much of the numbers is the first part.
        """
        return cls._at_random(_usual(vectors), share)

    @classmethod
    def _at_random(cls, sample: Doubles, share: float) -> Frame:
        count, dim = sample.shape
        octets = -(-dim // 8)
        centre = sample.mean(axis=0) if count else np.zeros(dim)
        part = octets if octets < _LEAST_DIVIDED else int(octets * share) // _STEP * _STEP
        return cls(centre.astype(np.float32), None, part)

    @classmethod
    def fit(cls, vectors: Floats, share: float = 0.5) -> Frame:
        """The frame with which scans of vectors like these are fastest.

        To find a basis takes .06 s for 384 numbers, and encoding then takes twice as long.

        Args:
            vectors: as for `at_random`.
            share: how much of the numbers is the first part if there is no basis.
        """
        sample = _usual(vectors)
        plain = cls._at_random(sample, share)
        count, dim = sample.shape
        is_divided = plain.part * 8 < dim
        if not is_divided or dim > _MOST_NUMBERS or count < max(_LEAST_SAMPLED, 2 * dim):
            return plain
        differences = sample - sample.mean(axis=0)
        differences /= np.linalg.norm(differences, axis=1, keepdims=True) + _TINY
        units = differences.astype(np.float32)
        variances, axes = np.linalg.eigh(units.T @ units)
        shares = np.cumsum(variances[::-1]) / max(float(variances.sum()), _TINY)
        ends = np.arange(8 * _STEP, int(dim * _MOST_OF_NUMBERS) + 1, 8 * _STEP)
        enough = ends[shares[ends - 1] >= 1 - _MOST_MISSING]
        if not len(enough):
            return plain
        basis = np.ascontiguousarray(axes[:, ::-1].T, np.float32)
        return cls(plain.centre, basis, int(enough[0]) // 8)

    def tobytes(self) -> bytes:
        """All of it, little-endian: two uint32, then the centre, then the basis if there is one."""
        basis = [] if self.basis is None else [self.basis.astype("<f4").tobytes()]
        head = np.array([self.part, self.basis is not None], "<u4")
        return b"".join([head.tobytes(), self.centre.astype("<f4").tobytes(), *basis])

    @classmethod
    def frombytes(cls, content: bytes, dim: int) -> Frame:
        """A frame that `tobytes` returned, at the beginning of these bytes.

        Raises:
            ValueError: they are too short.
        """
        part, has_basis = np.frombuffer(content, "<u4", 2).tolist()
        centre = np.frombuffer(content, "<f4", dim, _HEAD_BYTES).astype(np.float32)
        if not has_basis:
            return cls(centre, None, part)
        basis = np.frombuffer(content, "<f4", dim * dim, _HEAD_BYTES + 4 * dim).astype(np.float32)
        return cls(centre, basis.reshape(dim, dim), part)


def _usual(vectors: Floats) -> Doubles:
    """Some of the vectors, float64 (vectors, dim), without a few that are very long."""
    some = vectors[:: max(1, -(-len(vectors) // _MOST_SAMPLED))].astype(np.float64)
    if not len(some):
        return some
    lengths = np.linalg.norm(some, axis=1)
    usual: Doubles = some[lengths <= _MOST_USUAL * np.median(lengths)]
    return usual
