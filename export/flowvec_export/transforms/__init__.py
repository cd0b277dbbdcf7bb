"""Transforms: what happens to a pooled vector before it is normalised. One family a file."""

from __future__ import annotations

from flowvec_export.transforms.base import Identity, Transform
from flowvec_export.transforms.dense import ACTIVATIONS, Dense

__all__ = ["ACTIVATIONS", "Dense", "Identity", "Transform"]
