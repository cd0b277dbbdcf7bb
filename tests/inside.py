"""The inner parts of open objects: one place knows the private names that several tests need.

A test that can see what it promises in results, `info()`, `verify()`, files or log lines does not
need this module.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import ctypes
import sqlite3
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import thread as futures_thread
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import numpy as np

import flowvec
from flowvec.collection.store.store import FILE

# Types alone: processes that are killed a thousand times import this too.
if TYPE_CHECKING:
    from flowvec import Collection
    from flowvec.collection.access import Access
    from flowvec.collection.index.sparse_index import SparseIndex
    from flowvec.collection.index.state import IndexState
    from flowvec.collection.index.vector_index import VectorIndex
    from flowvec.collection.store.locks import ReadersWriter
    from flowvec.collection.store.rows import Id
    from flowvec.collection.store.store import Store
    from flowvec.encoder.loaded_model import LoadedModel
    from flowvec.encoder.pipeline import Pipeline
    from flowvec.forks import UnderWay
    from flowvec.object_store import ObjectStore
    from flowvec.sharded import ShardedSearcher
    from flowvec.tokenizer.tokenizer import Tokenizer
    from flowvec.worker_threads import WorkerThreads


def run_sql(folder: Path, statement: str, *values: object) -> list[tuple[Any, ...]]:
    """Run a statement in a collection's file, as damage or another program would."""
    with contextlib.closing(sqlite3.connect(folder / FILE, isolation_level=None)) as db:
        return db.execute(statement, values).fetchall()


def store_of(collection: Collection) -> Store:
    """The rows on disk."""
    return collection._store


def index_of(collection: Collection) -> VectorIndex:
    """What searches the vectors; its graph is `growing.graph`."""
    return collection._index


def state_of(collection: Collection) -> IndexState:
    """The table of vectors and the ids in memory, and the vectors file."""
    return collection._index._state


def index_lock_of(collection: Collection) -> ReadersWriter:
    """The lock of what is in memory: while it is held for writing, no search ends."""
    return collection._index._lock


def sparse_index_of(collection: Collection) -> SparseIndex:
    """What searches the sparse vectors."""
    return collection._sparse_index


def access_of(collection: Collection) -> Access:
    """The turns to write: no other change begins within its `writing`."""
    return collection._access


def waiting_changes(collection: Collection) -> int:
    """How many changes wait for the turn to write."""
    return len(collection._access._jobs)


def fail_to_add(collection: Collection, ids: list[Id], vectors: np.ndarray) -> None:
    """An `add_vectors` whose commit fails after everything has been prepared."""
    store, index, nothing = collection._store, collection._index, [None] * len(ids)
    with contextlib.suppress(ZeroDivisionError), collection._access.changing():
        labels, replaced = store.upsert(ids, vectors, nothing, nothing)
        index.stage(replaced, labels, vectors, ids)
        index.seal()
        raise ZeroDivisionError


def pipeline_of(model: LoadedModel) -> Pipeline:
    """What tokenizes a model's texts and runs its batches."""
    return model._pipeline


def has_an_idle_thread(pipeline: Pipeline) -> bool:
    """Whether a thread that prepares windows has reported that it is free."""
    return pipeline._preparing._idle_semaphore._value > 0


def finish_what_is_left() -> None:
    """Wait until models have ended the runs that they have begun or queued; tests leave some."""
    workers = [w for w in list(futures_thread._threads_queues) if "flowvec-stream" in w.name]
    for pool in {w._args[0]() for w in workers if hasattr(w, "_args")} - {None}:
        # Each of its threads has a run of its own here, so all earlier ones have ended.
        together = threading.Barrier(pool._max_workers)
        try:
            calls = [pool.submit(together.wait) for _ in range(pool._max_workers)]
        except RuntimeError:  # it was closed
            together.abort()
        else:
            concurrent.futures.wait(calls)


@contextlib.contextmanager
def library_texts(tokenizer: Tokenizer) -> Iterator[list[str]]:
    """The texts that the tokenizers library is given during the block."""
    given: list[str] = []
    bodies: Any = tokenizer._bodies
    library = bodies._tokenizer

    class Watched:
        def encode(self, text: str, **options: Any) -> Any:
            given.append(text)
            return library.encode(text, **options)

        def encode_batch_fast(self, texts: list[str], **options: Any) -> Any:
            given.extend(texts)
            return library.encode_batch_fast(texts, **options)

    bodies._tokenizer = bodies._of_long._tokenizer = Watched()
    try:
        yield given
    finally:
        bodies._tokenizer = bodies._of_long._tokenizer = library


def end_a_thread(queue: WorkerThreads) -> None:
    """Let a worker thread of a queue end as if it had raised."""
    end = ctypes.pythonapi.PyThreadState_SetAsyncExc
    assert end(ctypes.c_ulong(queue._workers[0].ident or 0), ctypes.py_object(SystemExit)) == 1
    with queue._changed:
        queue._changed.notify_all()


def calls_and_forks(under_way: UnderWay) -> tuple[dict[int, int], dict[int, int]]:
    """How many calls each thread is in, and how many forks each thread has begun."""
    return under_way._calls, under_way._forks


def actors_of(searcher: ShardedSearcher) -> dict[str, Any]:
    """The Ray actor of each shard."""
    return searcher._calls.actors


def file_system_of(store: ObjectStore) -> Any:
    """The fsspec file system that reads and writes the objects."""
    return store._system


class Interrupt:
    """A KeyboardInterrupt at the n-th point in flowvec's code where Python could deliver one.

    Python delivers signals between bytecode instructions; the start of a function and the end of a
    call of a C function are points where it checks. A timer would hit a few of them at random and
    others on each machine. With `sys.setprofile` tests interrupt a call at each of these
    points in turn, so that every run covers all of them. The code of the locks is left out: a
    context manager that is written in Python cannot be made safe within its own `__enter__`.
    """

    FOLDER = str(Path(flowvec.__file__).parent)

    def __init__(self, at: int) -> None:
        self.left = at
        self.seen = 0

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        name = frame.f_code.co_filename
        if event in ("call", "c_return") and self.FOLDER in name and "locks" not in name:
            self.seen += 1
            self.left -= 1
            if self.left == 0:
                sys.setprofile(None)
                raise KeyboardInterrupt
