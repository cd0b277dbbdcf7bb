"""What a transform adds to a batch: its folded form as a graph of its own, timed."""

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
    """Median wall time of the folded transform alone, in microseconds a batch.

    On ONNX Runtime's CPU provider in float32, on one thread, as flowvec's streams run it.

    Args:
        transform: fitted.
        batch_size: vectors a run.
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
        begun = time.perf_counter()
        session.run(None, rows)
        times.append(time.perf_counter() - begun)
    return 1e6 * statistics.median(times[_WARM_UP:])
