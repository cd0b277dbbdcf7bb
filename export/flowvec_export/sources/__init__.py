"""Checkpoints and graphs of others, read safely."""
