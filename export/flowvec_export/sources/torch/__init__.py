"""Checkpoints as sources: transformers' module, its tokenizer and its limits."""

from flowvec_export.sources.torch.reading import (
    read_colbert,
    read_cross_encoder,
    read_encoder,
    read_masked_lm,
)
from flowvec_export.sources.torch.source import TorchPairs, TorchSource
from flowvec_export.sources.transformers_tokenizer import quiet_transformers

__all__ = [
    "TorchPairs",
    "TorchSource",
    "quiet_transformers",
    "read_colbert",
    "read_cross_encoder",
    "read_encoder",
    "read_masked_lm",
]
