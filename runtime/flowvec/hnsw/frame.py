"""How vectors are shifted and turned before they are encoded."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["MOST_SAMPLED", "Frame"]

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]

# Shorter vectors are compared at once, in octets.
_LEAST_DIVIDED = 20
# With fewer vectors a basis says little of others; more do not make it better.
_LEAST_SAMPLED, MOST_SAMPLED = 1000, 4096
# With more numbers, turning a query takes longer than a basis saves.
_MOST_NUMBERS = 1024
# Vectors of a sample that are queries, and how many of their nearest are looked at.
_QUERIES, _NEAREST = 100, 10
# The margin is at least this, since queries may be of another kind than the vectors.
_LEAST_MARGIN = 0.2
# A basis is worth finding if a scan then reads at most this share of all.
_MOST_READ = 0.7
# A first part is a multiple of so many octets.
_STEP = 4
# Bytes that a scan reads of a group of 16 rows, besides 64 for each octet: of the first part and of
# the rest. Those of the rest are read out of order, and for one query at a time: measured, that
# takes six times as long.
_FIRST_BYTES, _REST_BYTES, _GROUP_ROWS, _OCTET_BYTES, _OUT_OF_ORDER = 320, 64, 16, 64, 6
_HEAD_BYTES = 12
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
        margin: with a basis, the cosine of the other numbers of a query and a row is taken to be at
            most that of their first parts and this. With 2 nothing is guessed.
    """

    centre: Floats
    basis: Floats | None
    part: int
    margin: float = 2.0

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
    def fit(
        cls, vectors: Floats, share: float = 0.5, *, squared: bool = False, certain: bool = False
    ) -> Frame:
        """The frame with which scans of vectors like these are fastest.

        To find a basis takes .1 s for 384 numbers, and encoding then takes twice as long.

        Args:
            vectors: as for `at_random`.
            share: how much of the numbers is the first part if there is no basis.
            squared: whether rows are compared by their Euclidean distance instead of the dot
                product.
            certain: whether no row may be missed.
        """
        sample = _usual(vectors)
        plain = cls._at_random(sample, share)
        count, dim = sample.shape
        is_divided = plain.part * 8 < dim
        if not is_divided or dim > _MOST_NUMBERS or count < max(_LEAST_SAMPLED, 2 * dim):
            return plain
        differences = sample - sample.mean(axis=0)
        units = differences / (np.linalg.norm(differences, axis=1, keepdims=True) + _TINY)
        units = units.astype(np.float32)
        axes = np.linalg.eigh(units.T @ units)[1][:, ::-1]
        basis = np.ascontiguousarray(axes.T, np.float32)
        rows = differences.astype(np.float32) @ basis.T
        queries = rows if squared else sample.astype(np.float32) @ basis.T
        part, margin, read = _first_part(queries, rows, squared, certain)
        return cls(plain.centre, basis, part, margin) if read <= _MOST_READ else plain

    def tobytes(self) -> bytes:
        """All of it, little-endian.

        Two uint32 and a float32, then the centre, then the basis if there is one.
        """
        basis = [] if self.basis is None else [self.basis.astype("<f4").tobytes()]
        head = np.array([self.part, self.basis is not None], "<u4").tobytes()
        margin = np.array([self.margin], "<f4").tobytes()
        return b"".join([head, margin, self.centre.astype("<f4").tobytes(), *basis])

    @classmethod
    def frombytes(cls, content: bytes, dim: int) -> Frame:
        """A frame that `tobytes` returned, at the beginning of these bytes.

        Raises:
            ValueError: they are too short.
        """
        part, has_basis = np.frombuffer(content, "<u4", 2).tolist()
        margin = float(np.frombuffer(content, "<f4", 1, 8)[0])
        centre = np.frombuffer(content, "<f4", dim, _HEAD_BYTES).astype(np.float32)
        if not has_basis:
            return cls(centre, None, part, margin)
        basis = np.frombuffer(content, "<f4", dim * dim, _HEAD_BYTES + 4 * dim).astype(np.float32)
        return cls(centre, basis.reshape(dim, dim), part, margin)


def _first_part(
    queries: Floats, rows: Floats, squared: bool, certain: bool
) -> tuple[int, float, float]:
    """Octets of the first part, its margin, and the share of all bytes that a scan then reads.

    Some of the rows are queries: it is known what a scan has to read for them, and how much more
    alike than the first parts the rests of their nearest rows are.

    Args:
        queries: the rows as queries, turned, float32 (rows, dim).
        rows: turned, float32 (rows, dim).
        squared: as for `Frame.fit`.
        certain: as for `Frame.fit`.
    """
    count, dim = rows.shape
    octets = -(-dim // 8)
    chosen = np.arange(0, count, -(-count // _QUERIES))
    queries = queries[chosen]
    products = queries @ rows.T
    squares = np.einsum("ij,ij->i", rows, rows) if squared else np.zeros(count, np.float32)
    scores = 2 * products - squares if squared else products
    scores[np.arange(len(chosen)), chosen] = -np.inf  # of a row itself
    nearest = np.argpartition(-scores, _NEAREST, axis=1)[:, :_NEAREST]
    best = scores.max(axis=1, keepdims=True)
    whole = _FIRST_BYTES + octets * _OCTET_BYTES
    found = (octets, 2.0, np.inf)
    first = np.zeros_like(products)
    for part in range(_STEP, octets, _STEP):
        start, end = 8 * (part - _STEP), 8 * part
        first += queries[:, start:end] @ rows[:, start:end].T
        lengths = [
            np.linalg.norm(queries[:, :end], axis=1)[:, None], np.linalg.norm(rows[:, :end], axis=1)
        ]  # fmt: skip
        rests = [
            np.linalg.norm(queries[:, end:], axis=1)[:, None], np.linalg.norm(rows[:, end:], axis=1)
        ]  # fmt: skip
        cosines = first / (lengths[0] * lengths[1] + _TINY)
        rest = rests[0] * rests[1]
        of_rests = (products - first) / (rest + _TINY)
        differences = np.take_along_axis(of_rests - cosines, nearest, axis=1)
        margin = 2.0 if certain else max(_LEAST_MARGIN, float(differences.max()))
        highest = first + rest * np.clip(cosines + margin, 0, 1)
        is_near = (2 * highest - squares if squared else highest) >= best
        is_near[np.arange(len(chosen)), chosen] = False
        groups = 1 - (1 - is_near.mean()) ** _GROUP_ROWS
        others = _REST_BYTES + (octets - part) * _OCTET_BYTES
        read = _FIRST_BYTES + part * _OCTET_BYTES + _OUT_OF_ORDER * groups * others
        if read < found[2]:
            found = (part, margin, read)
    return found[0], found[1], found[2] / whole


def _usual(vectors: Floats) -> Doubles:
    """Some of the vectors, float64 (vectors, dim), without a few that are very long."""
    some = vectors[:: max(1, -(-len(vectors) // MOST_SAMPLED))].astype(np.float64)
    if not len(some):
        return some
    lengths = np.linalg.norm(some, axis=1)
    usual: Doubles = some[lengths <= _MOST_USUAL * np.median(lengths)]
    return usual
