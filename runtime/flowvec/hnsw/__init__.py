"""HNSW graphs, codes of vectors and inverted files, in a library of flowvec's own (`native/`)."""

from flowvec.hnsw.codes import Codes, checksums, has_fast_scan
from flowvec.hnsw.frame import Frame
from flowvec.hnsw.graph import HnswGraph, Space
from flowvec.hnsw.hnswlib_index import HnswlibIndex
from flowvec.hnsw.inverted_file import best_rows
from flowvec.hnsw.library import GraphFileError, HnswError
from flowvec.hnsw.pair_scan import PairScan
from flowvec.hnsw.places import Places

__all__ = [
    "Codes",
    "Frame",
    "GraphFileError",
    "HnswError",
    "HnswGraph",
    "HnswlibIndex",
    "PairScan",
    "Places",
    "Space",
    "best_rows",
    "checksums",
    "has_fast_scan",
]
