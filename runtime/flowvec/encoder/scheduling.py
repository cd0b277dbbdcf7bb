"""Packing: which of the waiting texts to compute next, a pure decision over lengths and arrival."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate

from flowvec.encoder.batching import Batch, bucket_length, row_count

__all__ = ["LOOKAHEAD", "pack"]

# How many of the oldest are looked at: enough for tight batches, microseconds to decide over.
LOOKAHEAD = 512
# What a run of the graph costs besides its tokens, in tokens: operators' calls, mostly.
_OVERHEAD = 32


def pack(lengths: Sequence[int], max_batch_tokens: int, max_length: int) -> Batch:
    """Choose the next batch: the oldest text, and those that go best with it.

    Of the batches that hold the oldest text, stay within the budget and hold no text of less than
    half the longest's tokens, it is the one in which the largest share of the cost is tokens that
    somebody asked for; those that have waited longest count up to twice. So short texts do not wait
    for company, long ones do not make others pay for padding, and nothing waits for ever: each
    batch serves whoever has waited longest.

    Args:
        lengths: tokens of the waiting texts, special tokens counted, the oldest first; at least
            one. Only the first `LOOKAHEAD` are looked at.
        max_batch_tokens: the most that a batch's length times rows may be; a text that alone
            exceeds it is a batch of one.
        max_length: a bound that padding must not pass.

    Returns:
        A batch whose rows are indices of `lengths`, ascending; 0 is always among them.
    """
    seen = lengths[:LOOKAHEAD]
    # Longest first; of equals the oldest first.
    order = sorted(range(len(seen)), key=lambda i: -seen[i])
    falling = [-seen[i] for i in order]
    # A token of the oldest text counts twice, one of the newest once.
    worth = [n * (2 - i / len(seen)) for i, n in enumerate(seen)]
    sums = [0.0, *accumulate(worth[i] for i in order)]
    oldest = order.index(0)
    best, best_length, best_share = [0], _padded(seen[0], max_length), 0.0
    start = bisect_left(falling, -2 * seen[0])  # longer ones would make the oldest pay
    while start <= oldest:
        longest = -falling[start]
        length = _padded(longest, max_length)
        fitting = bisect_right(falling, -longest / 2) - start  # shorter ones would pay
        rows = row_count(max(1, min(max_batch_tokens // length, fitting)))
        stop = start + rows
        if stop > oldest:
            chosen, asked = order[start:stop], sums[stop] - sums[start]
        else:  # the oldest takes the place of the last
            chosen = [*order[start : stop - 1], 0]
            asked = sums[stop - 1] - sums[start] + worth[0]
        if rows == 1:
            length = _padded(seen[0], max_length)
        share = asked / (rows * length + _OVERHEAD)
        if share > best_share:
            best, best_length, best_share = chosen, length, share
        start = bisect_right(falling, -longest)  # the next shorter length
    return Batch(tuple(sorted(best)), best_length)


def _padded(length: int, max_length: int) -> int:
    # A tokenizer without special tokens gives an empty text no token at all.
    return max(1, length, min(bucket_length(length), max_length))
