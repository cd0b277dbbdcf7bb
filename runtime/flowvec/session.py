"""ONNX Runtime: one session on one execution provider, and proof of what runs.

Nothing else in flowvec calls onnxruntime. What was asked for is what runs; ONNX Runtime by itself
would fall back to its CPU provider without a word.
"""

from __future__ import annotations

import json
import logging
import threading
from dataclasses import dataclass
from importlib import metadata
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from flowvec.bundle import Bundle
from flowvec.errors import (
    BundleError,
    EngineError,
    InputValueError,
    MissingDependencyError,
    ProviderUnavailableError,
    first_line,
)
from flowvec.machine import available_cores, cpu_features, cpu_name
from flowvec.manifest import INPUTS

__all__ = [
    "Compute",
    "Engine",
    "Session",
    "available_providers",
    "choose_engine",
    "conflicting_wheels",
    "provider_status",
    "runtime_version",
]

logger = logging.getLogger("flowvec.session")

Compute = Literal["auto", "float32", "bfloat16"]
_COMPUTES = ("auto", "float32", "bfloat16")

CPU = "CPUExecutionProvider"
OPENVINO = "OpenVINOExecutionProvider"
_SHORT = {"cpu": CPU, "openvino": OPENVINO}
_COMPUTE_OF = {OPENVINO: ("float32", "bfloat16"), CPU: ("float32",)}
_INSTALL_CPU = 'python -m pip install "flowvec[cpu]"'

# OpenVINO keeps compiled primitives for every input shape; unbounded, that was 900 MB after 1,200
# shapes on a MiniLM, and 16 was no slower.
_OPENVINO_CACHED_SHAPES = "16"
_PLUGIN_NAME = "flowvec_openvino"
_plugin_lock = threading.Lock()


@dataclass(frozen=True, slots=True)
class Engine:
    """What computes: decided once, shown by `Encoder.info()`, `doctor` and every benchmark.

    Attributes:
        provider: ONNX Runtime's name of the execution provider.
        compute: type of the matrix products, `float32` or `bfloat16`.
        streams: batches that run at the same time, each on one core.
    """

    provider: str
    compute: str
    streams: int


def _onnxruntime() -> Any:
    """Import onnxruntime, or say which line installs it.

    It is no hard dependency because the wheels onnxruntime and onnxruntime-gpu overwrite each
    other's files.
    """
    try:
        import onnxruntime

        onnxruntime.InferenceSession  # noqa: B018 - what is left of a removed wheel lacks it
    except (ImportError, AttributeError, OSError) as error:
        raise MissingDependencyError(
            f"flowvec needs ONNX Runtime to embed text ({error}); install it: {_INSTALL_CPU}"
        ) from None
    return onnxruntime


def _openvino_plugin() -> Any | None:
    """The OpenVINO plugin's package, or None where it is not installed."""
    try:
        import onnxruntime_ep_openvino
    except (ImportError, OSError) as error:  # not installed, or its libraries cannot be loaded
        logger.debug("the OpenVINO plugin: %s", error)
        return None
    return onnxruntime_ep_openvino


def runtime_version() -> str | None:
    """Version of ONNX Runtime; None where it is not installed."""
    try:
        return str(_onnxruntime().__version__)
    except MissingDependencyError:
        return None


def conflicting_wheels() -> list[str]:
    """The distributions that each install a package `onnxruntime`; more than one is broken."""
    names = ("onnxruntime", "onnxruntime-gpu", "onnxruntime-openvino", "onnxruntime-directml")
    installed = []
    for name in names:
        try:
            installed.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            continue
    return installed


def provider_status() -> dict[str, str | None]:
    """Each provider that flowvec serves, best first, with why it cannot run here, or None."""
    try:
        ort = _onnxruntime()
    except MissingDependencyError as error:
        return dict.fromkeys(_COMPUTE_OF, str(error))
    device = _openvino_device(ort)
    return {OPENVINO: device if isinstance(device, str) else None, CPU: None}


def available_providers() -> list[str]:
    """The execution providers that can run here, best first, by ONNX Runtime's names."""
    return [provider for provider, reason in provider_status().items() if reason is None]


def choose_engine(
    provider: str | None = None, compute: Compute = "auto", streams: int | None = None
) -> Engine:
    """Decide what to run on.

    Args:
        provider: a provider by ONNX Runtime's name or its short form (`cpu`, `openvino`); None
            takes the OpenVINO plugin where it can run, else ONNX Runtime's own CPU provider.
        compute: `auto` takes bfloat16 where the provider and the processor have it.
        streams: batches at the same time; None takes one for each core this process may use.

    Raises:
        ProviderUnavailableError: the provider or compute type cannot run here.
        InputValueError: an argument is none of the choices.
        MissingDependencyError: ONNX Runtime is not installed.
    """
    _onnxruntime()
    status = provider_status()
    runs = [name for name, reason in status.items() if reason is None]
    full = runs[0] if provider is None else _SHORT.get(provider.lower(), provider)
    if full not in _COMPUTE_OF:
        raise ProviderUnavailableError(
            f"provider {provider!r} is not served; choose one of {', '.join(_SHORT)}"
        )
    if full not in runs:
        raise ProviderUnavailableError(f"{full} was asked for, but {status[full]}")
    if compute not in _COMPUTES:
        raise InputValueError(f"compute must be one of {_COMPUTES}, but is {compute!r}")
    if streams is not None and streams < 1:
        raise InputValueError(f"streams must be at least 1, but is {streams}")
    bfloat16 = {"avx512_bf16", "amx_bf16"} & set(cpu_features())
    if compute == "auto":
        compute = "bfloat16" if full == OPENVINO and bfloat16 else "float32"
    if compute not in _COMPUTE_OF[full]:
        raise ProviderUnavailableError(f"{full} cannot compute in {compute}")
    if compute == "bfloat16" and not bfloat16:
        raise ProviderUnavailableError(
            "bfloat16 was asked for, but this processor has neither avx512_bf16 nor amx_bf16"
        )
    return Engine(full, compute, streams or available_cores())


class Session:
    """A graph loaded on one engine. `run` may be called from any number of threads."""

    def __init__(self, bundle: Bundle, engine: Engine) -> None:
        """Load the graph.

        Raises:
            BundleError: the file is no graph that ONNX Runtime can load, or lacks its inputs.
            ProviderUnavailableError: the provider was asked for, but does not really run.
        """
        ort = _onnxruntime()
        options = _session_options(ort)
        if engine.provider == OPENVINO:
            _add_openvino(ort, options, engine)
            providers: list[str] = []
        else:
            providers = [CPU]
        try:
            self._session = ort.InferenceSession(
                str(bundle.model), sess_options=options, providers=providers or None
            )
        except Exception as error:  # ONNX Runtime's exceptions have no common base
            raise BundleError(f"{bundle.model} cannot be loaded: {first_line(error)}") from error
        active = self._session.get_providers()
        if not active or active[0] != engine.provider:
            raise ProviderUnavailableError(
                f"{engine.provider} was asked for, but ONNX Runtime runs {', '.join(active)}"
            )
        self.engine = engine
        self._output = bundle.manifest.output
        inputs = [node.name for node in self._session.get_inputs()]
        widths = {node.name: node.shape[-1] for node in self._session.get_outputs()}
        if set(inputs) != set(INPUTS) or self._output not in widths:
            raise BundleError(
                f"{bundle.model} has inputs {inputs} and outputs {list(widths)}; its "
                f"manifest says {list(INPUTS)} and {self._output}"
            )
        if widths[self._output] != bundle.manifest.dim:
            raise BundleError(
                f"{bundle.model} gives {widths[self._output]} dimensions; its manifest says "
                f"{bundle.manifest.dim} dimensions"
            )
        logger.debug("loaded %s on %s", bundle.model, engine)

    def run(
        self, input_ids: npt.NDArray[np.int64], attention_mask: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.float32]:
        """Vectors of one padded batch.

        Args:
            input_ids: int64 (batch, sequence).
            attention_mask: int64 (batch, sequence), 1 for tokens and 0 for padding.

        Returns:
            float32 (batch, dim).

        Raises:
            EngineError: the engine failed, for want of memory say.
        """
        feeds = dict(zip(INPUTS, (input_ids, attention_mask), strict=True))
        try:
            vectors: npt.NDArray[np.float32] = self._session.run([self._output], feeds)[0]
        except Exception as error:
            raise EngineError(
                f"{self.engine.provider} failed on a batch of shape {input_ids.shape}: "
                f"{first_line(error)}"
            ) from error
        return vectors


def _session_options(ort: Any) -> Any:
    """Options common to the providers: one thread a run, and no plans kept for each shape."""
    options = ort.SessionOptions()
    # Parallelism is over batches: one run on one core has no barrier between operators.
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    # The plans that ONNX Runtime keeps for each input shape grow without a bound.
    options.enable_mem_pattern = False
    options.log_severity_level = 3
    return options


def _add_openvino(ort: Any, options: Any, engine: Engine) -> None:
    """Put the graph on the OpenVINO plugin's CPU device."""
    device = _openvino_device(ort)
    if isinstance(device, str):
        raise ProviderUnavailableError(device)
    precision = {"float32": "f32", "bfloat16": "bf16"}[engine.compute]
    config = {
        "CPU": {
            "INFERENCE_PRECISION_HINT": precision,
            "NUM_STREAMS": str(engine.streams),
            "INFERENCE_NUM_THREADS": str(engine.streams),
            "CPU_RUNTIME_CACHE_CAPACITY": _OPENVINO_CACHED_SHAPES,
        }
    }
    options.add_provider_for_devices([device], {"load_config": json.dumps(config)})


def _openvino_device(ort: Any) -> Any | str:
    """The plugin's CPU device, or the reason why there is none."""
    plugin = _openvino_plugin()
    if plugin is None:
        return f"onnxruntime-ep-openvino is not installed: {_INSTALL_CPU}"
    with _plugin_lock:
        if not any(device.ep_name == OPENVINO for device in ort.get_ep_devices()):
            try:
                ort.register_execution_provider_library(_PLUGIN_NAME, plugin.get_library_path())
            except Exception as error:
                # A second registration is refused; a first one that fails leaves no device.
                logger.debug("registering the OpenVINO plugin: %s", error)
        for device in ort.get_ep_devices():
            if device.ep_name == OPENVINO and device.ep_metadata.get("ov_device") == "CPU":
                return device
    # The plugin's discovery skips processors that are not Intel's (onnxruntime#31981).
    return f"the OpenVINO plugin is installed, but offers no CPU device on this {cpu_name()}"
