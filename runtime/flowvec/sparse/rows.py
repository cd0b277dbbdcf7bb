"""From the graph's output to sparse vectors, batch by batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

import numpy as np
import numpy.typing as npt

from flowvec.encoder.postprocess import non_finite_rows
from flowvec.sparse.vectors import SparseVectors
from flowvec.tokenizer.token_ids import TokenIds
from flowvec.tokenizer.tokenizer import Tokenized, Tokenizer

__all__ = ["LEAST_WEIGHT", "SparseJob", "SparseRows", "sparse_of"]

Floats = npt.NDArray[np.float32]
Weights = tuple[npt.NDArray[np.int32], Floats]

# Smaller weights are noise of float32: an engine gives 1e-8 where another gives 0.
LEAST_WEIGHT = np.float32(1e-6)


def sparse_of(output: Floats, max_active_dims: int | None) -> list[Weights]:
    """Token ids and weights of each row that are at least `LEAST_WEIGHT`, ids ascending.

    Args:
        output: float32 (batch, dim).
        max_active_dims: keep the largest ones of a row, of equal ones those with smaller ids; None
            keeps all.
    """
    rows, ids = np.nonzero(output >= LEAST_WEIGHT)
    ends = np.cumsum(np.bincount(rows, minlength=len(output)))
    values = output[rows, ids]
    parts: list[Weights] = []
    for start, end in zip(ends - np.diff(ends, prepend=0), ends, strict=True):
        kept = slice(start, end)
        if max_active_dims is not None and end - start > max_active_dims:
            kept = start + np.sort(np.argsort(-values[kept], kind="stable")[:max_active_dims])
        parts.append((ids[kept].astype(np.int32), values[kept]))
    return parts


@dataclass(slots=True, eq=False)
class SparseRows:
    """Collects the sparse vectors of a window: a batch is dense for a moment only.

    Attributes:
        count: number of texts.
        dim: size of the vocabulary.
        max_active_dims: as for `sparse_of`.
        vocabulary: the token of each id.
    """

    count: int
    dim: int
    max_active_dims: int | None
    vocabulary: Sequence[str]
    _parts: list[Weights | None] = field(init=False)
    _wrong: list[int] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        self._parts = [None] * self.count

    def store(self, items: Sequence[int], output: Floats) -> None:
        """See `flowvec.encoder.jobs.Rows`."""
        self._wrong.extend(items[row] for row in non_finite_rows(output).tolist())
        for item, part in zip(items, sparse_of(output, self.max_active_dims), strict=True):
            self._parts[item] = part

    def non_finite(self) -> Sequence[int]:
        """See `flowvec.encoder.jobs.Rows`."""
        return sorted(self._wrong)

    def results(self) -> SparseVectors:
        """See `flowvec.encoder.jobs.Rows`."""
        parts = cast(list[Weights], self._parts)
        lengths = np.array([len(ids) for ids, _ in parts], dtype=np.int64)
        return SparseVectors(
            np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)]),
            np.concatenate([np.empty(0, np.int32), *(ids for ids, _ in parts)]),
            np.concatenate([np.empty(0, np.float32), *(values for _, values in parts)]),
            self.dim,
            self.vocabulary,
        )


@dataclass(frozen=True, slots=True)
class SparseJob:
    """The checked options of one call of a `SparseEncoder`.

    Attributes:
        prompt: put before each text.
        max_active_dims: most weights of a vector; None keeps all that the graph gives.
        vocabulary: the token of each id.
        max_batch_tokens: most padded tokens in a batch.
        refuse_long: raise for a text above max_length instead of cutting it.
        refuse_empty: raise for an empty text, as the caller of the pipeline does.
        shared_out: use a smaller batch if that keeps all streams busy.
        refuse_non_finite: as for `flowvec.encoder.jobs.Job`.
        most_tokens: most tokens of a text, if it is not the model's.
    """

    prompt: str
    max_active_dims: int | None
    vocabulary: Sequence[str]
    max_batch_tokens: int
    refuse_long: bool
    refuse_empty: bool
    shared_out: bool = True
    refuse_non_finite: bool = True
    most_tokens: int | None = None

    def tokenize(self, tokenizer: Tokenizer, items: Sequence[str]) -> Tokenized:
        """Token ids of texts, each with the prompt before it."""
        prompt = self.prompt
        return tokenizer([prompt + text for text in items] if prompt else items)

    def _rows(self, token_ids: TokenIds, dim: int) -> SparseRows:
        """Where the graph's output goes."""
        return SparseRows(len(token_ids), dim, self.max_active_dims, self.vocabulary)
