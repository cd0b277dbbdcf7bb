"""Every version opens what earlier versions wrote, and finds the same content in it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flowvec import Collection, CollectionBusyError, Encoder, SparseVectors
from flowvec.bundle.manifest import FORMAT_VERSION
from flowvec.collection.index.snapshots import GraphSnapshots
from flowvec.collection.store.meta import LAYOUT_VERSIONS
from tests.data.make_formats import token_vectors

FORMATS = Path(__file__).resolve().parents[1] / "data/formats"
COLLECTIONS = sorted(path.stem for path in FORMATS.glob("collection-*.json"))


def told(name: str):
    return json.loads((FORMATS / f"{name}.json").read_text(encoding="utf-8"))


def test_there_are_fixtures_of_every_version() -> None:
    versions = [f"collection-v{version}" for version in LAYOUT_VERSIONS]
    assert {f"{v}-{kind}" for v in versions for kind in ("texts", "vectors")} == set(COLLECTIONS)


def test_a_bundle_gives_the_same_results_as_before() -> None:
    name = f"bundle-v{FORMAT_VERSION}"
    expected = told(name)
    with Encoder.load(FORMATS / name, provider="cpu", compute="float32") as encoder:
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


@pytest.mark.parametrize("name", COLLECTIONS)
def test_an_old_collection_keeps_its_rows_and_can_be_written(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = told(name)
    shutil.copytree(FORMATS / name, tmp_path / "c")
    with Collection.open(tmp_path / "c", exact_below=20) as collection:
        rows = [[r.id, r.text, r.metadata, r.vector.tolist()] for r in collection.rows()]
        assert rows == expected["rows"]
        hits = collection.search(expected["query"], k=5)
        assert [hit.id for hit in hits] == [i for i, _ in expected["hits"]]
        np.testing.assert_allclose(
            [hit.score for hit in hits], [score for _, score in expected["hits"]], rtol=1e-5
        )
        assert collection.info().sparse_rows == 0 or "sparse" in expected
        if "sparse" in expected:  # layout 4
            _has_sparse(collection, [row[0] for row in rows], expected)
        assert (collection.info().token_rows > 0) == ("tokens" in expected)
        if "tokens" in expected:  # layout 5
            found = token_vectors(collection)
            told_tokens = [found[row[0]].tolist() if row[0] in found else None for row in rows]
            assert told_tokens == expected["tokens"]
        assert collection.verify() == []
        tokenizers = {"v3": "trigram", "v6": "unicode61"}
        assert collection.info().full_text == tokenizers.get(name.split("-")[1])
        collection.add_vectors(["new"], [expected["query"]], ["new"], [{"n": 3}])
        collection.delete([rows[0][0]])
        assert len(collection) == len(rows)
    with Collection.open(tmp_path / "c", exact_below=20) as collection:
        assert {item.id for item in collection.rows()} == {*(row[0] for row in rows[1:]), "new"}
        assert collection.verify() == []


@pytest.mark.parametrize("kind", ["texts", "vectors"])
def test_an_earlier_full_text_index_is_made_again_once(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its words were split and folded otherwise. Changes before that keep it up to date."""
    shutil.copytree(FORMATS / f"collection-v3-{kind}", tmp_path / "c")
    with Collection.open(tmp_path / "c") as collection:
        vector = np.ones(collection.info().dim)
        collection.add_vectors(["new"], [vector], ["cafe\u0301"])
        assert collection.verify() == []
        with (
            Collection.open(tmp_path / "c", write_timeout=0) as other,
            collection._access.writing(),
            pytest.raises(CollectionBusyError, match="is of an earlier version"),
        ):
            other.search(vector, text="CAFÉ", hybrid=True)
        for _ in range(2):
            hits = collection.search(vector, 9, text="CAFÉ", hybrid=True, vector_weight=0.0)
            assert [hit.id for hit in hits if hit.score > 0] == ["new"]
        assert caplog.text.count("made again, once") == 1
        assert collection.info().full_text == "trigram"
        collection.delete(["new"])
        assert collection.verify() == []


@pytest.mark.parametrize("name", COLLECTIONS)
def test_a_graph_of_an_earlier_version_is_built_again_once(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Equal rows were nodes of their own, and hid others."""
    if not list((FORMATS / name).glob("graph-*.hnsw")):
        return  # too few rows for a graph
    built: list[int] = []
    new = GraphSnapshots.new
    monkeypatch.setattr(
        GraphSnapshots, "new", lambda one, rows: (built.append(rows), new(one, rows))[1]
    )
    shutil.copytree(FORMATS / name, tmp_path / "c")
    for _ in range(2):
        with Collection.open(tmp_path / "c", exact_below=20) as collection:
            collection.prepare()
            assert len(built) == 1
            assert len(collection.search(told(name)["query"], k=5)) == 5
            assert collection.verify() == []
