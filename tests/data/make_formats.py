"""Make the fixtures of `tests/data/formats`: a bundle and a collection, with what each must give.

    python tests/data/make_formats.py

A fixture that is there stays as it is. Run it after a format has got a new number.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from flowvec import Collection, Encoder, MultiVectorEncoder, SparseVectors
from flowvec.bundle.manifest import FORMAT_VERSION
from flowvec.collection.store.meta import LAYOUT_VERSION
from flowvec.collection.store.store import FILE, Store
from flowvec.collection.store.writer_locks import LOCK_FILES

DATA = Path(__file__).resolve().parent
FORMATS = DATA / "formats"
TEXTS = ["the cat sleeps", "a dog runs", "stocks fell", "a man eats bread", "", "the red bread"]
QUERY = "the red dog"


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


def make_bundle(bundle: Path) -> None:
    shutil.copytree(DATA / "bundles/tiny", bundle)
    with Encoder.load(bundle, provider="cpu") as encoder:
        _write(bundle, {"texts": TEXTS, "vectors": encoder.encode(TEXTS).tolist()})


def make_collection(folder: Path) -> None:
    """A collection of everything: replaced and deleted rows, a graph, indexes, other vectors."""
    with (
        Encoder.load(DATA / "bundles/tiny", provider="cpu") as encoder,
        MultiVectorEncoder.load(DATA / "bundles/multi_vector", provider="cpu") as multi_vector,
        Collection.create(
            folder, encoder=encoder, metric="ip", index="graph", exact_below=20
        ) as collection,
    ):
        metadata = [{"n": 1}, None, {}, None, {"a": [1]}]
        collection.add(["a", 1, "1", 2**70, "é"], TEXTS[:5], metadata)
        collection.add(["a"], [TEXTS[5]], [{"n": 2}])
        rows = range(10, 60)
        texts = [f"text {i}" for i in rows]
        collection.add_vectors(rows, vectors(len(rows), encoder.dim), texts)
        collection.delete([1, *rows[::9]])
        collection.update_metadata(["1"], {"n": 3})
        collection.create_index("n")
        collection.index_texts()
        ids = collection.ids()[1:]  # the first row has no sparse vector
        collection.set_sparse(ids, sparse(len(ids)))
        collection.add_token_vectors(multi_vector, dtype="signs")
        collection.add_vectors(["no tokens"], vectors(1, encoder.dim), ["later"])
        collection.prepare()  # builds the graph
        _write(folder, _told(collection, encoder.encode_query(QUERY)))
    _tidy(folder)


def _tidy(folder: Path) -> None:
    """Keep the rows and the graph: the copy of the vectors is large, and made again."""
    with closing(Store(folder / FILE)) as store, store.transaction():
        # Not where the bundles were, and not which flowvec this is.
        names = {"model": "tiny", "token_model": "multi_vector", "created_by": "flowvec"}
        store.meta.write_settings(names)
    db = sqlite3.connect(folder / "collection.sqlite", isolation_level=None)
    db.execute("DELETE FROM meta WHERE key LIKE 'vectors %'")
    db.execute("VACUUM")
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    db.close()
    for file in folder.iterdir():
        if file.suffix == ".f32" or file.name in LOCK_FILES:
            file.unlink()


def _told(collection: Collection, query: np.ndarray) -> dict[str, Any]:
    rows = list(collection.rows())
    ids = [row.id for row in rows]
    tokens = token_vectors(collection)
    words = collection.search(query, 5, text=QUERY, hybrid=True, vector_weight=0.0)
    return {
        "rows": [[row.id, row.text, row.metadata, row.vector.tolist()] for row in rows],
        "query": query.tolist(),
        "hits": _pairs(collection.search(query, 5)),
        "text": QUERY,
        "word_hits": _pairs(words),
        "sparse": [
            None if one is None else list(one.as_dicts()[0].items())
            for one in collection.get_sparse(ids)
        ],
        "sparse_query": list(sparse(2).as_dicts()[0].items()),
        "sparse_hits": _pairs(collection.search_sparse(sparse(2)[0], 5)),
        "tokens": [tokens[one].tolist() if one in tokens else None for one in ids],
    }


def token_vectors(collection: Collection) -> dict[Any, np.ndarray]:
    """The stored token vectors by id."""
    items = {item.label: item for item in collection.rows()}
    with closing(Store(Path(collection.info().path) / FILE)) as store:
        found = store.tokens.read({n: item.text or "" for n, item in items.items()})
    return {items[label].id: vectors for label, vectors in found.items()}


def _pairs(hits: list[Any]) -> list[list[Any]]:
    return [[hit.id, hit.score] for hit in hits]


def _write(beside: Path, told: dict[str, Any]) -> None:
    path = beside.with_name(f"{beside.name}.json")
    path.write_text(json.dumps(told, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    for make, name in (
        (make_bundle, f"bundle-v{FORMAT_VERSION}"),
        (make_collection, f"collection-v{LAYOUT_VERSION}"),
    ):
        if not (FORMATS / name).exists():
            make(FORMATS / name)
