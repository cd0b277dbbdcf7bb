"""Serves one index, in one process.

It runs in a peer's environment without flowvec, so it imports flowvec only for flowvec's own index.
Commands, see `lines.py`:

    {"do": "load", "engine": "...", "model": "vectors.npy", "options": {...}}
    {"do": "build"}
    {"do": "search", "queries": "queries.npy", "ef": 64, "singly": false, "save": "ids.npy" or null}
    {"do": "open"}
    {"do": "end"}
"""

from __future__ import annotations

import os
import shutil
import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if not (TYPE_CHECKING or __package__):
    # Run as a file, where flowvec is not installed: Python searches this file's folder.
    import lines
    from lines import override
else:
    from flowvec.compat import override
    from flowvec_bench.workers import lines

__all__ = ["main"]

Floats = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]
K = 10


class Engine(ABC):
    """The base class of all indexes."""

    @abstractmethod
    def clear(self) -> None:
        """Drop what was built."""

    @abstractmethod
    def build(self) -> None:
        """Add all vectors."""

    @abstractmethod
    def save(self) -> int:
        """Write the index, and return its bytes on disk."""

    @abstractmethod
    def open(self) -> None:
        """Read the index again."""

    @abstractmethod
    def search(self, queries: Floats, ef: int) -> Any:
        """The nearest ten of each query, as the engine gives them."""

    def numbers(self, hits: Any) -> Ids:
        """The result of `search` as numbers of vectors, int64 (queries, 10)."""
        return np.asarray(hits, dtype=np.int64)


class Hnswlib(Engine):
    """hnswlib alone, which flowvec builds on."""

    def __init__(self, vectors: Floats, options: dict[str, Any]) -> None:
        self.vectors, self.options = vectors, options
        self.file = Path(options["folder"]) / "hnswlib.bin"
        self.index: Any = None

    def _new(self) -> Any:
        import hnswlib

        index = hnswlib.Index(space="ip", dim=self.vectors.shape[1])
        index.set_num_threads(self.options["threads"])
        return index

    @override
    def clear(self) -> None:
        self.index = None

    @override
    def build(self) -> None:
        self.index = self._new()
        self.index.init_index(
            len(self.vectors), ef_construction=self.options["ef_construction"], M=self.options["m"]
        )
        self.index.add_items(self.vectors)

    @override
    def save(self) -> int:
        self.index.save_index(str(self.file))
        return self.file.stat().st_size

    @override
    def open(self) -> None:
        self.index = self._new()
        self.index.load_index(str(self.file))

    @override
    def search(self, queries: Floats, ef: int) -> Any:
        self.index.set_ef(ef)
        return self.index.knn_query(queries, k=K)[0]


class Faiss(Engine):
    """faiss's HNSW."""

    def __init__(self, vectors: Floats, options: dict[str, Any]) -> None:
        import faiss

        self.faiss: Any = faiss
        faiss.omp_set_num_threads(options["threads"])
        self.vectors, self.options = vectors, options
        self.file = Path(options["folder"]) / "faiss.bin"
        self.index: Any = None

    @override
    def clear(self) -> None:
        self.index = None

    @override
    def build(self) -> None:
        self.index = self.faiss.IndexHNSWFlat(
            self.vectors.shape[1], self.options["m"], self.faiss.METRIC_INNER_PRODUCT
        )
        self.index.hnsw.efConstruction = self.options["ef_construction"]
        self.index.add(self.vectors)

    @override
    def save(self) -> int:
        self.faiss.write_index(self.index, str(self.file))
        return self.file.stat().st_size

    @override
    def open(self) -> None:
        self.index = self.faiss.read_index(str(self.file))

    @override
    def search(self, queries: Floats, ef: int) -> Any:
        self.index.hnsw.efSearch = ef
        return self.index.search(queries, K)[1]


class Usearch(Engine):
    """usearch, vectors in float32 or float16."""

    def __init__(self, vectors: Floats, options: dict[str, Any]) -> None:
        self.vectors, self.options = vectors, options
        self.file = Path(options["folder"]) / "usearch.bin"
        self.index: Any = None

    @override
    def clear(self) -> None:
        self.index = None

    @override
    def build(self) -> None:
        from usearch.index import Index

        self.index = Index(
            ndim=self.vectors.shape[1], metric="ip", dtype=self.options["dtype"],
            connectivity=self.options["m"], expansion_add=self.options["ef_construction"],
        )  # fmt: skip
        self.index.add(np.arange(len(self.vectors)), self.vectors, threads=self.options["threads"])

    @override
    def save(self) -> int:
        self.index.save(str(self.file))
        return self.file.stat().st_size

    @override
    def open(self) -> None:
        self.index.load(str(self.file))

    @override
    def search(self, queries: Floats, ef: int) -> Any:
        self.index.expansion_search = ef
        return self.index.search(queries, K, threads=self.options["threads"]).keys


class Flowvec(Engine):
    """A Collection: every row on disk with a checksum before `add_vectors` returns."""

    def __init__(self, vectors: Floats, options: dict[str, Any]) -> None:
        self.vectors, self.options = vectors, options
        self.folder = Path(options["folder"]) / "collection"
        # Few rows are not compared exactly either.
        self._index: dict[str, Any] = {"index": options.get("index", "graph"), "exact_below": 0}
        self.collection: Any = None

    @override
    def clear(self) -> None:
        if self.collection is not None:
            self.collection.close()
            shutil.rmtree(self.folder)

    @override
    def build(self) -> None:
        from flowvec import Collection

        self.collection = Collection.create(
            self.folder, dim=self.vectors.shape[1], metric="ip", **self._index
        )
        # Ten thousand rows at a time.
        for first in range(0, len(self.vectors), 10_000):
            rows = self.vectors[first : first + 10_000]
            self.collection.add_vectors(
                range(first, first + len(rows)), rows, [f"text {i}" for i in range(len(rows))]
            )
        self.collection.prepare()  # waits for the graph, which grows in the background

    @override
    def save(self) -> int:
        self.collection.close()
        self.open()
        return sum(file.stat().st_size for file in self.folder.iterdir())

    @override
    def open(self) -> None:
        # Up to the first answer by codes or the graph.
        from flowvec import Collection

        if self.collection is not None:
            self.collection.close()
        self.collection = Collection.open(self.folder, **self._index)
        self.collection.prepare()
        self.collection.search(self.vectors[0], k=1)

    @override
    def search(self, queries: Floats, ef: int) -> Any:
        if self.options.get("rows"):
            return self.collection.search_batch(queries, K, ef=ef)
        return self.collection.search_ids(queries, K, ef=ef)[0]

    @override
    def numbers(self, hits: Any) -> Ids:
        if self.options.get("rows"):
            hits = [[hit.id for hit in line] for line in hits]
        return super().numbers(hits)


ENGINES: dict[str, Any] = {
    "hnswlib": Hnswlib,
    "faiss": Faiss,
    "usearch": Usearch,
    "flowvec": Flowvec,
}


def _search(engine: Any, command: dict[str, Any]) -> dict[str, Any]:
    queries = np.load(command["queries"])
    ef = command["ef"]
    if not command["singly"]:
        started = time.perf_counter()
        hits = engine.search(queries, ef)
        seconds = time.perf_counter() - started
        if command["save"]:
            np.save(command["save"], engine.numbers(hits))
        return {"seconds": seconds}
    waits = []
    for query in queries:
        started = time.perf_counter()
        engine.search(query[None], ef)
        waits.append(time.perf_counter() - started)
    return {"waits": [round(wait, 7) for wait in waits]}


def _timed(work: Any) -> dict[str, Any]:
    started = time.perf_counter()
    work()
    return {"seconds": time.perf_counter() - started}


def _make(command: dict[str, Any]) -> Any:
    return ENGINES[command["engine"]](np.load(command["model"]), command["options"])


def _work(engine: Any, command: dict[str, Any]) -> dict[str, Any]:
    if command["do"] == "build":
        engine.clear()
        return {**_timed(engine.build), "bytes": engine.save()}
    if command["do"] == "open":
        # Otherwise this engine's flush would wait for what another engine has just written.
        if hasattr(os, "sync"):
            os.sync()
        return _timed(engine.open)
    return _search(engine, command)


def main() -> None:
    """Serve commands until the end."""
    lines.serve(_make, _work)


if __name__ == "__main__":
    main()
