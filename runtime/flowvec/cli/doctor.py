"""`flowvec doctor`: what is installed, which engines run, and what is wrong."""

from __future__ import annotations

import os
import platform
from collections.abc import Collection
from dataclasses import asdict, dataclass
from importlib import metadata
from importlib.util import find_spec
from typing import Annotated

import typer

from flowvec.bundle.bundle import Bundle, shipped_bundles
from flowvec.bundle.exported import open_bundle
from flowvec.cli.options import Json, print_json
from flowvec.encoder.proof import open_proved
from flowvec.engine.onnxruntime_session import conflicting_wheels
from flowvec.engine.providers import (
    CPU,
    EXPERIMENTAL,
    NATIVE,
    OPENVINO,
    TENSORRT,
    Engine,
    computes_of,
    has_bfloat16,
)
from flowvec.engine.selection import available_providers, choose_engine, provider_status
from flowvec.errors import EngineNotProvedError, FlowvecError, ProviderUnavailableError
from flowvec.machine import available_cores, cpu_features, cpu_name
from flowvec.version import __version__

__all__ = ["EngineProof", "Report", "examine"]

app = typer.Typer(add_completion=False, rich_markup_mode="markdown")

_PACKAGES = (
    "numpy",
    "tokenizers",
    "onnxruntime",
    "onnxruntime-gpu",
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
        without_openvino: what this machine lacks because OpenVINO cannot run; None if it can.
        without_onnxruntime: why ONNX Runtime does not run, where flowvec's own engine runs some
            models without it; None otherwise.
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
    without_openvino: str | None
    without_onnxruntime: str | None


def examine(bundle: str | None = None, *, shipped: Collection[str] | None = None) -> Report:
    """Examine this installation. Nothing that is wrong with it raises an error.

    Args:
        bundle: the bundle to compare engines on; None is the models that ship with flowvec.
        shipped: the models that ship; None looks them up.
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
    missing = providers[CPU]
    # flowvec's own engine is enough for some models; the remains of a removed wheel are a fault.
    is_needed = providers[NATIVE] is not None or _has_module("onnxruntime")
    try:
        engine = choose_engine()
    except FlowvecError as error:
        if is_needed:
            problems.append(str(error))
    else:
        if missing and is_needed:  # OpenVINO runs without ONNX Runtime
            problems.append(missing)
    models: list[str] = []
    proofs: list[EngineProof] = []
    for name in shipped_bundles() if shipped is None else shipped:
        try:
            model = Bundle.load(name)
        except FlowvecError as error:
            problems.append(str(error))
        else:
            models.append(name)
            if bundle is None:
                proofs += _prove(model)
    if bundle is not None:
        try:
            opened = open_bundle(bundle)
            manifest, variants = opened.manifest, opened.variants
            engine = choose_engine(variants=variants, layers=manifest.layers)
            proofs = _prove(opened)
        except FlowvecError as error:
            problems.append(str(error))
    for name in dict.fromkeys(proof.model for proof in proofs):
        if not any(proof.proved for proof in proofs if proof.model == name):
            problems.append(f"no engine is proved for {name} on this machine")
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
        without_openvino=None if providers[OPENVINO] is None else without_openvino(cpu_features()),
        without_onnxruntime=missing if providers[NATIVE] is None else None,
    )


def without_openvino(features: Collection[str]) -> str:
    """What a processor with these instruction sets lacks where OpenVINO cannot run."""
    lost = ["graphs int8-openvino", "a text that is alone on all cores"]
    if has_bfloat16(features):
        lost.insert(0, "bfloat16, which this processor has (about twice as fast as float32)")
    else:
        lost.insert(0, "its float32 (7 to 10 % faster where it was measured)")
    return (
        f"without OpenVINO, models with layers run on ONNX Runtime and lack {', '.join(lost)}; "
        "models without layers, such as mini, lack nothing"
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


def _has_module(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ValueError:  # it is imported, and has no specification
        return True


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


@app.command(epilog="Example: flowvec doctor --json")
def doctor(
    bundle: Annotated[
        str | None,
        typer.Argument(
            help="The bundle to compare engines on; without it the models that ship with flowvec."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Print versions, providers, processor, and which engines are proved on this machine.

    Exits with 1 if something is wrong.
    """
    report = examine(bundle)
    if as_json:
        print_json(asdict(report))
    else:
        typer.echo(f"flowvec {report.flowvec}, Python {report.python}, {report.system}")
        typer.echo(
            f"processor   {report.cpu}; {', '.join(report.cpu_features) or 'features unknown'}"
        )
        typer.echo(f"cores       {report.cores_available} usable of {report.cores_total}")
        for name, version in report.packages.items():
            typer.echo(f"{name:28}  {version or 'not installed'}")
        for provider, reason in report.providers.items():
            note = " (experimental)" if provider in EXPERIMENTAL else ""
            typer.echo(f"{provider:28}  {'runs' if reason is None else reason}{note}")
        if report.engine is not None:
            engine = report.engine
            typer.echo(
                f"by default: {engine.provider} in {engine.compute}, {engine.streams} streams"
            )
        typer.echo(f"models that ship: {', '.join(report.models) or 'none'}")
        for proof in report.proofs:
            typer.echo(f"{proof.model} on {proof.provider} in {proof.compute}: {proof.text}")
        if report.without_onnxruntime is not None:
            typer.echo(
                "NOTE: without ONNX Runtime, mini and bundles with int8-native or float32-native "
                f"run: {report.without_onnxruntime}"
            )
        elif report.without_openvino is not None:
            typer.echo(f"NOTE: {report.without_openvino}")
        for problem in report.problems:
            typer.echo(f"PROBLEM: {problem}")
        if not report.problems:
            typer.echo("no problems found")
    if report.problems:
        raise typer.Exit(1)
