"""A report on this installation: versions, providers, processor, and what is wrong."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from importlib import metadata

from flowvec.bundle import Bundle, shipped_bundles
from flowvec.engine import choose_engine, provider_status
from flowvec.errors import FlowvecError
from flowvec.machine import available_cores, cpu_features, cpu_name
from flowvec.providers import CPU, Engine
from flowvec.session import conflicting_wheels
from flowvec.version import __version__

__all__ = ["Report", "examine"]

_PACKAGES = (
    "numpy",
    "tokenizers",
    "hnswlib",
    "onnxruntime",
    "onnxruntime-gpu",
    "onnxruntime-ep-openvino",
    "openvino",
    "pyarrow",
    "torch",
    "transformers",
    "onnx",
)


@dataclass(frozen=True, slots=True)
class Report:
    """What `flowvec doctor` prints.

    Attributes:
        packages: version of each package that matters; None where it is not installed.
        providers: for each provider why it cannot run, or None if it can.
        engine: what `Encoder.load` takes when it is asked for nothing.
        models: bundles inside the package that verify.
        problems: what should be mended, each with how.
    """

    flowvec: str
    python: str
    system: str
    cpu: str
    cpu_features: list[str]
    cores_total: int
    cores_available: int
    packages: dict[str, str | None]
    providers: dict[str, str | None]
    engine: Engine | None
    models: list[str]
    problems: list[str]


def examine() -> Report:
    """Look at this installation; never raises for what it finds."""
    problems: list[str] = []
    wheels = conflicting_wheels()
    if len(wheels) > 1:
        problems.append(
            f"{' and '.join(wheels)} install one package over each other; uninstall all of them, "
            "then install one"
        )
    engine: Engine | None = None
    providers = provider_status()
    try:
        engine = choose_engine()
    except FlowvecError as error:
        problems.append(str(error))
    else:
        if missing := providers[CPU]:  # OpenVINO serves without ONNX Runtime
            problems.append(missing)
    models = []
    for name in shipped_bundles():
        try:
            Bundle.load(name)
        except FlowvecError as error:
            problems.append(str(error))
        else:
            models.append(name)
    return Report(
        flowvec=__version__,
        python=platform.python_version(),
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        cpu=cpu_name(),
        cpu_features=cpu_features(),
        cores_total=os.cpu_count() or 1,
        cores_available=available_cores(),
        packages={name: _version(name) for name in _PACKAGES},
        providers=providers,
        engine=engine,
        models=models,
        problems=problems,
    )


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
