"""Export: turns a checkpoint, its pooling and a transform into one ONNX graph.

    from flowvec_export import export, fit, save_transform

    fitted = fit("flow", "path/to/checkpoint", sentences, pooling="mean")
    save_transform(fitted.transform, fitted.recipe, "flow.safetensors")
    export("path/to/checkpoint", "my-bundle", transform="flow.safetensors")

    >>> LAYOUTS
    ('sentence-transformers', 'tei')
    >>> POOLINGS[:2], METHODS[:2]
    (('mean', 'cls'), ('flow', 'whitening'))
    >>> sorted(PRESETS)
    ['paper', 'released', 'wide']

Names are imported on first use, so that `flowvec --help` does not import torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

# Before any module here imports onnxruntime, so that its telemetry is off.
import flowvec as _flowvec  # noqa: F401

if TYPE_CHECKING:
    from flowvec_export.assembly.parity import Parity
    from flowvec_export.build import export
    from flowvec_export.fitting.fit import METHODS, FitSettings, Fitted, fit
    from flowvec_export.fitting.flow import FlowTraining
    from flowvec_export.fitting.paper_recipe import fit_like_the_paper
    from flowvec_export.interop import LAYOUTS, export_bundle
    from flowvec_export.layers.names import POOLINGS
    from flowvec_export.sources.base import Source
    from flowvec_export.sources.load import read_source
    from flowvec_export.transforms import (
        PRESETS,
        AllButTheTop,
        BetaGammaWhitening,
        Compose,
        Dense,
        Flow,
        FlowShape,
        Identity,
        Moments,
        Rotation,
        SoftZCA,
        Standardise,
        Transform,
        Whitening,
    )
    from flowvec_export.transforms.file import Recipe, load_transform, save_transform
    from flowvec_export.trust import Trust

__all__ = [
    "LAYOUTS",
    "METHODS",
    "POOLINGS",
    "PRESETS",
    "AllButTheTop",
    "BetaGammaWhitening",
    "Compose",
    "Dense",
    "FitSettings",
    "Fitted",
    "Flow",
    "FlowShape",
    "FlowTraining",
    "Identity",
    "Moments",
    "Parity",
    "Recipe",
    "Rotation",
    "SoftZCA",
    "Source",
    "Standardise",
    "Transform",
    "Trust",
    "Whitening",
    "export",
    "export_bundle",
    "fit",
    "fit_like_the_paper",
    "load_transform",
    "read_source",
    "save_transform",
]

_HOMES = {
    "POOLINGS": "layers.names",
    "AllButTheTop": "transforms",
    "BetaGammaWhitening": "transforms",
    "Compose": "transforms",
    "Dense": "transforms",
    "FitSettings": "fitting.fit",
    "Fitted": "fitting.fit",
    "Flow": "transforms",
    "FlowShape": "transforms",
    "FlowTraining": "fitting.flow",
    "Identity": "transforms",
    "LAYOUTS": "interop",
    "METHODS": "fitting.fit",
    "Moments": "transforms",
    "PRESETS": "transforms",
    "Parity": "assembly.parity",
    "Recipe": "transforms.file",
    "Rotation": "transforms",
    "SoftZCA": "transforms",
    "Source": "sources.base",
    "Standardise": "transforms",
    "Transform": "transforms",
    "Trust": "trust",
    "Whitening": "transforms",
    "export": "build",
    "export_bundle": "interop",
    "fit": "fitting.fit",
    "fit_like_the_paper": "fitting.paper_recipe",
    "load_transform": "transforms.file",
    "read_source": "sources.load",
    "save_transform": "transforms.file",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    except ModuleNotFoundError as error:
        if str(error.name).partition(".")[0] in ("flowvec", "flowvec_export"):
            raise
        from flowvec_export.packages import require_all

        require_all(f"{__name__}.{name}")
        raise
