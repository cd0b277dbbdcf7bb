"""Times what a transform adds to a batch: its folded form in its own graph."""

from __future__ import annotations

import statistics
import time

import numpy as np
import onnxruntime

from flowvec_export.assembly.tracing import module_to_onnx
from flowvec_export.transforms import Transform

__all__ = ["BATCH_SIZE", "added_microseconds"]

BATCH_SIZE = 32
_WARM_UP, _RUNS = 30, 200


def added_microseconds(transform: Transform, batch_size: int = BATCH_SIZE) -> float:
    """Median wall time of the folded transform alone, in microseconds per batch.

    It runs on ONNX Runtime's CPU provider in float32, on one thread, as in flowvec's streams.

    Args:
        transform: a fitted transform.
        batch_size: vectors per run.
    """
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    graph = module_to_onnx(transform.fold(), transform.in_dim)
    session = onnxruntime.InferenceSession(
        graph.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    rng = np.random.default_rng(0)
    rows = {"u": rng.normal(size=(batch_size, transform.in_dim)).astype(np.float32)}
    times = []
    for _ in range(_WARM_UP + _RUNS):
        started = time.perf_counter()
        session.run(None, rows)
        times.append(time.perf_counter() - started)
    return 1e6 * statistics.median(times[_WARM_UP:])
