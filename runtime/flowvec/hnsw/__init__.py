"""HNSW graphs, codes of vectors and inverted files, in a library of flowvec's own (`native/`).

Graphs are hnswlib's. One in which equal rows do not share nodes has the files of the package
hnswlib 0.8.
"""

from flowvec.hnsw.codes import Codes, Places, checksums, has_fast_scan
from flowvec.hnsw.graph import HnswGraph, Space
from flowvec.hnsw.inverted_file import best_rows
from flowvec.hnsw.library import GraphFileError, HnswError
from flowvec.hnsw.pair_scan import PairScan

__all__ = [
    "Codes",
    "GraphFileError",
    "HnswError",
    "HnswGraph",
    "PairScan",
    "Places",
    "Space",
    "best_rows",
    "checksums",
    "has_fast_scan",
]
