"""Chooses the next batch from the waiting texts, by their lengths and order of arrival."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate

from flowvec.encoder.batching import Batch, bucket_length, row_count

__all__ = ["LOOKAHEAD", "pack"]

# How many of the oldest texts are considered: enough for little padding, and decided in
# microseconds.
LOOKAHEAD = 512
# Fixed cost of a run of the graph, in tokens: mostly calls of operators.
_OVERHEAD = 32


def pack(lengths: Sequence[int], max_batch_tokens: int, max_length: int) -> Batch:
    """Choose the next batch: the oldest text, and the texts that fit best with it.

    Considered are batches that hold the oldest text, stay within the budget and hold no text
    shorter than half the longest. Chosen is the one with the largest share of real tokens in its
    cost; the tokens of texts that have waited longest count up to twice. So short texts do not wait
    for others, long texts do not make others pay for padding, and no text waits forever.

    Args:
        lengths: tokens of the waiting texts, special tokens included, oldest first; at least one.
            Only the first `LOOKAHEAD` are considered.
        max_batch_tokens: most length times rows of a batch; a text that exceeds it alone is a batch
            of one.
        max_length: padding must not exceed this.

    Returns:
        A batch whose rows are indices of `lengths`, ascending and always with 0.
    """
    seen = lengths[:LOOKAHEAD]
    # Longest first; equal lengths oldest first.
    order = sorted(range(len(seen)), key=lambda i: -seen[i])
    falling = [-seen[i] for i in order]
    # A token of the oldest text counts twice, one of the newest once.
    worth = [n * (2 - i / len(seen)) for i, n in enumerate(seen)]
    sums = [0.0, *accumulate(worth[i] for i in order)]
    oldest = order.index(0)
    best, best_length, best_share = [0], _padded(seen[0], max_length), 0.0
    start = bisect_left(falling, -2 * seen[0])  # the oldest would pay for longer ones
    while start <= oldest:
        longest = -falling[start]
        length = _padded(longest, max_length)
        fitting = bisect_right(falling, -longest / 2) - start  # shorter ones would pay
        rows = row_count(max(1, min(max_batch_tokens // length, fitting)))
        stop = start + rows
        if stop > oldest:
            chosen, work = order[start:stop], sums[stop] - sums[start]
        else:  # the oldest takes the place of the last
            chosen = [*order[start : stop - 1], 0]
            work = sums[stop - 1] - sums[start] + worth[0]
        if rows == 1:
            length = _padded(seen[0], max_length)
        share = work / (rows * length + _OVERHEAD)
        if share > best_share:
            best, best_length, best_share = chosen, length, share
        start = bisect_right(falling, -longest)  # the next shorter length
    return Batch(tuple(sorted(best)), best_length)


def _padded(length: int, max_length: int) -> int:
    # Without special tokens, an empty text has no tokens.
    return max(1, length, min(bucket_length(length), max_length))
