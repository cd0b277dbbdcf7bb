"""Transforms of pooled vectors, before normalization. One family per file."""

from __future__ import annotations

from flowvec_export.transforms.all_but_the_top import AllButTheTop
from flowvec_export.transforms.base import Identity, Transform, build_transform
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
