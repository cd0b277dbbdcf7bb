"""Many callers of one reranker; the queue itself is tested with `SharedEncoder`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flowvec import (
    AsyncReranker,
    ClosedError,
    DeadlineError,
    Encoder,
    InputTypeError,
    InputValueError,
    OverloadedError,
    Reranker,
    SharedReranker,
)
from tests.runtime.encoder.test_shared_encoder import Gate
from tests.runtime.reranker.test_reranker import DOCUMENTS, QUERY, pairs_of


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    return Gate(monkeypatch)


@pytest.fixture
def one(reranker_dir: Path) -> Iterator[Reranker]:
    """One stream: while it is busy, other calls wait."""
    with Reranker.load(reranker_dir, provider="cpu", streams=1) as loaded:
        yield loaded


def assert_same_ranking(ranked: list[Any], expected: list[Any]) -> None:
    """Equal but for the last bits of scores, which may depend on the batch."""
    assert ranked == [row | {"score": pytest.approx(row["score"], abs=2e-5)} for row in expected]


@pytest.mark.parametrize("streams", [1, 3])
def test_many_threads_get_the_rerankers_scores(reranker_dir: Path, streams: int) -> None:
    calls = [pairs_of(1 + i % 7, seed=i) for i in range(60)]
    with Reranker.load(reranker_dir, provider="cpu", streams=streams) as loaded:
        expected = [loaded.predict(pairs) for pairs in calls]
        with SharedReranker(loaded) as shared, ThreadPoolExecutor(16) as pool:
            results = list(pool.map(shared.predict, calls))
            ranked = shared.rank(QUERY, DOCUMENTS, top_k=2)
            with pytest.raises(InputValueError, match="no label 'perhaps'"):
                shared.rank(QUERY, DOCUMENTS, label="perhaps")
        assert_same_ranking(ranked, loaded.rank(QUERY, DOCUMENTS, top_k=2))
    for scores, wanted in zip(results, expected, strict=True):
        np.testing.assert_allclose(scores, wanted, rtol=0, atol=2e-5)


def test_callers_share_batches_and_keep_their_own_cut(one: Reranker, gate: Gate) -> None:
    """Calls that cut differently are tokenized apart, and still run together."""
    long = ("the red cat " * 15, "a blue dog " * 15)
    options = [{"truncation": "longest_first"}, {"truncation": "only_second"}]
    expected = [one.predict([long], **kind) for kind in options]  # type: ignore[arg-type]
    with SharedReranker(one, max_batch_tokens=1024) as shared:
        gate.shut()
        first = shared.submit(("cat", "dog"))
        assert gate.entered.wait(60)
        futures = [shared.submit([long], **kind) for kind in options]  # type: ignore[arg-type]
        gate.open.set()
        results = [future.result(60) for future in futures]
        assert first.result(60).shape == ()
    assert gate.shapes[1][0] == 2
    np.testing.assert_allclose(results, expected, rtol=0, atol=2e-5)


def test_a_query_that_leaves_no_room_fails_its_own_call(one: Reranker) -> None:
    with SharedReranker(one) as shared:
        with pytest.raises(InputValueError, match="first text of pair 0"):
            shared.predict([("cat " * 200, "dog")], truncation="only_second")
        assert shared.predict([("cat", "dog")], truncation="only_second").shape == (1,)


def test_a_deadline_drops_what_waits(one: Reranker, gate: Gate) -> None:
    with SharedReranker(one, max_waiting=4) as shared:
        gate.shut()
        running = shared.submit(("cat", "dog"))
        assert gate.entered.wait(60)
        with pytest.raises(DeadlineError):
            shared.predict(pairs_of(3), timeout=0.01)
        with pytest.raises(DeadlineError):
            shared.rank(QUERY, DOCUMENTS[:3], timeout=0.01)
        with pytest.raises(OverloadedError, match="max_waiting"):
            shared.submit(pairs_of(5))
        gate.open.set()
        running.result(60)
    with pytest.raises(ClosedError, match="this SharedReranker is closed"):
        shared.predict([("a", "b")])
    with pytest.raises(ClosedError, match="this SharedReranker is closed"), shared:
        pass


@pytest.mark.parametrize("wrong", ["a directory", None, 5])
def test_it_takes_a_reranker(wrong: object, mini: Encoder) -> None:
    for value in (wrong, mini):
        with pytest.raises(InputTypeError, match="must be a Reranker"):
            SharedReranker(value)  # type: ignore[arg-type]


def test_asyncio(one: Reranker) -> None:
    async def main() -> None:
        async with AsyncReranker(one) as model:
            calls = [pairs_of(3, seed=i) for i in range(20)]
            results = await asyncio.gather(*(model.predict(pairs, timeout=60) for pairs in calls))
            for pairs, scores in zip(calls, results, strict=True):
                np.testing.assert_allclose(scores, one.predict(pairs), rtol=0, atol=2e-5)
            many = pairs_of(200)
            np.testing.assert_allclose(await model.predict(many), one.predict(many), atol=2e-5)
            ranked = await model.rank(QUERY, DOCUMENTS, top_k=3, return_documents=True)
            assert_same_ranking(ranked, one.rank(QUERY, DOCUMENTS, top_k=3, return_documents=True))
            logits = await model.predict(calls[0], activation="identity")
            expected = one.predict(calls[0], activation="identity")
            np.testing.assert_allclose(logits, expected, rtol=0, atol=2e-5)
            assert model.statistics().calls == 23
        for use in (model.predict([("a", "b")]), model.rank("a", []), model.__aenter__()):
            with pytest.raises(ClosedError, match="this AsyncReranker is closed"):
                await use

    asyncio.run(main())


def test_asyncio_deadline(one: Reranker, gate: Gate) -> None:
    async def main() -> None:
        async with AsyncReranker(one) as model:
            gate.shut()
            with pytest.raises(DeadlineError):
                await model.rank(QUERY, DOCUMENTS, timeout=0.05)
            gate.open.set()
            assert len(await model.rank(QUERY, DOCUMENTS, timeout=60)) == len(DOCUMENTS)

    asyncio.run(main())
