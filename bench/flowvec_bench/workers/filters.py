"""Serves one collection for filtered searches, in one process, and writes to it meanwhile.

It runs in a peer's environment without flowvec, so it imports flowvec only for flowvec's own
collection. Commands, see `lines.py`:

    {"do": "load", "engine": "...", "model": "folder of the rows", "options": {"folder": "..."}}
    {"do": "build"}
    {"do": "search", "queries": "queries.npy", "filters": [...], "effort": 1, "rate": 60.0,
     "writes": 15.0, "most_seconds": 60.0, "save": "ids.npy"}
    {"do": "end"}

The folder of the rows holds `vectors.npy`, `fields.npz` and `queries.npy`. There is a filter for
each query: null, `[field, "<", number]`, `[field, ">=", number]` or
`[field, "=", number]`. `effort` chooses one of the engine's settings, from the fastest on.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

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
Filter = list[Any] | None
K = 10
_BLOCK = 5000


class Engine(ABC):
    """The base class of all collections.

    Attributes:
        efforts: the settings that `search` can use, from the fastest on.
        takes_turns: whether its searches and writes exclude each other.
    """

    efforts: ClassVar[list[Any]] = [None]
    takes_turns = False

    def __init__(self, folder: Path, dim: int) -> None:
        """An empty collection in a folder."""
        self.folder, self.dim = folder, dim

    @abstractmethod
    def add(self, ids: list[int], vectors: Floats, fields: list[dict[str, Any]]) -> None:
        """Add rows."""

    def finish(self) -> None:  # noqa: B027 - some make none
        """Make the indexes, after all rows were added."""

    def maintain(self) -> None:  # noqa: B027 - most need none
        """Do what its makers advise to do now and then; it runs before a case and is not timed."""

    def use(self, effort: Any) -> None:
        """Use one of the settings for the next searches."""
        self.effort = effort

    @abstractmethod
    def search(self, query: Floats, wanted: Filter) -> list[int]:
        """Ids of the nearest ten."""


class Flowvec(Engine):
    """A Collection with indexes over its fields."""

    efforts: ClassVar[list[Any]] = [40, 70, 100, 150, 200, 300, 400]

    def __init__(self, folder: Path, dim: int) -> None:
        """An empty collection in a folder."""
        from flowvec import Collection

        super().__init__(folder, dim)
        self.collection = Collection.create(folder / "collection", dim=dim)

    @override
    def add(self, ids: list[int], vectors: Floats, fields: list[dict[str, Any]]) -> None:
        self.collection.add_vectors(ids, vectors, metadata=fields)

    @override
    def finish(self) -> None:
        for field in ("random", "place", "tenant"):
            self.collection.create_index(field)
        self.collection.prepare()

    @override
    def search(self, query: Floats, wanted: Filter) -> list[int]:
        chosen = None if wanted is None else {wanted[0]: {wanted[1]: wanted[2]}}
        ids, _ = self.collection.search_ids(query[None], K, filter=chosen, ef=self.effort)
        return [int(number) for number in ids[0]]


class LanceDb(Engine):
    """A LanceDB table: IVF with HNSW in the partitions, and BTREE indexes over the fields."""

    # Partitions that are searched, and how many times k rows are compared exactly.
    efforts: ClassVar[list[Any]] = [(1, 2), (2, 4), (4, 4), (8, 8), (16, 16), (32, 32)]

    def __init__(self, folder: Path, dim: int) -> None:
        """An empty collection in a folder."""
        import lancedb
        import pyarrow

        super().__init__(folder, dim)
        self.arrow: Any = pyarrow
        numbers = [pyarrow.field(name, pyarrow.float64()) for name in ("random", "place")]
        self.schema: Any = pyarrow.schema([
            pyarrow.field("id", pyarrow.int64()),
            pyarrow.field("vector", pyarrow.list_(pyarrow.float32(), dim)),
            *numbers, pyarrow.field("tenant", pyarrow.int64()),
        ])  # fmt: skip
        self.table: Any = lancedb.connect(folder).create_table("rows", schema=self.schema)

    @override
    def add(self, ids: list[int], vectors: Floats, fields: list[dict[str, Any]]) -> None:
        columns = [
            self.arrow.array(ids, self.arrow.int64()),
            self.arrow.FixedSizeListArray.from_arrays(vectors.ravel(), self.dim),
            *(self.arrow.array([row.get(name) for row in fields], self.schema.field(name).type)
              for name in ("random", "place", "tenant")),
        ]  # fmt: skip
        self.table.add(self.arrow.table(columns, schema=self.schema))

    @override
    def finish(self) -> None:
        self.table.optimize()
        rows = self.table.count_rows()
        self.table.create_index(
            metric="cosine", index_type="IVF_HNSW_SQ", num_partitions=max(1, rows // 100_000),
            m=16, ef_construction=200,
        )  # fmt: skip
        for field in ("random", "place", "tenant"):
            self.table.create_scalar_index(field)

    @override
    def maintain(self) -> None:
        # Each write makes a file that no index covers yet. Without this, searches get slower and
        # slower: 9 ms in the first case, and 660 ms after a thousand writes.
        self.table.optimize()

    @override
    def search(self, query: Floats, wanted: Filter) -> list[int]:
        partitions, refine = self.effort
        asked = self.table.search(query).metric("cosine").limit(K).select(["id"])
        asked = asked.nprobes(partitions).refine_factor(refine)
        if wanted is not None:
            asked = asked.where(f"{wanted[0]} {wanted[1]} {wanted[2]}", prefilter=True)
        return [int(number) for number in asked.to_arrow()["id"].to_pylist()]


class Chroma(Engine):
    """A persistent Chroma collection."""

    efforts: ClassVar[list[Any]] = [50, 100, 200, 400, 800]

    def __init__(self, folder: Path, dim: int) -> None:
        """An empty collection in a folder."""
        import chromadb

        super().__init__(folder, dim)
        client = chromadb.PersistentClient(
            str(folder), chromadb.config.Settings(anonymized_telemetry=False)
        )
        self.collection: Any = client.create_collection(
            "rows", embedding_function=None,
            configuration={"hnsw": {"space": "cosine", "max_neighbors": 16,
                                    "ef_construction": 200, "ef_search": 100}},
        )  # fmt: skip

    @override
    def add(self, ids: list[int], vectors: Floats, fields: list[dict[str, Any]]) -> None:
        # It refuses empty metadata.
        self.collection.add(
            ids=[str(number) for number in ids], embeddings=vectors,
            metadatas=[row or {"written": True} for row in fields],
        )  # fmt: skip

    @override
    def use(self, effort: Any) -> None:
        self.collection.modify(configuration={"hnsw": {"ef_search": effort}})

    @override
    def search(self, query: Floats, wanted: Filter) -> list[int]:
        signs = {"<": "$lt", ">=": "$gte", "=": "$eq"}
        where = None if wanted is None else {wanted[0]: {signs[wanted[1]]: wanted[2]}}
        found = self.collection.query(
            query_embeddings=[query], n_results=K, where=where, include=["distances"]
        )
        return [int(number) for number in found["ids"][0]]


class Qdrant(Engine):
    """Qdrant's local mode, which compares every row, and looks at every row's fields in Python."""

    takes_turns = True

    def __init__(self, folder: Path, dim: int) -> None:
        """An empty collection in memory."""
        from qdrant_client import QdrantClient, models

        super().__init__(folder, dim)
        self.models: Any = models
        self.client: Any = QdrantClient(":memory:")
        self.client.create_collection(
            "rows",
            vectors_config=models.VectorParams(size=dim, distance=models.Distance.COSINE),
        )

    @override
    def add(self, ids: list[int], vectors: Floats, fields: list[dict[str, Any]]) -> None:
        points = self.models.Batch(ids=ids, vectors=vectors.tolist(), payloads=fields)
        self.client.upsert("rows", points)

    @override
    def search(self, query: Floats, wanted: Filter) -> list[int]:
        chosen = None
        if wanted is not None:
            field, sign, value = wanted
            test = (
                {"match": self.models.MatchValue(value=value)} if sign == "="
                else {"range": self.models.Range(**{{"<": "lt", ">=": "gte"}[sign]: value})}
            )  # fmt: skip
            chosen = self.models.Filter(must=[self.models.FieldCondition(key=field, **test)])
        found = self.client.query_points(
            "rows", query=query, query_filter=chosen, limit=K, with_payload=False
        )
        return [int(point.id) for point in found.points]


ENGINES: dict[str, type[Engine]] = {
    "flowvec": Flowvec,
    "lancedb": LanceDb,
    "chroma": Chroma,
    "qdrant": Qdrant,
}


class Served:
    """An engine, its rows, and the rows that are written during searches."""

    def __init__(self, command: dict[str, Any]) -> None:
        """An empty engine; `build` fills it."""
        source = Path(command["model"])
        self.vectors = np.load(source / "vectors.npy", mmap_mode="r")
        with np.load(source / "fields.npz") as columns:
            self.fields: dict[str, Any] = dict(columns)
        self.next_id = len(self.vectors)
        folder = Path(command["options"]["folder"])
        self.engine = ENGINES[command["engine"]](folder, self.vectors.shape[1])
        # Far from all queries, so that answers stay the same.
        self.written = -np.load(source / "queries.npy")
        self.turn: Any = threading.Lock() if self.engine.takes_turns else nullcontext()

    def build(self) -> dict[str, Any]:
        """Add all rows, and make the indexes."""
        started = time.perf_counter()
        for first in range(0, len(self.vectors), _BLOCK):
            vectors = np.array(self.vectors[first : first + _BLOCK])
            columns = {name: column[first : first + _BLOCK].tolist()
                       for name, column in self.fields.items()}  # fmt: skip
            rows = [dict(zip(columns, values, strict=True))
                    for values in zip(*columns.values(), strict=True)]  # fmt: skip
            self.engine.add(list(range(first, first + len(vectors))), vectors, rows)
        self.engine.finish()
        return {"seconds": time.perf_counter() - started, "efforts": len(self.engine.efforts)}

    def search(self, command: dict[str, Any]) -> dict[str, Any]:
        """Search one query after another, at a rate, while another thread writes."""
        queries = np.load(command["queries"])
        self.engine.maintain()
        self.engine.use(self.engine.efforts[command["effort"]])
        stopped, writes = threading.Event(), list[float]()
        writer = threading.Thread(target=self._write, args=(command["writes"], stopped, writes))
        if command["writes"]:
            writer.start()
        ids, waits = np.full((len(queries), K), -1), list[float]()
        begun = time.perf_counter()
        try:
            for i, (query, wanted) in enumerate(zip(queries, command["filters"], strict=True)):
                started = time.perf_counter()
                if i and started > begun + command["most_seconds"]:
                    break
                if command["rate"]:
                    time.sleep(max(0.0, begun + i / command["rate"] - started))
                    started = time.perf_counter()
                with self.turn:
                    found = self.engine.search(query, wanted)
                waits.append(round(time.perf_counter() - started, 7))
                ids[i, : len(found)] = found[:K]
        finally:
            stopped.set()
            if command["writes"]:
                writer.join()
        np.save(command["save"], ids[: len(waits)])
        return {
            "waits": waits, "writes": writes, "seconds": time.perf_counter() - begun,
            "resident_mib": _resident_mib(),
        }  # fmt: skip

    def _write(self, per_second: float, stopped: threading.Event, waits: list[float]) -> None:
        """Add rows one by one at a rate until it is stopped; at least one."""
        due = time.perf_counter()
        while True:
            started = time.perf_counter()
            vector = self.written[self.next_id % len(self.written)][None]
            with self.turn:
                self.engine.add([self.next_id], vector, [{}])
            self.next_id += 1
            waits.append(round(time.perf_counter() - started, 7))
            due = max(due + 1 / per_second, time.perf_counter() - 1)
            if stopped.wait(max(0.0, due - time.perf_counter())):
                return


def _resident_mib() -> int | None:
    status = Path("/proc/self/status")
    if not status.is_file():
        return None
    line = next(line for line in status.read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) // 1024


def _work(served: Any, command: dict[str, Any]) -> dict[str, Any]:
    done: dict[str, Any] = served.build() if command["do"] == "build" else served.search(command)
    return done


def main() -> None:
    """Serve commands until the end."""
    lines.serve(Served, _work)


if __name__ == "__main__":
    main()
