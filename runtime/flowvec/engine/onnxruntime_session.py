"""ONNX Runtime: one session on one execution provider, which is verified to run.

Only this module and `bound_session` call onnxruntime. By itself, ONNX Runtime falls back to its CPU
provider silently; here the provider that was asked for runs, or an error is raised.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from importlib import metadata
from typing import Any

import numpy as np
import numpy.typing as npt

from flowvec.bundle.bundle import Bundle
from flowvec.engine.failures import is_out_of_memory, load_out_of_memory, run_failure
from flowvec.engine.gpus import why_no_gpu
from flowvec.engine.providers import CPU, CUDA, TENSORRT, Engine
from flowvec.errors import (
    BundleError,
    EngineError,
    MissingDependencyError,
    ProviderUnavailableError,
    first_line,
)
from flowvec.forks import under_way
from flowvec.machine import cpu_features
from flowvec.optional import install_line

__all__ = [
    "Session",
    "conflicting_wheels",
    "onnxruntime_status",
    "open_graph",
    "runtime_version",
]

logger = logging.getLogger(__name__)

_SPIN_MICROSECONDS = "200"
# Experimental providers that this process has warned of.
_warned: set[str] = set()


def _install_gpu() -> str:
    return f"python -m pip uninstall onnxruntime, then {install_line('gpu')}"


def _onnxruntime() -> Any:
    """Import onnxruntime, or raise an error with the line that installs it.

    It is not a hard dependency, because the wheels onnxruntime and onnxruntime-gpu overwrite each
    other's files.
    """
    try:
        import onnxruntime

        onnxruntime.InferenceSession  # noqa: B018 - what is left of a removed wheel lacks it
    except (ImportError, AttributeError, OSError) as error:
        raise MissingDependencyError(
            f"flowvec needs ONNX Runtime to embed text ({error}); install it: {install_line('cpu')}"
        ) from None
    return onnxruntime


def runtime_version() -> str | None:
    """Version of ONNX Runtime; None if it is not installed. It is not imported for this."""
    if (module := sys.modules.get("onnxruntime")) is not None:
        return str(getattr(module, "__version__", None))
    return next((wheel.split()[1] for wheel in conflicting_wheels()), None)


def conflicting_wheels() -> list[str]:
    """The distributions that install a package `onnxruntime`; more than one is a broken
    installation."""
    names = ("onnxruntime", "onnxruntime-gpu", "onnxruntime-openvino", "onnxruntime-directml")
    installed = []
    for name in names:
        try:
            installed.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            continue
    return installed


def onnxruntime_status() -> dict[str, str | None]:
    """For each supported provider of ONNX Runtime, why it cannot run here, or None."""
    try:
        ort = _onnxruntime()
    except MissingDependencyError as error:
        return dict.fromkeys((CUDA, TENSORRT, CPU), str(error))
    return {
        CUDA: _gpu_status(ort, CUDA),
        TENSORRT: _gpu_status(ort, TENSORRT),
        CPU: None,
    }


def _gpu_status(ort: Any, provider: str) -> str | None:
    """Why a provider on an NVIDIA GPU cannot run, or None."""
    if provider not in ort.get_available_providers():
        return f"this ONNX Runtime has no {provider}: {_install_gpu()}"
    if reason := why_no_gpu():
        return reason
    if provider == TENSORRT:
        try:
            import tensorrt  # noqa: F401 - loads the libraries that the provider needs
        except (ImportError, OSError) as error:
            install = "python -m pip install tensorrt-cu13"
            return f"TensorRT's libraries are missing ({error}): {install}"
    return None


class Session:
    """A graph loaded on one engine. `run` may be called from any number of threads."""

    def __init__(self, bundle: Bundle, engine: Engine) -> None:
        """Load the graph.

        Raises:
            BundleError: ONNX Runtime cannot load the file, or the graph lacks its inputs.
            OutOfMemoryError: the graph does not fit in the device's memory.
            ProviderUnavailableError: the provider was asked for, but does not really run.
        """
        ort = _onnxruntime()
        options = _session_options(ort, engine)
        if engine.compute == "int8" and not {"avx512_vnni", "avx_vnni"} & set(cpu_features()):
            # Without VNNI, products of unsigned and signed bytes are summed in 16 bits, which
            # clips.
            options.add_session_config_entry("session.x64quantprecision", "1")
        if engine.compute == "bfloat16":
            # On ARM with bf16, for example Graviton3. Written by ONNX Runtime's documentation; it
            # was never run here.
            options.add_session_config_entry("mlas.enable_gemm_fastmath_arm64_bfloat16", "1")
        providers = _gpu_providers(ort, engine) if engine.device == "cuda" else [CPU]
        model = bundle.graph(engine.variant)
        try:
            with under_way:
                self._session = ort.InferenceSession(
                    str(model), sess_options=options, providers=providers
                )
        except EngineError:  # this process cannot run any engine
            raise
        except Exception as error:  # ONNX Runtime's exceptions have no common base
            if is_out_of_memory(error):
                raise load_out_of_memory(engine.provider, model, error) from error
            raise BundleError(f"{model} cannot be loaded: {first_line(error)}") from error
        active = self._session.get_providers()
        if not active or active[0] != engine.provider:
            raise ProviderUnavailableError(
                f"{engine.provider} was asked for, but ONNX Runtime runs {', '.join(active)}"
            )
        self.engine = engine
        self._ort = ort
        self._inputs, self._output = bundle.manifest.inputs, bundle.manifest.output
        inputs = [node.name for node in self._session.get_inputs()]
        widths = {node.name: node.shape[-1] for node in self._session.get_outputs()}
        if set(inputs) != set(self._inputs) or self._output not in widths:
            raise BundleError(
                f"{model} has inputs {inputs} and outputs {list(widths)}; its "
                f"manifest says {list(self._inputs)} and {self._output}"
            )
        if widths[self._output] != bundle.manifest.dim:
            raise BundleError(
                f"{model} gives {widths[self._output]} dimensions; its manifest says "
                f"{bundle.manifest.dim} dimensions"
            )
        _warn_if_experimental(engine)
        logger.debug("loaded %s on %s", bundle.model, engine)

    def run(self, *feeds: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        """The graph's output for one padded batch.

        Args:
            *feeds: the inputs that the manifest names, each int64 (batch, sequence):
                `input_ids`; `attention_mask`, 1 for tokens and 0 for padding; and, for some
                rerankers, `token_type_ids`.

        Returns:
            float32 (batch, dim): vectors, or a reranker's logits.

        Raises:
            OutOfMemoryError: the device has too little memory for this batch.
            EngineError: the engine failed otherwise.
        """
        with under_way:
            return self._run_twice(feeds)

    def _run_twice(self, feeds: Sequence[npt.NDArray[np.int64]]) -> npt.NDArray[np.float32]:
        try:
            return self._run(feeds)
        except Exception as error:
            if not is_out_of_memory(error):
                raise run_failure(self.engine.provider, feeds[0].shape, error) from error
        # The arena may hold memory in pieces of other shapes' sizes: give them back, try again.
        self._release_memory()
        try:
            return self._run(feeds)
        except Exception as error:
            self._release_memory()  # pieces of this batch, which the next one may not fit
            raise run_failure(self.engine.provider, feeds[0].shape, error) from error

    def _run(
        self, feeds: Sequence[npt.NDArray[np.int64]], options: Any = None
    ) -> npt.NDArray[np.float32]:
        named = dict(zip(self._inputs, feeds, strict=True))
        output: npt.NDArray[np.float32] = self._session.run([self._output], named, options)[0]
        return output

    def _release_memory(self) -> None:
        """Give memory that the arena does not use back to the device.

        ONNX Runtime does so at the end of a run only, even of one that failed: this runs one token.
        """
        options = _onnxruntime().RunOptions()
        options.log_severity_level = 4
        device = "gpu:0" if self.engine.device == "cuda" else "cpu:0"
        options.add_run_config_entry("memory.enable_memory_arena_shrinkage", device)
        one_token = np.ones((1, 1), dtype=np.int64)
        try:
            self._run([one_token] * len(self._inputs), options)
        except Exception as error:
            logger.debug("after running out of memory: %s", first_line(error))


def _warn_if_experimental(engine: Engine) -> None:
    """Say once in a process that a provider is experimental."""
    if engine.is_experimental and engine.provider not in _warned:
        _warned.add(engine.provider)
        logger.warning(
            "%s is experimental: flowvec has not been tested on a GPU. Its vectors are compared "
            "with the bundle's references at load, unless proof is 'never'",
            engine.provider,
        )


def open_graph(model: bytes, name: str) -> Any:
    """ONNX Runtime's session of a graph in memory, on the CPU and one thread.

    Raises:
        BundleError: ONNX Runtime cannot load it; `name` is for the message.
    """
    ort = _onnxruntime()
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.enable_mem_pattern = False
    options.log_severity_level = 3
    try:
        with under_way:
            return ort.InferenceSession(model, sess_options=options, providers=[CPU])
    except Exception as error:  # ONNX Runtime's exceptions have no common base
        raise BundleError(f"{name} cannot be loaded: {first_line(error)}") from error


def _session_options(ort: Any, engine: Engine) -> Any:
    """Options for all providers: threads, and no memory plans per shape."""
    options = ort.SessionOptions()
    # All runs share one pool, which includes the calling thread.
    options.intra_op_num_threads = 1 + engine.streams * (engine.threads - 1)
    # Spin briefly: by default threads spin for tens of milliseconds, which the tokenizer and other
    # streams need.
    options.add_session_config_entry("session.intra_op.spin_duration_us", _SPIN_MICROSECONDS)
    options.inter_op_num_threads = 1
    # The memory plans that ONNX Runtime keeps for each input shape grow without bound.
    options.enable_mem_pattern = False
    options.log_severity_level = 3
    return options


def _gpu_providers(ort: Any, engine: Engine) -> list[Any]:
    """The providers of a session on an NVIDIA GPU, with their options."""
    if hasattr(ort, "preload_dlls"):
        # CUDA and cuDNN from the wheels of the extra [gpu], or of torch.
        ort.preload_dlls()
    cuda = (
        CUDA,
        {
            # TensorFloat-32 would silently round products of float32 to ten bits.
            "use_tf32": "0",
            # Allocate what is needed, not the next power of two.
            "arena_extend_strategy": "kSameAsRequested",
        },
    )
    if engine.provider == CUDA:
        return [cuda, CPU]
    tensorrt = (TENSORRT, {"trt_fp16_enable": str(int(engine.compute == "float16"))})
    return [tensorrt, cuda, CPU]
