"""Which engine runs a bundle: the machine asked, the decision taken, the graph loaded on it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from flowvec.bundle.bundle import Bundle
from flowvec.engine.onnxruntime_session import Session, onnxruntime_status
from flowvec.engine.openvino_session import OpenVinoSession, openvino_status
from flowvec.engine.providers import (
    CPU,
    OPENVINO_RUNTIME,
    PROVIDERS,
    Compute,
    Device,
    Engine,
    choose,
)
from flowvec.engine.tuned import Tuned
from flowvec.errors import InputValueError, MissingDependencyError, ProviderUnavailableError
from flowvec.machine import available_cores, cpu_features

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
    """A graph that runs."""

    engine: Engine

    def run(
        self, input_ids: npt.NDArray[np.int64], attention_mask: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.float32]:
        """Vectors of one padded batch; see `flowvec.engine.onnxruntime_session.Session.run`."""


def provider_status() -> dict[str, str | None]:
    """Each provider that flowvec serves, best first, with why it cannot run here, or None."""
    found = {**onnxruntime_status(), OPENVINO_RUNTIME: openvino_status()}
    return {name: found[name] for name in PROVIDERS}


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
    """Decide what to run on.

    Args:
        provider: a provider by its full name (`CPUExecutionProvider`, `OpenVINOExecutionProvider`,
            `OpenVINORuntime`, `CUDAExecutionProvider`, `TensorrtExecutionProvider`) or its short
            one (`cpu`, `openvino`, `cuda`, `tensorrt`). None takes the best that can run: a GPU,
            then the OpenVINO plugin, OpenVINO itself, and ONNX Runtime's own CPU provider;
            TensorRT only where it is asked for.
        compute: `auto` takes bfloat16 where the provider and the processor have it, on a GPU
            float16 where the bundle holds that variant, else float32.
        streams: batches at the same time; None takes as many as the cores that this process may
            use have room for.
        threads: cores for one batch; None takes one, which serves many texts best. One stream with
            all cores answers a single text soonest.
        device: `cpu` or `cuda` leaves the other's providers out.
        variants: of the graph that the bundle holds.
        layers: transformer layers of the graph. Where there are none, ONNX Runtime's own CPU
            provider comes before OpenVINO.
        refused: pairs of provider and compute type that are passed over, as they are not proved on
            this machine. What was asked for by name is not replaced.

    Raises:
        ProviderUnavailableError: what was asked for cannot run here; the message says why, and
            what to install.
        InputValueError: an argument is none of the choices.
        MissingDependencyError: nothing was asked for, and there is no ONNX Runtime.
    """
    status = provider_status()
    try:
        return choose(
            status,
            cpu_features(),
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
    except ProviderUnavailableError:
        if provider is None and status[CPU] is not None:  # nothing is installed at all
            raise MissingDependencyError(status[CPU]) from None
        raise


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
    """The engine that tuning found, where it is what was asked for and still runs; else None.

    Args:
        tuned: what was found.
        default: what is taken without it.
        provider: what was asked for, or None.
        compute: what was asked for, or `auto`.
        streams: what was asked for, or None.
        threads: what was asked for, or None.
        choose: `choose_engine` with device and variants bound.
        refused: pairs of provider and compute type that are not proved on this machine.
    """
    if (tuned.provider, tuned.compute) in refused:
        return None
    if provider is not None and tuned.provider != default.provider:
        return None
    # Tuned where the GPU could not be seen, say: what runs on another device is no tuning of it.
    if PROVIDERS.get(tuned.provider) != default.device:
        return None
    if compute != "auto" and tuned.compute != default.compute:
        return None
    try:
        if streams is None and threads is None:
            streams, threads = tuned.streams, tuned.threads
        return choose(tuned.provider, tuned.compute, streams, threads)
    except (ProviderUnavailableError, InputValueError) as error:
        logger.warning("tuned settings are left out: %s", error)
        return None


def open_session(bundle: Bundle, engine: Engine) -> GraphSession:
    """Load a bundle's graph on an engine.

    Raises:
        BundleError: the graph cannot be loaded.
        ProviderUnavailableError: the provider does not really run.
    """
    if engine.provider == OPENVINO_RUNTIME:
        return OpenVinoSession(bundle, engine)
    return Session(bundle, engine)
