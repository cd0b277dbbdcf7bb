"""Reads checkpoints and ONNX graphs, without trusting them."""

from flowvec_export.sources.base import Source
from flowvec_export.sources.load import read_source

__all__ = ["Source", "read_source"]
