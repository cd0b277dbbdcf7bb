"""What runs a graph: ONNX Runtime or OpenVINO, and which of them on this machine."""

from flowvec.engine.providers import Engine

__all__ = ["Engine"]
