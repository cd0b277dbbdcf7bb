"""OpenVINO: the graph compiled for the processor, with one request for each stream."""

from __future__ import annotations

import functools
import logging
import threading
from collections import deque
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from flowvec.bundle.bundle import Bundle
from flowvec.engine.failures import is_out_of_memory, load_out_of_memory, run_failure
from flowvec.engine.providers import OPENVINO, Engine, has_bfloat16
from flowvec.engine.telemetry import import_openvino
from flowvec.errors import BundleError, EngineError, ProviderUnavailableError, first_line
from flowvec.forks import under_way
from flowvec.machine import cpu_features
from flowvec.optional import install_line

__all__ = ["OpenVinoSession", "openvino_config", "openvino_status"]

logger = logging.getLogger(__name__)

T = TypeVar("T")

# OpenVINO keeps compiled primitives for every input shape: without a limit, 900 MB after 1,200
# shapes of a MiniLM. With 256 most batches find theirs: see bench/log/2026-11-21.md.
_CACHED_SHAPES = "256"
# Tells OpenVINO not to fuse attention into one kernel, which costs up to a fifth of the speed. The
# property is for OpenVINO's developers, and a later version may not have it.
_NOT_FUSED = {"SNIPPETS_MODE": "DISABLE"}
_HINTS = {"float32": "f32", "bfloat16": "bf16", "float16": "f16"}
# The first array makes OpenVINO's binding look up numpy's interface, once per process. Two threads
# that do this at the same time can deadlock.
_FIRST_ARRAY = threading.Lock()
# Channels of a token that share a scale when OpenVINO quantizes activations itself.
_GROUP = "128"


def openvino_config(engine: Engine, features: Collection[str] | None = None) -> dict[str, str]:
    """Settings of OpenVINO's CPU device for an engine, by OpenVINO's names.

    Args:
        engine: streams, threads and compute type.
        features: instruction sets of the processor; None is this machine's.
    """
    compute = engine.compute
    if compute == "int8":  # the type of everything that is not in 8 bits
        has = has_bfloat16(cpu_features() if features is None else features)
        compute = "bfloat16" if has else "float32"
    config = {
        "INFERENCE_PRECISION_HINT": _HINTS[compute],
        "NUM_STREAMS": str(engine.streams),
        "INFERENCE_NUM_THREADS": str(engine.streams * engine.threads),
        "CPU_RUNTIME_CACHE_CAPACITY": _CACHED_SHAPES,
        # Pinned, the first stream of every process would run on the first core, beside each other.
        "ENABLE_CPU_PINNING": "NO",
    }
    if engine.compute == "int8":
        config["DYNAMIC_QUANTIZATION_GROUP_SIZE"] = _GROUP
    return config


def openvino_status() -> str | None:
    """Why OpenVINO cannot run here, or None."""
    try:
        with under_way:
            devices = _devices(import_openvino())
    except EngineError:  # this process cannot run any engine
        raise
    except (ImportError, OSError) as error:
        logger.debug("OpenVINO: %s", error)
        return f"openvino is not installed: {install_line('cpu')}"
    except Exception as error:  # a broken installation can fail in many ways
        return f"openvino is installed, but does not run: {first_line(error)}"
    return None if "CPU" in devices else f"openvino offers {devices}, and no CPU"


@functools.cache
def _devices(openvino: Any) -> list[str]:
    """What OpenVINO can compute on; looking takes milliseconds, and the answer stays the same."""
    devices: list[str] = openvino.Core().available_devices
    return devices


class OpenVinoSession:
    """A graph compiled by OpenVINO. `run` may be called from any number of threads."""

    def __init__(
        self, bundle: Bundle, engine: Engine, beside: OpenVinoSession | None = None
    ) -> None:
        """Compile the graph.

        Args:
            bundle: what to compile.
            engine: streams, threads and compute type.
            beside: another session of the same graph, whose weights in memory are shared.

        Raises:
            BundleError: OpenVINO cannot compile the file, or the graph lacks its inputs.
            ProviderUnavailableError: OpenVINO cannot run here.
        """
        if reason := openvino_status():
            raise ProviderUnavailableError(f"{OPENVINO} was asked for, but {reason}")
        openvino = import_openvino()
        model = bundle.graph(engine.variant)
        with under_way, _FIRST_ARRAY:
            openvino.Tensor(np.zeros((1, 1), dtype=np.int64), shared_memory=True)
        shared: Any = None if beside is None else beside._model
        self._model: Any
        self._compiled: Any
        try:
            with under_way:
                self._model, self._compiled = _in_own_thread(
                    lambda: _loaded(openvino, str(model), shared, engine)
                )
        except Exception as error:
            if is_out_of_memory(error):
                raise load_out_of_memory(engine.provider, model, error) from error
            raise BundleError(f"{model} cannot be compiled: {first_line(error)}") from error
        names = {port.get_any_name() for port in self._compiled.inputs}
        # A port has several names if the graph passes a value through unchanged.
        outputs = {name: port for port in self._compiled.outputs for name in port.get_names()}
        wanted = bundle.manifest.output
        self._inputs = bundle.manifest.inputs
        if names != set(self._inputs) or wanted not in outputs:
            raise BundleError(
                f"{model} has inputs {sorted(names)} and outputs {sorted(outputs)}; its "
                f"manifest says {list(self._inputs)} and {wanted}"
            )
        width = outputs[wanted].get_partial_shape()[-1]
        if width.is_static and width.get_length() != bundle.manifest.dim:
            raise BundleError(
                f"{model} gives {width.get_length()} dimensions; its manifest says "
                f"{bundle.manifest.dim} dimensions"
            )
        self.engine = engine
        self._dim = bundle.manifest.dim
        self._output = outputs[wanted]
        # One request per stream; more are created if more threads call at once.
        self._idle: deque[Any] = deque()

    def run(self, *feeds: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        """The graph's output for a padded batch: see `flowvec.engine.onnxruntime_session`."""
        with under_way:
            return self._run(feeds)

    def _run(self, feeds: Sequence[npt.NDArray[np.int64]]) -> npt.NDArray[np.float32]:
        try:
            request = self._idle.pop()
        except IndexError:
            request = self._compiled.create_infer_request()
        named = dict(zip(self._inputs, feeds, strict=True))
        try:
            results = request.infer(named, share_inputs=True)
            # A copy: the request reuses its memory.
            output = np.array(results[self._output], dtype=np.float32)
            batch, sequence = feeds[0].shape
            if output.shape not in ((batch, self._dim), (batch, sequence, self._dim)):
                # With one stream, OpenVINO 2026.4.1 does not report some failures.
                raise ValueError(f"an output of shape {output.shape}")
        except Exception as error:
            raise run_failure(self.engine.provider, feeds[0].shape, error) from error
        self._idle.append(request)
        return output


def _in_own_thread(load: Callable[[], T]) -> T:
    """Call a function on a thread that ends with it.

    OpenVINO's CPU plugin gives its thread an alternate stack for signals, and frees it with the
    model (2026.4.1). A signal to that thread would then kill the process, if another thread had
    closed the model.
    """
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(load).result()


def _loaded(openvino: Any, path: str, shared: Any, engine: Engine) -> tuple[Any, Any]:
    """A model and what was compiled of it; `shared` is the model, if it has been read before."""
    core = openvino.Core()
    model = core.read_model(path) if shared is None else shared
    return model, _compile(core, model, engine)


def _compile(core: Any, model: Any, engine: Engine) -> Any:
    """Compile a graph, without fused attention where OpenVINO has a property for that."""
    config = openvino_config(engine)
    if not engine.fused_attention:
        try:
            return core.compile_model(model, "CPU", {**config, **_NOT_FUSED})
        except Exception as error:
            if not any(name in str(error) for name in _NOT_FUSED):
                raise
            logger.debug("attention stays fused: %s", first_line(error))
    return core.compile_model(model, "CPU", config)
