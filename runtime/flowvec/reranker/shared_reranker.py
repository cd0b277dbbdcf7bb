"""Many callers, one Reranker: pairs of different callers share batches."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from itertools import groupby
from typing import Any, Unpack, cast

import numpy as np
import numpy.typing as npt

from flowvec.arguments import seconds_or_none
from flowvec.bundle.manifest import Head
from flowvec.compat import override
from flowvec.encoder.shared_model import DEFAULT_MAX_WAITING, Call, SharedModel
from flowvec.errors import InputTypeError
from flowvec.reranker.reranker import Reranker
from flowvec.reranker.scores import Ranked, Ranking, ScoreJob, ScoreOptions
from flowvec.tokenizer.tokenizer import Tokenized, joined

__all__ = ["SharedReranker", "check_reranker"]


def check_reranker(reranker: object) -> Reranker:
    """Check that an argument is a Reranker.

    Raises:
        InputTypeError: it is something else; the message says how to get one.
    """
    if not isinstance(reranker, Reranker):
        hint = f": write Reranker.load({reranker!r})" if isinstance(reranker, str) else ""
        raise InputTypeError(f"reranker must be a Reranker, not {type(reranker).__name__}{hint}")
    return reranker


class SharedReranker(SharedModel):
    """A Reranker for any number of threads; pairs of different threads share batches.

    >>> with SharedReranker(Reranker.load("my-reranker")) as shared:
    ...     shared.predict([("who swims?", "A dog swims.")], timeout=10.0).shape
    (1,)
    """

    def __init__(
        self,
        reranker: Reranker,
        *,
        max_waiting: int = DEFAULT_MAX_WAITING,
        max_batch_tokens: int | None = None,
    ) -> None:
        """Start one worker thread per stream of the Reranker.

        Args:
            reranker: the model. Closing this does not close it.
            max_waiting: most pairs that may wait; a call that would exceed it is refused.
            max_batch_tokens: most padded tokens in a batch; None is the Reranker's.

        Raises:
            InputTypeError: it is not a Reranker.
            InputValueError: a number is below 1.
            ClosedError: the Reranker is closed.
        """
        check_reranker(reranker).job(max_batch_tokens=max_batch_tokens)  # checks both
        self._reranker = reranker
        super().__init__(reranker, max_waiting=max_waiting, max_batch_tokens=max_batch_tokens)

    @property
    def head(self) -> Head:
        """Labels and activation of the Reranker."""
        return self._reranker.head

    def ranking(self, *arguments: Any, **options: Any) -> Ranking:
        """As `Reranker.ranking`."""
        return self._reranker.ranking(*arguments, **options)

    def submit(
        self, pairs: Iterable[Sequence[str]], **options: Unpack[ScoreOptions]
    ) -> Future[npt.NDArray[Any]]:
        """Queue pairs, and return at once.

        Args:
            pairs: as for `Reranker.predict`.
            **options: as for `Reranker.predict`.

        Returns:
            A future of what `Reranker.predict` returns. Cancelling it drops the pairs of this call
            that have not started.

        Raises:
            OverloadedError: the queue is full.
            ClosedError: after `close`, or in a forked child.
            InputTypeError: an item is not a pair of str.
            InputValueError: an argument is not valid.
        """
        return self._call(pairs, **options).future

    def _call(self, pairs: Iterable[Sequence[str]], **options: Unpack[ScoreOptions]) -> Call:
        """`submit`, with the call that waits: when it is done, it has counts and times."""
        job = self._reranker.job(**options)
        items, single = self._reranker.items(pairs)
        return self._queue(items, job, single=single)

    def predict(
        self,
        pairs: Iterable[Sequence[str]],
        *,
        timeout: float | None = None,
        **options: Unpack[ScoreOptions],
    ) -> npt.NDArray[np.float32]:
        """Score pairs, together with those of other callers.

        Args:
            pairs: as for `Reranker.predict`.
            timeout: seconds to wait; None waits as long as it takes.
            **options: as for `Reranker.predict`.

        Raises:
            DeadlineError: the timeout passed; pairs that had not started are dropped.
            OverloadedError: too many pairs wait.
            FlowvecError: as for `submit`.
        """
        seconds = seconds_or_none("timeout", timeout)
        return self._wait(self.submit(pairs, **options), seconds)

    def rank(
        self,
        query: str,
        documents: Sequence[str],
        *,
        timeout: float | None = None,
        top_k: int | None = None,
        return_documents: bool = False,
        label: str | None = None,
        **options: Unpack[ScoreOptions],
    ) -> list[Ranked]:
        """Sort documents, together with those of other callers; arguments as `Reranker.rank`.

        Raises:
            DeadlineError: the timeout passed.
            OverloadedError: too many pairs wait.
            FlowvecError: as for `submit`.
        """
        seconds = seconds_or_none("timeout", timeout)
        ranking = self._reranker.ranking(
            query,
            documents,
            top_k=top_k,
            return_documents=return_documents,
            label=label,
            **options,
        )
        return ranking.of(self._wait(self.submit(ranking.pairs, **ranking.options), seconds))

    @override
    def _tokenize(self, calls: Sequence[Call]) -> Tokenized:
        parts = []
        # Calls that cut in the same way are tokenized together.
        for cut, group in groupby(calls, key=lambda call: cast(ScoreJob, call.job).cut):
            pairs = [pair for call in group for pair in call.items]
            parts.append(self._reranker.tokenize(pairs, cut))
        return parts[0] if len(parts) == 1 else joined(parts)
