"""Assembles a source into one graph, through torch or ONNX, and compares the two."""

from flowvec_export.assembly.draft import Draft
from flowvec_export.assembly.parity import Parity

__all__ = ["Draft", "Parity"]
