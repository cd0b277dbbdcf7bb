"""Variants of a bundle's graph: float16 and int8."""
