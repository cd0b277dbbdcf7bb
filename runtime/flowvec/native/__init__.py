"""Encoders of the BERT family in 8 bits, computed by a library of flowvec's own (`native/encoder`).

Texts are not padded, and a text has the same bits alone, in any batch and on any number of threads.
"""

from flowvec.native.encoder import NativeEncoder, instruction_set
from flowvec.native.weights import Weights

__all__ = ["NativeEncoder", "Weights", "instruction_set"]
