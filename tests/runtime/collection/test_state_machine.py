"""A collection against a dict: random sequences of calls."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from flowvec import (
    Collection,
    Hit,
)
from tests.drawing import examples

IDS = st.one_of(st.integers(-2, 8), st.sampled_from(["1", "2", "x", "é"]))


VECTOR = st.lists(st.integers(-3, 3), min_size=2, max_size=2)


class CollectionAgainstADict(RuleBasedStateMachine):
    """Any sequence of calls, with reopening, against a dict and a sort."""

    @initialize()
    def start(self) -> None:
        import tempfile

        self.folder = tempfile.TemporaryDirectory()
        self.path = Path(self.folder.name) / "c"
        self.collection = Collection.create(self.path, dim=2, metric="ip")
        self.rows: dict[tuple[type, object], tuple[list[int], str | None]] = {}

    @rule(rows=st.lists(st.tuples(IDS, VECTOR, st.one_of(st.none(), st.text(max_size=3)))))
    def add(self, rows) -> None:
        ids, vecs, texts = [list(x) for x in zip(*rows, strict=True)] if rows else ([], [], [])
        self.collection.add_vectors(ids, vecs, texts)
        for i, v, t in rows:
            clean = (
                None
                if t is None
                else t.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
            )
            self.rows[type(i), i] = (v, clean)

    @rule(ids=st.lists(IDS))
    def delete(self, ids) -> None:
        expected = {(type(i), i) for i in ids} & self.rows.keys()
        assert self.collection.delete(ids) == len(expected)
        for key in expected:
            del self.rows[key]

    @rule(query=VECTOR, k=st.integers(1, 12))
    def search(self, query, k) -> None:
        hits: list[Hit] = self.collection.search(query, k=k)
        scores = sorted((float(np.dot(v, query)) for v, _ in self.rows.values()), reverse=True)
        # A graph scales vectors, so that its scores are rounded.
        assert [hit.score for hit in hits] == pytest.approx(scores[:k], abs=1e-4)
        assert len({(type(h.id), h.id) for h in hits}) == len(hits)
        for hit in hits:
            vector, text = self.rows[type(hit.id), hit.id]
            assert float(np.dot(vector, query)) == pytest.approx(hit.score, abs=1e-4)
            assert text == hit.text

    @rule(graph=st.booleans())
    def reopen(self, graph: bool) -> None:
        self.collection.close()
        self.collection = Collection.open(
            self.path, index="graph", exact_below=3 if graph else 10_000
        )

    @invariant()
    def size(self) -> None:
        if hasattr(self, "collection"):
            assert len(self.collection) == len(self.rows)

    def teardown(self) -> None:
        if hasattr(self, "collection"):
            self.collection.close()
            self.folder.cleanup()


TestAgainstADict = CollectionAgainstADict.TestCase
TestAgainstADict.settings = examples(40, stateful_step_count=15)
