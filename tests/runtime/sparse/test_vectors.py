"""SparseVectors: three arrays that mean what scipy's CSR means, and an exact search."""

from __future__ import annotations

import sys
import tracemalloc

import numpy as np
import pytest

from flowvec import InputTypeError, InputValueError, MissingDependencyError, SparseVectors
from flowvec.sparse.rows import LEAST_WEIGHT, sparse_of

scipy_sparse = pytest.importorskip("scipy.sparse", reason="needs the extra [export]")


def random_vectors(rows: int, dim: int, seed: int, density: float = 0.1) -> SparseVectors:
    """Weights of few different sizes, so that scores are equal; some rows are empty."""
    rng = np.random.default_rng(seed)
    dense = rng.integers(1, 4, size=(rows, dim)) * (rng.random((rows, dim)) < density)
    return SparseVectors.from_scipy(scipy_sparse.csr_matrix(dense.astype(np.float32)))


def test_without_scipy_the_message_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy", None)  # as if it was not installed
    with pytest.raises(MissingDependencyError, match="pip install scipy"):
        random_vectors(2, 30, 0).to_scipy()


def test_arrays_are_those_of_scipy() -> None:
    vectors = random_vectors(40, 30, 0)
    matrix = vectors.to_scipy()
    assert matrix.has_sorted_indices
    np.testing.assert_array_equal(matrix.toarray(), vectors.to_dense())
    again = SparseVectors.from_scipy(matrix.tocsc())
    for ours, theirs in zip(again.arrays, vectors.arrays, strict=True):
        np.testing.assert_array_equal(ours, theirs)
        assert ours.dtype == theirs.dtype
    assert [len(row) for row in vectors.as_dicts()] == vectors.active_dims.tolist()
    assert vectors.as_dicts()[3] == {
        int(i): float(v) for i, v in zip(vectors[3].indices, vectors[3].values, strict=True)
    }


@pytest.mark.parametrize("rows", [slice(3, 9), slice(-2, None), slice(5, 5), slice(8, 2), 4, -1])
def test_a_slice_is_that_of_the_dense_vectors(rows: int | slice) -> None:
    vectors = random_vectors(12, 20, 1)
    expected = np.atleast_2d(vectors.to_dense()[rows])
    np.testing.assert_array_equal(vectors[rows].to_dense().reshape(expected.shape), expected)
    if isinstance(rows, int):
        assert len(vectors[rows]) == 1


def test_joined_vectors_are_the_parts_one_after_the_other() -> None:
    vectors = random_vectors(12, 20, 2)
    joined = SparseVectors.joined([vectors[:5], vectors[5:5], vectors[5:]])
    np.testing.assert_array_equal(joined.to_dense(), vectors.to_dense())
    np.testing.assert_array_equal(
        np.concatenate([row.to_dense() for row in vectors]), vectors.to_dense()
    )


@pytest.mark.parametrize("block_rows", [1, 7, 200, 1 << 16])
@pytest.mark.parametrize("top_k", [1, 5, 500])
def test_a_search_is_exact_whatever_its_blocks(block_rows: int, top_k: int) -> None:
    documents, queries = random_vectors(200, 50, 3), random_vectors(9, 50, 4)
    scores = queries.to_dense().astype(np.float64) @ documents.to_dense().T.astype(np.float64)
    assert len(np.unique(scores)) < scores.size / 4  # many are equal
    expected = []
    for row in scores:
        order = np.lexsort((np.arange(len(row)), -row))[:top_k]
        expected.append([{"corpus_id": int(i), "score": row[i]} for i in order if row[i] > 0])
    assert documents.search(queries, top_k, block_rows=block_rows) == expected


def test_a_search_is_the_same_whatever_the_numbers_of_the_tokens() -> None:
    """Hashed tokens have numbers up to 2^31, and a table of them all would take 16 GiB."""
    documents, queries = random_vectors(200, 50, 3), random_vectors(9, 50, 4)
    rng = np.random.default_rng(0)
    hashes = np.sort(rng.choice((1 << 31) - 1, 50, replace=False)).astype(np.int32)
    most = (1 << 31) - 1

    def hashed(vectors: SparseVectors) -> SparseVectors:
        return SparseVectors(vectors.indptr, hashes[vectors.indices], vectors.values, most)

    tracemalloc.start()
    hits = hashed(documents).search(hashed(queries), 5, block_rows=64)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert hits == documents.search(queries, 5)
    assert peak < 1 << 24
    lone = SparseVectors(np.array([0, 1]), hashes[:1] + 1, np.ones(1, np.float32), most)
    assert hashed(documents).search(lone) == [[]]
    assert hashed(documents).search(hashed(documents)[:0]) == []


def test_searches_of_nothing_find_nothing() -> None:
    documents = random_vectors(5, 10, 5)
    assert documents.search(documents[:0]) == []
    assert documents[:0].search(documents[:2]) == [[], []]
    empty = SparseVectors.from_scipy(scipy_sparse.csr_matrix((1, 10), dtype=np.float32))
    assert documents.search(empty) == [[]]


def test_decode_names_the_largest_weights() -> None:
    matrix = scipy_sparse.csr_matrix(np.array([[0, 2, 0, 5], [0, 0, 0, 0]], np.float32))
    vectors = SparseVectors.from_scipy(matrix, ["a", "b", "c", "d"])
    assert vectors.decode() == [[("d", 5.0), ("b", 2.0)], []]
    assert vectors.decode(top_k=1) == [[("d", 5.0)], []]
    with pytest.raises(InputValueError, match="no vocabulary"):
        SparseVectors.from_scipy(matrix).decode()


def test_noise_is_left_out_and_the_largest_are_kept() -> None:
    least = float(LEAST_WEIGHT)
    output = np.array([[0.0, least / 2, 3.0, least, 2.0, 2.0, 1.0]], np.float32)
    ((ids, weights),) = sparse_of(output, None)
    assert ids.tolist() == [2, 3, 4, 5, 6]
    assert ids.dtype == np.int32
    assert weights.dtype == np.float32
    ((ids, weights),) = sparse_of(output, 2)  # of equal weights, the smaller id
    assert (ids.tolist(), weights.tolist()) == ([2, 4], [3.0, 2.0])


def test_wrong_arguments() -> None:
    vectors = random_vectors(5, 10, 6)
    with pytest.raises(InputTypeError, match=r"queries .*not list"):
        vectors.search([[1.0]])  # type: ignore[arg-type]
    with pytest.raises(InputValueError, match="queries have 11 dimensions"):
        vectors.search(random_vectors(5, 11, 6))
    with pytest.raises(InputTypeError, match="scipy, not ndarray"):
        SparseVectors.from_scipy(np.ones((2, 2)))
    one_axis = scipy_sparse.coo_array(np.ones(3))
    if len(one_axis.shape) == 1:  # since scipy 1.13
        with pytest.raises(InputValueError, match=r"texts, dim\), not \(3"):
            SparseVectors.from_scipy(one_axis)
    with pytest.raises(IndexError, match="there is no vector 5"):
        vectors[5]
    with pytest.raises(InputTypeError, match="cannot have a step"):
        vectors[::2]
    with pytest.raises(InputValueError, match="of one dim"):
        SparseVectors.joined([vectors, random_vectors(1, 11, 6)])
