"""Builds and edits ONNX graphs, and stores their weights."""
