"""A collection for many asyncio tasks: deadlines, cancellation, back-pressure and closing.

Searches are held by the index's own lock, changes by the collection's turn to write, and texts by a
gate in the model, so nothing depends on time.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flowvec import (
    AsyncCollection,
    AsyncEncoder,
    AsyncReranker,
    ClosedError,
    Collection,
    CollectionError,
    DeadlineError,
    Encoder,
    FingerprintMismatchError,
    InputTypeError,
    InputValueError,
    OverloadedError,
    Reranker,
    SharedReranker,
)
from flowvec.collection.query import SearchKeywords
from tests.inside import access_of, index_lock_of
from tests.makers import texts_of
from tests.runtime.gate import Gate

ROWS = 60
TEXTS = [text or "cat" for text in texts_of(ROWS, seed=3)]


@pytest.fixture
def collection(tmp_path: Path, tiny: Encoder) -> Iterator[Collection]:
    with Collection.create(tmp_path / "notes", encoder=tiny) as made:
        made.add(range(ROWS), TEXTS, [{"even": i % 2 == 0} for i in range(ROWS)])
        yield made


def held_searches(collection: Collection) -> AbstractContextManager[None]:
    """No search of the collection ends during the block."""
    return index_lock_of(collection).writing()


@contextmanager
def held_changes(collection: Collection) -> Iterator[Callable[[], None]]:
    """No change of the collection begins during the block, or until the function is called."""
    held, let_go = threading.Event(), threading.Event()

    def hold() -> None:
        with access_of(collection).writing():
            held.set()
            assert let_go.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(60)
    try:
        yield let_go.set
    finally:
        let_go.set()
        thread.join()


@contextmanager
def held_texts(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """No text is embedded during the block; the event is set when the model has one."""
    with monkeypatch.context() as patch:
        gate = Gate(patch)
        with gate.shut():
            yield gate.entered


@asynccontextmanager
async def held_change(notes: AsyncCollection) -> AsyncIterator[asyncio.Task[int]]:
    """A change that runs and waits for its turn, during the block."""
    with held_changes(notes.collection):
        task = asyncio.create_task(notes.delete([0]))
        await until(lambda: notes.statistics()["writes"].running == 1)
        yield task


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.001)


async def cancelled(task: asyncio.Task[Any]) -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def run(main: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(120):
            await main()

    asyncio.run(bounded())


# --- what comes out -------------------------------------------------------------------------------


def test_searches_are_those_of_the_collection(collection: Collection, reranker: Reranker) -> None:
    vector = np.random.default_rng(0).normal(size=16).astype(np.float32)

    async def main() -> None:
        async with (
            AsyncCollection(collection) as notes,
            AsyncReranker(reranker) as asynchronous,
        ):
            with SharedReranker(reranker) as shared:
                for query, options in (
                    ("the red cat", {}),
                    ("the red cat", {"k": 3, "filter": {"even": True}, "min_score": 0.1}),
                    ("the red cat", {"hybrid": True, "vector_weight": 0.2, "exact": True}),
                    (vector, {"ef": 50}),
                    (vector, {"hybrid": True, "text": "the red cat"}),
                    ("the red cat", {"rerank": reranker, "rerank_from": 20}),
                    ("the red cat", {"rerank": shared, "hybrid": True}),
                    ("the red cat", {"rerank": reranker, "k": 4, "offset": 3}),
                    (vector, {"rerank": asynchronous, "text": "the red cat", "min_score": 0.4}),
                    ("the red cat", {"rerank": asynchronous, "k": 4, "offset": 2}),
                    ("the red cat", {"k": 5, "offset": 5}),
                ):
                    hits = await notes.search(query, timeout=60, **options)
                    if options.get("rerank") is asynchronous:
                        options["rerank"] = reranker
                    expected = collection.search(query, **options)
                    assert [hit.id for hit in hits] == [hit.id for hit in expected]
                    for attribute in ("score", "search_score"):
                        np.testing.assert_allclose(
                            np.array([getattr(hit, attribute) for hit in hits], float),
                            np.array([getattr(hit, attribute) for hit in expected], float),
                            atol=1e-5,
                        )
            batches = await notes.search_batch(["the red cat", "stocks"], 5, hybrid=True)
            assert [[hit.id for hit in hits] for hits in batches] == [
                [hit.id for hit in hits]
                for hits in collection.search_batch(["the red cat", "stocks"], 5, hybrid=True)
            ]
            assert await notes.search_batch([], 5) == []
            options = {"k": 4, "fetch_k": 15, "lambda_mult": 0.3, "filter": {"even": True}}
            for query in ("the red cat", vector):
                hits = await notes.search_mmr(query, **options, with_vectors=True)
                expected = collection.search_mmr(query, **options)
                assert [hit.id for hit in hits] == [hit.id for hit in expected]
                assert all(hit.vector is not None for hit in hits)

    run(main)


def test_changes_are_those_of_the_collection(collection: Collection, tiny: Encoder) -> None:
    many = [text or "cat" for text in texts_of(200, seed=4)]
    many[70] = "the cat " * tiny.max_length
    (encoded,) = tiny.windows([many], tiny.job(tiny.document_prompt))
    cut = len(encoded.truncated)

    async def main() -> None:
        async with AsyncCollection(collection) as notes:
            added = await notes.add([*range(100, 299), 3], many, [{"new": True}] * 200)
            assert (added.rows, added.replaced, added.truncated) == (200, 1, cut)
            item, missing = await notes.get([298, "none"])
            assert item is not None
            assert (item.text, item.metadata, missing) == (many[198], {"new": True}, None)
            np.testing.assert_allclose(item.vector, tiny.encode_document(many[198]), atol=1e-5)
            assert await notes.count() == ROWS + 199
            assert await notes.count({"even": True}) == ROWS / 2
            assert (await notes.ids({"new": True}))[:3] == [100, 101, 102]
            first, second = await notes.list({"even": True}, limit=2)
            (third,) = await notes.list({"even": True}, 1, second)
            assert (first.id, third.id) == (0, 4)
            assert await notes.update_metadata([7, 8], {"seen": 1}) == 2
            assert await notes.update_metadata(changes={"seen": 2}, filter={"seen": 1}) == 2
            assert await notes.delete(filter={"seen": 2}) == 2
            assert await notes.delete([100, 101, "none"]) == 2
            vectors = np.ones((2, 16), np.float32)
            assert (await notes.add_vectors(["a", "b"], vectors, ["a text", None])).rows == 2
            await notes.compact()
            await notes.prepare()
            assert (await notes.info()).rows == ROWS + 197

    run(main)
    assert collection.verify() == []
    assert len(collection) == ROWS + 197


@pytest.mark.parametrize(
    "name",
    ["search", "search_batch", "search_mmr", "search_sparse", "search_sparse_batch", "get",
     "get_sparse", "count", "ids", "list", "add", "add_vectors", "set_sparse", "delete",
     "update_metadata"],
)  # fmt: skip
def test_methods_take_what_those_of_the_collection_take(name: str) -> None:
    taken = set(inspect.signature(getattr(AsyncCollection, name)).parameters)
    if "options" in taken:
        taken |= set(SearchKeywords.__annotations__)
    expected = set(inspect.signature(getattr(Collection, name)).parameters)
    expected -= {"show_progress_bar"}  # calls of many tasks would share the terminal
    assert taken - {"timeout", "options"} == expected


def test_the_first_texts_record_their_model(
    tmp_path: Path, tiny: Encoder, reranker: Reranker
) -> None:
    Collection.create(tmp_path / "c", dim=16).close()

    async def main() -> None:
        async with AsyncEncoder(tiny) as model:
            async with AsyncCollection.open(tmp_path / "c", encoder=model) as notes:
                assert notes.encoder is model
                await notes.add(["a"], ["the cat"])
                assert (await notes.info()).fingerprint == tiny.fingerprint
            assert (await model.encode("the queue is open")).shape == (16,)

    run(main)


def test_collections_share_an_encoder(tmp_path: Path, tiny: Encoder, mini: Encoder) -> None:
    async def main() -> None:
        async with AsyncEncoder(tiny) as model, AsyncEncoder(mini) as other:
            with (
                Collection.create(tmp_path / "a", encoder=tiny) as first,
                Collection.create(tmp_path / "b", dim=16) as second,
            ):
                with pytest.raises(FingerprintMismatchError):
                    AsyncCollection(first, encoder=other)
                async with (
                    AsyncCollection(first, encoder=model) as a,
                    AsyncCollection(second, encoder=model) as b,
                ):
                    await asyncio.gather(a.add([1], ["a cat"]), b.add([2], ["a cat"]))
                    found = await asyncio.gather(a.search("a cat", 1), b.search("a cat", 1))
                    assert [hits[0].id for hits in found] == [1, 2]
                    assert model.statistics().texts == 4

    run(main)


def test_without_an_encoder_it_takes_vectors(tmp_path: Path) -> None:
    async def main() -> None:
        async with AsyncCollection.open_or_create(tmp_path / "c", dim=2) as notes:
            await notes.add_vectors(["a"], [[1, 0]], ["a zyxwv"])
            assert (await notes.search([1, 0], text="zyxwv", hybrid=True))[0].id == "a"
            for call in (notes.search("zyxwv"), notes.add(["b"], ["a text"])):
                with pytest.raises(CollectionError, match="opened without an encoder"):
                    await call

    run(main)


def test_it_serves_one_event_loop_after_another(collection: Collection) -> None:
    notes = AsyncCollection(collection)
    for i in range(3):
        run(lambda i=i: notes.add([f"new-{i}"], ["a text"]))  # type: ignore[misc]
    run(notes.close)
    assert len(collection) == ROWS + 3


def test_wrong_kinds_are_named(collection: Collection, tiny: Encoder) -> None:
    with pytest.raises(InputTypeError, match=r"\.open\('notes'\)"):
        AsyncCollection("notes")  # type: ignore[arg-type]
    with pytest.raises(InputTypeError, match=r"AsyncEncoder\(encoder\)"):
        AsyncCollection(collection, encoder=tiny)  # type: ignore[arg-type]
    for name in ("read_threads", "write_threads", "max_waiting"):
        with pytest.raises(InputValueError, match=f"{name} must be at least 1"):
            AsyncCollection(collection, **{name: 0})


# --- tasks that share -----------------------------------------------------------------------------


def test_texts_of_many_tasks_share_batches(
    collection: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with AsyncCollection(collection) as notes:
            assert notes.encoder is not None
            with held_texts(monkeypatch) as entered:
                searches = [asyncio.create_task(notes.search(text, 3)) for text in TEXTS]
                changes = [asyncio.create_task(notes.add([i], ["a cat"])) for i in range(4)]
                assert await asyncio.to_thread(entered.wait, 60)
                await until(lambda: notes.encoder and notes.encoder.statistics().calls == ROWS + 4)
            await asyncio.gather(*searches, *changes)
            statistics = notes.encoder.statistics()
            assert (statistics.texts, statistics.dropped) == (ROWS + 4, 0)
            assert statistics.batches < ROWS / 2

    run(main)


def test_searches_do_not_wait_for_changes(collection: Collection) -> None:
    async def main() -> None:
        async with AsyncCollection(collection, write_threads=2) as notes, held_change(notes) as one:
            others = [asyncio.create_task(notes.add([i], ["a text"])) for i in range(20)]
            await until(lambda: notes.statistics()["writes"].waiting == 19)
            for text in TEXTS[:10]:
                assert len(await notes.search(text, 3, timeout=60)) == 3
            assert not one.done()
            assert not any(task.done() for task in others)

    run(main)
    assert len(collection) == ROWS


def test_a_full_queue_refuses_at_once(collection: Collection) -> None:
    async def main() -> None:
        options: Any = {"read_threads": 1, "write_threads": 1, "max_waiting": 2}
        async with AsyncCollection(collection, **options) as notes:
            assert notes.encoder is not None
            with held_searches(collection):
                reads: list[asyncio.Task[Any]] = [asyncio.create_task(notes.search(np.ones(16), 1))]
                await until(lambda: notes.statistics()["reads"].running == 1)
                reads += [asyncio.create_task(notes.count()) for _ in range(2)]
                await until(lambda: notes.statistics()["reads"].waiting == 2)
                texts = notes.encoder.statistics().texts
                with pytest.raises(OverloadedError, match=r"2 reads .*max_waiting is 2"):
                    await notes.search("a cat")
                assert notes.encoder.statistics().texts == texts  # nothing was embedded for it
                # A cancelled call makes room.
                await cancelled(reads.pop())
                reads.append(asyncio.create_task(notes.count()))
                await until(lambda: notes.statistics()["reads"].waiting == 2)
            hits, *counts = await asyncio.gather(*reads)
            assert (len(hits), counts) == (1, [ROWS, ROWS])
            async with held_change(notes) as first:
                changes = [asyncio.create_task(notes.delete([i])) for i in (1, 2)]
                await until(lambda: notes.statistics()["writes"].waiting == 2)
                with pytest.raises(OverloadedError, match="2 writes wait"):
                    await notes.add(["never"], ["a cat"])
            assert await asyncio.gather(first, *changes) == [1, 1, 1]
            statistics = notes.statistics()
            assert [statistics[kind].overloaded for kind in ("reads", "writes")] == [1, 1]
            assert [statistics[kind].dropped for kind in ("reads", "writes")] == [1, 0]

    run(main)
    assert collection.get(["never"]) == [None]


# --- deadlines and cancellation -------------------------------------------------------------------


def test_a_deadline_counts_embedding_searching_and_waiting(
    collection: Collection, reranker: Reranker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with (
            AsyncCollection(collection, read_threads=1) as notes,
            AsyncReranker(reranker) as asynchronous,
        ):
            assert notes.encoder is not None
            with held_texts(monkeypatch) as entered:
                first = asyncio.create_task(notes.search("a cat"))
                assert await asyncio.to_thread(entered.wait, 60)
                for call in (notes.search("a dog", timeout=0.01), notes.add([1], ["a"], timeout=0)):
                    with pytest.raises(DeadlineError, match="not done within 0"):
                        await call
                await until(lambda: notes.encoder and not notes.encoder.statistics().waiting)
            assert len(await first) == 10
            with held_searches(collection):
                running = asyncio.create_task(notes.search("a cat"))
                await until(lambda: notes.statistics()["reads"].running == 1)
                with pytest.raises(DeadlineError, match=r"not done within 0\.05 s"):
                    await notes.search("a cat", timeout=0.05)
                with pytest.raises(TimeoutError):
                    await notes.count(timeout=0.01)
                assert notes.statistics()["reads"].waiting == 0
            assert len(await running) == 10
            with held_texts(monkeypatch), pytest.raises(DeadlineError):
                await notes.search(np.ones(16), text="a", rerank=asynchronous, timeout=0.5)
            with pytest.raises(InputTypeError, match="timeout must be a number"):
                await notes.search("a cat", timeout="soon")  # type: ignore[arg-type]

    run(main)


def test_a_search_that_is_cancelled_while_it_runs_blocks_no_other(
    collection: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered, let_go = threading.Event(), threading.Event()
    first_stage = Collection._first_stage

    def slow(self: Collection, vectors: Any, plan: Any) -> Any:
        if plan.options.k == 7:
            entered.set()
            assert let_go.wait(60)
        return first_stage(self, vectors, plan)

    monkeypatch.setattr(Collection, "_first_stage", slow)

    async def main() -> None:
        async with AsyncCollection(collection, read_threads=2) as notes:
            task = asyncio.create_task(notes.search("a cat", 7))
            assert await asyncio.to_thread(entered.wait, 60)
            await cancelled(task)
            assert notes.statistics()["reads"].running == 1
            assert len(await notes.search("a cat", 3, timeout=60)) == 3
            let_go.set()
            await until(lambda: notes.statistics()["reads"].running == 0)

    run(main)


def test_a_change_that_is_cancelled_while_it_waits_never_runs(collection: Collection) -> None:
    async def main() -> None:
        async with AsyncCollection(collection, write_threads=1) as notes:
            async with held_change(notes) as first:
                waiting = [
                    asyncio.create_task(notes.add(["never"], ["a cat"])),
                    asyncio.create_task(notes.delete([5])),
                ]
                await until(lambda: notes.statistics()["writes"].waiting == 2)
                for task in waiting:
                    await cancelled(task)
                with pytest.raises(DeadlineError):
                    await notes.add_vectors(["late"], np.ones((1, 16)), timeout=0.01)
            assert await first == 1
            assert await notes.delete([6]) == 1
            assert notes.statistics()["writes"].dropped == 3
            assert await notes.get(["never", "late"]) == [None, None]

    run(main)
    assert len(collection) == ROWS - 2


def test_an_add_that_is_cancelled_while_it_embeds_adds_nothing(
    collection: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with AsyncCollection(collection) as notes:
            assert notes.encoder is not None
            with held_texts(monkeypatch) as entered:
                task = asyncio.create_task(notes.add(range(1000, 1500), ["a cat"] * 500))
                assert await asyncio.to_thread(entered.wait, 60)
                await cancelled(task)
                # Its thread is free again, although the model has not answered yet.
                await until(lambda: notes.statistics()["writes"].running == 0)
                assert notes.encoder.statistics().waiting == 0
            assert await notes.count() == ROWS

    run(main)


def test_an_add_that_has_begun_is_made_as_a_whole(collection: Collection) -> None:
    async def main() -> None:
        async with AsyncCollection(collection) as notes:
            assert notes.encoder is not None
            with held_changes(collection):
                task = asyncio.create_task(notes.add(range(1000, 1100), ["a cat"] * 100))
                await until(lambda: notes.encoder and notes.encoder.statistics().texts == 100)
                await cancelled(task)
                with pytest.raises(DeadlineError):
                    await notes.add_vectors(range(2000, 2050), np.ones((50, 16)), timeout=0.05)
            await until(lambda: notes.statistics()["writes"].running == 0)
            assert await notes.count() - ROWS in (0, 50, 100, 150)

    run(main)
    assert collection.verify() == []


# --- closing --------------------------------------------------------------------------------------


def test_closing_lets_calls_end(collection: Collection, tiny: Encoder) -> None:
    async def main() -> None:
        notes = AsyncCollection(collection, write_threads=1, read_threads=1)
        async with held_change(notes) as first:
            changes = [asyncio.create_task(notes.add([f"new-{i}"], ["a cat"])) for i in range(5)]
            searches = [asyncio.create_task(notes.search(text, 2)) for text in TEXTS]
            await until(lambda: notes.statistics()["writes"].waiting == 5)
            closing = asyncio.create_task(notes.close())
            await asyncio.sleep(0)
            with pytest.raises(ClosedError, match="this AsyncCollection is closed"):
                await notes.count()
        await closing
        assert await first == 1
        assert [added.rows for added in await asyncio.gather(*changes)] == [1] * 5
        assert all(len(hits) == 2 for hits in await asyncio.gather(*searches))
        await notes.close()

    run(main)
    assert len(collection) == ROWS + 4  # it is open
    assert tiny.encode("a cat").shape == (16,)


def test_closing_without_drain_fails_calls_that_have_not_begun(
    collection: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        notes = AsyncCollection(collection, write_threads=2)
        async with held_change(notes) as running:
            with held_texts(monkeypatch) as entered:
                calls = [
                    asyncio.create_task(notes.add(range(1000, 1500), ["a cat"] * 500)),  # embeds
                    asyncio.create_task(notes.search("a cat")),
                ]
                assert await asyncio.to_thread(entered.wait, 60)
                await until(lambda: notes.statistics()["writes"].running == 2)
                calls.append(asyncio.create_task(notes.delete([3])))  # waits for a thread
                await until(lambda: notes.statistics()["writes"].waiting == 1)
                closing = asyncio.create_task(notes.close(drain=False))
                for call in (calls[0], calls[2]):
                    with pytest.raises(ClosedError):
                        await call
            with pytest.raises(ClosedError):
                await calls[1]
        await closing
        assert await running == 1

    run(main)
    assert len(collection) == ROWS - 1


def test_what_it_opened_is_closed(tmp_path: Path, tiny: Encoder) -> None:
    async def main() -> None:
        async with AsyncCollection.open_or_create(tmp_path / "c", encoder=tiny) as notes:
            await notes.add(["a"], ["a cat"])
        with pytest.raises(ClosedError, match="this Collection is closed"):
            notes.collection.search(np.ones(16))
        with pytest.raises(ValueError, match="the caller's"):
            async with AsyncCollection.open(tmp_path / "c", encoder=tiny) as notes:
                raise ValueError("the caller's")
        with pytest.raises(ClosedError):
            await notes.search("a cat")

    run(main)
    with pytest.raises(InputValueError, match="read_threads"):
        AsyncCollection.open(tmp_path / "c", encoder=tiny, read_threads=0)
    assert tiny.encode("a cat").shape == (16,)


def test_a_collection_that_was_closed_elsewhere(tmp_path: Path, tiny: Encoder) -> None:
    async def main() -> None:
        with Collection.create(tmp_path / "c", encoder=tiny) as collection:
            notes = AsyncCollection(collection)
        for call in (notes.search("a"), notes.add(["a"], ["a"]), notes.get([1]), notes.count()):
            with pytest.raises(ClosedError, match="this Collection is closed"):
                await call
        await notes.close()

    run(main)


@pytest.mark.process
def test_a_forked_child_gets_an_error(collection: Collection) -> None:
    if not hasattr(os, "fork"):
        pytest.skip("this system has no fork")
    notes = AsyncCollection(collection)
    child = os.fork()
    if not child:
        try:
            asyncio.run(notes.search("a cat"))
        except ClosedError:
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    run(notes.close)


BUSY = """
import asyncio, os, signal, sys, threading
from flowvec import AsyncCollection, Encoder

# A shell's background job ignores the interrupt, and its children inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
begun = asyncio.Event()

async def work(notes, i):
    while True:
        ids = [f"{i}-{n}" for n in range(5)]
        await notes.search("a cat", 3)
        await notes.add(ids, ["a cat"] * 5)
        begun.set()
        await notes.delete(ids)

async def main():
    encoder = Encoder.load(sys.argv[2], provider="cpu")
    async with AsyncCollection.open_or_create(sys.argv[1], encoder=encoder) as notes:
        await asyncio.gather(*(work(notes, i) for i in range(8)))
"""


def whole_changes_only(path: Path) -> None:
    with Collection.open(path) as collection:
        ids = {item.id for item in collection.rows()}
        assert collection.verify() == []
    for i in range(8):
        assert sum(str(id_).startswith(f"{i}-") for id_ in ids) in (0, 5)


def test_an_interrupt_leaves_whole_changes(python: Any, tmp_path: Path, tiny_dir: Path) -> None:
    code = (
        BUSY
        + """
async def interrupted():
    task = asyncio.create_task(main())
    await begun.wait()
    os.kill(os.getpid(), signal.SIGINT)
    await task

asyncio.run(interrupted())
"""
    )
    done = python(code, tmp_path / "c", tiny_dir)
    assert done.returncode in (-2, 130), done.stderr
    assert done.stderr.rstrip().endswith("KeyboardInterrupt")
    whole_changes_only(tmp_path / "c")


def test_an_event_loop_that_stops_leaves_whole_changes(
    python: Any, tmp_path: Path, tiny_dir: Path
) -> None:
    code = (
        BUSY
        + """
loop = asyncio.new_event_loop()
task = loop.create_task(main())
loop.run_until_complete(begun.wait())
loop.close()
task._log_destroy_pending = False
"""
    )
    done = python(code, tmp_path / "c", tiny_dir)
    assert (done.returncode, done.stderr) == (0, "")
    whole_changes_only(tmp_path / "c")


def test_a_representation_is_that_of_the_collection(tmp_path: Path, tiny: Encoder) -> None:
    async def shown() -> list[str]:
        with Collection.create(tmp_path / "c", encoder=tiny) as c:
            c.add(["a"], ["a cat"])
            answers = AsyncCollection(c)
            own = [repr(answers), f"Async{c!r}"]
            await answers.close()
            return [*own, repr(answers)]

    is_open, expected, closed = asyncio.run(shown())
    assert is_open == expected
    assert closed == f"<AsyncCollection {str(tmp_path / 'c')!r}: this AsyncCollection is closed>"
