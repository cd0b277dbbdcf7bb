"""Transforms of pooled vectors, before normalization. One family per file."""

from __future__ import annotations

from typing import Any

from flowvec.errors import ExportError
from flowvec_export.transforms.all_but_the_top import AllButTheTop
from flowvec_export.transforms.base import Identity, Transform
from flowvec_export.transforms.compose import Compose
from flowvec_export.transforms.dense import ACTIVATIONS, Dense
from flowvec_export.transforms.flow import PRESETS, Flow
from flowvec_export.transforms.flow_layers import FlowShape
from flowvec_export.transforms.moments import NULL, Moments
from flowvec_export.transforms.rotation import Rotation
from flowvec_export.transforms.standardise import Standardise
from flowvec_export.transforms.whitening import BetaGammaWhitening, SoftZCA, Whitening

__all__ = [
    "ACTIVATIONS",
    "NULL",
    "PRESETS",
    "AllButTheTop",
    "BetaGammaWhitening",
    "Compose",
    "Dense",
    "Flow",
    "FlowShape",
    "Identity",
    "Moments",
    "Rotation",
    "SoftZCA",
    "Standardise",
    "Transform",
    "Whitening",
    "build_transform",
]

_KINDS: dict[str, type[Transform]] = {
    kind.kind: kind
    for kind in (
        AllButTheTop,
        BetaGammaWhitening,
        Compose,
        Dense,
        Flow,
        Identity,
        Rotation,
        SoftZCA,
        Standardise,
        Whitening,
    )
}


def build_transform(kind: str, config: dict[str, Any]) -> Transform:
    """A transform whose weights are still to be loaded.

    Args:
        kind: a transform's `kind`.
        config: what its `config` gave.

    Raises:
        ExportError: the kind is unknown, or the config does not fit it.
    """
    if kind not in _KINDS:
        raise ExportError(f"there is no transform {kind!r}; known are {', '.join(sorted(_KINDS))}")
    try:
        return _KINDS[kind].from_config(config)
    except (TypeError, KeyError, ValueError, AttributeError) as error:
        raise ExportError(f"the configuration of a {kind} cannot be followed: {error}") from None
