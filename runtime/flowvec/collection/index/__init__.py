"""The nearest of a store's vectors: exactly, or by an HNSW graph that is a cache of the store."""

from flowvec.collection.index.vector_index import Nearest, VectorIndex

__all__ = ["Nearest", "VectorIndex"]
