"""ColBERT-style models of sentence-transformers and PyLate."""

from flowvec_export.sources.late_interaction.markers import read_as_pylate, register_markers
from flowvec_export.sources.late_interaction.settings import (
    AboutTokens,
    is_late_interaction,
    read_about_tokens,
)
from flowvec_export.sources.late_interaction.source import MultiVectorSource

__all__ = [
    "AboutTokens",
    "MultiVectorSource",
    "is_late_interaction",
    "read_about_tokens",
    "read_as_pylate",
    "register_markers",
]
