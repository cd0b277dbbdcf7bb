"""The layers of a graph below the transforms: the encoder and its pooling."""

from flowvec_export.layers.names import POOLINGS, parse_pooling

__all__ = ["POOLINGS", "parse_pooling"]
