"""Out of memory is an error of its own, and the next call works."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from flowvec.engine.failures import is_out_of_memory, load_out_of_memory, run_failure
from flowvec.errors import EngineError, OutOfMemoryError

# As ONNX Runtime, CUDA and TensorRT word it; the ends of paths and functions are left out.
OUT_OF_MEMORY = [
    "Status Message: bfc_arena.cc:376 Failed to allocate memory for requested buffer of size 9395",
    "BFCArena::AllocateRawInternal Available memory of 256 is smaller than requested bytes of 983",
    "Failed to find a free memory block despite calling Extend. rounded_bytes=4096",
    "CUDA failure 2: out of memory ; GPU=0 ; hostname=h ; expr=cudaMalloc((void**)&p, size);",
    "CUDA error cudaErrorMemoryAllocation:out of memory",
    "CUBLAS failure 3: CUBLAS_STATUS_ALLOC_FAILED ; GPU=0 ; expr=cublasCreate(&cublas_handle_);",
    "CUDNN failure 4: CUDNN_STATUS_ALLOC_FAILED ; GPU=0",
    "Requested amount of GPU memory (1548503 bytes) could not be allocated. GPU memory could not "
    "be allocated",
    "Non-zero status code returned while running Add node. Status Message: std::bad_alloc",
    "Non-zero status code returned while running FusedMatMul node. Status Message: bad allocation",
]
OTHER_FAILURES = [
    "indices element out of data bounds, idx=1000000 must be within the inclusive range [-90,89]",
    "CUDA failure 700: an illegal memory access was encountered ; GPU=0 ; expr=cudaStreamSync",
    "Got invalid dimensions for input: input_ids",
    "TensorRT EP failed to create engine from network.",
]


@pytest.mark.parametrize("text", OUT_OF_MEMORY)
def test_texts_that_say_out_of_memory(text: str) -> None:
    error = run_failure("CUDAExecutionProvider", (64, 512), RuntimeError(f"{text}\nmore"))
    assert isinstance(error, OutOfMemoryError)
    assert "(64, 512)" in str(error)
    assert "max_batch_tokens" in str(error)
    assert "32768" in str(error)
    assert "more" not in str(error)
    assert isinstance(load_out_of_memory("x", "model.onnx", RuntimeError(text)), EngineError)


@pytest.mark.parametrize("text", OTHER_FAILURES)
def test_other_failures_are_not_out_of_memory(text: str) -> None:
    error = run_failure("CUDAExecutionProvider", (2, 8), RuntimeError(text))
    assert type(error) is EngineError
    assert text in str(error)


def test_a_single_text_is_not_told_to_make_smaller_batches() -> None:
    error = run_failure("CUDAExecutionProvider", (1, 512), MemoryError())
    assert isinstance(error, OutOfMemoryError)
    assert "max_batch_tokens" not in str(error)
    assert "max_length" in str(error)


def test_a_cause_is_read_too() -> None:
    error = RuntimeError("the request failed")
    error.__cause__ = MemoryError()
    assert is_out_of_memory(error)


# ONNX Runtime's session, whose memory is an arena of a limited size, as on a small GPU.
LIMITED_ARENA = """
import sys
import numpy as np
import onnxruntime as ort
from flowvec import Bundle, Encoder, OutOfMemoryError, SharedEncoder
from flowvec.engine import onnxruntime_session

path, limit = sys.argv[1], int(sys.argv[2])
kind = ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR
arena = ort.OrtMemoryInfo("Cpu", kind, 0, ort.OrtMemType.DEFAULT)
ort.create_and_register_allocator(
    arena, ort.OrtArenaCfg({"max_mem": limit, "arena_extend_strategy": 1})
)
usual = onnxruntime_session._session_options

def limited(*arguments):
    options = usual(*arguments)
    options.add_session_config_entry("session.use_env_allocators", "1")
    options.log_severity_level = 4
    return options
"""

MANY_TEXTS = """
import threading
streams = int(sys.argv[3])
texts = ["the cat sleeps on the river " * 12] * 1000
with Encoder.load(path, provider="cpu") as plain:
    expected = plain.encode(texts[:4])
onnxruntime_session._session_options = limited
options = dict(provider="cpu", streams=streams, max_batch_tokens=1 << 14, proof="never")
with Encoder.load(path, **options) as encoder:
    workers, all_free = encoder._pipeline._workers, threading.Barrier(streams)
    for _ in range(3):
        try:
            encoder.encode(texts)
        except OutOfMemoryError as error:
            assert "max_batch_tokens" in str(error), error
            assert "Available memory of" in str(error), error
        else:
            raise AssertionError("not out of memory")
        # Another stream may still have memory for the batch that it had begun.
        for free in [workers.submit(all_free.wait) for _ in range(streams)]:
            free.result()
        np.testing.assert_allclose(encoder.encode(texts[:4]), expected, atol=1e-5)
    # A batch that does not fit is computed text by text, so all calls are answered. What fits
    # depends on what else has memory, so one batch runs at a time.
    run, one_at_a_time = onnxruntime_session.Session.run, threading.Lock()

    def run_alone(*arguments):
        with one_at_a_time:
            return run(*arguments)

    onnxruntime_session.Session.run = run_alone
    with SharedEncoder(encoder) as shared:
        futures = [shared.submit(texts[:40]) for _ in range(5)]
        for future in futures:
            np.testing.assert_allclose(future.result(60)[:4], expected, atol=1e-5)
"""


GROWING_BATCHES = """
onnxruntime_session._session_options = limited
session = onnxruntime_session.Session(
    Bundle.load(path), onnxruntime_session.Engine("CPUExecutionProvider", "float32", 1)
)
for rows in [*range(1, 13), 1000, 12]:
    ids = np.full((rows, 64), 5, dtype=np.int64)
    try:
        session.run(ids, np.ones_like(ids))
    except OutOfMemoryError:
        assert rows == 1000, rows
    else:
        assert rows != 1000
"""


@pytest.mark.parametrize(("limit", "streams"), [(1_000_000, 1), (4_000_000, 2)])
def test_the_next_call_works_after_the_arena_was_full(
    python, tiny_dir: Path, limit: int, streams: int
) -> None:
    run = python(LIMITED_ARENA + MANY_TEXTS, tiny_dir, limit, streams)
    assert run.returncode == 0, run.stderr


def test_an_arena_full_of_pieces_of_other_sizes_is_emptied(python, tiny_dir: Path) -> None:
    # In a fresh session 17 rows fit; after batches of 1 to 7 rows, 8 do not, unless memory is
    # given back.
    run = python(LIMITED_ARENA + GROWING_BATCHES, tiny_dir, 4_000_000)
    assert run.returncode == 0, run.stderr


# The process may not have more memory than it has, and a little.
LIMITED_PROCESS = """
import resource, sys
from pathlib import Path
import numpy as np
from flowvec import Bundle, OutOfMemoryError
from flowvec.engine.providers import Engine
from flowvec.engine.selection import open_session

session = open_session(Bundle.load(sys.argv[1]), Engine("CPUExecutionProvider", "float32", 1))
few = np.full((2, 8), 5, dtype=np.int64)
many = np.full((20_000, 64), 5, dtype=np.int64)
expected = session.run(few, np.ones_like(few))
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20), -1))
for _ in range(3):
    try:
        session.run(many, np.ones_like(many))
    except OutOfMemoryError as error:
        assert "(20000, 64)" in str(error) and "1280000" in str(error), error
    else:
        raise AssertionError("not out of memory")
    np.testing.assert_array_equal(session.run(few, np.ones_like(few)), expected)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_the_next_call_works_after_the_process_was_out_of_memory(python, tiny_dir: Path) -> None:
    run = python(LIMITED_PROCESS, tiny_dir)
    assert run.returncode == 0, run.stderr
