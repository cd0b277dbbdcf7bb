"""Many callers, one MultiVectorEncoder: texts of different callers share batches."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Unpack, cast

import numpy as np

from flowvec.compat import override
from flowvec.encoder.shared_model import DEFAULT_MAX_WAITING, Call, Floats, SharedModel
from flowvec.multi_vector.encoder import MultiVectorEncoder, MultiVectorOptions
from flowvec.multi_vector.rows import TokenJob
from flowvec.tokenizer.token_ids import TokenIds
from flowvec.tokenizer.tokenizer import Tokenized, joined

__all__ = ["SharedMultiVectorEncoder"]


class SharedMultiVectorEncoder(SharedModel):
    """The queue of a MultiVectorEncoder that is served; queries and documents share batches."""

    def __init__(
        self, encoder: MultiVectorEncoder, *, max_waiting: int = DEFAULT_MAX_WAITING
    ) -> None:
        """Start one worker thread per stream of the MultiVectorEncoder.

        Args:
            encoder: the model. Closing this does not close it.
            max_waiting: most texts that may wait; a call that would exceed it is refused.

        Raises:
            InputValueError: a number is below 1.
            ClosedError: the MultiVectorEncoder is closed.
        """
        encoder._job(False)  # checks that it is open
        self._encoder = encoder
        super().__init__(encoder, max_waiting=max_waiting)

    def _call(
        self,
        texts: str | Iterable[str],
        *,
        is_query: bool = False,
        **options: Unpack[MultiVectorOptions],
    ) -> Call:
        """Queue texts; the call's future will have what `MultiVectorEncoder.encode_query` or
        `encode_document` returns."""
        job = self._encoder._job(is_query, **options)
        items, single = self._encoder.items(texts, "error" if job.refuse_empty else "encode")
        return self._queue(items, job, single=single)

    @override
    def joined(self, parts: Sequence[list[Floats]]) -> list[Floats]:
        return [vectors for part in parts for vectors in part]

    @override
    def _tokenize(self, calls: Sequence[Call]) -> Tokenized:
        tokenizer = self._encoder._tokenizer
        parts = [cast(TokenJob, call.job).tokenize(tokenizer, call.items) for call in calls]
        return parts[0] if len(parts) == 1 else joined(parts)

    @override
    def _non_finite(self, output: Floats, ids: TokenIds) -> Sequence[int]:
        # Padding may hold anything.
        is_token = np.arange(output.shape[1]) < ids.lengths[:, np.newaxis]
        is_wrong = is_token & ~np.isfinite(output).all(axis=-1)
        return np.flatnonzero(is_wrong.any(axis=1)).tolist()
