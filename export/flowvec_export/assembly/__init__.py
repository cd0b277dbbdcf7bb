"""From a source to one graph, from torch or from ONNX, compared with where it came from."""
