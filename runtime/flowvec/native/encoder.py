"""The native encoder: its library, and what it computes.

ctypes releases Python's lock in every call, so other threads go on.
"""

from __future__ import annotations

import ctypes
import sys
import weakref
from collections import deque
from collections.abc import Collection
from ctypes import byref, c_char_p, c_float, c_int, c_int32, c_int64, c_size_t, c_void_p
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from flowvec.errors import EngineError
from flowvec.native.table import TableWeights
from flowvec.native.weights import Weights
from flowvec.shared_library import load_library

__all__ = ["LIBRARY", "SIGNATURES", "NativeEncoder", "instruction_set", "library"]

# The name says nothing of a Python version, since the library does not use Python.
LIBRARY = {"win32": "_encoder.dll", "darwin": "_encoder.dylib"}.get(sys.platform, "_encoder.so")
_VERSION = 3  # of the interface in native/encoder/encoder.cpp
_NO_MEMORY = 4
# Best first. The scalar set is what these are compared with, and slower than any other engine.
_FAST_SETS = ("avx512_vnni", "avx2", "arm_dotprod")

SIGNATURES: dict[str, tuple[Any, ...]] = {
    "create": (c_void_p, c_float, c_void_p, c_void_p, c_size_t, c_void_p, c_void_p),
    "create_table": (c_void_p, c_void_p, c_void_p, c_size_t, c_void_p, c_void_p),
    "workspace": (c_void_p,),
    "run": (c_void_p, c_void_p, c_void_p, c_int, c_int, c_void_p),
}

Floats = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int32]
Starts = npt.NDArray[np.int64]
Types = npt.NDArray[np.uint8]


@cache
def library() -> ctypes.CDLL:
    """The library, with the types of its functions.

    Raises:
        MissingDependencyError: it was not built, or is of another version.
    """
    path = Path(__file__).with_name(LIBRARY)
    lib = load_library(path, "flowvec_encoder_", _VERSION, SIGNATURES)
    for name in ("free", "workspace_free"):
        function = getattr(lib, f"flowvec_encoder_{name}")
        function.argtypes, function.restype = (c_void_p,), None
    lib.flowvec_encoder_set.argtypes = (c_size_t, c_void_p)
    lib.flowvec_encoder_set.restype = lib.flowvec_encoder_error.restype = c_char_p
    return lib


def sets() -> dict[str, int]:
    """Numbers of the instruction sets that the library and this processor have, by name.

    Raises:
        MissingDependencyError: there is no library.
    """
    found: dict[str, int] = {}
    number, runs = 0, c_int()
    while name := library().flowvec_encoder_set(number, byref(runs)):
        if runs.value:
            found[name.decode()] = number
        number += 1
    return found


def instruction_set(features: Collection[str]) -> str | None:
    """The fastest instruction set that can be used; None if there is none.

    Args:
        features: those of the processor that may be used (`flowvec.machine.cpu_features`).

    Raises:
        MissingDependencyError: there is no library.
    """
    able = sets()
    return next((name for name in _FAST_SETS if name in able and name in features), None)


def _check(status: int) -> None:
    if not status:
        return
    text = library().flowvec_encoder_error().decode("utf-8", "replace")
    if status == _NO_MEMORY:
        raise MemoryError(text)
    raise EngineError(text)


class NativeEncoder:
    """Weights, packed for an instruction set. Any number of threads may use it."""

    def __init__(self, weights: Weights | TableWeights, instructions: str) -> None:
        """Pack weights.

        Args:
            weights: what to compute with; its file stays mapped.
            instructions: name of an instruction set.

        Raises:
            EngineError: the processor lacks the instruction set, or a size is out of range.
            MemoryError: there is not enough memory.
            MissingDependencyError: there is no library.
        """
        lib, able = library(), sets()
        if instructions not in able:
            raise EngineError(f"this processor does not have {instructions}")
        # The library reads some of them later.
        self._arrays = [np.ascontiguousarray(array) for array in weights.arrays()]
        sizes, steps = weights.sizes(), weights.step_numbers()
        addresses = (c_void_p * len(self._arrays))(*(a.ctypes.data for a in self._arrays))
        handle = c_void_p()
        numbers = (c_int32 * len(sizes))(*sizes)
        others = ((c_int32 * len(steps))(*steps), able[instructions], addresses, byref(handle))
        if isinstance(weights, TableWeights):
            floats = (c_float * 2)(weights.epsilon, weights.least)
            _check(lib.flowvec_encoder_create_table(numbers, floats, *others))
        else:
            modes = weights.pooling_numbers()
            poolings = (c_int32 * len(modes))(*modes)
            _check(lib.flowvec_encoder_create(numbers, weights.epsilon, poolings, *others))
        self._handle, self._lib = handle, lib
        weakref.finalize(self, lib.flowvec_encoder_free, handle).atexit = False
        self.dim, self.hidden = weights.dim, weights.hidden
        # One for each thread that computes at the same time.
        self._idle: deque[_Workspace] = deque()

    def vectors(
        self,
        ids: Ids,
        starts: Starts,
        threads: int = 1,
        *,
        attended: Ids | None = None,
        types: Types | None = None,
    ) -> Floats:
        """The vectors of texts.

        Args:
            ids: token ids of all texts, one after the other, int32 (tokens,).
            starts: where each text begins, and the last one's end, int64 (texts + 1,).
            threads: that compute at most, with the caller's.
            attended: how many tokens of each text, from its beginning, its tokens attend to, int32
                (texts,); None is all.
            types: of each token, uint8 (tokens,), 0 or 1; None is 0.

        Returns:
            float32 (texts, dim).

        Raises:
            EngineError: a token is not in the vocabulary, or a text has too many tokens, or, apart
                from static embedders, none.
            MemoryError: there is not enough memory.
        """
        out = np.empty((len(starts) - 1, self.dim), np.float32)
        return self._run(0, out, threads, ids, starts, attended, types)

    def token_vectors(
        self, ids: Ids, starts: Starts, threads: int = 1, *, attended: Ids | None = None
    ) -> Floats:
        """A vector of each token, float32 (tokens, dim); as `vectors` otherwise."""
        out = np.empty((len(ids), self.dim), np.float32)
        return self._run(1, out, threads, ids, starts, attended, None)

    def states(
        self,
        ids: Ids,
        starts: Starts,
        threads: int = 1,
        *,
        attended: Ids | None = None,
        types: Types | None = None,
    ) -> Floats:
        """The last layer's states, float32 (tokens, hidden); as `vectors` otherwise."""
        out = np.empty((len(ids), self.hidden), np.float32)
        return self._run(2, out, threads, ids, starts, attended, types)

    def _run(
        self,
        result: int,
        out: Floats,
        threads: int,
        ids: Ids,
        starts: Starts,
        attended: Ids | None,
        types: Types | None,
    ) -> Floats:
        count = len(starts) - 1
        # As the library reads them; the names keep them in memory.
        ids, starts = np.ascontiguousarray(ids, np.int32), np.ascontiguousarray(starts, np.int64)
        if starts[0] != 0 or starts[-1] != len(ids):
            raise EngineError("the texts are not all of the tokens")
        texts = _Texts(ids.ctypes.data, starts.ctypes.data, count)
        if attended is not None:
            attended = np.ascontiguousarray(attended, np.int32)
            texts.attended = attended.ctypes.data
        if types is not None:
            types = np.ascontiguousarray(types, np.uint8)
            texts.types = types.ctypes.data
        if (attended is not None and len(attended) != count) or (
            types is not None and len(types) != len(ids)
        ):
            raise EngineError("there is not one number for each text or token")
        try:
            workspace = self._idle.pop()
        except IndexError:
            workspace = _Workspace()
        status = self._lib.flowvec_encoder_run(
            self._handle, workspace.handle, byref(texts), result, threads, out.ctypes.data
        )
        _check(status)
        self._idle.append(workspace)
        return out


class _Texts(ctypes.Structure):
    """`Texts` of native/encoder/texts.h."""

    _fields_ = (
        ("ids", c_void_p),
        ("starts", c_void_p),
        ("count", c_int64),
        ("attended", c_void_p),
        ("types", c_void_p),
    )


class _Workspace:
    """Memory in which one thread computes at a time."""

    def __init__(self) -> None:
        lib, self.handle = library(), c_void_p()
        _check(lib.flowvec_encoder_workspace(byref(self.handle)))
        weakref.finalize(self, lib.flowvec_encoder_workspace_free, self.handle).atexit = False
