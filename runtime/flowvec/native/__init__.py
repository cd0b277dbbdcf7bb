"""Encoders of the BERT family in 8 bits, and static embedders: a library of flowvec's own.

Its sources are in `native/encoder`.
Texts are not padded, and a text has the same bits alone, in any batch and on any number of threads.
"""

from flowvec.native.encoder import NativeEncoder, instruction_set
from flowvec.native.table import TableWeights
from flowvec.native.weights import Weights

__all__ = ["NativeEncoder", "TableWeights", "Weights", "instruction_set"]
