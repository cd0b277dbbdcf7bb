"""Many callers, one SparseEncoder: texts of different callers share batches."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Unpack, cast

from flowvec.compat import override
from flowvec.encoder.shared_model import DEFAULT_MAX_WAITING, Call, SharedModel
from flowvec.sparse.encoder import SparseEncoder, SparseOptions
from flowvec.sparse.rows import SparseJob
from flowvec.sparse.vectors import SparseVectors
from flowvec.tokenizer.tokenizer import Tokenized

__all__ = ["SharedSparseEncoder"]


class SharedSparseEncoder(SharedModel):
    """The queue of a SparseEncoder that is served."""

    def __init__(self, encoder: SparseEncoder, *, max_waiting: int = DEFAULT_MAX_WAITING) -> None:
        """Start one worker thread per stream of the SparseEncoder.

        Args:
            encoder: the model. Closing this does not close it.
            max_waiting: most texts that may wait; a call that would exceed it is refused.

        Raises:
            InputValueError: a number is below 1.
            ClosedError: the SparseEncoder is closed.
        """
        encoder._job()  # checks that it is open
        self._encoder = encoder
        super().__init__(encoder, max_waiting=max_waiting)

    def _call(self, texts: str | Iterable[str], **options: Unpack[SparseOptions]) -> Call:
        """Queue texts; the call's future will have what `SparseEncoder.encode` returns."""
        job = self._encoder._job(**options)
        items, single = self._encoder.items(texts, "error" if job.refuse_empty else "encode")
        return self._queue(items, job, single=single)

    @override
    def joined(self, parts: Sequence[SparseVectors]) -> SparseVectors:
        return SparseVectors.joined(parts)

    @override
    def _tokenize(self, calls: Sequence[Call]) -> Tokenized:
        prompts = [cast(SparseJob, call.job).prompt for call in calls]
        texts = [p + text for p, call in zip(prompts, calls, strict=True) for text in call.items]
        return self._encoder.tokenize(texts)
