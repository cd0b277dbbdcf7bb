"""Late interaction: a vector for each token of a text, and the score of two such texts."""

from flowvec.multi_vector.encoder import MultiVectorEncoder, MultiVectorInfo
from flowvec.multi_vector.scoring import maxsim

__all__ = ["MultiVectorEncoder", "MultiVectorInfo", "maxsim"]
