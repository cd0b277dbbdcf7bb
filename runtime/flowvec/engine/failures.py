"""Which error an engine's failure becomes: out of memory is told apart, because a caller can act.

Engines have no error class for it, so their texts are read.
"""

from __future__ import annotations

from flowvec.errors import EngineError, OutOfMemoryError, first_line

__all__ = ["is_out_of_memory", "load_out_of_memory", "run_failure"]

# Parts of messages, in lower case. ONNX Runtime's arena (`bfc_arena.cc`) has the first three, on
# every device; the next ones are CUDA's, cuBLAS's and cuDNN's, as ONNX Runtime's `cuda_call.cc`
# and TensorRT word them; the last ones are those of C++ and of the system, from the CPU.
_TEXTS = (
    "failed to allocate memory",
    "is smaller than requested bytes",
    "failed to find a free memory block",
    "out of memory",
    "cudaerrormemoryallocation",
    "status_alloc_failed",
    "gpu memory could not be allocated",
    "bad_alloc",
    "bad allocation",
    "cannot allocate memory",
)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an engine's error, or one of its causes, says that memory could not be allocated."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, MemoryError):
            return True
        text = str(cause).lower()
        if any(part in text for part in _TEXTS):
            return True
        cause = cause.__cause__
    return False


def run_failure(provider: str, shape: tuple[int, ...], error: BaseException) -> EngineError:
    """The error of a batch that failed.

    Args:
        provider: what ran it.
        shape: of its inputs, (batch, sequence).
        error: the engine's.
    """
    reason = first_line(error)
    if not is_out_of_memory(error):
        return EngineError(f"{provider} failed on a batch of shape {shape}: {reason}")
    rows, length = shape
    if rows > 1:
        advice = (
            f"set max_batch_tokens to less than {rows * length}, the padded tokens of this batch"
        )
    else:
        advice = "this is one text: free memory, or cut the text with a smaller max_length"
    return OutOfMemoryError(
        f"{provider} ran out of memory on a batch of shape {shape}; {advice}: {reason}"
    )


def load_out_of_memory(provider: str, model: object, error: BaseException) -> OutOfMemoryError:
    """The error of a graph that does not fit in memory.

    Args:
        provider: what should load it.
        model: the graph's file.
        error: the engine's.
    """
    return OutOfMemoryError(
        f"{provider} has too little memory to load {model}; free memory, or choose another device: "
        f"{first_line(error)}"
    )
