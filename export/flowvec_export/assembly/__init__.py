"""From a source to one graph, through torch or ONNX, and its comparison with the source."""
