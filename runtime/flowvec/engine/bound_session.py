"""ONNX Runtime on a device with its own memory: one batch computes while others are copied.

A batch has three steps: its inputs are copied to the device, the graph runs, and the output is
copied back. The graph runs one batch at a time, so that the device holds the inner values of one
only. The copies of another thread's batch go on meanwhile: two threads that call `run` keep the
device busy.

On the CPU provider the same steps run on the processor's memory; the tests use that.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from flowvec.bundle.bundle import Bundle
from flowvec.engine.onnxruntime_session import Session
from flowvec.engine.providers import Engine
from flowvec.errors import first_line

__all__ = ["BoundSession"]

logger = logging.getLogger(__name__)


class BoundSession(Session):
    """A graph whose inputs and output are bound to memory. `run` may be called from any number of
    threads; two are enough to keep a device busy."""

    def __init__(self, bundle: Bundle, engine: Engine) -> None:
        """Load the graph: see `Session`."""
        super().__init__(bundle, engine)
        self._device = _device_of(engine)
        self._pinned = _pinned_memory(self._ort, engine.provider)
        # Buffers that no batch uses. There are as many as batches were in flight at once.
        self._idle: deque[_Buffers] = deque()
        self._computing = threading.Lock()

    def _run(
        self, feeds: Sequence[npt.NDArray[np.int64]], options: Any = None
    ) -> npt.NDArray[np.float32]:
        try:
            buffers = self._idle.pop()
        except IndexError:
            buffers = _Buffers(self, len(self._inputs))
        # Buffers of a batch that fails are not used again: they may be bound to half of it.
        self.bind(buffers, feeds)
        with self._computing:
            self.compute(buffers, options)
        output = self.fetch(buffers)
        self._idle.append(buffers)
        return output

    def bind(self, buffers: _Buffers, feeds: Sequence[npt.NDArray[np.int64]]) -> None:
        """Copy the inputs to the device."""
        binding = buffers.binding
        for i, (name, feed) in enumerate(zip(self._inputs, feeds, strict=True)):
            place = buffers.filled(i, feed)
            # On a device this copies at once, on a stream of its own.
            binding.bind_input(name, "cpu", 0, np.int64, feed.shape, place)
        binding.bind_output(self._output, self._device)
        binding.synchronize_inputs()

    def compute(self, buffers: _Buffers, options: Any) -> None:
        """Run the graph. It returns when the output is in the device's memory."""
        self._session.run_with_iobinding(buffers.binding, options)

    def fetch(self, buffers: _Buffers) -> npt.NDArray[np.float32]:
        """Copy the output back, and free the batch's memory on the device."""
        binding = buffers.binding
        output: npt.NDArray[np.float32] = binding.get_outputs()[0].numpy()
        binding.clear_binding_inputs()
        binding.clear_binding_outputs()
        return output


class _Buffers:
    """Memory for the inputs of one batch in flight, used again by the next one."""

    def __init__(self, session: BoundSession, inputs: int) -> None:
        self.binding = session._session.io_binding()
        self._ort, self._pinned = session._ort, session._pinned
        # One flat array for each input, as long as the largest batch: batches of all shapes use
        # its beginning.
        self._places = [np.empty(0, dtype=np.int64)] * inputs
        self._owners: list[Any] = [None] * inputs

    def filled(self, i: int, feed: npt.NDArray[np.int64]) -> int:
        """Copy an input into its buffer, and return the buffer's address."""
        if feed.size > self._places[i].size:
            self._places[i], self._owners[i] = _allocated(self._ort, self._pinned, feed.size)
        place = self._places[i]
        place[: feed.size].reshape(feed.shape)[...] = feed
        return int(place.ctypes.data)


def _allocated(ort: Any, pinned: Any, size: int) -> tuple[npt.NDArray[np.int64], Any]:
    """Memory for int64 numbers, pinned if there is such memory; and its owner."""
    if pinned is not None:
        try:
            value = ort.OrtValue.ortvalue_from_shape_and_type([size], np.int64, memory_info=pinned)
            place = value.numpy()
            # A copy would not be what the device reads.
            if place.ctypes.data == value.data_ptr():
                return place, value
        except Exception as error:  # ONNX Runtime's exceptions have no common base
            logger.debug("no pinned memory: %s", first_line(error))
    return np.empty(size, dtype=np.int64), None


def _pinned_memory(ort: Any, provider: str) -> Any:
    """What allocates memory that a provider's device reads without another copy, or None."""
    try:
        kind = ort.OrtDeviceMemoryType.HOST_ACCESSIBLE
        devices = [device for device in ort.get_ep_devices() if device.ep_name == provider]
        return devices[0].memory_info(kind) if devices else None
    except Exception as error:  # an older ONNX Runtime has no such functions
        logger.debug("no pinned memory: %s", first_line(error))
        return None


def _device_of(engine: Engine) -> str:
    """ONNX Runtime's name of the memory in which an engine computes."""
    return "cuda" if engine.device == "cuda" else "cpu"
