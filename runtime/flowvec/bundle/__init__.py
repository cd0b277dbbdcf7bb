"""A model on disk: its graph, tokenizer and manifest, verified before use."""

from flowvec.bundle.bundle import Bundle
from flowvec.bundle.manifest import Manifest

__all__ = ["Bundle", "Manifest"]
