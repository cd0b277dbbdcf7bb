"""Sparse vectors: a weight for each token of the vocabulary that a text is about."""

from flowvec.sparse.encoder import SparseEncoder, SparseEncoderInfo
from flowvec.sparse.vectors import SparseVectors

__all__ = ["SparseEncoder", "SparseEncoderInfo", "SparseVectors"]
