"""One graph for two loads: a core for each batch under load, all cores for a batch that is alone.

Streams of one core serve many batches best, and one stream of all cores has the lowest latency for
a single short text. OpenVINO cannot change a compiled graph from one to the other, so the graph is
compiled a second time, from the same weights in memory. That happens in the background, once
several single batches have come while nothing else ran: jobs and short commands never pay for it.
The native engine computes one graph with any number of cores.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import suppress

import numpy as np
import numpy.typing as npt

from flowvec.engine.selection import GraphSession
from flowvec.errors import ClosedError, EngineNotProvedError, FlowvecError

__all__ = ["ElasticSession"]

logger = logging.getLogger(__name__)

# Batches that were alone, after which the graph is compiled for all cores.
_ENOUGH_ALONE = 16
# Batches in a row that were alone, after which the next one gets all cores: among several callers
# a batch is alone for a moment, and then two threads of it would compete with the next batch.
_ENOUGH_IN_A_ROW = 3


class ElasticSession:
    """A session for each stream, and one of all cores for a batch that runs alone."""

    def __init__(
        self,
        session: GraphSession,
        open_on_all_cores: Callable[[], GraphSession] | None = None,
        in_background: Callable[[Callable[[], None]], object] | None = None,
        all_cores: GraphSession | None = None,
    ) -> None:
        """Begin with the streams.

        Args:
            session: runs a batch on each stream.
            open_on_all_cores: opens the same graph with one stream of all cores; None never does.
            in_background: runs a function on another thread.
            all_cores: runs a batch on all cores, where that need not be opened.
        """
        self._streams = session
        self._open = open_on_all_cores
        self._in_background = in_background
        self._all_cores = all_cores
        self._lock = threading.Lock()
        self._running = 0
        self._seen_alone = 0
        self._in_a_row = 0

    @property
    def threads_alone(self) -> int:
        """Cores that compute a batch while nothing else runs."""
        return (self._all_cores or self._streams).engine.threads

    def run(self, *feeds: npt.NDArray[np.int64], alone: bool = False) -> npt.NDArray[np.float32]:
        """The graph's output for one padded batch, as
        `flowvec.engine.onnxruntime_session.Session.run`.

        Args:
            *feeds: the graph's inputs, int64 (batch, sequence).
            alone: whether no other batch of its caller waits, so that it may take all cores.
        """
        if self._open is None and self._all_cores is None:
            return self._streams.run(*feeds)
        with self._lock:
            session, opens = self._streams, False
            if alone and self._running == 0:
                self._seen_alone += 1
                opens = self._open is not None and self._seen_alone == _ENOUGH_ALONE
                if self._all_cores is not None and self._in_a_row >= _ENOUGH_IN_A_ROW:
                    session = self._all_cores
                self._in_a_row += 1
            else:
                self._in_a_row = 0
            self._running += 1
        try:
            return session.run(*feeds)
        finally:
            with self._lock:
                self._running -= 1
            if opens and self._in_background is not None:
                with suppress(ClosedError):  # another thread closes the Encoder
                    self._in_background(self._open_all_cores)

    def _open_all_cores(self) -> None:
        """Compile the graph for all cores; without it, the streams go on."""
        assert self._open is not None
        try:
            self._all_cores = self._open()
        except EngineNotProvedError as error:
            logger.warning("single texts stay on one core: %s", error)
        except FlowvecError as error:
            logger.debug("single texts stay on one core: %s", error)
