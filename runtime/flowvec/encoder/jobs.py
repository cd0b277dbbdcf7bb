"""The options of one call of the pipeline, and its results: vectors and statistics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

import numpy as np
import numpy.typing as npt

from flowvec.encoder.postprocess import Postprocess, non_finite_rows
from flowvec.errors import InputValueError
from flowvec.spelled import Spelled
from flowvec.tokenizer.token_ids import TokenIds
from flowvec.tokenizer.tokenizer import Tokenized, Tokenizer

__all__ = [
    "DenseRows",
    "EncodeJob",
    "EncodeStatistics",
    "Encoded",
    "Finish",
    "Job",
    "Outputs",
    "Rows",
    "Tally",
    "no_row",
    "too_long",
]

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class EncodeStatistics:
    """What one call of `encode`, or one exhausted `stream`, did.

        >>> calls = []
        >>> encoder = Encoder.load("mini", on_statistics=calls.append)
        >>> vectors = encoder.encode(["A man is eating.", "Stocks fell."])
        >>> calls[0].texts, calls[0].truncated
        (2, 0)

    Attributes:
        texts: texts that were encoded.
        tokens: their tokens after truncation, special tokens included.
        padding: share of padding among the computed tokens, 0 to 1.
        truncated: texts that were cut at max_length.
        replaced: texts in which lone surrogates became U+FFFD.
        batches: runs of the graph.
        seconds: wall time from the first text to the last vector; for a stream this includes the
            time of its consumer.
        tokenize_seconds: time spent tokenizing, which overlaps with the graph's.
        session_seconds: time spent in the graph, summed over the streams.
    """

    texts: int
    tokens: int
    padding: float
    truncated: int
    replaced: int
    batches: int
    seconds: float
    tokenize_seconds: float
    session_seconds: float


@dataclass(slots=True)
class Tally:
    """Counts of a running call; only one thread changes them.

    Attributes:
        texts: texts encoded.
        reused: texts whose batch an earlier run had computed; they are not in `texts`.
        tokens: tokens encoded, including special tokens.
        padded: tokens computed, including padding.
        truncated: texts truncated at max_length.
        replaced: texts in which lone surrogates became U+FFFD.
        batches: runs of the graph.
        tokenize_seconds: time of tokenizing, on all threads.
        session_seconds: time of the graph, on all streams.
    """

    texts: int = 0
    tokens: int = 0
    padded: int = 0
    truncated: int = 0
    replaced: int = 0
    batches: int = 0
    tokenize_seconds: float = 0.0
    session_seconds: float = 0.0
    reused: int = 0

    @property
    def padding(self) -> float:
        """Share of padding in the computed tokens, 0 to 1."""
        return 1.0 - self.tokens / self.padded if self.padded else 0.0

    def add(self, encoded: Encoded) -> None:
        """Count a window."""
        self.texts += len(encoded.vectors) - encoded.reused
        self.reused += encoded.reused
        self.tokens += encoded.tokens
        self.padded += encoded.padded
        self.truncated += len(encoded.truncated)
        self.replaced += len(encoded.replaced)

    def finish(self, seconds: float) -> EncodeStatistics:
        """The statistics of the finished call, which took this many seconds."""
        return EncodeStatistics(
            self.texts,
            self.tokens,
            self.padding,
            self.truncated,
            self.replaced,
            self.batches,
            seconds,
            self.tokenize_seconds,
            self.session_seconds,
        )


class Finish(Protocol):
    """What is done to the graph's output."""

    def __call__(self, output: npt.NDArray[np.float32], /) -> npt.NDArray[Any]:
        """The results of a call, from the graph's output, float32 (items, dim)."""


class Outputs(Protocol):
    """What the model gave for batches, kept by who runs the job."""

    def get(self, feeds: Sequence[npt.NDArray[np.int64]], /) -> Floats | None:
        """The graph's output for these inputs, float32 (batch, dim); None if it is not kept."""

    def put(self, feeds: Sequence[npt.NDArray[np.int64]], output: Floats, /) -> None:
        """Take the graph's output for these inputs."""


class Rows(Protocol):
    """Collects what the graph gives for the items of a window; batches come in any order.

    Threads store different items at the same time.
    """

    def store(self, items: Sequence[int], output: Floats) -> None:
        """Take the graph's output for a batch.

        Args:
            items: indices of the batch's items.
            output: float32 (batch, dim); it may be kept.
        """

    def non_finite(self) -> Sequence[int]:
        """Indices of the items for which the model gave NaN or infinity."""

    def results(self) -> Any:
        """The results, one for each item, in order; all items are stored."""


@dataclass(frozen=True, slots=True, eq=False)
class DenseRows:
    """Vectors or logits in one array.

    Attributes:
        array: float32 (items, dim).
        finish: what is done to it at the end.
    """

    array: Floats
    finish: Finish

    def store(self, items: Sequence[int], output: Floats) -> None:
        """See `Rows`."""
        self.array[list(items)] = output

    def non_finite(self) -> Sequence[int]:
        """See `Rows`."""
        return cast(list[int], non_finite_rows(self.array).tolist())

    def results(self) -> npt.NDArray[Any]:
        """See `Rows`."""
        return self.finish(self.array)


class Job(Protocol):
    """The checked options of one call of a pipeline, whose items are texts or pairs of texts.

    `EncodeJob` says what the attributes mean.
    """

    @property
    def max_batch_tokens(self) -> int:
        """Most padded tokens in a batch."""

    @property
    def refuse_long(self) -> bool:
        """Raise for an item above max_length instead of cutting it."""

    @property
    def most_tokens(self) -> int | None:
        """Most tokens of an item, if it is not the model's."""

    @property
    def refuse_empty(self) -> bool:
        """Raise for an empty text, as the caller of the pipeline does."""

    @property
    def refuse_non_finite(self) -> bool:
        """Raise for an item that the model cannot compute, instead of listing such items: it gives
        NaN or infinity, or has no row for a token."""

    @property
    def shared_out(self) -> bool:
        """Use a smaller batch if that keeps all streams busy."""

    def tokenize(self, tokenizer: Any, items: Sequence[Any]) -> Tokenized:
        """Token ids of the items."""

    def _rows(self, token_ids: TokenIds, dim: int) -> Rows:
        """Where the graph's output for tokenized items goes, `dim` numbers for each."""


def too_long(item: int, most_tokens: int, most_characters: int | None) -> InputValueError:
    """The error of a job that refuses long items, about the item of this number."""
    characters = "" if most_characters is None else f" or {most_characters} characters"
    return InputValueError(
        f"item {item} has more than {most_tokens} tokens{characters}, and ",
        Spelled("truncation is 'error'", "longer ones are refused"),
    )


def no_row(item: int, token: str) -> InputValueError:
    """The error about the item of this number, which has a token that the model has no row for."""
    return InputValueError(
        f"item {item} has the token {token}, for which the model's embedding table has no row: "
        "leave the token out, or resize the table, train it and export the model again"
    )


@dataclass(frozen=True, slots=True)
class EncodeJob:
    """The checked options of one call, as `Encoder.job` returns them.

        >>> encoder = Encoder.load("mini")
        >>> job = encoder.job(truncation="error")
        >>> [window.vectors.shape for window in encoder.windows([["A text."], ["b", "c"]], job)]
        [(1, 384), (2, 384)]

    Attributes:
        prompt: put before each text.
        postprocess: what is done to the graph's output.
        max_batch_tokens: most padded tokens in a batch.
        refuse_long: raise for a text above max_length instead of cutting it.
        refuse_empty: raise for an empty text, as the caller of the pipeline does.
        refuse_non_finite: raise for a text that the model cannot compute, because it gives NaN or
            infinity or has no row for a token, instead of listing such texts.
        shared_out: use a smaller batch if that keeps all streams busy; False for a caller who gave
            max_batch_tokens.
        most_tokens: most tokens of a text, if it is not the model's.
        outputs: has outputs of batches that need not be computed again, and takes the others.
    """

    prompt: str
    postprocess: Postprocess
    max_batch_tokens: int
    refuse_long: bool
    shared_out: bool = True
    refuse_non_finite: bool = True
    refuse_empty: bool = False
    most_tokens: int | None = None
    outputs: Outputs | None = None

    def tokenize(self, tokenizer: Tokenizer, items: Sequence[str]) -> Tokenized:
        """Token ids of texts, each with the prompt before it."""
        prompt = self.prompt
        return tokenizer([prompt + text for text in items] if prompt else items)

    def _rows(self, token_ids: TokenIds, dim: int) -> DenseRows:
        """Where the graph's output goes."""
        return DenseRows(np.empty((len(token_ids), dim), dtype=np.float32), self.postprocess)


@dataclass(frozen=True, slots=True, eq=False)
class Encoded:
    """The vectors of one window of texts, and what happened to its texts.

        >>> encoder = Encoder.load("mini")
        >>> encoded, = encoder.windows([["short", "cat " * 1000]], encoder.job())
        >>> encoded.truncated
        [1]

    Attributes:
        vectors: (texts, out_dim), in input order.
        truncated: indices of the texts that were cut at max_length.
        replaced: indices of the texts in which lone surrogates became U+FFFD.
        non_finite: indices of the texts for which the model gave NaN or infinity.
        no_row: indices of the texts with a token for which the model's embedding table has no row.
        tokens: tokens of the texts after truncation, special tokens included, without `reused`.
        padded: tokens that were computed, padding included.
        reused: texts whose batch was not computed, because the job has its output.
    """

    vectors: npt.NDArray[Any]
    truncated: Sequence[int]
    replaced: Sequence[int]
    non_finite: Sequence[int]
    no_row: Sequence[int]
    tokens: int
    padded: int
    reused: int = 0
