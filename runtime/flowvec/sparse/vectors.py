"""`SparseVectors`: sparse vectors of many texts in three arrays (CSR)."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt

from flowvec.arguments import whole_number
from flowvec.errors import InputTypeError, InputValueError, MissingDependencyError
from flowvec.sparse.searching import DEFAULT_BLOCK_ROWS, Csr, search_blocks

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

__all__ = ["SparseVectors"]


@dataclass(frozen=True, slots=True, eq=False)
class SparseVectors:
    """Sparse vectors of texts, as compressed sparse rows (CSR).

    Vector i has the weights `values[indptr[i] : indptr[i + 1]]` at the token ids
    `indices[indptr[i] : indptr[i + 1]]`, which ascend; all others are zero.

        >>> vectors = SparseEncoder.load("my-sparse").encode(["A dog swims.", "Stocks fell."])
        >>> len(vectors), vectors.shape == (2, vectors.dim), len(vectors.indptr)
        (2, True, 3)
        >>> sorted(vectors.as_dicts()[0]) == vectors[0].indices.tolist()
        True

    Attributes:
        indptr: int64 (texts + 1,).
        indices: int32 (weights,), token ids.
        values: float32 (weights,).
        dim: length of a vector: the size of the vocabulary.
        vocabulary: the token of each id, for `decode`; None if it is not known.
    """

    indptr: npt.NDArray[np.int64]
    indices: npt.NDArray[np.int32]
    values: npt.NDArray[np.float32]
    dim: int
    vocabulary: Sequence[str] | None = None

    @classmethod
    def from_scipy(cls, matrix: Any, vocabulary: Sequence[str] | None = None) -> SparseVectors:
        """Vectors from a sparse matrix of scipy, (texts, dim), in any of its formats.

        Raises:
            InputTypeError: it is not a sparse matrix.
            InputValueError: it has another number of axes than two.
        """
        if not hasattr(matrix, "tocsr"):
            raise InputTypeError(
                f"matrix must be a sparse matrix of scipy, not {type(matrix).__name__}"
            )
        if len(matrix.shape) != 2:
            raise InputValueError(f"matrix must be of shape (texts, dim), not {matrix.shape}")
        rows = matrix.tocsr(copy=True)
        rows.sum_duplicates()  # sorts the indices too
        rows.eliminate_zeros()
        return cls(
            rows.indptr.astype(np.int64),
            rows.indices.astype(np.int32),
            rows.data.astype(np.float32),
            int(rows.shape[1]),
            vocabulary,
        )

    @classmethod
    def joined(cls, parts: Sequence[SparseVectors]) -> SparseVectors:
        """Join vectors of one model; at least one part.

        Raises:
            InputValueError: there is no part, or they differ in `dim`.
        """
        if not parts or any(part.dim != parts[0].dim for part in parts):
            raise InputValueError("parts must be SparseVectors of one dim, at least one of them")
        lengths = np.concatenate([np.diff(part.indptr) for part in parts])
        return cls(
            np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)]),
            np.concatenate([part.indices for part in parts]),
            np.concatenate([part.values for part in parts]),
            parts[0].dim,
            parts[0].vocabulary,
        )

    @property
    def shape(self) -> tuple[int, int]:
        """(texts, dim)."""
        return len(self), self.dim

    @property
    def arrays(self) -> Csr:
        """`indptr`, `indices` and `values`."""
        return self.indptr, self.indices, self.values

    @property
    def active_dims(self) -> npt.NDArray[np.int64]:
        """How many weights each vector has, int64 (texts,)."""
        return np.diff(self.indptr)

    def __len__(self) -> int:
        return len(self.indptr) - 1

    def __getitem__(self, rows: int | slice) -> SparseVectors:
        """One vector, or those of a slice of consecutive ones, as SparseVectors; views.

        Raises:
            IndexError: there is no such vector.
            InputTypeError: the index is something else, or the slice has a step.
        """
        if isinstance(rows, slice):
            start, stop, step = rows.indices(len(self))
            if step != 1:
                raise InputTypeError("a slice of sparse vectors cannot have a step")
            stop = max(start, stop)
        else:
            if isinstance(rows, bool) or not isinstance(rows, int | np.integer):
                raise InputTypeError(
                    f"sparse vectors are indexed by a number or a slice, not {type(rows).__name__}"
                )
            start = int(rows) + len(self) * (rows < 0)
            if not 0 <= start < len(self):
                raise IndexError(f"there is no vector {rows}; there are {len(self)}")
            stop = start + 1
        first, last = self.indptr[start], self.indptr[stop]
        return SparseVectors(
            self.indptr[start : stop + 1] - first,
            self.indices[first:last],
            self.values[first:last],
            self.dim,
            self.vocabulary,
        )

    def __iter__(self) -> Iterator[SparseVectors]:
        return (self[i] for i in range(len(self)))

    def to_scipy(self) -> csr_matrix:
        """A `scipy.sparse.csr_matrix`, float32 (texts, dim), which shares the arrays.

        Raises:
            MissingDependencyError: scipy is not installed.
        """
        if importlib.util.find_spec("scipy") is None:
            raise MissingDependencyError(
                "SparseVectors.to_scipy needs scipy: python -m pip install scipy"
            )
        from scipy.sparse import csr_matrix

        return csr_matrix((self.values, self.indices, self.indptr), shape=self.shape)

    def to_dense(self) -> npt.NDArray[np.float32]:
        """All numbers, float32 (texts, dim): 122 kB a text for a vocabulary of 30,522 tokens."""
        out = np.zeros(self.shape, dtype=np.float32)
        out[np.repeat(np.arange(len(self)), self.active_dims), self.indices] = self.values
        return out

    def as_dicts(self) -> list[dict[int, float]]:
        """The weights of each vector by token id, as Python numbers."""
        indices, values = self.indices.tolist(), self.values.tolist()
        bounds = pairwise(self.indptr.tolist())
        return [dict(zip(indices[a:b], values[a:b], strict=True)) for a, b in bounds]

    def decode(self, top_k: int | None = None) -> list[list[tuple[str, float]]]:
        """The tokens of each vector with their weights, largest first.

        Args:
            top_k: most tokens of a vector; None is all.

        Raises:
            InputValueError: the vocabulary is not known.
        """
        if top_k is not None:
            whole_number("top_k", top_k)
        tokens = self.vocabulary
        if tokens is None:
            raise InputValueError("these vectors have no vocabulary, so tokens cannot be named")
        rows: list[list[tuple[str, float]]] = []
        for a, b in pairwise(self.indptr.tolist()):
            order = np.argsort(-self.values[a:b], kind="stable")[:top_k]
            ids, weights = self.indices[a:b][order].tolist(), self.values[a:b][order].tolist()
            rows.append([(tokens[i], weight) for i, weight in zip(ids, weights, strict=True)])
        return rows

    def search(
        self, queries: SparseVectors, top_k: int = 10, *, block_rows: int = DEFAULT_BLOCK_ROWS
    ) -> list[list[dict[str, Any]]]:
        """The vectors with the largest dot product to each query: exact, block by block.

        A vector that shares no token with a query is not a hit of it.

            >>> model = SparseEncoder.load("my-sparse")
            >>> documents = model.encode_document(["A dog swims.", "Stocks fell."])
            >>> hits, = documents.search(model.encode_query("A dog swims."), top_k=1)
            >>> hits[0]["corpus_id"]
            0

        Args:
            queries: sparse vectors of the same model.
            top_k: most hits of a query.
            block_rows: vectors that are compared at once. Memory grows with it, and results do not
                depend on it.

        Returns:
            For each query rows `{"corpus_id", "score"}`, best first; equal scores by `corpus_id`.

        Raises:
            InputTypeError, InputValueError: an argument is not valid, or the queries are of a
                model with another vocabulary.
        """
        if not isinstance(queries, SparseVectors):
            raise InputTypeError(f"queries must be SparseVectors, not {type(queries).__name__}")
        if queries.dim != self.dim:
            raise InputValueError(
                f"queries have {queries.dim} dimensions, and these vectors have {self.dim}"
            )
        whole_number("top_k", top_k)
        whole_number("block_rows", block_rows)
        hits = search_blocks(self.arrays, queries.arrays, self.dim, top_k, block_rows)
        return [
            [
                {"corpus_id": row, "score": score}
                for row, score in zip(
                    rows.tolist(), cast(list[float], scores.tolist()), strict=True
                )
            ]
            for rows, scores in hits
        ]

    def __repr__(self) -> str:
        return f"SparseVectors({len(self)} x {self.dim}, {len(self.values)} weights)"
