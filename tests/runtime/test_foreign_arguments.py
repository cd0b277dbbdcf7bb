"""Arguments of other libraries are errors that say what to write instead."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flowvec import (
    AsyncCollection,
    AsyncEncoder,
    Collection,
    Encoder,
    InputTypeError,
    Reranker,
    SharedEncoder,
    SharedReranker,
)
from flowvec.collection.foreign import OF_ADD, OF_ROWS, OF_SEARCH
from flowvec.encoder.loading import FOREIGN as OF_LOAD
from flowvec.encoder.options import FOREIGN as OF_ENCODE
from flowvec.reranker.scores import FOREIGN as OF_PREDICT

METHODS = [
    (Encoder.load, OF_LOAD),
    (Reranker.load, OF_LOAD),
    (Encoder.encode, OF_ENCODE),
    (Encoder.job, OF_ENCODE),
    (Reranker.predict, OF_PREDICT),
    (Reranker.job, OF_PREDICT),
    (Collection.add, OF_ADD),
    (Collection.add_vectors, OF_ADD),
    (Collection.search, OF_SEARCH),
    (Collection.search_batch, OF_SEARCH),
    (Collection.search_mmr, OF_SEARCH),
    *((getattr(Collection, name), OF_ROWS)
      for name in ("count", "ids", "get", "list", "rows", "delete", "update_metadata")),
]  # fmt: skip


ASYNC = [
    (getattr(AsyncCollection, method.__name__), foreign)
    for method, foreign in METHODS
    if method.__qualname__.startswith("Collection.") and method.__name__ != "rows"
]


@pytest.mark.parametrize(("method", "foreign"), ASYNC)
def test_asynchronous_methods_explain_what_the_others_explain(
    method: Any, foreign: dict[str, str]
) -> None:
    assert inspect.iscoroutinefunction(method)
    for name, instead in foreign.items():
        with pytest.raises(InputTypeError) as raised:
            asyncio.run(method(None, **{name: 1}))
        assert str(raised.value) == f"there is no argument {name}: {instead}"


@pytest.mark.parametrize(("method", "foreign"), METHODS + ASYNC)
def test_no_argument_of_another_library_is_one_of_flowvec(
    method: Any, foreign: dict[str, str]
) -> None:
    assert not foreign.keys() & inspect.signature(method).parameters.keys()


PAIR = [("who swims?", "a dog")]


def encoding(encoder: Encoder) -> Iterator[Any]:
    shared = SharedEncoder(encoder)
    asynchronous = AsyncEncoder(encoder)
    yield from (
        encoder.encode, encoder.encode_query, encoder.encode_document, encoder.stream,
        shared.encode, shared.encode_query, shared.submit,
        lambda texts, **given: asyncio.run(asynchronous.encode(texts, **given)),
    )  # fmt: skip


def test_arguments_of_sentence_transformers_are_explained(tiny: Encoder) -> None:
    for encode in encoding(tiny):
        for name, part in (
            ("batch_size", "texts are batched by their tokens; leave it out"),
            ("convert_to_tensor", r"torch\.from_numpy"),
            ("prompt", "prompt_name="),
        ):
            with pytest.raises(InputTypeError, match=f"argument {name}: .*{part}"):
                encode(["a cat"], **{name: 32})
        with pytest.raises(TypeError, match="nonsense") as raised:
            encode(["a cat"], nonsense=1)
        assert not isinstance(raised.value, InputTypeError)


def test_arguments_of_other_loads_are_explained() -> None:
    for load in (Encoder.load, Reranker.load):
        for name, instead in OF_LOAD.items():
            with pytest.raises(InputTypeError) as raised:
                load("mini", **{name: None})
            assert str(raised.value) == f"there is no argument {name}: {instead}"
        with pytest.raises(TypeError, match="nonsense"):
            load("mini", nonsense=1)  # type: ignore[call-arg]


def test_texts_have_no_similarity_before_they_are_encoded(tiny: Encoder) -> None:
    for wrong in ("a text", ["1", "2"]):
        with pytest.raises(InputTypeError, match=r"^b must be vectors, not texts: encode them"):
            tiny.similarity([1, 2], wrong)
    with pytest.raises(InputTypeError, match=r"^a must be vectors of numbers: "):
        tiny.similarity([[1, 2], [3]], [1, 2])


def test_arguments_of_cross_encoders_are_explained(reranker: Reranker) -> None:
    with SharedReranker(reranker) as shared:
        for score in (reranker.predict, reranker.score_pairs, shared.predict):
            with pytest.raises(InputTypeError, match="batch_size: pairs are batched"):
                score(PAIR, batch_size=2)  # type: ignore[call-arg]
        for rank in (reranker.rank, shared.rank):
            with pytest.raises(InputTypeError, match='activation="identity"'):
                rank("who swims?", ["a dog"], activation_fn=None)  # type: ignore[call-arg]


def test_arguments_of_other_stores_are_explained(tmp_path: Path) -> None:
    with Collection.create(tmp_path / "c", dim=2) as c:
        c.add_vectors(["a"], np.ones((1, 2)))
        for call, part in (
            (lambda: c.add(["b"], documents=["x"]), "documents: write texts="),
            (lambda: c.add(ids=["b"], embeddings=[[1, 2]]), "embeddings: add_vectors takes them"),
            (lambda: c.add_vectors(["b"], [[1, 2]], metadatas=[{}]), "write metadata="),
            (lambda: c.search([1, 2], top_k=3), "top_k: write k="),
            (lambda: c.search(query_texts=["x"], n_results=2), "query_texts: give a text to"),
            (lambda: c.search_batch([[1, 2]], where={}), "where: write filter="),
            (lambda: c.get(where={"a": 1}), "where: write filter="),
            (lambda: c.delete(where={"a": 1}), "where: write filter="),
            (lambda: c.delete(where_document={}), r"write filter=\{.\$text"),
            (lambda: c.update_metadata(["a"], metadatas=[{}]), "metadatas: write changes="),
        ):
            with pytest.raises(InputTypeError, match=part):
                call()  # type: ignore[no-untyped-call]
        assert c.ids() == ["a"]


def test_the_first_of_several_is_named(tiny: Encoder) -> None:
    with pytest.raises(InputTypeError, match="no argument prompt:"):
        tiny.encode("a", prompt="x", batch_size=3)  # type: ignore[call-arg]
