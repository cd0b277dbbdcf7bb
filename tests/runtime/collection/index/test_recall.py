"""Recall is measured, tuned and stored, and is not shown once it is outdated."""

from __future__ import annotations

from pathlib import Path

import pytest

from flowvec import (
    Collection,
    InputValueError,
)
from tests.makers import vectors


def test_an_outdated_recall_is_not_shown(tmp_path: Path) -> None:
    with Collection.create(tmp_path / "c", dim=4, index="graph", exact_below=20) as c:
        c.add_vectors(range(10), vectors(10, dim=4))
        assert c.info().recall == 1.0  # searched exactly
        c.add_vectors(range(100), vectors(100, dim=4))
        assert c.info().recall is None
        measured = c.tune_recall(0.9, queries=vectors(50, seed=3, dim=4))
        assert c.info().recall == measured >= 0.9
        c.add_vectors(range(140), vectors(140, dim=4))
        assert c.info().recall == measured
        c.add_vectors(range(200), vectors(200, dim=4))
        assert c.info().recall is None


def test_recall_is_measured_and_kept(tmp_path: Path) -> None:
    with Collection.create(tmp_path / "c", dim=8, index="graph", exact_below=50) as c:
        c.add_vectors(range(30), vectors(30))
        assert c.tune_recall(0.99) == 1.0  # searched exactly
        c.add_vectors(range(30, 900), vectors(870, seed=1))
        assert c.info().recall is None or c.info().recall == 1.0
        low = c.tune_recall(0.3)
        first = c.info()
        high = c.tune_recall(0.99)
        second = c.info()
        assert first.recall == low >= 0.3
        assert second.recall == high >= 0.99
        assert first.ef_search <= second.ef_search
    with Collection.open(tmp_path / "c", index="graph", exact_below=50) as c:
        assert (c.info().ef_search, c.info().recall) == (second.ef_search, second.recall)
        assert len(c.search(vectors(1)[0], k=5)) == 5
        for wrong in (0, 1.1, float("nan")):
            with pytest.raises(InputValueError):
                c.tune_recall(wrong)


def test_an_empty_collection_has_nothing_to_tune(tmp_path: Path) -> None:
    with Collection.create(tmp_path / "c", dim=8) as c:
        assert c.tune_recall() == 1.0
        assert c.info().recall == 1.0
