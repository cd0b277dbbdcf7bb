"""Searches with a filter over metadata."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flowvec import (
    Collection,
    Encoder,
    InputValueError,
)
from flowvec.collection.index.choice import IndexKind
from flowvec.collection.index.hnsw import EF_SEARCH, Graph
from flowvec.collection.index.search import search_graph
from flowvec.collection.index.vector_table import VectorTable
from tests.makers import vectors
from tests.runtime.collection.store.test_filters import matches


class CountingGraph(Graph):
    """A graph that notes how many queries each search has."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.asked: list[int] = []

    def search(self, queries: np.ndarray, *args: Any, **options: Any) -> Any:
        self.asked.append(len(queries))
        return super().search(queries, *args, **options)


def test_a_filtered_batch_is_the_same_in_parts() -> None:
    labels, rows = np.arange(1, 1001), vectors(1000, dim=4)
    table, graph = VectorTable(4, "ip"), CountingGraph(4, "ip", rows=1000)
    table.append(labels, rows)
    graph.add(labels, rows)
    eligible, queries = labels % 2 == 0, vectors(30, seed=1, dim=4)
    whole = search_graph(table, graph, 1000, queries, 5, eligible)
    graph.asked.clear()
    parts = search_graph(table, graph, 1000, queries, 5, eligible, most_fetched=3 * EF_SEARCH)
    assert graph.asked[:1] == [3]
    assert sum(asked == 3 for asked in graph.asked) == 10
    assert whole is not None
    assert parts is not None
    np.testing.assert_array_equal(parts.labels, whole.labels)
    np.testing.assert_array_equal(parts.scores, whole.scores)
    np.testing.assert_array_equal(parts.is_done, whole.is_done)


class Columns(dict[str, list[Any]]):
    """What DataFrames have in common."""

    @property
    def columns(self) -> list[str]:
        return list(self)


def test_a_date_is_filtered_by_its_stored_text(tmp_path: Path) -> None:

    with Collection.create(tmp_path / "c", dim=4) as c:
        when = Columns(when=[date(2026, 1, 2), date(2026, 3, 4)])
        c.add_vectors([1, 2], vectors(2, dim=4), metadata=when)
        hits = c.search(vectors(1, dim=4)[0], filter={"when": {">": date(2026, 2, 1)}})
        assert [hit.id for hit in hits] == [2]


@pytest.mark.parametrize(
    ("index", "exact_below"), [("graph", 0), ("graph", 20), ("graph", 10_000), ("scan", 0)]
)
def test_a_filtered_search_finds_the_nearest_eligible_rows(
    tmp_path, index: IndexKind, exact_below: int
) -> None:
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(600, 8)).astype(np.float32)
    metadata = [{"even": i % 2 == 0, "n": i} if i % 10 else None for i in range(600)]
    queries = rng.normal(size=(5, 8)).astype(np.float32)
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    cosines = (queries / np.linalg.norm(queries, axis=1, keepdims=True)) @ unit.T
    with Collection.create(
        tmp_path / "c", dim=8, index=index, exact_below=exact_below
    ) as collection:
        collection.add_vectors(list(range(600)), rows, metadata=metadata)
        collection.delete(list(range(7, 600, 50)))
        for wanted in (
            {"even": True}, {"n": {"<": 12}}, {"n": {">=": 0}}, {"n": {"exists": False}},
            {"n": 3}, {"n": -1}, {},
        ):  # fmt: skip
            able = [i for i in range(600) if i % 50 != 7 and matches(wanted, metadata[i])]
            for k in (1, 10, 700):
                batch = collection.search_batch(queries, k, filter=wanted)
                for hits, line in zip(batch, cosines, strict=True):
                    assert len(hits) == min(k, len(able))
                    ids = [hit.id for hit in hits]
                    assert set(ids) <= set(able)
                    assert len(set(ids)) == len(ids)
                    scores = [hit.score for hit in hits]
                    assert scores == sorted(scores, reverse=True)
                    best = sorted((line[i] for i in able), reverse=True)[: len(hits)]
                    if exact_below or index == "scan" or len(hits) == len(able):
                        assert scores == pytest.approx(best, abs=1e-5)
                    else:  # by a graph: near enough
                        assert np.mean(scores) >= np.mean(best) - 0.02 if scores else True
        with pytest.raises(InputValueError, match="not an operator"):
            collection.search(queries[0], 3, filter={"n": {"like": 1}})
        assert [hit.id for hit in collection.search(queries[0], 1, filter={"n": 3})] == [3]


@pytest.mark.parametrize("hybrid", [False, True])
def test_a_search_may_filter_by_id_and_text(tmp_path: Path, tiny: Encoder, hybrid: bool) -> None:
    with Collection.create(tmp_path / "c", encoder=tiny) as c:
        c.add(["a", "b", 3], ["the cat sleeps", "the dog", "a cat"], [{"id": "b"}, None, None])
        for wanted, ids in (
            ({"$id": {"in": ["a", 3]}}, {"a", 3}), ({"$text": {"contains": "cat"}}, {"a", 3}),
            ({"$text": {"starts with": "the"}}, {"a", "b"}), ({"id": "b"}, {"a"}),
            ({"not": {"$id": "a"}, "$text": {"contains": "cat"}}, {3}),
        ):  # fmt: skip
            assert {hit.id for hit in c.search("a cat", filter=wanted, hybrid=hybrid)} == ids
            assert set(c.ids(wanted)) == ids
        assert c.delete(filter={"$id": {"in": ["a", "b"]}, "$text": {"contains": "dog"}}) == 1
        assert c.ids() == ["a", 3]
        assert c.verify() == []


def test_the_search_command_takes_a_filter(flowvec, tmp_path) -> None:
    rows = [{"id": "a", "text": "A cat sleeps.", "lang": "en"},
            {"id": "b", "text": "A cat sleeps.", "lang": "de"}]  # fmt: skip
    (tmp_path / "t.jsonl").write_text("\n".join(map(json.dumps, rows)))
    made = flowvec("index", tmp_path / "c", tmp_path / "t.jsonl", "--model", "mini",
                   "--id-field", "id", "--keep", "lang")  # fmt: skip
    assert made.returncode == 0, made.stderr
    done = flowvec("search", tmp_path / "c", "cat", "--filter", '{"lang": "de"}', "--json")
    assert [hit["id"] for hit in json.loads(done.stdout)] == ["b"]
    for wrong, part in (("{", "--filter is not JSON"), ('{"a": {"~": 1}}', "is not an operator")):
        done = flowvec("search", tmp_path / "c", "cat", "--filter", wrong)
        assert done.returncode == 2
        assert part in done.stderr
