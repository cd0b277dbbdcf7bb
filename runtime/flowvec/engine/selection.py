"""Which engine runs a bundle on this machine, and the bundle's graph loaded on it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np
import numpy.typing as npt

from flowvec.bundle.bundle import Bundle
from flowvec.engine.bound_session import BoundSession
from flowvec.engine.gpus import why_no_gpu
from flowvec.engine.native_session import NativeSession, native_status
from flowvec.engine.onnxruntime_session import Session, onnxruntime_status
from flowvec.engine.openvino_session import OpenVinoSession, openvino_status
from flowvec.engine.providers import (
    CPU,
    NATIVE,
    OPENVINO,
    PROVIDERS,
    SHORT_NAMES,
    Compute,
    Device,
    Engine,
    choose,
    is_native_best,
    native_compute,
    why_not,
)
from flowvec.engine.tuned import Tuned
from flowvec.errors import InputValueError, MissingDependencyError, ProviderUnavailableError
from flowvec.machine import available_cores, cpu_features, isa_limit

__all__ = [
    "GraphSession",
    "available_providers",
    "choose_engine",
    "open_session",
    "provider_status",
    "tuned_engine",
]

logger = logging.getLogger(__name__)


class GraphSession(Protocol):
    """A loaded graph."""

    engine: Engine

    def run(self, *feeds: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        """The graph's output for a padded batch: see `flowvec.engine.onnxruntime_session`."""


def provider_status() -> dict[str, str | None]:
    """Each supported provider, best first, with why it cannot run here, or None."""
    status = {**onnxruntime_status(), OPENVINO: openvino_status(), NATIVE: native_status()}
    return {name: status[name] for name in PROVIDERS}


def available_providers() -> list[str]:
    """The providers that can run here, best first, by their full names."""
    return [provider for provider, reason in provider_status().items() if reason is None]


def choose_engine(
    provider: str | None = None,
    compute: Compute = "auto",
    streams: int | None = None,
    threads: int | None = None,
    *,
    device: Device = "auto",
    variants: Sequence[str] = (),
    layers: int | None = None,
    refused: Collection[tuple[str, str]] = (),
) -> Engine:
    """Choose what to run on.

    Args:
        provider: a provider by its full name (`CPUExecutionProvider`, `OpenVINORuntime`,
            `FlowvecNative`, `CUDAExecutionProvider`, `TensorrtExecutionProvider`) or its short one
            (`cpu`, `openvino`, `native`, `cuda`, `tensorrt`). None is the best that can run: a GPU,
            then the native engine where it has the compute type, then OpenVINO, then ONNX Runtime's
            own CPU provider. TensorRT must be asked for.
        compute: `auto` is int8 in the native engine if the bundle has the variant `int8-native` and
            the processor AVX512-VNNI, or AVX2 and no AVX-512, but not AMX; bfloat16 if the provider
            and the processor support it; float16 on a GPU if the bundle has that variant; else
            float32.
        streams: batches at the same time; None is as many as the available cores allow.
        threads: cores for one batch; None is one, which is best for many texts. One stream with all
            cores has the lowest latency for a single text.
        device: `cpu` or `cuda` limits the choice to its providers.
        variants: variants of the graph in the bundle.
        layers: transformer layers of the graph. With 0, ONNX Runtime's own CPU provider comes
            before OpenVINO. The native engine computes such a model in float32 if the bundle has
            the variant `float32-native`.
        refused: pairs of provider and compute type that are skipped, because they gave wrong
            vectors on this machine. What was asked for by name is never replaced.

    Raises:
        ProviderUnavailableError: what was asked for cannot run here. The message says why, and what
            to install.
        InputValueError: an argument is not one of the choices.
        MissingDependencyError: ONNX Runtime is not installed, and nothing else was asked for.
    """
    features = cpu_features()
    kind = native_compute(variants, layers)
    if _is_native_chosen(provider, compute, device, features, variants, refused, kind):
        status = {**dict.fromkeys(PROVIDERS, "it was not looked for"), NATIVE: None}
    else:
        status = provider_status()
    try:
        return choose(
            status,
            features,
            available_cores(),
            variants,
            layers=layers,
            device=device,
            provider=provider,
            compute=compute,
            streams=streams,
            threads=threads,
            refused=refused,
        )
    except ProviderUnavailableError as error:
        # Nothing is installed at all; what is refused was installed.
        if provider is None and status[CPU] is not None and not refused:
            raise MissingDependencyError(status[CPU]) from None
        if limit := isa_limit():
            raise ProviderUnavailableError(
                f"{error} (the environment limits instruction sets to {limit})"
            ) from None
        raise


def _is_native_chosen(
    provider: str | None,
    compute: str,
    device: str,
    features: Collection[str],
    variants: Sequence[str],
    refused: Collection[tuple[str, str]],
    kind: str,
) -> bool:
    """Whether the native engine is chosen whatever others can do.

    Their libraries need not be imported then, which takes longer than loading a small model.
    """
    if provider is not None:
        is_asked = provider == NATIVE or SHORT_NAMES.get(provider.lower()) == (NATIVE,)
    else:
        is_asked = device == "cpu" or (device == "auto" and why_no_gpu() is not None)
    if not is_asked or native_status() or (NATIVE, kind) in refused:
        return False
    has_variant = why_not(NATIVE, features, variants, kind) is None
    if compute == "auto" and provider is None:
        return has_variant and is_native_best(features, variants)
    return has_variant and compute in ("auto", kind)


def tuned_engine(
    tuned: Tuned,
    default: Engine,
    provider: str | None,
    compute: Compute,
    streams: int | None,
    threads: int | None,
    choose: Callable[..., Engine],
    refused: Collection[tuple[str, str]] = (),
) -> Engine | None:
    """The tuned engine, if it fits the request and still runs; else None.

    Args:
        tuned: the tuned settings.
        default: the engine without tuning.
        provider: as requested, or None.
        compute: as requested, or `auto`.
        streams: as requested, or None.
        threads: as requested, or None.
        choose: `choose_engine` with device and variants bound.
        refused: pairs of provider and compute type that are not proved on this machine.
    """
    if (tuned.provider, tuned.compute) in refused:
        return None
    if provider is not None and tuned.provider != default.provider:
        return None
    # For example tuned while the GPU was not visible: settings of another device do not apply.
    if PROVIDERS.get(tuned.provider) != default.device:
        return None
    if compute != "auto" and tuned.compute != default.compute:
        return None
    try:
        if streams is None and threads is None:
            streams, threads = tuned.streams, tuned.threads
        engine = choose(tuned.provider, tuned.compute, streams, threads)
    except (ProviderUnavailableError, InputValueError) as error:
        logger.warning("tuned settings are ignored: %s", error)
        return None
    return replace(engine, fused_attention=tuned.fused_attention)


def open_session(bundle: Bundle, engine: Engine) -> GraphSession:
    """Load a bundle's graph on an engine.

    Raises:
        BundleError: the graph cannot be loaded.
        ProviderUnavailableError: the provider does not really run.
    """
    if engine.provider == NATIVE:
        return NativeSession(bundle, engine)
    if engine.provider == OPENVINO:
        return OpenVinoSession(bundle, engine)
    if engine.device == "cuda":
        return BoundSession(bundle, engine)
    return Session(bundle, engine)
