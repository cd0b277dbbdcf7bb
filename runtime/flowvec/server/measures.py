"""What is counted while the server works, as plain numbers: `metrics` writes them down."""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Iterator

from flowvec.encoder.queue_reports import BatchReport

__all__ = ["SECONDS", "Histogram", "Measures", "ModelMeasures"]

# Upper bounds of the classes of each histogram.
SECONDS = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
)  # fmt: skip
_TOKENS = (16.0, 64.0, 256.0, 1024.0, 4096.0, 16384.0, 65536.0)
_RECENT = 4096
_TEXTS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0)


class Histogram:
    """Values by class, and their sum. It is not safe for threads by itself."""

    __slots__ = ("_bounds", "_counts", "sum")

    def __init__(self, bounds: tuple[float, ...] = SECONDS) -> None:
        """No value yet; `bounds` are the classes' upper bounds, ascending."""
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def add(self, value: float) -> None:
        """Count a value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self.sum += value

    def buckets(self) -> Iterator[tuple[str, int]]:
        """Each class's upper bound as a text, and how many values are at most that."""
        total = 0
        for bound, count in zip((*self._bounds, "+Inf"), self._counts, strict=True):
            total += count
            yield str(bound), total


class ModelMeasures:
    """Figures of one model.

    Attributes:
        items: texts or pairs that were answered.
        tokens: their tokens.
        truncated: how many of them were cut.
        replaced: how many came with lone surrogates, which became U+FFFD.
        tokenize: seconds of each call in the tokenizer.
        queue: seconds of each call in the queue.
        compute: seconds of each call from its first batch to its last.
        batch_items: items of each batch.
        batch_tokens: computed tokens of each batch, padding included.
        padding: how many of the computed tokens were padding.
    """

    def __init__(self) -> None:
        """Nothing was computed yet."""
        self.items = self.tokens = self.truncated = self.replaced = self.padding = 0
        self.tokenize, self.queue, self.compute = Histogram(), Histogram(), Histogram()
        self.batch_items, self.batch_tokens = Histogram(_TEXTS), Histogram(_TOKENS)
        self._lock = threading.Lock()

    def add_batch(self, batch: BatchReport) -> None:
        """Count a batch; from any thread."""
        with self._lock:
            self.batch_items.add(batch.texts)
            self.batch_tokens.add(batch.padded)
            self.padding += batch.padded - batch.tokens


class Measures:
    """Figures of the requests.

    Attributes:
        requests: how many, by route (`POST /embed`) and status.
        seconds: from the headers to the end of the answer, by route.
        recent: when the last requests for work were answered, by `time.perf_counter`, and their
            seconds.
    """

    def __init__(self) -> None:
        """Nothing was answered yet."""
        self.requests: Counter[tuple[str, int]] = Counter()
        self.seconds: dict[str, Histogram] = {}
        self.recent: deque[tuple[float, float]] = deque(maxlen=_RECENT)

    def add(self, route: str, status: int, seconds: float, *, is_work: bool = False) -> None:
        """Count a request that has been answered."""
        if is_work:
            self.recent.append((time.perf_counter(), seconds))
        self.requests[route, status] += 1
        self.seconds.setdefault(route, Histogram()).add(seconds)
