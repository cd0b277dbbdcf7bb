"""Many callers, one Encoder: texts of different callers share batches."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from typing import Any, Unpack, cast

import numpy.typing as npt

from flowvec.arguments import seconds_or_none
from flowvec.compat import override
from flowvec.encoder.argument import check_encoder
from flowvec.encoder.encoder import Encoder
from flowvec.encoder.jobs import EncodeJob
from flowvec.encoder.options import EncodeOptions
from flowvec.encoder.shared_model import (
    DEFAULT_MAX_WAITING,
    Call,
    QueueStatistics,
    SharedModel,
)
from flowvec.tokenizer.tokenizer import Tokenized

__all__ = ["DEFAULT_MAX_WAITING", "QueueStatistics", "SharedEncoder"]


class SharedEncoder(SharedModel):
    """An Encoder for any number of threads; texts of different threads share batches.

    Threads may also share an `Encoder`, but it computes each call by itself. Use this class for
    many callers with a few texts each.

        >>> with SharedEncoder(Encoder.load("mini")) as shared:
        ...     shared.encode("A man is eating.", timeout=10.0).shape
        (384,)
    """

    def __init__(
        self,
        encoder: Encoder,
        *,
        max_waiting: int = DEFAULT_MAX_WAITING,
        max_batch_tokens: int | None = None,
    ) -> None:
        """Start one worker thread per stream of the Encoder.

        Args:
            encoder: the model. Closing this does not close it.
            max_waiting: most texts that may wait; a call that would exceed it is refused.
            max_batch_tokens: most padded tokens in a batch; None is the Encoder's.

        Raises:
            InputValueError: a number is below 1.
            ClosedError: the Encoder is closed.
        """
        check_encoder(encoder)
        encoder.job(max_batch_tokens=max_batch_tokens)  # checks both
        self._encoder = encoder
        super().__init__(encoder, max_waiting=max_waiting, max_batch_tokens=max_batch_tokens)

    def submit(
        self,
        texts: str | Iterable[str],
        **options: Unpack[EncodeOptions],
    ) -> Future[npt.NDArray[Any]]:
        """Queue texts, and return at once.

        Args:
            texts: one text, or any iterable of texts.
            **options: as for `Encoder.encode`.

        Returns:
            A future of what `Encoder.encode` returns. Cancelling it drops the texts of this call
            that have not started. A text of another caller never makes it fail.

        Raises:
            OverloadedError: the queue is full.
            ClosedError: after `close`, or in a forked child.
            InputTypeError: an item is not a str.
            InputValueError: an argument is not valid, or the options refuse a text.
        """
        return self._call(texts, **options).future

    def _call(self, texts: str | Iterable[str], **options: Unpack[EncodeOptions]) -> Call:
        """`submit`, with the call that waits: when it is done, it has counts and times."""
        job = self._encoder.job(**options)
        items, single = self._encoder.items(texts, "error" if job.refuse_empty else "encode")
        return self._queue(items, job, single=single)

    def encode(
        self,
        texts: str | Iterable[str],
        *,
        timeout: float | None = None,
        **options: Unpack[EncodeOptions],
    ) -> npt.NDArray[Any]:
        """Embed texts, together with those of other callers.

        Args:
            texts: one text, or any iterable of texts.
            timeout: seconds to wait; None waits as long as it takes.
            **options: as for `submit`.

        Returns:
            As `Encoder.encode`: float32 (dim,) or (n, dim).

        Raises:
            DeadlineError: the timeout passed; texts that had not started are dropped.
            OverloadedError: too many texts wait.
            FlowvecError: as for `submit`.
        """
        seconds = seconds_or_none("timeout", timeout)
        return self._wait(self.submit(texts, **options), seconds)

    def encode_query(
        self,
        texts: str | Iterable[str],
        *,
        timeout: float | None = None,
        **options: Unpack[EncodeOptions],
    ) -> npt.NDArray[Any]:
        """Embed queries: `encode` with the bundle's prompt `query`, if it has one."""
        options.setdefault("prompt_name", self._encoder.query_prompt)
        return self.encode(texts, timeout=timeout, **options)

    def encode_document(
        self,
        texts: str | Iterable[str],
        *,
        timeout: float | None = None,
        **options: Unpack[EncodeOptions],
    ) -> npt.NDArray[Any]:
        """Embed documents: `encode` with the prompt `document`, `passage` or `corpus`."""
        options.setdefault("prompt_name", self._encoder.document_prompt)
        return self.encode(texts, timeout=timeout, **options)

    @property
    def encoder(self) -> Encoder:
        """The Encoder."""
        return self._encoder

    @override
    def _tokenize(self, calls: Sequence[Call]) -> Tokenized:
        prompts = [cast(EncodeJob, call.job).prompt for call in calls]
        texts = [p + text for p, call in zip(prompts, calls, strict=True) for text in call.items]
        return self._encoder.tokenize(texts)
