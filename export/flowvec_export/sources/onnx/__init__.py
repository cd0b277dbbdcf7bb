"""ONNX graphs as sources, for example those of Optimum.

Only `onnx` is needed to read and check one. It gives token vectors, which are then pooled, finished
sentence vectors, or a cross-encoder's logits.
"""

from flowvec_export.sources.onnx.reading import find_graph, read_graph, read_pair_graph
from flowvec_export.sources.onnx.source import OnnxPairs, OnnxSource

__all__ = ["OnnxPairs", "OnnxSource", "find_graph", "read_graph", "read_pair_graph"]
