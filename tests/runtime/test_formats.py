"""Files of the formats of today are read, and have the same content as when they were written."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flowvec import Collection, Encoder, Hit, SparseVectors
from flowvec.bundle.manifest import FORMAT_VERSION
from flowvec.collection.store.meta import LAYOUT_VERSION
from tests.data.make_formats import token_vectors
from tests.inside import run_sql

FORMATS = Path(__file__).resolve().parents[1] / "data/formats"
BUNDLE = f"bundle-v{FORMAT_VERSION}"
COLLECTION = f"collection-v{LAYOUT_VERSION}"


def told(name: str):
    return json.loads((FORMATS / f"{name}.json").read_text(encoding="utf-8"))


def test_there_are_fixtures_of_every_version() -> None:
    assert [path.stem for path in FORMATS.glob("bundle-*.json")] == [BUNDLE]
    assert [path.stem for path in FORMATS.glob("collection-*.json")] == [COLLECTION]


def test_a_bundle_gives_the_same_results_as_before() -> None:
    expected = told(BUNDLE)
    with Encoder.load(FORMATS / BUNDLE, provider="cpu", compute="float32") as encoder:
        np.testing.assert_allclose(
            encoder.encode(expected["texts"]), expected["vectors"], atol=1e-5
        )


def _has_sparse(collection: Collection, ids: list[str | int], expected: dict[str, Any]) -> None:
    found = collection.get_sparse(ids)
    weights = [None if v is None else list(map(list, v.as_dicts()[0].items())) for v in found]
    assert weights == expected["sparse"]
    terms, values = zip(*expected["sparse_query"], strict=True)
    query = SparseVectors(
        np.array([0, len(terms)]),
        np.array(terms, np.int32),
        np.array(values, np.float32),
        collection.info().sparse_dim or 0,
    )
    hits = [[hit.id, hit.score] for hit in collection.search_sparse(query, 5)]
    assert hits == expected["sparse_hits"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(FORMATS / COLLECTION, tmp_path / "c"))


def test_a_collection_keeps_its_rows_and_can_be_written(folder: Path) -> None:
    expected = told(COLLECTION)
    query = expected["query"]
    with Collection.open(folder, index="graph", exact_below=20) as collection:
        rows = [[r.id, r.text, r.metadata, r.vector.tolist()] for r in collection.rows()]
        assert rows == expected["rows"]
        _are_hits(collection.search(query, k=5), expected["hits"])
        words = {"text": expected["text"], "hybrid": True, "vector_weight": 0.0}
        _are_hits(collection.search(query, k=5, **words), expected["word_hits"])
        _has_sparse(collection, [row[0] for row in rows], expected)
        found = token_vectors(collection)
        tokens = [found[row[0]].tolist() if row[0] in found else None for row in rows]
        assert tokens == expected["tokens"]
        info = collection.info()
        assert (info.full_text, info.indexed_fields) == ("unicode61", ("n",))
        assert collection.verify() == []
        collection.add_vectors(["new"], [query], ["new"], [{"n": 3}])
        collection.delete([rows[0][0]])
        assert len(collection) == len(rows)
    with Collection.open(folder, index="graph", exact_below=20) as collection:
        assert {item.id for item in collection.rows()} == {*(row[0] for row in rows[1:]), "new"}
        assert collection.verify() == []


def test_a_graph_is_read_and_not_built_again(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "flowvec")  # building a graph is said
    with Collection.open(folder, index="graph", exact_below=20) as collection:
        collection.prepare()
        expected = told(COLLECTION)
        _are_hits(collection.search(expected["query"], k=5), expected["hits"])
        assert collection.info().graph_rows > 20
    assert "building the graph" not in caplog.text
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_a_new_collection_has_the_tables_of_the_fixture(folder: Path, tmp_path: Path) -> None:
    """Other tables are another layout, which needs another number and another fixture."""
    with Collection.create(tmp_path / "new", dim=2) as collection:
        collection.create_index("n")
        collection.index_texts()
    assert _schema(tmp_path / "new") == _schema(folder)


def _schema(folder: Path) -> dict[str, list[str]]:
    """The words of each statement; tables of the full-text index itself are SQLite's."""
    made = run_sql(
        folder,
        "SELECT name, sql FROM sqlite_master WHERE NOT (type = 'table' AND name LIKE 'words_%')",
    )
    return {name: (sql or "").split() for name, sql in made}


def _are_hits(hits: list[Hit], expected: list[list[Any]]) -> None:
    assert [hit.id for hit in hits] == [item for item, _ in expected]
    scores = [score for _, score in expected]
    np.testing.assert_allclose([hit.score for hit in hits], scores, rtol=1e-5)
