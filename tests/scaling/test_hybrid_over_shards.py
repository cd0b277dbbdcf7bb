"""Searches by words and sparse vectors over shards: the hits and scores of one collection."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ray", reason="needs the extra [ray]")


from flowvec import Collection, SparseEncoder, SparseVectors
from flowvec.collection.results import Hit
from flowvec.errors import (
    CollectionError,
    FingerprintMismatchError,
    InputTypeError,
    InputValueError,
)
from flowvec.sharded import ShardedSearcher
from tests.inside import store_of

DIM, SPARSE_DIM = 8, 60
# More than the 500 rows that a hybrid search fuses of each ranking; and a shard without rows.
SIZES = (700, 0, 260, 640)
# Each shard has words, vectors and weights of its own kind, so that what is scaled or counted in a
# shard alone differs from what all rows have.
WORDS = (
    ["cat", "cats", "sleeps", "running"],
    ["cat"],
    ["stocks", "fell", "run", "cat", "on", "Straße"],
    ["weather", "cat", "東京の天気", "rain", "runs", "a"],
)


def _texts(rng: random.Random) -> list[str | None]:
    texts: list[str | None] = []
    for shard, size in enumerate(SIZES):
        for _ in range(size):
            words = rng.choices(WORDS[shard] + WORDS[0][:1], k=rng.randint(1, 5 + 20 * shard))
            texts.append(None if rng.random() < 0.03 else " ".join(words))
    return texts


def _dense(rng: np.random.Generator) -> Any:
    """Whole numbers, whose products and sums are exact in any order."""
    parts = [rng.integers(-9 - 20 * i, 50, (size, DIM)) for i, size in enumerate(SIZES)]
    return np.concatenate(parts).astype(np.float32)


def _sparse(rng: np.random.Generator) -> SparseVectors:
    rows = []
    for shard, size in enumerate(SIZES):
        weights = rng.integers(1, 4 + 5 * shard, (size, SPARSE_DIM))
        rows.append(np.where(rng.random((size, SPARSE_DIM)) < 0.1, weights, 0))
    return _sparse_of(np.concatenate(rows))


def _sparse_of(rows: Any) -> SparseVectors:
    indptr = np.cumsum([0, *np.count_nonzero(rows, axis=1)]).astype(np.int64)
    _, terms = np.nonzero(rows)
    return SparseVectors(indptr, terms.astype(np.int32), rows[rows != 0].astype(np.float32),
                         rows.shape[1])  # fmt: skip


def _some(vectors: SparseVectors, first: int, last: int) -> SparseVectors:
    return SparseVectors.joined([vectors[i] for i in range(first, last)])


pytestmark = pytest.mark.usefixtures("cluster")


@pytest.fixture(scope="module", params=[("ip", "unicode61"), ("l2", "trigram")])
def places(request, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A collection in shards, and one collection of the same rows in the same order."""
    metric, tokenizer = request.param
    folder = tmp_path_factory.mktemp("rows")
    rng = np.random.default_rng(7)
    texts, dense, sparse = _texts(random.Random(7)), _dense(rng), _sparse(rng)
    # The groups of `g` have rows in several shards, and some rows have none.
    metadata = [{"n": i % 3} | ({"g": i % 97} if i % 5 else {}) for i in range(len(texts))]
    shards = folder / "shards"
    shards.mkdir()
    (shards / "shards.json").write_text(
        json.dumps({"flowvec_shards": 1, "shards": len(SIZES), "model": "m", "fingerprint": "f"})
    )
    bounds = np.cumsum([0, *SIZES]).tolist()
    parts = [(shards / f"shard-{i:03}", *bounds[i : i + 2]) for i in range(len(SIZES))]
    for path, first, last in [*parts, (folder / "whole", 0, len(texts))]:
        with Collection.create(path, dim=DIM, metric=metric) as c:
            if first < last:
                c.add_vectors(
                    list(range(first, last)), dense[first:last], texts[first:last],
                    metadata[first:last], sparse=_some(sparse, first, last),
                )  # fmt: skip
            # The others make theirs at the first search, as a collection does.
            if tokenizer == "trigram":
                c.index_texts(tokenizer=tokenizer)
    return shards, folder / "whole"


@pytest.fixture(scope="module")
def whole(places: tuple[Path, Path]) -> Iterator[Collection]:
    with Collection.open(places[1]) as c:
        yield c


@pytest.fixture(scope="module")
def searcher(places: tuple[Path, Path]) -> Iterator[ShardedSearcher]:
    with ShardedSearcher(places[0], cpus_per_shard=0.1, timeout=120) as searcher:
        yield searcher


TEXTS = [
    "the cat sleeps", "run stocks", "cat cat rain", "Straße", "nothing of this", "東京の", "a"
]  # fmt: skip


def _queries(count: int) -> tuple[Any, SparseVectors]:
    rng = np.random.default_rng(11)
    dense = rng.integers(-20, 40, (count, DIM)).astype(np.float32)
    rows = np.where(rng.random((count, SPARSE_DIM)) < 0.2, rng.integers(1, 9, SPARSE_DIM), 0)
    return dense, _sparse_of(rows)


def _compared(hits: list[list[Hit]]) -> list[list[tuple[Any, ...]]]:
    return [[(hit.id, hit.text, hit.metadata) for hit in line] for line in hits]


def _assert_same(ours: list[list[Hit]], theirs: list[list[Hit]]) -> None:
    assert _compared(ours) == _compared(theirs)
    for name in ("score", "word_score", "sparse_score"):
        values = [[getattr(hit, name) for line in hits for hit in line] for hits in (ours, theirs)]
        given, expected = ([value for value in line if value is not None] for line in values)
        assert len(given) == len(expected)
        # SQLite's own sums may be rounded in another way on another processor.
        np.testing.assert_allclose(given, expected, rtol=1e-12, atol=1e-12)


# Where scores decide, each fusion is tried with each metric, and else one with each.
SCORES = {"vector_weight", "min_score"}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"vector_weight": 0.2, "sparse_weight": 0.7},
        {"vector_weight": 0.0, "sparse_weight": 0.0},
        {"vector_weight": 1.0},
        {"filter": {"n": 1}, "offset": 4},
        {"filter": {"n": {">=": 1}}, "k": 900},
        {"k": 1600},
        {"k": 30, "min_score": 0.4},
        {"prefix": True},
        {"with_vectors": True, "k": 1},
        {"group_by": "g"},
        {"group_by": "n", "k": 5},  # there are three: all rows are looked at
        {"group_by": "g", "k": 6, "offset": 3, "filter": {"n": 1}},
        {"group_by": "g", "k": 60, "min_score": 0.4},
        {"group_by": "nothing", "k": 3},
    ],
    ids=str,
)
def test_a_hybrid_search_finds_what_one_collection_finds(
    whole: Collection, searcher: ShardedSearcher, options: dict[str, Any]
) -> None:
    dense, sparse = _queries(len(TEXTS))
    fusions = ["weights", "ranks"]
    if options and not SCORES & options.keys():
        fusions = ["weights"] if whole.info().metric == "ip" else ["ranks"]
    for fusion, given in itertools.product(fusions, ({"sparse": sparse}, {})):
        if "sparse_weight" in options and not given:
            continue
        wanted = {"k": 20, "texts": TEXTS, "hybrid": True, "fusion": fusion, **options, **given}
        found = searcher.search_batch(dense, **wanted)
        assert found.missing == {}
        _assert_same(found.hits, whole.search_batch(dense, **wanted))


def test_a_hybrid_search_gives_the_vectors_of_its_hits(
    whole: Collection, searcher: ShardedSearcher
) -> None:
    dense, sparse = _queries(1)
    wanted: dict[str, Any] = {"text": TEXTS[0], "sparse": sparse[0], "hybrid": True,
                              "with_vectors": True}  # fmt: skip
    hits = (searcher.search(dense[0], 3, **wanted).hits[0], whole.search(dense[0], 3, **wanted))
    ours, theirs = ([h.vector.tolist() for h in of if h.vector is not None] for of in hits)
    assert ours == theirs
    assert len(ours) == 3


@pytest.mark.parametrize(
    "options", [{}, {"k": 900}, {"filter": {"n": 2}}, {"offset": 7, "min_score": 30.0}], ids=str
)
def test_a_sparse_search_finds_what_one_collection_finds(
    whole: Collection, searcher: ShardedSearcher, options: dict[str, Any]
) -> None:
    _, sparse = _queries(9)
    found = searcher.search_sparse_batch(sparse, **options)
    assert not found.partial
    _assert_same(found.hits, whole.search_sparse_batch(sparse, **options))
    assert [hit.score for hit in searcher.search_sparse(sparse[3]).hits[0]] == [
        hit.score for hit in whole.search_sparse(sparse[3])
    ]


@pytest.mark.parametrize(
    "options",
    [
        {"offset": 3, "filter": {"n": 1}},
        {"ef": 50},
        {"group_by": "g"},
        {"group_by": "n"},
        {"group_by": "g", "offset": 4, "filter": {"n": {"<": 2}}},
        {"group_by": "g", "min_score": 100.0},
        {"group_by": "nothing"},
    ],
    ids=str,
)
def test_a_search_by_vectors_has_the_options_of_one_collection(
    whole: Collection, searcher: ShardedSearcher, options: dict[str, Any]
) -> None:
    dense, _ = _queries(5)
    found = searcher.search_batch(dense, 12, exact=True, **options)
    assert not found.partial
    _assert_same(found.hits, whole.search_batch(dense, 12, exact=True, **options))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"lambda_mult": 0.0},
        {"lambda_mult": 1.0, "filter": {"n": 1}},
        {"k": 20, "fetch_k": 5},
        {"lambda_mult": 0.2, "fetch_k": 200, "with_vectors": True},
    ],
    ids=str,
)
def test_diverse_hits_are_chosen_as_in_one_collection(
    whole: Collection, searcher: ShardedSearcher, options: dict[str, Any]
) -> None:
    for query in _queries(4)[0]:
        found = searcher.search_mmr(query, **{"k": 7, **options})
        expected = whole.search_mmr(query, **{"k": 7, **options})
        assert found.missing == {}
        _assert_same(found.hits, [expected])
        ours, theirs = (
            [hit.vector is not None and hit.vector.tolist() for hit in line]
            for line in (found.hits[0], expected)
        )
        assert ours == theirs


def test_wrong_options_of_diversity_and_groups_are_the_errors_of_one_collection(
    whole: Collection, searcher: ShardedSearcher
) -> None:
    query = _queries(1)[0][0]
    for method, options in (
        ("search_mmr", {"lambda_mult": 1.5}),
        ("search_mmr", {"lambda_mult": "1"}),
        ("search_mmr", {"fetch_k": -1}),
        ("search_mmr", {"k": None}),
        ("search_mmr", {"where": {}}),
        ("search", {"group_by": 3}),
        ("search", {"group_by": "$id"}),
        ("search", {"ef": 0}),
    ):
        messages = []
        for place in (whole, searcher):
            with pytest.raises((InputTypeError, InputValueError)) as refused:
                getattr(place, method)(query, **options)
            messages.append((refused.type, str(refused.value)))
        assert messages[0] == messages[1]


def test_a_shard_that_is_lost_leaves_the_hits_of_the_others(
    places: tuple[Path, Path], tmp_path: Path, whole: Collection
) -> None:
    """And their rows are ranked as if there were no others."""
    (tmp_path / "shards.json").write_text((places[0] / "shards.json").read_text())
    for name in ("shard-000", "shard-001", "shard-003"):
        (tmp_path / name).symlink_to(places[0] / name)
    dense, sparse = _queries(2)
    first, last = SIZES[0], SIZES[0] + SIZES[2]
    others = {"or": [{"$id": {"<": first}}, {"$id": {">=": last}}]}
    with ShardedSearcher(tmp_path, cpus_per_shard=0.1, timeout=120) as searcher:
        found = searcher.search_batch(
            dense, 15, texts=TEXTS[:2], sparse=sparse, hybrid=True, sparse_weight=0.5,
            vector_weight=0.5,
        )  # fmt: skip
        assert list(found.missing) == ["shard-002"]
        diverse = searcher.search_mmr(dense[0], 9)
        groups = searcher.search(dense[0], 9, group_by="g", exact=True)
        fused = searcher.search(dense[0], 9, text="", group_by="g", hybrid=True, vector_weight=1.0)
        for one in (diverse, groups, fused):
            assert list(one.missing) == ["shard-002"]
    expected = whole.search_batch(
        dense, 15, texts=TEXTS[:2], sparse=sparse, hybrid=True, sparse_weight=0.5,
        vector_weight=0.5, filter=others,
    )  # fmt: skip
    _assert_same(found.hits, expected)
    _assert_same(diverse.hits, [whole.search_mmr(dense[0], 9, filter=others)])
    _assert_same(groups.hits, [whole.search(dense[0], 9, group_by="g", filter=others)])
    assert [hit.id for hit in fused.hits[0]] == [hit.id for hit in groups.hits[0]]


def test_diverse_hits_of_no_shard_are_none(tmp_path: Path) -> None:
    (tmp_path / "shards.json").write_text(
        json.dumps({"flowvec_shards": 1, "shards": 1, "model": "m", "fingerprint": "f"})
    )
    with ShardedSearcher(tmp_path, cpus_per_shard=0.1, timeout=120) as searcher:
        found = searcher.search_mmr([1, 0])
    assert (found.hits, list(found.missing)) == ([[]], ["shard-000"])


def test_rows_with_the_same_id_in_two_shards_are_one_hit(tmp_path: Path) -> None:
    for name in ("shard-000", "shard-001"):
        with Collection.create(tmp_path / name, dim=2, metric="ip") as c:
            weight = 1 + (name == "shard-001")
            c.add_vectors(
                ["same", name], [[weight, 0], [0, 1]], [f"cat {name}", "cat"],
                sparse=_sparse_of(np.array([[weight, 0], [1, 1]])),
            )  # fmt: skip
    (tmp_path / "shards.json").write_text(
        json.dumps({"flowvec_shards": 1, "shards": 2, "model": "m", "fingerprint": "f"})
    )
    with ShardedSearcher(tmp_path, cpus_per_shard=0.1, timeout=120) as searcher:
        query = _sparse_of(np.array([[1, 0]]))
        by_sparse = searcher.search_sparse(query).hits[0]
        assert [(hit.id, hit.score) for hit in by_sparse] == [
            ("same", 2.0), ("shard-000", 1.0), ("shard-001", 1.0)
        ]  # fmt: skip
        for k in (3, 10):
            hits = searcher.search([1, 0], k, text="cat", sparse=query, hybrid=True).hits[0]
            assert sorted(str(hit.id) for hit in hits) == ["same", "shard-000", "shard-001"]
            assert hits[0].text == "cat shard-001"


def test_texts_are_encoded_by_the_sparse_model_of_the_shards(
    tmp_path: Path, sparse_encoder: SparseEncoder
) -> None:
    texts = [f"the {word} sleeps" for word in ("cat", "dog", "horse", "mouse")]
    rows = {"whole": range(4), "shard-000": range(2), "shard-001": range(2, 4)}
    for name, there in rows.items():
        with Collection.create(tmp_path / name, dim=2) as c:
            c.add_vectors(list(there), np.ones((len(there), 2)), [texts[i] for i in there])
        with Collection.open(tmp_path / name, sparse_encoder=sparse_encoder) as c:
            c.add_missing_sparse()
    (tmp_path / "shards.json").write_text(
        json.dumps({"flowvec_shards": 1, "shards": 2, "model": "m", "fingerprint": "f"})
    )
    query = "a dog that sleeps"
    with (
        ShardedSearcher(
            tmp_path, sparse_encoder=sparse_encoder, cpus_per_shard=0.1, timeout=120
        ) as searcher,
        Collection.open(tmp_path / "whole", sparse_encoder=sparse_encoder) as c,
    ):
        _assert_same(searcher.search_sparse(query).hits, [c.search_sparse(query)])
        _assert_same(
            searcher.search([1, 0], text=query, hybrid=True).hits,
            [c.search([1, 0], text=query, hybrid=True)],
        )
    with Collection.open(tmp_path / "shard-001") as c, store_of(c).transaction():
        store_of(c).meta.write_settings({"sparse_model": "another", "sparse_fingerprint": "0" * 64})
    with ShardedSearcher(
        tmp_path, sparse_encoder=sparse_encoder, cpus_per_shard=0.1, timeout=120
    ) as searcher:
        with pytest.raises(FingerprintMismatchError, match="another"):
            searcher.search_sparse(query)
        with pytest.raises(FingerprintMismatchError, match="another"):
            searcher.search([1, 0], text=query, hybrid=True)


def test_no_queries_have_no_hits(searcher: ShardedSearcher) -> None:
    assert searcher.search_batch([]).hits == []
    assert searcher.search_batch([], hybrid=True).hits == []
    assert searcher.search_sparse_batch([]).hits == []


def test_wrong_arguments_are_refused(searcher: ShardedSearcher) -> None:
    dense, sparse = _queries(1)
    with pytest.raises(InputValueError, match="60 dimensions"):
        searcher.search_sparse(_sparse_of(np.ones((1, 3))))
    with pytest.raises(InputValueError, match="60 dimensions"):
        searcher.search(dense[0], text="a", hybrid=True, sparse=_sparse_of(np.ones((1, 3))))
    with pytest.raises(InputValueError, match="one sparse vector"):
        searcher.search_sparse(SparseVectors.joined([sparse[0], sparse[0]]))
    with pytest.raises(InputValueError, match="without a sparse encoder"):
        searcher.search_sparse("a text")
    with pytest.raises(InputValueError, match="a hybrid search needs a text"):
        searcher.search(dense[0], hybrid=True)
    with pytest.raises(InputValueError, match="add hybrid=True"):
        searcher.search(dense[0], vector_weight=0.5)
    with pytest.raises(InputTypeError, match="no argument 'nprobe'"):
        searcher.search(dense[0], nprobe=3)  # type: ignore[call-arg]


def test_indexes_with_different_tokenizers_are_refused(tmp_path: Path) -> None:
    for name, tokenizer in (("shard-000", "unicode61"), ("shard-001", "trigram")):
        with Collection.create(tmp_path / name, dim=2) as c:
            c.add_vectors([name], [[1, 0]], ["a cat"])
            c.index_texts(tokenizer=tokenizer)  # type: ignore[arg-type]
    (tmp_path / "shards.json").write_text(
        json.dumps({"flowvec_shards": 1, "shards": 2, "model": "m", "fingerprint": "f"})
    )
    with (
        ShardedSearcher(tmp_path, cpus_per_shard=0.1, timeout=120) as searcher,
        pytest.raises(CollectionError, match="shard-001 has trigram"),
    ):
        searcher.search([1, 0], text="cat", hybrid=True)
