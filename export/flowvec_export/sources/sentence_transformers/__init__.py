"""sentence-transformers' directories: modules.json and the files that it names."""

from flowvec_export.sources.sentence_transformers.modules import Modules, read_modules
from flowvec_export.sources.sentence_transformers.settings import POOLING_FLAGS

__all__ = ["POOLING_FLAGS", "Modules", "read_modules"]
