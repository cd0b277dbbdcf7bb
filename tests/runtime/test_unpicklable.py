"""Objects of one process say so when they are pickled or copied."""

from __future__ import annotations

import asyncio
import copy
import pickle
from pathlib import Path

import pytest

from flowvec import (
    AsyncCollection,
    AsyncEncoder,
    AsyncReranker,
    Collection,
    Encoder,
    InputTypeError,
    Reranker,
    SharedEncoder,
    SharedReranker,
)


def test_what_has_threads_or_files_says_that_it_cannot_be_pickled(
    tmp_path: Path, tiny: Encoder, reranker: Reranker
) -> None:
    with (
        Collection.create(tmp_path / "c", encoder=tiny) as collection,
        SharedEncoder(tiny) as shared,
        SharedReranker(reranker) as shared_reranker,
    ):

        async def asynchronous() -> None:
            async with (
                AsyncCollection(collection) as notes,
                AsyncEncoder(tiny) as encoder,
                AsyncReranker(reranker) as scores,
            ):
                refused(collection, shared, shared_reranker, notes, encoder, scores)

        asyncio.run(asynchronous())
        assert len(collection) == 0


def refused(*items: object) -> None:
    for item in items:
        for copied in (pickle.dumps, copy.copy, copy.deepcopy):
            with pytest.raises(InputTypeError, match=f"{type(item).__name__} .*each"):
                copied(item)


def test_models_are_opened_again_where_they_are_unpickled(
    tiny: Encoder, reranker: Reranker
) -> None:
    assert pickle.loads(pickle.dumps(tiny)).fingerprint == tiny.fingerprint
    assert pickle.loads(pickle.dumps(reranker)).fingerprint == reranker.fingerprint
