"""The demonstration must find what a reader would find."""

from __future__ import annotations

from pathlib import Path

from flowvec import Collection, Encoder
from flowvec.demo import load_pairs, load_passages


def test_the_passages_are_short_and_the_pairs_point_into_them() -> None:
    passages, pairs = load_passages(), load_pairs()
    assert 300 <= len(passages) <= 600
    assert len({passage.id for passage in passages}) == len(passages)
    assert all(20 <= len(passage.text.split()) <= 100 for passage in passages)
    assert len(pairs) == 20
    assert {pair.passage for pair in pairs} <= {passage.id for passage in passages}


def test_the_shipped_model_finds_the_passages(tmp_path: Path, mini: Encoder) -> None:
    passages, pairs = load_passages(), load_pairs()
    with Collection.create(tmp_path / "c", encoder=mini) as collection:
        collection.add([p.id for p in passages], [p.text for p in passages])
        results = collection.search_batch([pair.query for pair in pairs], k=5)
    best = [
        any(hit.id == pair.passage for hit in hits)
        for pair, hits in zip(pairs, results, strict=True)
    ]
    assert sum(best) / len(best) >= 0.8


def test_the_bundle_in_the_package_is_small() -> None:
    folder = Encoder.load("mini", provider="cpu").bundle.path
    assert sum(file.stat().st_size for file in folder.iterdir()) <= 15e6
