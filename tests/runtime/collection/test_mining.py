"""Pairs and neighbours within vectors in memory, against comparing everything."""

from __future__ import annotations

import json
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowvec import (
    Encoder,
    InputTypeError,
    InputValueError,
    Pair,
    most_similar_pairs,
    semantic_search,
)
from flowvec.collection import mining
from flowvec.collection.mining import best_pairs
from flowvec.encoder.postprocess import normalize
from flowvec.hnsw import has_fast_scan
from tests.drawing import examples
from tests.makers import unit


def random_items(rows: int, dim: int = 6, seed: int = 0, values: int = 0) -> np.ndarray:
    """Random vectors; with `values`, of a few whole numbers, so that many cosines are equal."""
    rng = np.random.default_rng(seed)
    if values:
        return rng.integers(-values, values + 1, size=(rows, dim)).astype(np.float32)
    return rng.normal(size=(rows, dim)).astype(np.float32)


@examples(150)
@given(
    rows=st.integers(0, 40),
    k=st.integers(0, 60),
    threshold=st.none() | st.floats(-1.1, 1.1),
    block=st.integers(1, 200),
    seed=st.integers(0, 1000),
    values=st.integers(0, 2),
)
def test_most_similar_pairs_are_the_best_of_all_pairs(
    rows, k, threshold, block, seed, values
) -> None:
    items = random_items(rows, seed=seed, values=values)
    pairs = most_similar_pairs(items, top_k=k, threshold=threshold)
    if k:
        floor = -np.inf if threshold is None else threshold
        in_blocks = best_pairs(normalize(items), k, floor, most_elements=block)
        assert [p.score for p in in_blocks] == pytest.approx([p.score for p in pairs], abs=1e-6)
        pairs = in_blocks
    cosines = unit(items).astype(np.float64) @ unit(items).astype(np.float64).T
    expected = sorted((-cosines[i, j], i, j) for i, j in combinations(range(rows), 2))
    able = [e for e in expected if threshold is None or -e[0] >= threshold]
    assert len({(p.left, p.right) for p in pairs}) == len(pairs)
    assert all(0 <= p.left < p.right < rows for p in pairs)
    assert [p.score for p in pairs] == sorted((p.score for p in pairs), reverse=True)
    for pair in pairs:
        assert pair.score == pytest.approx(cosines[pair.left, pair.right], abs=1e-5)
    # A cosine within rounding of the threshold may fall on either side of it.
    near = 0 if threshold is None else sum(abs(-e[0] - threshold) < 1e-5 for e in expected)
    assert abs(len(pairs) - min(k, len(able))) <= near
    best = [-e[0] for e in expected[: len(pairs)]]
    assert [p.score for p in pairs] == pytest.approx(best, abs=1e-5)


@pytest.mark.parametrize("block", [1, 7, 1 << 23])
def test_equal_pairs_come_in_order_of_their_indices(block: int) -> None:
    same = np.full((9, 4), 0.5, dtype=np.float32)
    pairs = best_pairs(same, 12, -np.inf, most_elements=block)
    assert [(p.left, p.right) for p in pairs] == list(combinations(range(9), 2))[:12]


def many_items(kind: str) -> np.ndarray:
    """As many as are scanned."""
    items = random_items(2300, 40, seed=3)
    if kind == "equal":
        items[700:1400] = items[:700]
        items[2000:2020] = 0
    elif kind == "alike":
        items += 30
    elif kind == "huge":
        items *= np.float32(1e18)
    elif kind == "dense at the end":  # so many near pairs that they are computed by blocks
        items[1200:] = items[0] + random_items(1100, 40, seed=4) * np.float32(0.01)
    return items


@pytest.mark.parametrize("kind", ["random", "equal", "alike", "huge", "dense at the end"])
def test_a_scan_and_blocks_find_the_same_pairs(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    items = many_items(kind)
    for options in ({"top_k": 1}, {"top_k": 900}, {"threshold": 0.9, "top_k": 20_000}):
        monkeypatch.setattr("flowvec.collection.mining._SCANNED_NUMBERS", 1 << 26)
        scanned = most_similar_pairs(items, **options)
        with monkeypatch.context() as patch:
            patch.setattr("flowvec.collection.mining.has_fast_scan", lambda: False)
            blocks = most_similar_pairs(items, **options)
        assert len(scanned) == pytest.approx(len(blocks), abs=2)
        common = min(len(scanned), len(blocks))
        for ours, theirs in ((scanned, blocks), (blocks, scanned)):
            least = theirs[common - 1].score if common else 0.9
            known = {(p.left, p.right): p.score for p in theirs}
            for p in ours[:common]:
                assert p.score == pytest.approx(known.get((p.left, p.right), least), abs=2e-6)


def test_many_pairs_are_scanned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the processor has a fast scan, blocks are not compared."""
    if not has_fast_scan():
        pytest.skip("this processor has no fast scan")
    monkeypatch.setattr("flowvec.collection.mining._best", None)
    assert len(most_similar_pairs(many_items("random"), top_k=50)) == 50
    with pytest.raises(TypeError):
        most_similar_pairs(random_items(100), top_k=50)


def test_pairs_of_texts_are_pairs_of_their_vectors(tiny: Encoder) -> None:
    texts = ["the cat sleeps", "stocks fell", "the cat sleeps", "a dog runs"]
    pairs = most_similar_pairs(texts, encoder=tiny, top_k=3)
    assert (pairs[0].left, pairs[0].right) == (0, 2)
    assert pairs[0].score == pytest.approx(1.0, abs=1e-5)
    assert pairs == most_similar_pairs(tiny.encode_document(texts), top_k=3)
    assert pairs == most_similar_pairs(iter(texts), encoder=tiny, top_k=3)


def test_semantic_search_returns_the_shape_of_sentence_transformers(tiny: Encoder) -> None:
    corpus, queries = random_items(30, seed=1), random_items(4, seed=2)
    hit_lists = semantic_search(queries, corpus, top_k=5)
    cosines = unit(queries) @ unit(corpus).T
    for hits, line in zip(hit_lists, cosines, strict=True):
        assert [hit["corpus_id"] for hit in hits] == np.argsort(-line, kind="stable")[:5].tolist()
        assert [hit["score"] for hit in hits] == pytest.approx(np.sort(line)[::-1][:5].tolist())
        assert all(hit.keys() == {"corpus_id", "score"} for hit in hits)
    (alone,) = semantic_search(queries[0], corpus, top_k=5)
    assert [hit["corpus_id"] for hit in alone] == [hit["corpus_id"] for hit in hit_lists[0]]
    assert [len(hits) for hits in semantic_search(queries, corpus, top_k=99)] == [30] * 4
    assert semantic_search(queries, corpus[:0]) == [[]] * 4
    assert semantic_search([], corpus) == []
    texts = ["the cat sleeps", "stocks fell"]
    vectors_of = (tiny.encode_query(["stocks fell"]), tiny.encode_document(texts))
    (by_text,) = semantic_search("stocks fell", texts, encoder=tiny)
    (by_vector,) = semantic_search(*vectors_of)
    for one, other in zip(by_text, by_vector, strict=True):  # queries have a prompt of their own
        assert one == {**other, "score": pytest.approx(other["score"], abs=1e-5)}


@pytest.mark.parametrize(
    "kind", ["clusters", "near_equal", "equal", "zeros", "columns", "3_numbers"]
)
def test_many_queries_find_their_nearest_rows(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    centres = rng.normal(1, 1, size=(40, 3 if kind == "3_numbers" else 96))
    noise = 0.01 if kind == "near_equal" else 0.3
    rows = centres[rng.integers(0, 40, 6000)] + noise * rng.normal(size=(6000, centres.shape[1]))
    rows = rows.astype(np.float32)
    corpus, queries = rows[:5000], rows[-600:]
    if kind == "equal":
        corpus[2000:4000] = corpus[:1000].repeat(2, axis=0)
    if kind == "zeros":
        corpus[:3000], queries[::3] = 0, 0
    if kind == "columns":
        corpus = np.asfortranarray(corpus)
    monkeypatch.setattr(mining, "_MOST_QUERIES", 250)  # several steps
    monkeypatch.setattr(mining, "_ENCODED_NUMBERS", 1 << 13)
    if has_fast_scan():  # all scores are not computed
        monkeypatch.delattr(mining, "nearest")
    cosines = unit(queries).astype(np.float64) @ unit(corpus).astype(np.float64).T
    for line, hits in zip(cosines, semantic_search(queries, corpus, top_k=5), strict=True):
        found = [hit["corpus_id"] for hit in hits]
        scores = [hit["score"] for hit in hits]
        assert len(set(found)) == 5
        assert scores == pytest.approx(line[found].tolist(), abs=1e-6)
        assert scores == pytest.approx(np.sort(line)[:-6:-1].tolist(), abs=1e-6)
        assert found == sorted(found, key=lambda row: (-scores[found.index(row)], row))
        if line.max() == line.min():  # a query of zeros
            assert found == [0, 1, 2, 3, 4]


def test_a_zero_vector_is_similar_to_nothing() -> None:
    pairs = most_similar_pairs(np.array([[0, 0], [1, 0], [2, 0]], np.float32))
    assert pairs[0] == Pair(1.0, 1, 2)
    assert [p.score for p in pairs[1:]] == [0.0, 0.0]


@pytest.mark.parametrize(
    ("call", "error", "part"),
    [
        (lambda: most_similar_pairs(["a"]), InputValueError, "give an encoder"),
        (lambda: most_similar_pairs("abc"), InputTypeError, "not a single str"),
        (lambda: most_similar_pairs([object()]), InputTypeError, "neither texts nor vectors"),
        (lambda: most_similar_pairs(np.ones(3)), InputValueError, r"\(items, dim\)"),
        (lambda: most_similar_pairs([[1.0, np.nan]]), InputValueError, "row 0 of items"),
        (lambda: most_similar_pairs(np.ones((2, 2)), top_k=-1), InputValueError, "-1"),
        (lambda: most_similar_pairs(np.ones((2, 2)), top_k=1.5), InputTypeError, "float"),
        (lambda: most_similar_pairs(np.ones((2, 2)), threshold=np.nan), InputValueError, "nan"),
        (lambda: semantic_search(np.ones((1, 2)), np.ones((1, 3))), InputValueError, "2 dimen"),
    ],
)  # fmt: skip
def test_wrong_arguments_of_mining_are_errors(call, error, part: str) -> None:
    with pytest.raises(error, match=part):
        call()


def test_the_pairs_command_prints_pairs(flowvec, tmp_path) -> None:
    lines = ["A man is eating food.", "Stocks fell.", "A man eats food.", "The sky is blue."]
    (tmp_path / "t.txt").write_text("\n".join(lines) + "\n")
    done = flowvec("pairs", tmp_path / "t.txt", "-k", 1, "--json")
    assert done.returncode == 0, done.stderr
    (pair,) = json.loads(done.stdout)
    assert (pair["left"], pair["right"]) == (0, 2)
    assert pair["texts"] == [lines[0], lines[2]]
    shown = flowvec("pairs", tmp_path / "t.txt", "-k", 1).stdout
    assert lines[0] in shown
    assert lines[2] in shown
    assert flowvec("pairs", tmp_path / "t.txt", "--threshold", 1.5).stdout == "no pairs\n"
