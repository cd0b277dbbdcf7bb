"""After `close` nothing of a collection is open, though the object lives and was in use."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flowvec import AsyncCollection, ClosedError, Collection, FlowvecError
from flowvec.collection.index.vector_table import VectorTable
from flowvec.collection.store.sqlite import Database
from flowvec.collection.store.store import Store
from tests.inside import index_of
from tests.makers import vectors

pytestmark = pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs /proc")

ROWS, DIM = 1200, 16


def open_things(folder: Path) -> list[str]:
    """Descriptors and mappings of files in a folder."""
    held = []
    for link in Path("/proc/self/fd").iterdir():
        try:
            held.append(str(link.readlink()))
        except FileNotFoundError:  # that of the listing
            continue
    maps = Path("/proc/self/maps").read_text(errors="replace").splitlines()
    return sorted(one for one in held + maps if str(folder) in one)


@pytest.fixture
def threads() -> Callable[[], list[str]]:
    before = set(threading.enumerate())
    return lambda: [one.name for one in threading.enumerate() if one not in before]


@pytest.fixture
def filled(tmp_path: Path) -> Path:
    with Collection.create(tmp_path / "c", dim=DIM) as collection:
        collection.add_vectors(
            range(ROWS), vectors(ROWS, dim=DIM), metadata=[{"n": i % 3} for i in range(ROWS)]
        )
    return tmp_path / "c"


def exact(c: Collection) -> None:
    c.search_ids(vectors(2 * ROWS, dim=DIM), k=3)  # on several threads


def by_graph(c: Collection) -> None:
    c.prepare()
    c.search_batch(vectors(5, dim=DIM), k=3, filter={"n": 1})


def while_it_grows(c: Collection) -> None:
    c.search(vectors(1, dim=DIM)[0])
    c.add_vectors(range(ROWS, 2 * ROWS), vectors(ROWS, seed=2, dim=DIM))
    c.search(vectors(1, dim=DIM)[0])


def after_compacting(c: Collection) -> None:
    by_graph(c)
    c.delete(list(range(ROWS // 2)))
    c.compact()
    by_graph(c)


@pytest.mark.parametrize("use", [exact, by_graph, while_it_grows, after_compacting])
def test_nothing_is_open_after_close(filled: Path, threads: Any, use: Any) -> None:
    exact_below = 10**6 if use is exact else 100
    with Collection.open(filled, index="graph", exact_below=exact_below) as collection:
        use(collection)
        assert open_things(filled)
    assert (open_things(filled), threads()) == ([], [])
    assert index_of(collection).memory_bytes == 0
    collection.close()
    for call in (
        lambda: collection.search(vectors(1, dim=DIM)[0]),
        lambda: collection.add_vectors([1], vectors(1, dim=DIM)),
        collection.prepare, collection.info, collection.compact, collection.__enter__,
    ):  # fmt: skip
        with pytest.raises(ClosedError, match="this Collection is closed"):
            call()
    assert (open_things(filled), threads()) == ([], [])


def test_nothing_is_open_after_an_exception(filled: Path, threads: Any) -> None:
    with pytest.raises(ValueError, match="mine"), Collection.open(filled) as collection:  # noqa: PT012
        exact(collection)
        raise ValueError("mine")
    assert (open_things(filled), threads()) == ([], [])


def test_close_waits_for_a_search_that_runs(
    filled: Path, threads: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The search has read its state, and goes on only when `close` was called."""
    collection = Collection.open(filled)
    in_search, may_go_on = threading.Event(), threading.Event()
    search, found = VectorTable.search, []

    def slow(*arguments: Any) -> Any:
        in_search.set()
        assert may_go_on.wait(120)
        return search(*arguments)

    monkeypatch.setattr(VectorTable, "search", slow)
    close = Store.close

    def closing(store: Store) -> None:
        may_go_on.set()
        close(store)

    monkeypatch.setattr(Store, "close", closing)
    searcher = threading.Thread(
        target=lambda: found.extend(collection.search(vectors(1, dim=DIM)[0], filter={"n": 0}))
    )
    searcher.start()
    assert in_search.wait(120)
    collection.close()
    assert open_things(filled) == []
    searcher.join(120)
    assert len(found) == 10
    assert threads() == []


def test_close_waits_until_another_thread_has_closed_its_connection(filled: Path) -> None:
    """A read that ends while `close` waits closes its connection, which may take long."""
    database = Database(filled / "collection.sqlite")
    is_reading, main = threading.Event(), threading.get_ident()

    class SlowToLeave(deque[Any]):
        def pop(self) -> Any:
            connection = super().pop()
            if threading.get_ident() != main:
                time.sleep(0.2)
            return connection

    database._idle = SlowToLeave()

    def read() -> None:
        with database.reading():
            is_reading.set()
            while not database._is_closed:
                time.sleep(0.001)

    reader = threading.Thread(target=read)
    reader.start()
    assert is_reading.wait(120)
    database.close()
    assert open_things(filled) == []
    reader.join(120)


def test_close_waits_for_a_thread_that_got_its_connection_from_another(filled: Path) -> None:
    """It borrows it at the moment when the other gives it back."""
    database = Database(filled / "collection.sqlite")
    is_reading, found = threading.Event(), []

    def read_on() -> None:
        with database.reading():
            is_reading.set()
            while not database._is_closed:
                time.sleep(0.001)
            time.sleep(0.1)
            found.extend(database.connection.execute("SELECT count(*) FROM items").fetchall())

    second = threading.Thread(target=read_on)

    class Handing(deque[Any]):
        def append(self, connection: Any) -> None:
            super().append(connection)
            if not is_reading.is_set():
                second.start()
                assert is_reading.wait(120)

    database._idle = Handing()
    with database.reading():
        pass
    database.close()
    assert found == [(ROWS,)]
    second.join(120)


def test_threads_that_search_on_are_told_and_open_nothing(filled: Path, threads: Any) -> None:
    for _ in range(3):
        collection = Collection.open(filled, index="graph", exact_below=100)
        begun, errors = threading.Barrier(4), []

        def work(collection: Collection = collection, begun: Any = begun, errors: Any = errors):
            begun.wait()
            try:
                while True:
                    collection.search_ids(vectors(20, dim=DIM), k=3)
                    collection.search(vectors(1, dim=DIM)[0], filter={"n": 2})
            except FlowvecError as error:
                errors.append(error)  # noqa: B023 - the threads end before the next round

        workers = [threading.Thread(target=work) for _ in range(3)]
        for one in workers:
            one.start()
        begun.wait()
        collection.close()
        assert open_things(filled) == []
        for one in workers:
            one.join(120)
        assert [type(error) for error in errors] == [ClosedError] * 3
        assert (open_things(filled), threads()) == ([], [])


def test_an_iterator_that_was_left_holds_nothing(filled: Path) -> None:
    collection = Collection.open(filled)
    rows = collection.rows()
    next(rows)
    collection.close()
    assert open_things(filled) == []
    with pytest.raises(ClosedError):
        list(rows)


def test_an_async_collection_closes_what_it_opened(filled: Path, threads: Any) -> None:
    async def use() -> AsyncCollection:
        with pytest.raises(ValueError, match="mine"):  # noqa: PT012
            async with AsyncCollection.open(filled, index="graph", exact_below=100) as collection:
                await asyncio.gather(*[collection.search(v) for v in vectors(20, dim=DIM)])
                raise ValueError("mine")
        await collection.close()
        with pytest.raises(ClosedError):
            await collection.search(vectors(1, dim=DIM)[0])
        with pytest.raises(ClosedError):
            async with collection:
                pass
        return collection

    kept = asyncio.run(use())
    names = [one for one in threads() if not one.startswith("asyncio")]
    assert (open_things(filled), names) == ([], [])
    assert "is closed" in repr(kept)


def parquet(path: Path, last: float = 0.0) -> Path:
    pa = pytest.importorskip("pyarrow", reason="needs the extra [files]")
    import pyarrow.parquet

    rows = vectors(6000, dim=DIM).copy()
    rows[-1] = last
    table = {"id": [str(i) for i in range(6000)], "vector": list(rows)}
    kind = pa.schema({"id": pa.string(), "vector": pa.list_(pa.float32())})
    pyarrow.parquet.write_table(pa.table(table, kind), path)
    return path


@pytest.mark.parametrize("fault", ["row", "file", "folder", "none"])
def test_from_parquet_leaves_nothing_open(tmp_path: Path, fault: str) -> None:
    files = [parquet(tmp_path / "a.parquet", np.nan if fault == "row" else 1.0)]
    if fault == "file":
        files.append(tmp_path / "b.parquet")
        files[-1].write_bytes(b"PAR1 is not Parquet")
    if fault == "folder":
        (tmp_path / "c").mkdir()
        (tmp_path / "c" / "other").write_text("x")
    errors: list[BaseException] = []  # whose frames live on
    try:
        Collection.from_parquet(tmp_path / "c", files).close()
    except FlowvecError as error:
        errors.append(error)
    assert len(errors) == (fault != "none")
    assert open_things(tmp_path) == []


def test_what_cannot_be_opened_leaves_nothing_open(
    filled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors: list[BaseException] = []
    for call in (
        lambda: Collection.open(filled, encoder=3),  # type: ignore[arg-type]
        lambda: Collection.create(filled, dim=DIM + 1, exist_ok=True),
        lambda: Collection.create(filled, dim=DIM),
        lambda: AsyncCollection.open(filled, read_threads=0),
    ):
        with pytest.raises(FlowvecError) as caught:
            call()
        errors.append(caught.value)
        assert open_things(filled) == []
