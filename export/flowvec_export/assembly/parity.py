"""Compares the exported graph with its source, and with itself in other batches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from flowvec import Encoder, MultiVectorEncoder, Reranker, SparseEncoder
from flowvec.bundle.manifest import TOKEN_TYPES
from flowvec.encoder.batching import Batch, pad
from flowvec.encoder.loaded_model import LoadedModel
from flowvec.encoder.proof import MIN_COSINE_OF
from flowvec.errors import ExportError
from flowvec.multi_vector.rows import token_rows
from flowvec.tokenizer.token_ids import TokenIds

__all__ = [
    "MAX_RELATIVE_ERROR",
    "MIN_COSINE",
    "LogitParity",
    "Parity",
    "Reference",
    "measure",
    "measure_pairs",
    "measure_tokens",
]

MAX_RELATIVE_ERROR = 1e-4
MIN_COSINE = MIN_COSINE_OF["float32"]
# Smallest cosine to the vectors of the unrounded weights.
MIN_COSINE_OF_FLOAT16 = 0.999

# The graph's inputs, each int64 (batch, sequence), to its output, float32 (batch, dim).
Reference = Callable[..., npt.NDArray[np.float32]]

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
        """Compare rows of a with the reference b, float32 (rows, dim).

        A reference of zeros, such as a static embedder's of a text without known tokens, has no
        direction: only zeros agree with it.
        """
        left, right = a.astype(np.float64), b.astype(np.float64)
        norms = np.linalg.norm(right, axis=1)
        is_zero = norms == 0
        differences = np.abs(left - right).max(axis=1)
        products = np.linalg.norm(left, axis=1) * norms
        errors = np.where(differences == 0, 0.0, np.inf)
        np.divide(differences, norms, where=~is_zero, out=errors)
        cosines = np.ones_like(norms)
        np.divide((left * right).sum(axis=1), products, where=~is_zero, out=cosines)
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
    encoder: Encoder | SparseEncoder, reference: Reference, vocabulary: int, seed: int = 0
) -> tuple[Parity, Parity]:
    """Compare a graph with its reference, and each row in a batch with the same row alone.

    Both run over seeded random ids, in ragged batches of 1 to 64 rows of 2 or more tokens.

    Returns:
        The differences to the reference, and to the graph's vectors of each row alone.
    """
    return _measure(encoder, reference, vocabulary, seed)


def measure_tokens(
    encoder: MultiVectorEncoder, reference: Reference, vocabulary: int, seed: int = 0
) -> tuple[Parity, Parity]:
    """`measure` of each token's vector.

    Of some rows, the model attends to a part of the tokens only, as of queries that are filled up.
    """
    return _measure(encoder, reference, vocabulary, seed, per_token=True)


def _measure(
    encoder: LoadedModel,
    reference: Reference,
    vocabulary: int,
    seed: int,
    *,
    per_token: bool = False,
) -> tuple[Parity, Parity]:
    rng = np.random.default_rng(seed)
    pad_id = encoder.bundle.manifest.pad_id
    vocabulary = min(vocabulary, encoder._token_rows)
    ours, alone, theirs = [], [], []
    for rows, longest in _BATCHES:
        longest = min(longest, encoder.max_length)
        lengths = rng.integers(min(2, longest), longest, size=rows, endpoint=True)
        lengths[0] = longest
        ids = TokenIds.from_rows([_ids(rng, int(n), vocabulary, pad_id) for n in lengths])
        if per_token:
            ids = replace(ids, attended=rng.integers(1, lengths, endpoint=True).astype(np.int64))
        batch = Batch(tuple(range(rows)), longest)
        ours.append(encoder.run(ids, [batch]))
        alone.append(encoder.run(ids, [Batch((i,), int(n)) for i, n in enumerate(lengths)]))
        expected = reference(*pad(ids, batch, pad_id))
        theirs.append(token_rows(expected, ids.lengths) if per_token else expected)
    together = np.concatenate(ours)
    return (
        Parity.of(together, np.concatenate(theirs)),
        Parity.of(together, np.concatenate(alone)),
    )


@dataclass(frozen=True, slots=True)
class LogitParity:
    """How far a graph's logits are from those of its source.

    Attributes:
        pairs: rows that were compared, of lengths from 2 to the model's maximum.
        max_relative_error: largest difference, relative to the largest logit.
    """

    pairs: int
    max_relative_error: float

    @classmethod
    def of(cls, a: npt.NDArray[np.float32], b: npt.NDArray[np.float32]) -> LogitParity:
        """Compare logits a with the reference b, float32 (rows, labels)."""
        left, right = a.astype(np.float64), b.astype(np.float64)
        return cls(len(a), float(np.abs(left - right).max() / np.abs(right).max()))

    def require(self, fault: str, most: float = MAX_RELATIVE_ERROR) -> None:
        """Raise ExportError with this message if the difference exceeds a limit."""
        if not self.max_relative_error <= most:  # NaN fails this comparison too
            raise ExportError(
                f"{fault}: relative error {self.max_relative_error:.2g} (at most {most:g}); "
                "nothing was written"
            )


def measure_pairs(
    reranker: Reranker, reference: Reference, vocabulary: int, seed: int = 0
) -> tuple[LogitParity, LogitParity]:
    """Compare a cross-encoder's graph with its reference, and each pair in a batch with it alone.

    Returns:
        The differences to the reference, and to the graph's logits of each pair alone.
    """
    rng = np.random.default_rng(seed)
    manifest = reranker.bundle.manifest
    has_types = TOKEN_TYPES in manifest.inputs
    vocabulary = min(vocabulary, reranker._token_rows)
    ours, alone, theirs = [], [], []
    for rows, longest in _BATCHES:
        longest = min(longest, reranker.max_length)
        lengths = rng.integers(min(2, longest), longest, size=rows, endpoint=True)
        lengths[0] = longest
        rows_of_ids = [_ids(rng, int(n), vocabulary, manifest.pad_id) for n in lengths]
        ids = TokenIds.from_rows(rows_of_ids)
        if has_types:
            ids = replace(ids, second=rng.integers(1, lengths, endpoint=True).astype(np.int64))
        batch = Batch(tuple(range(rows)), longest)
        ours.append(reranker.run(ids, [batch]))
        alone.append(reranker.run(ids, [Batch((i,), int(n)) for i, n in enumerate(lengths)]))
        theirs.append(reference(*pad(ids, batch, manifest.pad_id)))
    together = np.concatenate(ours)
    return (
        LogitParity.of(together, np.concatenate(theirs)),
        LogitParity.of(together, np.concatenate(alone)),
    )


def _ids(rng: np.random.Generator, length: int, vocabulary: int, pad_id: int) -> list[int]:
    """Random ids without the padding token, which RoBERTa does not count as a position."""
    ids: list[int] = rng.integers(0, vocabulary - 1, size=length).tolist()
    return [i + 1 if i >= pad_id else i for i in ids]
