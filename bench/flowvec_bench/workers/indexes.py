"""Serves one index, in one process.

It runs in a peer's environment without flowvec, so it imports flowvec only for flowvec's own index.
Commands, see `lines.py`:

    {"do": "load", "engine": "...", "model": "vectors.npy", "options": {...}}
    {"do": "build"}
    {"do": "search", "queries": "queries.npy", "ef": 64, "probes": 0, "save": "ids.npy" or null}
    {"do": "open"}
    {"do": "end"}
"""

from __future__ import annotations

import os
import shutil
import time
from abc import ABC, abstractmethod
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

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
_BLOCK = 16  # queries whose candidates are scored together


class Engine(ABC):
    """The base class of all indexes.

    `ef` is the one of a graph, or how many rows of codes are scored again in float32 (10: none).
    """

    # Lists of an IVF that are read.
    probes = 0

    def __init__(self, vectors: Floats, options: dict[str, Any]) -> None:
        self.vectors, self.options = vectors, options
        self.file = Path(options["folder"]) / "index.bin"
        self.index: Any = None
        self.pool = ThreadPoolExecutor(options["threads"])

    def clear(self) -> None:
        """Drop what was built."""
        self.index = None

    @abstractmethod
    def build(self) -> None:
        """Add all vectors; they can be searched then."""

    @abstractmethod
    def write(self) -> None:
        """Write the index."""

    @abstractmethod
    def open(self) -> None:
        """Read the index again."""

    @abstractmethod
    def search(self, queries: Floats, ef: int) -> Any:
        """The nearest ten of each query, as the engine gives them."""

    def numbers(self, hits: Any) -> Ids:
        """The result of `search` as numbers of vectors, int64 (queries, 10)."""
        return np.asarray(hits, dtype=np.int64)

    def best(self, queries: Floats, rows: Any) -> Ids:
        """The nearest ten of each query among rows, by float32."""
        if rows.shape[1] == K:
            return cast(Ids, rows)

        def block(start: int) -> Ids:
            some = rows[start : start + _BLOCK]
            own = queries[start : start + _BLOCK, None]
            order = np.argsort(-np.vecdot(self.vectors.take(some, axis=0), own), axis=1)
            return np.take_along_axis(some, order[:, :K], axis=1)

        if len(rows) <= _BLOCK:
            return block(0)
        return np.concatenate([*self.pool.map(block, range(0, len(rows), _BLOCK))])


class Hnswlib(Engine):
    """hnswlib alone, which flowvec builds on."""

    def _new(self) -> Any:
        import hnswlib

        index = hnswlib.Index(space="ip", dim=self.vectors.shape[1])
        index.set_num_threads(self.options["threads"])
        return index

    @override
    def build(self) -> None:
        self.index = self._new()
        self.index.init_index(
            len(self.vectors), ef_construction=self.options["ef_construction"], M=self.options["m"]
        )
        self.index.add_items(self.vectors)

    @override
    def write(self) -> None:
        self.index.save_index(str(self.file))

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

        super().__init__(vectors, options)
        self.faiss: Any = faiss

    @override
    def build(self) -> None:
        self.faiss.omp_set_num_threads(self.options["threads"])
        self.index = self.faiss.IndexHNSWFlat(
            self.vectors.shape[1], self.options["m"], self.faiss.METRIC_INNER_PRODUCT
        )
        self.index.hnsw.efConstruction = self.options["ef_construction"]
        self.index.add(self.vectors)

    @override
    def write(self) -> None:
        self.faiss.write_index(self.index, str(self.file))

    @override
    def open(self) -> None:
        self.index = self.faiss.read_index(str(self.file))

    @override
    def search(self, queries: Floats, ef: int) -> Any:
        self.index.hnsw.efSearch = ef
        return self._found(self.index, queries)

    def _found(self, index: Any, queries: Floats) -> Any:
        # One query is never shared by threads, but would wait for them.
        self.faiss.omp_set_num_threads(min(self.options["threads"], len(queries)))
        return index.search(queries, K)[1]


class FaissCodes(Faiss):
    """Codes of faiss's factory, and its `RFlat` if more than ten are scored again."""

    def _refine(self) -> None:
        self.refined = self.faiss.IndexRefineFlat(self.index, self.faiss.swig_ptr(self.vectors))

    @override
    def build(self) -> None:
        dim = self.vectors.shape[1]
        factory = self.options["factory"].format(lists=self.options["lists"], half=dim // 2)
        self.faiss.omp_set_num_threads(self.options["threads"])
        self.index = self.faiss.index_factory(dim, factory, self.faiss.METRIC_INNER_PRODUCT)
        self.index.train(self.vectors)
        self.index.add(self.vectors)
        self._refine()

    @override
    def open(self) -> None:
        super().open()
        self._refine()

    @override
    def search(self, queries: Floats, ef: int) -> Any:
        if self.probes:
            self.index.nprobe = self.probes
        self.refined.k_factor = (ef + 0.5) / K  # it rounds down
        return self._found(self.refined if ef > K else self.index, queries)


class Usearch(Engine):
    """usearch; with int8, all ef rows that it finds are scored again."""

    @override
    def build(self) -> None:
        from usearch.index import Index

        self.index = Index(
            ndim=self.vectors.shape[1], metric="ip", dtype=self.options["dtype"],
            connectivity=self.options["m"], expansion_add=self.options["ef_construction"],
        )  # fmt: skip
        self.index.add(np.arange(len(self.vectors)), self.vectors, threads=self.options["threads"])

    @override
    def write(self) -> None:
        self.index.save(str(self.file))

    @override
    def open(self) -> None:
        self.index.load(str(self.file))

    @override
    def search(self, queries: Floats, ef: int) -> Any:
        self.index.expansion_search = ef
        count = ef if self.options["dtype"] == "i8" else K
        threads = min(self.options["threads"], len(queries))
        rows = self.index.search(queries, count, threads=threads).keys
        return self.best(queries, rows.reshape(len(queries), -1))  # one query has one axis


class Turbovec(Engine):
    """turbovec's codes of 4 or 2 bits, calibrated; numpy scores the rows that it finds again."""

    def __init__(self, vectors: Floats, options: dict[str, Any]) -> None:
        super().__init__(vectors, options)
        os.environ["RAYON_NUM_THREADS"] = str(options["threads"])

    @override
    def build(self) -> None:
        from turbovec import TurboQuantIndex

        self.index = TurboQuantIndex(self.vectors.shape[1], self.options["bits"])
        sample = np.random.default_rng(0).permutation(len(self.vectors))[:1024]
        self.index.calibrate(self.vectors[sample])
        self.index.add(self.vectors, chunk_size=0)
        self.index.prepare()

    @override
    def write(self) -> None:
        self.index.write(str(self.file))

    @override
    def open(self) -> None:
        from turbovec import TurboQuantIndex

        self.index = TurboQuantIndex.load(str(self.file))
        self.index.prepare()

    @override
    def search(self, queries: Floats, ef: int) -> Any:
        return self.best(queries, self.index.search(queries, ef)[1])


class Flowvec(Engine):
    """A Collection: every row on disk with a checksum before `add_vectors` returns."""

    def __init__(self, vectors: Floats, options: dict[str, Any]) -> None:
        super().__init__(vectors, options)
        self.folder = Path(options["folder"]) / "collection"
        # Few rows are not compared exactly either.
        self._index: dict[str, Any] = {"index": options.get("index", "graph"), "exact_below": 0}

    @override
    def clear(self) -> None:
        if self.index is not None:
            self.index.close()
            shutil.rmtree(self.folder)

    @override
    def build(self) -> None:
        from flowvec import Collection

        self.index = Collection.create(
            self.folder, dim=self.vectors.shape[1], metric="ip", **self._index
        )
        # Ten thousand rows at a time.
        for first in range(0, len(self.vectors), 10_000):
            rows = self.vectors[first : first + 10_000]
            self.index.add_vectors(
                range(first, first + len(rows)), rows, [f"text {i}" for i in range(len(rows))]
            )
        self.index.prepare()  # waits for the graph, which grows in the background

    @override
    def write(self) -> None:
        self.index.close()
        self.open()

    @override
    def open(self) -> None:
        # Up to the first answer by codes or the graph.
        from flowvec import Collection

        if self.index is not None:
            self.index.close()
        self.index = Collection.open(self.folder, **self._index)
        self.index.prepare()
        self.index.search(self.vectors[0], k=1)

    @override
    def search(self, queries: Floats, ef: int) -> Any:
        if self.options.get("rows"):
            return self.index.search_batch(queries, K, ef=ef)
        return self.index.search_ids(queries, K, ef=ef)[0]

    @override
    def numbers(self, hits: Any) -> Ids:
        if self.options.get("rows"):
            hits = [[hit.id for hit in line] for line in hits]
        return super().numbers(hits)


ENGINES: dict[str, Any] = {
    "hnswlib": Hnswlib,
    "faiss": Faiss,
    "faiss-codes": FaissCodes,
    "turbovec": Turbovec,
    "usearch": Usearch,
    "flowvec": Flowvec,
}


def _search(engine: Any, command: dict[str, Any]) -> dict[str, Any]:
    queries = np.load(command["queries"])
    ef, engine.probes = command["ef"], command["probes"]
    engine.search(queries[:10], ef)  # warm
    # One query at a time if nothing is saved.
    parts = [queries] if command["save"] else [query[None] for query in queries]
    seconds = []
    for part in parts:
        started = time.perf_counter()
        hits = engine.search(part, ef)
        seconds.append(round(time.perf_counter() - started, 7))
    if command["save"]:
        np.save(command["save"], engine.numbers(hits))
    return {"seconds": seconds}


def _timed(work: Any) -> dict[str, Any]:
    started = time.perf_counter()
    work()
    return {"seconds": time.perf_counter() - started}


def _make(command: dict[str, Any]) -> Any:
    return ENGINES[command["engine"]](np.load(command["model"]), command["options"])


def _work(engine: Any, command: dict[str, Any]) -> dict[str, Any]:
    if command["do"] == "build":
        engine.clear()
        timed = _timed(engine.build)
        engine.write()
        files = Path(engine.options["folder"]).rglob("*")
        return {**timed, "bytes": sum(file.stat().st_size for file in files if file.is_file())}
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
