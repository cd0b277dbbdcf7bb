"""Batching: a pure decision about token lengths.

`plan` sorts texts by token count and cuts the order into batches whose padded cost (longest text
times rows) stays within a budget. Lengths and row counts come from few buckets, because an engine
compiles every new shape and keeps memory for it. `plan_in_order` is the plain alternative, for
comparisons.
"""

from __future__ import annotations

import operator
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from flowvec.errors import InputTypeError, InputValueError
from flowvec.tokenizer.token_ids import TokenIds

__all__ = [
    "ENOUGH_ON_GPU",
    "MOST_ROWS_ON_GPU",
    "Batch",
    "bucket_length",
    "check_batches",
    "pad",
    "padded_tokens",
    "plan",
    "plan_in_order",
    "row_count",
]

# Row counts of batches: steps of about a third, so that little is cut off.
_ROWS = (
    *(1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256),
    *(384, 512, 768, 1024, 1536, 2048, 3072, 4096),
)
# Most rows of a batch. More do not make a processor faster; a GPU takes a whole window of texts.
_MOST_ROWS = 256
MOST_ROWS_ON_GPU = 4096
# Padded tokens that keep a GPU busy. A batch that has as many is cut where the next texts are
# shorter than a share of its longest: a larger one would mostly add padding.
ENOUGH_ON_GPU = 16384
_SIMILAR = 0.75


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows that go through the model together, right-padded to `length` tokens.

    Attributes:
        rows: indices of the texts in the caller's order.
        length: the padded sequence length in tokens.
    """

    rows: tuple[int, ...]
    length: int


def bucket_length(length: int) -> int:
    """Round a token count up to its bucket: multiples of 2, 4, 8, 16, ... as it grows.

    The step is about a thirtieth of the length: rounding adds less than 2 % of padding on average,
    and texts of up to 512 tokens have about 100 lengths.
    """
    step = 2
    while length > 32 * step:
        step *= 2
    return -(-length // step) * step


def row_count(rows: int, most: int = _MOST_ROWS) -> int:
    """Round a number of rows, at least 1, down to its bucket; at most `most` rows."""
    return _ROWS[bisect_right(_ROWS, min(rows, most)) - 1]


def plan(
    lengths: Sequence[int] | npt.NDArray[np.int64],
    max_batch_tokens: int,
    max_length: int | None = None,
    most_rows: int = _MOST_ROWS,
    enough: int | None = None,
) -> list[Batch]:
    """Cut texts into batches of similar token count, longest first.

    Args:
        lengths: tokens of each text, special tokens included.
        max_batch_tokens: most length times rows of a batch; a text that exceeds it alone is a batch
            of one.
        max_length: the model's positions, which padding to a bucket must not exceed.
        most_rows: most texts of a batch.
        enough: padded tokens from which on a batch takes only texts of similar length; None fills
            every batch up to max_batch_tokens.

    Returns:
        Batches whose `rows` together hold each index exactly once.
    """
    tokens = np.asarray(lengths, dtype=np.int64)
    order = np.argsort(-tokens, kind="stable").tolist()
    falling = tokens[order].tolist()
    batches: list[Batch] = []
    start = 0
    while start < len(order):
        longest = falling[start]
        length = max(1, bucket_length(longest))  # without special tokens a text may have none
        if max_length is not None and length > max_length:
            length = max(longest, max_length)
        fitting = min(max(1, max_batch_tokens // length), len(order) - start)
        if enough is not None:
            # Their negatives ascend, as `bisect` needs.
            similar = bisect_right(falling, -_SIMILAR * longest, lo=start, key=operator.neg) - start
            fitting = min(fitting, max(1, similar, enough // length))
        count = row_count(fitting, most_rows)
        batches.append(Batch(tuple(order[start : start + count]), length))
        start += count
    return batches


def plan_in_order(
    lengths: Sequence[int], order: Iterable[int], batch_size: int, max_length: int | None = None
) -> list[Batch]:
    """Cut texts, in a given order, into batches of a fixed number of rows.

    With the input order, batches are not sorted by length at all; with the order of character
    counts, they are what most libraries use. Each batch is padded to its longest text.
    """
    indices = list(order)
    batches = []
    for start in range(0, len(indices), batch_size):
        rows = tuple(indices[start : start + batch_size])
        length = max(lengths[i] for i in rows)
        batches.append(Batch(rows, length if max_length is None else min(length, max_length)))
    return batches


def padded_tokens(batches: Iterable[Batch]) -> int:
    """The tokens that the model computes for a plan, padding included."""
    return sum(batch.length * len(batch.rows) for batch in batches)


def check_batches(batches: object, lengths: npt.NDArray[np.int64]) -> None:
    """Check that batches hold each text once, and have room for it.

    Args:
        batches: what should be a sequence of `Batch`.
        lengths: tokens of each text.

    Raises:
        InputTypeError: it is something else.
        InputValueError: a text is missing, is there twice, or is longer than its batch.
    """
    if not isinstance(batches, Sequence) or not all(isinstance(b, Batch) for b in batches):
        raise InputTypeError("batches must be a sequence of flowvec.encoder.batching.Batch")
    rows = np.array([row for batch in batches for row in batch.rows], dtype=np.int64)
    if not np.array_equal(np.sort(rows), np.arange(len(lengths))):
        raise InputValueError(f"batches must hold each of the {len(lengths)} texts once")
    for batch in batches:
        longest = max((int(lengths[row]) for row in batch.rows), default=0)
        if longest > batch.length:
            raise InputValueError(
                f"a batch of length {batch.length} holds a text of {longest} tokens"
            )


def pad(
    ids: TokenIds | Sequence[Sequence[int] | npt.NDArray[np.int32]], batch: Batch, pad_id: int
) -> tuple[npt.NDArray[np.int64], ...]:
    """Right-pad a batch's token ids.

    Returns:
        The graph's inputs, each int64 (batch, sequence): `input_ids`, `attention_mask` and, for
        pairs whose texts the model tells apart, `token_type_ids`.
    """
    if isinstance(ids, TokenIds):
        rows = np.asarray(batch.rows)
        starts = ids.offsets[rows, np.newaxis]
        places = np.arange(batch.length)
        is_token = places < ids.offsets[rows + 1, np.newaxis] - starts
        # Places beyond a text's end take any id, and are replaced.
        taken = ids.flat.take(starts + places, mode="clip") if len(ids.flat) else pad_id
        attended = is_token
        if ids.attended is not None:
            attended = places < ids.attended[rows, np.newaxis]
        feeds = (np.where(is_token, taken, np.int64(pad_id)), attended.astype(np.int64))
        if ids.second is None:
            return feeds
        in_second = is_token & (places >= ids.second[rows, np.newaxis])
        return (*feeds, in_second.astype(np.int64))
    input_ids = np.full((len(batch.rows), batch.length), pad_id, dtype=np.int64)
    attention_mask = np.zeros_like(input_ids)
    for i, row in enumerate(batch.rows):
        tokens = ids[row]
        input_ids[i, : len(tokens)] = tokens
        attention_mask[i, : len(tokens)] = 1
    return input_ids, attention_mask
