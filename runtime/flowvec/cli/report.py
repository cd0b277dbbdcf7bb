"""A report on this installation: versions, providers, processor, and what is wrong."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from importlib import metadata

from flowvec.bundle.bundle import Bundle, shipped_bundles
from flowvec.encoder.proof import open_proved
from flowvec.engine.onnxruntime_session import conflicting_wheels
from flowvec.engine.providers import CPU, TENSORRT, Engine, computes_of
from flowvec.engine.selection import available_providers, choose_engine, provider_status
from flowvec.errors import EngineNotProvedError, FlowvecError, ProviderUnavailableError
from flowvec.machine import available_cores, cpu_features, cpu_name
from flowvec.version import __version__

__all__ = ["EngineProof", "Report", "examine"]

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
class EngineProof:
    """Whether an engine gives a bundle's reference vectors on this machine.

    Attributes:
        model: the bundle.
        provider: full name.
        compute: type of the matrix products.
        proved: whether it does.
        text: the figures, or why not.
    """

    model: str
    provider: str
    compute: str
    proved: bool
    text: str


@dataclass(frozen=True, slots=True)
class Report:
    """What `flowvec doctor` prints.

    Attributes:
        packages: version of each relevant package; None if it is not installed.
        providers: for each provider why it cannot run, or None if it can.
        engine: what `Encoder.load` uses by default.
        models: shipped bundles that are intact.
        proofs: for each engine that can run here, whether it is proved.
        problems: what should be repaired, and how.
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
    proofs: list[EngineProof]
    problems: list[str]


def examine(bundle: str | None = None) -> Report:
    """Examine this installation. Nothing that is wrong with it raises an error.

    Args:
        bundle: the bundle to compare engines on; None is the models that ship with flowvec.
    """
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
        if missing := providers[CPU]:  # OpenVINO runs without ONNX Runtime
            problems.append(missing)
    models: list[str] = []
    proofs: list[EngineProof] = []
    for name in shipped_bundles():
        try:
            shipped = Bundle.load(name)
        except FlowvecError as error:
            problems.append(str(error))
        else:
            models.append(name)
            if bundle is None:
                proofs += _prove(shipped)
    if bundle is not None:
        try:
            proofs = _prove(Bundle.load(bundle))
        except FlowvecError as error:
            problems.append(str(error))
    for model in dict.fromkeys(proof.model for proof in proofs):
        if not any(proof.proved for proof in proofs if proof.model == model):
            problems.append(f"no engine is proved for {model} on this machine")
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
        proofs=proofs,
        problems=problems,
    )


def _prove(bundle: Bundle) -> list[EngineProof]:
    """Compare every engine that can run a bundle here, as `Encoder.load` would."""
    proofs = []
    for provider in available_providers():
        if provider == TENSORRT:  # TensorRT would take minutes
            continue
        for compute in computes_of(provider):
            try:
                engine = choose_engine(provider, compute, variants=bundle.variants)  # type: ignore[arg-type]
            except ProviderUnavailableError:
                continue
            try:
                _, proof = open_proved(bundle, engine)
                proved, text = proof.proved, str(proof)
            except EngineNotProvedError as error:
                proved, text = False, f"not proved: {error}"
            except FlowvecError as error:
                proved, text = False, str(error)
            proofs.append(EngineProof(bundle.manifest.name, provider, compute, proved, text))
    return proofs


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
