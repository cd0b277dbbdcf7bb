"""Searches over shards whose best hits a reranker sorts: the hits and scores of one collection."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ray", reason="needs the extra [ray]")


from flowvec import Collection, Encoder, MultiVectorEncoder, Reranker, SharedReranker
from flowvec.collection.results import Hit
from flowvec.errors import InputTypeError, InputValueError
from flowvec.sharded import ShardedSearcher
from tests.makers import WORDS

DIM = 8
# The second shard has other rows than the first, and has the best hits of some queries alone.
SIZES = (70, 50)
TEXTS = ["the red cat sleeps", "stocks fell", "a dog in the garden"]


pytestmark = pytest.mark.usefixtures("cluster")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A collection in shards, and `whole`, one collection of the same rows in the same order."""
    folder = tmp_path_factory.mktemp("rows")
    words, numbers = random.Random(4), np.random.default_rng(4)
    count = sum(SIZES)
    texts = [f"{' '.join(words.choices(WORDS, k=words.randint(2, 9)))} {i}" for i in range(count)]
    # Whole numbers, whose products and sums are exact in any order.
    vectors = numbers.integers(-9, 20, (count, DIM)).astype(np.float32)
    bounds = {"whole": (0, count), "shard-000": (0, SIZES[0]), "shard-001": (SIZES[0], count)}
    for name, (first, last) in bounds.items():
        with Collection.create(folder / name, dim=DIM, metric="ip") as c:
            c.add_vectors(
                list(range(first, last)), vectors[first:last], texts[first:last],
                [{"n": i % 3, "g": i % 25} for i in range(first, last)],
            )  # fmt: skip
            c.index_texts()
    (folder / "shards.json").write_text(
        json.dumps({"flowvec_shards": 1, "shards": 2, "model": "m", "fingerprint": "f"})
    )
    return folder


@pytest.fixture(scope="module")
def whole(folder: Path) -> Iterator[Collection]:
    with Collection.open(folder / "whole") as c:
        yield c


@pytest.fixture(scope="module")
def searcher(folder: Path) -> Iterator[ShardedSearcher]:
    with ShardedSearcher(folder, cpus_per_shard=0.1, timeout=120) as searcher:
        yield searcher


@pytest.fixture(params=["cross-encoder", "late interaction", "shared"])
def second_stage(
    request: pytest.FixtureRequest, reranker: Reranker, multi_vector: MultiVectorEncoder
) -> Iterator[Reranker | MultiVectorEncoder | SharedReranker]:
    if request.param == "shared":
        with SharedReranker(reranker) as shared:
            yield shared
    else:
        yield reranker if request.param == "cross-encoder" else multi_vector


def queries() -> Any:
    return np.random.default_rng(9).integers(-20, 40, (len(TEXTS), DIM)).astype(np.float32)


def assert_same(ours: list[list[Hit]], theirs: list[list[Hit]]) -> None:
    """Equal ids, texts, metadata, scores before and after, and places before."""
    assert ours == theirs
    for line, expected in zip(ours, theirs, strict=True):
        assert [hit.search_rank for hit in line] == [hit.search_rank for hit in expected]
        for name in ("word_score", "score", "search_score"):
            assert [getattr(hit, name) for hit in line] == [getattr(hit, name) for hit in expected]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"k": 4, "rerank_from": 6},
        {"k": 20, "rerank_from": 5},
        {"k": 5, "offset": 3, "rerank_from": 30},
        {"filter": {"n": 1}, "exact": True},
        {"hybrid": True},
        {"hybrid": True, "fusion": "ranks", "k": 5, "offset": 2},
        {"group_by": "g", "rerank_from": 20},
        {"group_by": "g", "rerank_from": 20, "hybrid": True},
    ],
    ids=str,
)
def test_a_reranked_search_finds_what_one_collection_finds(
    whole: Collection,
    searcher: ShardedSearcher,
    second_stage: Reranker | MultiVectorEncoder | SharedReranker,
    options: dict[str, Any],
) -> None:
    wanted = {"texts": TEXTS, "rerank": second_stage, **options}
    found = searcher.search_batch(queries(), **wanted)
    assert found.missing == {}
    assert_same(found.hits, whole.search_batch(queries(), **wanted))
    shards = {hit.id >= SIZES[0] for line in found.hits for hit in line if isinstance(hit.id, int)}
    assert shards == ({True, False} if options.get("k", 10) else set())


def test_min_score_is_the_rerankers(
    whole: Collection, searcher: ShardedSearcher, reranker: Reranker
) -> None:
    """A hybrid search's scores are at most 1, and a reranker's need not be."""
    options: dict[str, Any] = {"text": TEXTS[0], "hybrid": True, "rerank": reranker}
    every = searcher.search(queries()[0], 30, **options).hits[0]
    least = every[4].score
    kept = searcher.search(queries()[0], 30, min_score=least, **options).hits
    assert 0 < len(kept[0]) < len(every)
    assert_same(kept, [whole.search(queries()[0], 30, min_score=least, **options)])
    assert searcher.search(queries()[0], 30, min_score=1e6, **options).hits == [[]]


def test_one_query_and_none(
    whole: Collection, searcher: ShardedSearcher, reranker: Reranker
) -> None:
    found = searcher.search(queries()[1], 6, text=TEXTS[1], rerank=reranker, with_vectors=True)
    expected = whole.search(queries()[1], 6, text=TEXTS[1], rerank=reranker, with_vectors=True)
    assert_same(found.hits, [expected])
    for ours, theirs in zip(found.hits[0], expected, strict=True):
        assert ours.vector is not None
        assert theirs.vector is not None
        assert ours.vector.tolist() == theirs.vector.tolist()
    none = np.empty((0, DIM), np.float32)
    assert searcher.search_batch(none, 5, texts=[], rerank=reranker).hits == []


def test_queries_that_are_texts(tmp_path: Path, tiny: Encoder, reranker: Reranker) -> None:
    """The encoder and the reranker read the same text."""
    texts = [" ".join(random.Random(i).choices(WORDS, k=5)) for i in range(12)]
    for name, rows in (("whole", range(12)), ("shard-000", range(7)), ("shard-001", range(7, 12))):
        with Collection.create(tmp_path / name, encoder=tiny) as c:
            c.add(list(rows), [texts[i] for i in rows])
    about = {"shards": 2, "model": "tiny", "fingerprint": tiny.fingerprint}
    (tmp_path / "shards.json").write_text(json.dumps({"flowvec_shards": 1, **about}))
    with (
        ShardedSearcher(tmp_path, encoder=tiny, cpus_per_shard=0.1, timeout=120) as searcher,
        Collection.open(tmp_path / "whole", encoder=tiny) as c,
    ):
        found = searcher.search_batch(TEXTS, 12, rerank=reranker)
        for line, expected in zip(
            found.hits, c.search_batch(TEXTS, 12, rerank=reranker), strict=True
        ):
            assert [hit.id for hit in line] == [hit.id for hit in expected]
            assert [hit.score for hit in line] == pytest.approx([hit.score for hit in expected])


def test_a_lost_shard_is_named_and_the_hits_of_the_others_are_reranked(
    folder: Path, tmp_path: Path, whole: Collection, reranker: Reranker
) -> None:
    (tmp_path / "shards.json").write_text((folder / "shards.json").read_text())
    (tmp_path / "shard-001").symlink_to(folder / "shard-001")
    others = {"$id": {">=": SIZES[0]}}
    with ShardedSearcher(tmp_path, cpus_per_shard=0.1, timeout=120) as searcher:
        # Words count otherwise among all rows, so they have no share here.
        for by in ({}, {"hybrid": True, "vector_weight": 1.0}):
            options: dict[str, Any] = {"texts": TEXTS, "rerank": reranker, **by}
            found = searcher.search_batch(queries(), 15, **options)
            assert (found.partial, list(found.missing)) == (True, ["shard-000"])
            assert_same(found.hits, whole.search_batch(queries(), 15, filter=others, **options))


def test_a_row_without_a_text_is_an_error_as_in_one_collection(
    tmp_path: Path, reranker: Reranker
) -> None:
    for name, text in (("shard-000", "a cat"), ("shard-001", None)):
        with Collection.create(tmp_path / name, dim=2, metric="ip") as c:
            c.add_vectors([name], [[1 + (text is not None), 0]], [text])
    (tmp_path / "shards.json").write_text(
        json.dumps({"flowvec_shards": 1, "shards": 2, "model": "m", "fingerprint": "f"})
    )
    with ShardedSearcher(tmp_path, cpus_per_shard=0.1, timeout=120) as searcher:
        with pytest.raises(InputValueError, match="'shard-001' has no text") as ours:
            searcher.search([1, 0], text="cat", rerank=reranker)
        best = searcher.search([1, 0], 1, text="cat", rerank=reranker, rerank_from=1)
        assert [hit.id for hit in best.hits[0]] == ["shard-000"]
    with (
        Collection.open(tmp_path / "shard-001") as c,
        pytest.raises(InputValueError) as theirs,
    ):
        c.search([1, 0], text="cat", rerank=reranker)
    assert str(ours.value) == str(theirs.value)


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({"rerank": "a-model"}, InputTypeError),
        ({"rerank": 3}, InputTypeError),
        ({"rerank_from": "5"}, InputTypeError),
        ({"rerank_from": 0}, InputValueError),
        ({"rerank_from": True}, InputTypeError),
    ],
    ids=str,
)
def test_wrong_arguments_are_the_errors_of_one_collection(
    whole: Collection, searcher: ShardedSearcher, options: dict[str, Any], kind: type[Exception]
) -> None:
    messages = []
    for place in (whole, searcher):
        with pytest.raises(kind) as refused:
            place.search_batch(queries(), texts=TEXTS, hybrid=True, **options)
        messages.append(str(refused.value))
    assert messages[0] == messages[1]


def test_a_vector_without_a_text_cannot_be_reranked(
    whole: Collection, searcher: ShardedSearcher, reranker: Reranker
) -> None:
    for place in (whole, searcher):
        with pytest.raises(InputValueError, match=r"reranker .*read a vector"):
            place.search(queries()[0], rerank=reranker)


def test_the_command_reranks_shards(
    flowvec: Any, tmp_path: Path, reranker_dir: Path, multi_vector_dir: Path
) -> None:
    rows = [
        {"id": i, "text": f"the {word} sleeps", "kind": i % 3} for i, word in enumerate(WORDS[:8])
    ]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    fields = ("a.jsonl", "--model", "mini", "--id-field", "id", "--keep", "kind")
    for place, more in (("one", ()), ("c", ("--engine", "ray", "--shards", "2"))):
        built = flowvec("index", place, *fields, *more)
        assert built.returncode == 0, built.stderr
    again = ("--rerank", reranker_dir, "--rerank-from", "4")
    for more in (again, ("--rerank", multi_vector_dir), (*again, "--group-by", "kind")):
        options = ("a resting dog", "-k", "3", "--json", "--timeout", "300", *more)
        done, expected = flowvec("search", "c", *options), flowvec("search", "one", *options)
        assert (done.returncode, expected.returncode) == (0, 0), done.stderr + expected.stderr
        answer, hits = json.loads(done.stdout), json.loads(expected.stdout)
        assert (len(hits), answer["partial"]) == (3, False)
        if "--group-by" in more:
            assert {hit["metadata"]["kind"] for hit in hits} == {0, 1, 2}
        assert [hit["id"] for hit in answer["hits"]] == [hit["id"] for hit in hits]
        for name in ("score", "search_score", "search_rank"):
            assert [hit[name] for hit in answer["hits"]] == pytest.approx(
                [hit[name] for hit in hits], abs=1e-4
            )
    wrong = flowvec("search", "c", "a dog", "--rerank", tmp_path / "none")
    assert wrong.returncode == 2
    assert "none" in wrong.stderr
