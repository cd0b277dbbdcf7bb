"""Rows that meet a filter: remembered, and evaluated again after a change."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from flowvec import (
    Collection,
)
from flowvec.collection.store.filters import Condition
from flowvec.collection.store.store import Store
from tests.makers import vectors


def test_a_repeated_filter_follows_every_change(tmp_path: Path) -> None:
    wanted = {"kind": "x"}
    with Collection.create(tmp_path / "c", dim=8) as c, Collection.open(tmp_path / "c") as reader:
        expected: set[int] = set()
        for n in range(12):
            c.add_vectors([n], vectors(1, seed=n), metadata=[{"kind": "x" if n % 2 else "y"}])
            if n % 2:
                expected.add(n)
            if n % 4 == 3:
                c.delete([n - 2])
                expected.discard(n - 2)
            for handle in (c, reader, c, reader):
                assert {h.id for h in handle.search(vectors(1)[0], k=99, filter=wanted)} == expected


def test_a_filter_is_evaluated_once_until_something_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    statements: list[str] = []
    labels = Store.labels

    def watched(self: Store, condition: Condition | None = None, after: int = 0) -> np.ndarray:
        if condition is not None:
            statements.append(condition.sql)
        return labels(self, condition, after)

    monkeypatch.setattr(Store, "labels", watched)
    with Collection.create(tmp_path / "c", dim=8) as c:
        c.add_vectors([1, 2], vectors(2), metadata=[{"n": 1}, {"n": 2}])
        for _ in range(5):
            assert [h.id for h in c.search(vectors(1)[0], filter={"n": 2})] == [2]
        assert len(statements) == 1
        for n in range(100):  # more than are kept
            c.search(vectors(1)[0], filter={"n": n})
        assert len(c._index._eligible) == 32
