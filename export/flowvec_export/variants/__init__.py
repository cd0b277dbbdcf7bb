"""Variants of a bundle's graph in float16 and int8, each compared with the float32 graph."""

from flowvec_export.variants.variants import KINDS, Variant, VariantError, add_variant

__all__ = ["KINDS", "Variant", "VariantError", "add_variant"]
