"""Hits that share a field are merged: the best of each, and enough of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowvec import Collection, Encoder, Hit, InputTypeError, InputValueError
from tests.drawing import examples
from tests.makers import vectors

GROUPS = st.sampled_from([None, 1, "1", True, 1.0, "a", [1], {"b": 2}, "missing"])


def merged(hits: list[Hit], k: int) -> list[Hit]:
    """The best hit of each group of all rows, by Python."""
    first: dict[Any, Hit] = {}
    for place, hit in enumerate(hits):
        value = (hit.metadata or {}).get("g")
        # As filters compare: 1 is 1.0, and neither True nor "1".
        kind = "number" if type(value) in (int, float) else type(value)
        value = float(value) if kind == "number" else value
        first.setdefault(place if value is None else f"{kind} {value}", hit)
    return list(first.values())[:k]


@examples(60)
@given(groups=st.lists(GROUPS, min_size=1, max_size=60), k=st.integers(1, 12))
@pytest.mark.parametrize("exact_below", [10_000, 5])
def test_the_best_row_of_each_group_is_a_hit(
    tmp_path_factory: Any, groups: list[Any], k: int, exact_below: int
) -> None:
    rows = vectors(len(groups))
    metadata = [None if g == "missing" else {"g": g} for g in groups]
    path = tmp_path_factory.mktemp("c") / "c"
    with Collection.create(path, dim=8, index="graph", exact_below=exact_below) as c:
        c.add_vectors(range(len(groups)), rows, metadata=metadata)
        for query in vectors(2, seed=1):
            every = c.search(query, len(groups), exact=True)
            found = c.search(query, k, group_by="g", exact=True)
            assert found == merged(every, k)
            assert c.search(query, 3, offset=2, group_by="g", exact=True) == merged(every, 5)[2:]
            least = every[len(every) // 2].score
            expected = [hit for hit in merged(every, k) if hit.score >= least]
            assert c.search(query, k, group_by="g", exact=True, min_score=least) == expected
        batch = c.search_batch(vectors(2, seed=1), k, group_by="g", exact=True)
        for line, query in zip(batch, vectors(2, seed=1), strict=True):
            alone = c.search(query, k, group_by="g", exact=True)
            assert [hit.id for hit in line] == [hit.id for hit in alone]


@pytest.mark.parametrize(
    ("values", "groups"),
    [
        ([7, 7.0], 1), ([-0.0, 0], 1), ([True, 1], 2), ([1, "1"], 2), ([2**63, float(2**63)], 1),
        ([2**64 - 1, 2**64], 2), ([[1], [1.0]], 1), ([{"a": 2}, {"a": 2.0}], 1),
    ],
)  # fmt: skip
def test_groups_are_of_values_that_filters_find_equal(
    tmp_path: Path, values: list[Any], groups: int
) -> None:
    with Collection.create(tmp_path / "c", dim=2) as c:
        c.add_vectors([0, 1], np.ones((2, 2)), metadata=[{"g": value} for value in values])
        assert len(c.search([1, 1], 9, group_by="g")) == groups
        if not isinstance(values[0], list | dict):
            assert c.count({"g": values[0]}) == 3 - groups


@pytest.mark.parametrize("exact_below", [10_000, 5])
def test_many_rows_of_one_group_do_not_hide_the_others(tmp_path: Path, exact_below: int) -> None:
    """A thousand near rows are one group; the k others are found behind them."""
    near = np.array([1, 0, 0]) + vectors(1000, 3) / 100
    far = np.array([0, 1, 0]) + vectors(9, 3, seed=1) / 100
    groups = [{"p": {"id": "near"}}] * 1000 + [{"p": {"id": n}} for n in range(9)]
    with Collection.create(tmp_path / "c", dim=3, index="graph", exact_below=exact_below) as c:
        c.add_vectors(range(1009), np.concatenate([near, far]), metadata=groups)
        hits = c.search([1, 0, 0], 10, group_by="p.id")
        assert hits[0].id in range(1000)
        assert {hit.id for hit in hits[1:]} == set(range(1000, 1009))
        assert len(c.search([1, 0, 0], 20, group_by="p.id")) == 10
        only = c.search([1, 0, 0], 5, group_by="p.id", filter={"p.id": {"!=": "near"}})
        assert {hit.id for hit in only} <= set(range(1000, 1009))
        assert len(only) == 5


def test_chunks_are_found_by_their_texts(tmp_path: Path, mini: Encoder, reranker: Any) -> None:
    texts = {
        "cats": "Cats sleep most of the day. A cat hunts mice at night. Cats like fish.",
        "stocks": "Stocks fell on Monday. Investors sold bonds. A cat was seen on Wall Street.",
        "rain": "It rains in April. Clouds bring water.",
    }
    chunks = mini.split_texts(texts.values(), max_tokens=12)
    ids = list(texts)
    with Collection.create(tmp_path / "c", encoder=mini) as c:
        c.add(
            [f"{ids[chunk.parent]}#{chunk.start}" for chunk in chunks],
            [chunk.text for chunk in chunks],
            [{"parent": ids[chunk.parent], "start": chunk.start} for chunk in chunks],
        )
        assert len(c) > 5
        for options in ({}, {"hybrid": True}, {"rerank": reranker, "rerank_from": 3}):
            hits = c.search("cats sleep", 3, group_by="parent", **options)  # type: ignore[arg-type]
            parents = [(hit.metadata or {})["parent"] for hit in hits]
            assert sorted(parents) == sorted(ids)
            if "rerank" not in options:
                assert parents[0] == "cats"
        one = c.search("a cat on Wall Street", 1, group_by="parent")[0]
        start = (one.metadata or {})["start"]
        assert texts["stocks"][start:].startswith(one.text or "")


@pytest.mark.parametrize("wrong", ["$id", "$text", "", "a..b", ".", 3, ["g"]])
def test_only_a_field_can_group(tmp_path: Path, wrong: Any) -> None:
    with Collection.create(tmp_path / "c", dim=2) as c:
        c.add_vectors([1], [[1, 0]])
        with pytest.raises((InputTypeError, InputValueError), match="group_by"):
            c.search([1, 0], group_by=wrong)
