"""Make the fixtures of `tests/data/formats`: a bundle and collections of one version.

    python tests/data/make_formats.py v3 v2

The first is the version of collections, the second that of bundles, which is made if it is not
there. Run it once for each version, before that version is released, and never again: every later
version must open what an earlier one wrote. Beside each lies what it must give.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
import sys
from pathlib import Path
from typing import Any

import numpy as np

from flowvec import Collection, Encoder, MultiVectorEncoder, SparseVectors
from flowvec.collection.store.writer_locks import LOCK_FILES

DATA = Path(__file__).resolve().parent
FORMATS = DATA / "formats"
TEXTS = ["the cat sleeps", "a dog runs", "stocks fell", "a man eats bread", "", "the red bread"]
QUERY = "the dog sleeps"


def vectors(rows: int, dim: int) -> np.ndarray:
    """Whole numbers, so that every machine has the same."""
    return np.random.default_rng(0).integers(-9, 10, size=(rows, dim)).astype(np.float32)


def sparse(rows: int) -> SparseVectors:
    """Whole numbers as weights; the last row has none."""
    random = np.random.default_rng(1)
    dense = random.integers(0, 4, size=(rows, 12)) * (random.random((rows, 12)) < 0.4)
    dense[-1] = 0
    row, term = np.nonzero(dense)
    indptr = np.searchsorted(row, np.arange(rows + 1))
    return SparseVectors(indptr, term.astype(np.int32), dense[row, term].astype(np.float32), 12)


def main(version: str, bundle_version: str) -> None:
    bundle = FORMATS / f"bundle-{bundle_version}"
    is_new = not bundle.exists()
    if is_new:
        shutil.copytree(DATA / "bundles/tiny", bundle)
    with Encoder.load(bundle, provider="cpu") as encoder:
        if is_new:
            _write(bundle, {"texts": TEXTS, "vectors": encoder.encode(TEXTS).tolist()})
        folder = FORMATS / f"collection-{version}-texts"
        with Collection.create(folder, encoder=encoder) as collection:
            collection.add(
                ["a", 1, "1", 2**70, "é"], TEXTS[:5], [{"n": 1}, None, {}, None, {"a": [1]}]
            )
            collection.add(["a"], [TEXTS[5]], [{"n": 2}])
            collection.delete([1])
            _upgrade(collection, version)
            _write(folder, _told(collection, encoder.encode_query(QUERY)))
    _rename_model(folder, bundle.name)
    folder = FORMATS / f"collection-{version}-vectors"
    with Collection.create(folder, dim=6, metric="ip", exact_below=20) as collection:
        collection.add_vectors(range(80), vectors(80, 6), [f"text {i}" for i in range(80)])
        collection.delete(range(0, 80, 9))
        _upgrade(collection, version)
        query = vectors(81, 6)[80]
        collection.prepare()  # builds the graph
        _write(folder, _told(collection, query))
    _rename_token_model(folder)


def _upgrade(collection: Collection, version: str) -> None:
    if version == "v3":  # what makes a file version 3
        collection.index_texts(tokenizer="trigram")
    if version == "v4":
        ids = [item.id for item in _rows(collection)][1:]  # the first row has none
        collection.set_sparse(ids, sparse(len(ids)))
    if version == "v5":
        with MultiVectorEncoder.load(DATA / "bundles/multi_vector", provider="cpu") as encoder:
            is_small = len(collection) < 10
            collection.add_token_vectors(encoder, dtype="float16" if is_small else "signs")
            collection.add_vectors(["no tokens"], vectors(1, collection.info().dim), ["later"])
    if version == "v6":
        collection.index_texts()


def _rename_model(folder: Path, name: str) -> None:
    """Where the bundle lay when this was made is nobody's business."""
    with Collection.open(folder) as collection, collection._store.transaction():
        collection._store.meta.write_settings({"model": name})
    _rename_token_model(folder)


def _rename_token_model(folder: Path) -> None:
    with Collection.open(folder) as collection, collection._store.transaction():
        if collection._store.tokens.has_any:
            collection._store.meta.write_settings({"token_model": "multi_vector"})
    _tidy(folder)


def _tidy(folder: Path) -> None:
    """Keep the rows and the graph: the copy of the vectors is large, and made again."""
    db = sqlite3.connect(folder / "collection.sqlite", isolation_level=None)
    db.execute("DELETE FROM meta WHERE key LIKE 'vectors %'")
    db.execute("VACUUM")
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    db.close()
    for file in folder.iterdir():
        if file.suffix in (".lock", ".f32") or file.name in LOCK_FILES:
            file.unlink()


def _told(collection: Collection, query: np.ndarray) -> dict[str, Any]:
    rows = [[item.id, item.text, item.metadata, item.vector.tolist()] for item in _rows(collection)]
    hits = [[hit.id, hit.score] for hit in collection.search(query, k=5)]
    told: dict[str, Any] = {"rows": rows, "query": query.tolist(), "hits": hits}
    if collection.info().sparse_rows:
        found = collection.get_sparse([row[0] for row in rows])
        told["sparse"] = [None if v is None else list(v.as_dicts()[0].items()) for v in found]
        told["sparse_hits"] = [[h.id, h.score] for h in collection.search_sparse(sparse(2)[0], 5)]
        told["sparse_query"] = list(sparse(2).as_dicts()[0].items())
    if collection.info().token_rows:
        found = token_vectors(collection)
        told["tokens"] = [found[row[0]].tolist() if row[0] in found else None for row in rows]
    return told


def token_vectors(collection: Collection) -> dict[Any, np.ndarray]:
    """The stored token vectors by id."""
    items = {item.label: item for item in _rows(collection)}
    found = collection._store.tokens.read({n: item.text or "" for n, item in items.items()})
    return {items[label].id: vectors for label, vectors in found.items()}


def _rows(collection: Collection) -> list[Any]:
    return [item for page in collection._store.scan() for item in page]


def _write(beside: Path, told: dict[str, Any]) -> None:
    path = beside.with_name(f"{beside.name}.json")
    path.write_text(json.dumps(told, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:3])
