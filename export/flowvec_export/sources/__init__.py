"""Reads checkpoints and ONNX graphs safely."""
