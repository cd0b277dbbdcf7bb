"""Every public function, called with wrong types and values, raises flowvec's own errors alone."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flowvec
from flowvec import (
    AsyncCollection,
    AsyncEncoder,
    Bundle,
    Collection,
    Encoder,
    SharedEncoder,
    bulk,
)
from tests.odd_arguments import Called, check


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some odd values are paths that can be written; not into the directory of the tests."""
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")


@pytest.fixture
def encoder(tiny_dir: Path) -> Iterator[Encoder]:
    with Encoder.load(tiny_dir, provider="cpu", streams=1) as loaded:
        yield loaded


def test_wrong_arguments_of_encoders(tiny_dir: Path, encoder: Encoder) -> None:
    two = ["a cat", "a dog"]
    vectors = encoder.encode(two)
    check({
        "Encoder.load": Called(Encoder.load, {"name_or_dir": tiny_dir, "provider": "cpu"}),
        "Encoder.encode": Called(encoder.encode, {"texts": two}),
        "Encoder.stream": Called(encoder.stream, {"texts": two}),
        "Encoder.encode_query": Called(lambda texts: encoder.encode_query(texts), {}),
        "Encoder.encode_document": Called(lambda texts: encoder.encode_document(texts), {}),
        "Encoder.similarity": Called(encoder.similarity, {"a": vectors, "b": vectors}),
        "Encoder.tokenize": Called(encoder.tokenize, {"texts": two}),
        "Encoder.split_texts": Called(encoder.split_texts, {"texts": two}),
        "Bundle.load": Called(Bundle.load, {}),
    })  # fmt: skip


def test_wrong_arguments_of_asynchronous_and_shared_encoders(encoder: Encoder) -> None:
    async def encode(texts: Any = "a cat", timeout: Any = None) -> Any:
        async with AsyncEncoder(encoder) as asynchronous:
            return await asynchronous.encode(texts, timeout=timeout)

    def shared(texts: Any = "a cat", timeout: Any = 1.0) -> Any:
        with SharedEncoder(encoder) as shared_encoder:
            return shared_encoder.encode(texts, timeout=timeout)

    def made(kind: Any, encoder: Any, **options: Any) -> None:
        kind(encoder, **options).close()

    async def encode_query(texts: Any = "a cat", prompt_name: Any = None) -> Any:
        async with AsyncEncoder(encoder) as asynchronous:
            return await asynchronous.encode_query(texts, prompt_name=prompt_name)

    check({
        "AsyncEncoder.encode": Called(encode, {}),
        "AsyncEncoder.encode_query": Called(encode_query, {}),
        "SharedEncoder.encode": Called(shared, {}),
        "SharedEncoder": Called(SharedEncoder, {"encoder": encoder}),
    })  # fmt: skip


def test_wrong_arguments_of_collections(tmp_path: Path, encoder: Encoder) -> None:
    names = iter(range(10**9))
    rows = np.ones((2, 16), np.float32)

    def create(path: Any = None, **given: Any) -> Any:
        path = tmp_path / f"new{next(names)}" if path is None else path
        return Collection.create(path, **({"encoder": encoder} | given))

    def by_dim(dim: Any) -> Any:
        return Collection.create(tmp_path / f"new{next(names)}", dim=dim)

    def one(
        encoder: Any = None, metric: Any = "cosine", vector_dtype: Any = "float32",
        exist_ok: Any = False, exact_below: Any = None,
    ) -> Any:  # fmt: skip
        path = tmp_path / f"new{next(names)}"
        dim = None if encoder is not None else 16
        return Collection.create(path, encoder=encoder, dim=dim, metric=metric,
                                 vector_dtype=vector_dtype, exist_ok=exist_ok,
                                 exact_below=exact_below)  # fmt: skip

    def at(path: Any) -> Any:
        return Collection.create(path, dim=16)

    with Collection.create(tmp_path / "c", encoder=encoder) as c:
        c.add([1, 2], ["a cat", "a dog"], [{"n": 1}, {"n": 2}])
        check({
            "Collection.create": Called(one, {}),
            "Collection.create by dim": Called(by_dim, {}),
            "Collection.create at": Called(at, {}),
            "Collection.open": Called(Collection.open, {"path": tmp_path / "c"}),
            "Collection.add": Called(c.add, {"ids": [1, 2], "texts": ["a cat", "a dog"]}),
            "Collection.add_vectors": Called(c.add_vectors, {"ids": [1, 2], "vectors": rows}),
            "Collection.delete": Called(c.delete, {}),
            "Collection.get": Called(c.get, {}),
            "Collection.count": Called(c.count, {}),
            "Collection.ids": Called(c.ids, {}),
            "Collection.list": Called(c.list, {}),
            "Collection.update_metadata": Called(c.update_metadata, {"changes": {"n": 1}}),
            "Collection.update_metadata by id": Called(
                c.update_metadata, {"ids": [1, 2], "changes": {"n": 1}}
            ),
            "Collection.search": Called(c.search, {"query": "a cat"}),
            "Collection.search_batch": Called(c.search_batch, {"queries": ["a cat"]}),
            "Collection.search_mmr": Called(c.search_mmr, {"query": "a cat"}),
            "Collection.search_ids": Called(c.search_ids, {"queries": rows}),
            "Collection.tune_recall": Called(c.tune_recall, {}),
            "Collection.to_parquet": Called(
                c.to_parquet, {"path": tmp_path / "out.parquet"}
            ),
            "Collection.salvage": Called(
                lambda path: Collection.salvage(path, tmp_path / f"s{next(names)}"), {}
            ),
        })  # fmt: skip


def test_wrong_arguments_of_asynchronous_collections(tmp_path: Path, encoder: Encoder) -> None:
    rows = np.ones((2, 16), np.float32)
    with Collection.create(tmp_path / "c", encoder=encoder) as collection:
        collection.add([1, 2], ["a cat", "a dog"], [{"n": 1}, {"n": 2}])

        def around(
            collection: Any = collection, encoder: Any = None, read_threads: Any = None,
            write_threads: Any = 1, max_waiting: Any = 1,
        ) -> None:  # fmt: skip
            made = AsyncCollection(
                collection, encoder=encoder, read_threads=read_threads,
                write_threads=write_threads, max_waiting=max_waiting,
            )  # fmt: skip
            asyncio.run(made.close())

        async def search(
            filter: Any = None, hybrid: Any = False, vector_weight: Any = 0.5,
            min_score: Any = None, exact: Any = False, ef: Any = None,
        ) -> Any:  # fmt: skip
            return await c.search(
                "a cat", filter=filter, hybrid=hybrid, vector_weight=vector_weight,
                min_score=min_score, exact=exact, ef=ef,
            )  # fmt: skip

        def opened(path: Any = tmp_path / "c", encoder: Any = encoder) -> None:
            asyncio.run(AsyncCollection.open(path, encoder=encoder).close())

        c = AsyncCollection(collection)
        check({
            "AsyncCollection": Called(around, {}),
            "AsyncCollection.open": Called(opened, {}),
            "AsyncCollection.add": Called(c.add, {"ids": [1, 2], "texts": ["a cat", "a dog"]}),
            "AsyncCollection.add_vectors": Called(c.add_vectors, {"ids": [1, 2], "vectors": rows}),
            "AsyncCollection.delete": Called(c.delete, {"ids": [9]}),
            "AsyncCollection.get": Called(c.get, {"ids": [9]}),
            "AsyncCollection.count": Called(c.count, {}),
            "AsyncCollection.list": Called(c.list, {}),
            "AsyncCollection.update_metadata": Called(
                c.update_metadata, {"ids": [9], "changes": {"n": 3}}
            ),
            "AsyncCollection.search": Called(c.search, {"query": "a cat"}),
            "AsyncCollection.search with options": Called(search, {}),
            "AsyncCollection.search_mmr": Called(c.search_mmr, {"query": "a cat"}),
            "AsyncCollection.search_batch": Called(c.search_batch, {"queries": ["a cat"]}),
        })  # fmt: skip
        asyncio.run(c.close())


def test_wrong_arguments_of_mining(encoder: Encoder) -> None:
    rows = encoder.encode(["a cat", "a dog", "a house"])
    check({
        "semantic_search": Called(flowvec.semantic_search, {"queries": rows, "corpus": rows}),
        "most_similar_pairs": Called(
            flowvec.most_similar_pairs, {"encoder": encoder, "items": ["a", "b"]}
        ),
    })  # fmt: skip


def test_wrong_arguments_of_bulk_jobs(tmp_path: Path, encoder: Encoder) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "a cat", "id": 1}\n')
    names = iter(range(10**9))

    def encode_files(**given: Any) -> Any:
        good = {"encoder": encoder, "inputs": tmp_path / "a.jsonl", "out_format": "npy",
                "out": tmp_path / f"o{next(names)}"}  # fmt: skip
        return bulk.encode_files(**(good | given))

    parameters = [
        p for p in inspect.signature(bulk.encode_files).parameters.values()
        if p.name not in ("stop", "workers", "out", "on_progress")
    ]  # fmt: skip
    encode_files.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    check({
        "encode_files": Called(encode_files, {}),
        "verify_folder": Called(bulk.verify_folder, {"path": tmp_path}),
        "merge_shares": Called(bulk.merge_shares, {}),
        "estimate_files": Called(
            bulk.estimate_files, {"encoder": encoder, "inputs": tmp_path / "a.jsonl"}
        ),
    })  # fmt: skip
