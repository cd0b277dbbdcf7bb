"""HNSW graphs, hnswlib's, and inverted files, in a library of flowvec's own (`native/`).

A graph in which equal rows do not share nodes has the files of the package hnswlib 0.8.
"""

from flowvec.hnsw.graph import HnswGraph, Space
from flowvec.hnsw.inverted_file import best_rows
from flowvec.hnsw.library import GraphFileError, HnswError

__all__ = ["GraphFileError", "HnswError", "HnswGraph", "Space", "best_rows"]
