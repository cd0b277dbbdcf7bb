"""flowvec's own engine: layers in 8 bits and static embedders, computed without padding."""

from __future__ import annotations

import sys
from copy import copy

import numpy as np
import numpy.typing as npt

from flowvec.bundle.bundle import Bundle
from flowvec.engine.failures import load_out_of_memory, run_failure
from flowvec.engine.providers import NATIVE, Engine
from flowvec.errors import (
    BundleError,
    EngineError,
    MissingDependencyError,
    ProviderUnavailableError,
)
from flowvec.machine import cpu_features
from flowvec.native import NativeEncoder, TableWeights, Weights, instruction_set

__all__ = ["NativeSession", "native_status"]


def native_status() -> str | None:
    """Why the native engine cannot run here, or None."""
    if sys.platform == "win32":
        return "the native engine is not built for Windows"
    try:
        found = instruction_set(cpu_features())
    except MissingDependencyError as error:
        return str(error)
    return None if found else "the native engine needs AVX2, or the dot products of ARM"


class NativeSession:
    """A bundle's native weights. `run` may be called from any number of threads."""

    def __init__(self, bundle: Bundle, engine: Engine) -> None:
        """Map the weights, and pack them for the processor.

        Raises:
            BundleError: the file is damaged, or is of another model than its bundle.
            ProviderUnavailableError: the native engine cannot run here.
            OutOfMemoryError: there is not enough memory.
        """
        if reason := native_status():
            raise ProviderUnavailableError(f"{NATIVE} was asked for, but {reason}")
        instructions = instruction_set(cpu_features())
        assert instructions is not None
        file = bundle.graph(engine.variant)
        self._is_table = engine.compute == "float32"
        weights = TableWeights.read(file, bundle.model) if self._is_table else Weights.read(file)
        manifest = bundle.manifest
        if weights.dim != manifest.dim or weights.most_tokens < manifest.max_length:
            raise BundleError(
                f"{file} gives {weights.dim} dimensions of at most {weights.most_tokens} tokens; "
                f"its manifest says {manifest.dim} of {manifest.max_length}"
            )
        try:
            self._encoder = NativeEncoder(weights, instructions)
        except MemoryError as error:
            raise load_out_of_memory(engine.provider, file, error) from error
        except EngineError as error:
            raise BundleError(f"{file} cannot be computed: {error}") from error
        self.engine = engine
        self._is_multi_vector = manifest.kind == "multi_vector"

    def beside(self, engine: Engine) -> NativeSession:
        """The same weights, with the threads of another engine."""
        other = copy(self)
        other.engine = engine
        return other

    def run(self, *feeds: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        """The output for a padded batch: see `flowvec.engine.onnxruntime_session`."""
        try:
            return self._token_vectors(*feeds) if self._is_multi_vector else self._vectors(*feeds)
        except (EngineError, MemoryError) as error:
            raise run_failure(self.engine.provider, feeds[0].shape, error) from error

    def _vectors(
        self,
        ids: npt.NDArray[np.int64],
        mask: npt.NDArray[np.int64],
        types: npt.NDArray[np.int64] | None = None,
    ) -> npt.NDArray[np.float32]:
        is_token = mask.astype(np.bool_)
        if not self._is_table:
            # Tokenizers of these models give each text a token; callers of `Encoder.run` may not.
            is_token[~is_token.any(axis=1), 0] = True
        starts = np.zeros(len(ids) + 1, np.int64)
        is_token.sum(axis=1).cumsum(out=starts[1:])
        return self._encoder.vectors(
            ids[is_token].astype(np.int32),
            starts,
            self.engine.threads,
            types=None if types is None else types[is_token].astype(np.uint8),
        )

    def _token_vectors(
        self, ids: npt.NDArray[np.int64], mask: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.float32]:
        # Tokens that a query is filled up with have vectors, and may be masked as padding is. So
        # padding is computed too; queries have no more of it, and documents have little.
        rows, columns = ids.shape
        flat = self._encoder.token_vectors(
            ids.astype(np.int32).ravel(),
            np.arange(rows + 1) * columns,
            self.engine.threads,
            attended=np.maximum(mask.sum(axis=1), 1).astype(np.int32),
        )
        return flat.reshape(rows, columns, -1)
