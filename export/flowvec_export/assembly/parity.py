"""Compares the exported graph with its source, and with itself in other batches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from flowvec import Encoder
from flowvec.encoder.batching import Batch, pad
from flowvec.encoder.proof import MIN_COSINE_OF
from flowvec.errors import ExportError

__all__ = ["MAX_RELATIVE_ERROR", "MIN_COSINE", "Parity", "Reference", "measure"]

MAX_RELATIVE_ERROR = 1e-4
MIN_COSINE = MIN_COSINE_OF["float32"]
# Smallest cosine to the vectors of the unrounded weights.
MIN_COSINE_OF_FLOAT16 = 0.999

# Padded ids and their mask, int64 (batch, sequence), to vectors, float32 (batch, dim).
Reference = Callable[[npt.NDArray[np.int64], npt.NDArray[np.int64]], npt.NDArray[np.float32]]

# Ragged batches of (rows, longest text): one row, two rows, many rows. Attention's memory grows
# with the square of the length, so the longest texts come alone, and a model of 8,192 positions is
# compared up to 2,048 tokens.
_BATCHES = ((1, 2), (1, 2048), (2, 7), (4, 512), (16, 64), (64, 24))


@dataclass(frozen=True, slots=True)
class Parity:
    """How far a graph's vectors are from those of its source.

        >>> parity = Parity(texts=64, max_relative_error=2e-7, min_cosine=0.9999999)
        >>> parity.max_relative_error <= 1e-4  # the limit of `export`
        True

    Attributes:
        texts: rows that were compared, of lengths from 2 to the model's maximum.
        max_relative_error: largest max |a - b| / ||b|| of a row.
        min_cosine: smallest cosine of a row's two vectors.
    """

    texts: int
    max_relative_error: float
    min_cosine: float

    @classmethod
    def of(cls, a: npt.NDArray[np.float32], b: npt.NDArray[np.float32]) -> Parity:
        """Compare rows of a with the reference b, float32 (rows, dim)."""
        left, right = a.astype(np.float64), b.astype(np.float64)
        norms = np.linalg.norm(right, axis=1)
        errors = np.abs(left - right).max(axis=1) / norms
        cosines = (left * right).sum(axis=1) / (np.linalg.norm(left, axis=1) * norms)
        return cls(len(a), float(errors.max()), float(cosines.min()))

    def require(self, fault: str) -> None:
        """Raise ExportError with this message if the difference exceeds the limits."""
        # NaN fails this comparison too.
        if not (self.max_relative_error <= MAX_RELATIVE_ERROR and self.min_cosine >= MIN_COSINE):
            raise ExportError(
                f"{fault}: relative error {self.max_relative_error:.2g} (at most "
                f"{MAX_RELATIVE_ERROR:g}), cosine {self.min_cosine:.7f} (at least {MIN_COSINE:g}); "
                "nothing was written"
            )

    def require_cosine(self, least: float) -> None:
        """Raise ExportError if rounded weights change the vectors too much."""
        if not self.min_cosine >= least:
            raise ExportError(
                f"rounding the weights to float16 costs too much: cosine {self.min_cosine:.5f} (at "
                f"least {least:g}); use float32 weights"
            )


def measure(
    encoder: Encoder, reference: Reference, vocabulary: int, seed: int = 0
) -> tuple[Parity, Parity]:
    """Compare a graph with its reference, and each row in a batch with the same row alone.

    Both run over seeded random ids, in ragged batches of 1 to 64 rows of 2 or more tokens.

    Returns:
        The differences to the reference, and to the graph's vectors of each row alone.
    """
    rng = np.random.default_rng(seed)
    pad_id = encoder.bundle.manifest.pad_id
    ours, alone, theirs = [], [], []
    for rows, longest in _BATCHES:
        longest = min(longest, encoder.max_length)
        lengths = rng.integers(min(2, longest), longest, size=rows, endpoint=True)
        lengths[0] = longest
        ids = [_ids(rng, int(length), vocabulary, pad_id) for length in lengths]
        batch = Batch(tuple(range(rows)), longest)
        ours.append(encoder.run(ids, [batch]))
        alone.append(encoder.run(ids, [Batch((i,), len(row)) for i, row in enumerate(ids)]))
        theirs.append(reference(*pad(ids, batch, pad_id)))
    together = np.concatenate(ours)
    return (
        Parity.of(together, np.concatenate(theirs)),
        Parity.of(together, np.concatenate(alone)),
    )


def _ids(rng: np.random.Generator, length: int, vocabulary: int, pad_id: int) -> list[int]:
    """Random ids without the padding token, which RoBERTa does not count as a position."""
    ids: list[int] = rng.integers(0, vocabulary - 1, size=length).tolist()
    return [i + 1 if i >= pad_id else i for i in ids]
