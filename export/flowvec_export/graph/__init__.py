"""ONNX graphs: building, editing, storing weights."""
