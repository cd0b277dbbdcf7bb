"""MaxSim: how well the token vectors of a document answer those of a query."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from flowvec.errors import InputTypeError, InputValueError, first_line

__all__ = ["maxsim", "scored"]

Floats = npt.NDArray[np.float32]
# A text's token vectors, or those of several texts.
TokenVectors = npt.ArrayLike | Sequence[npt.ArrayLike]

# Products of tokens that are held at once: 16 MiB of float32.
_BLOCK_ELEMENTS = 1 << 22
# Numbers of documents' vectors that are copied at once: 64 MiB of float32.
_BLOCK_NUMBERS = 1 << 24


def maxsim(queries: TokenVectors, documents: TokenVectors) -> Floats:
    """The late-interaction score of every query with every document.

    Each token of the query takes its most similar token of the document, and the score is the sum
    of these dot products. It grows with the number of the query's tokens, so scores of different
    queries cannot be compared.

        >>> query = np.eye(2, dtype=np.float32)
        >>> maxsim(query, [np.array([[1.0, 0.0]]), np.eye(2)]).tolist()
        [[1.0, 2.0]]

    Args:
        queries: float32 (tokens, dim) for each query; or that of a single one.
        documents: the same for documents.

    Returns:
        float32 (queries, documents); higher is better. A document without tokens has 0.

    Raises:
        InputTypeError: they are not arrays of numbers.
        InputValueError: they are not (tokens, dim), or differ in dim.
    """
    left, right = _arrays("queries", queries), _arrays("documents", documents)
    dims = {array.shape[1] for array in (*left, *right)}
    if len(dims) > 1:
        raise InputValueError(f"token vectors differ in dim: {sorted(dims)}")
    return scored(left, right, max([1, *dims]))


def scored(
    left: Sequence[Floats],
    right: Sequence[Floats],
    dim: int,
    *,
    products_at_once: int = _BLOCK_ELEMENTS,
    numbers_at_once: int = _BLOCK_NUMBERS,
) -> Floats:
    """`maxsim` of arrays of one dimension, in blocks of documents.

    Args:
        left: float32 (tokens, dim) for each query.
        right: the same for documents.
        dim: length of the vectors.
        products_at_once: products of tokens that are held at once.
        numbers_at_once: numbers of documents' vectors that are copied at once.
    """
    out = np.zeros((len(left), len(right)), dtype=np.float32)
    longest = max((len(query) for query in left), default=0)
    most = max(1, min(products_at_once // max(1, longest), numbers_at_once // dim))
    for start, stop in _blocks([len(document) for document in right], most):
        used = [i for i in range(start, stop) if len(right[i])]
        if not used:
            continue
        flat = np.concatenate([right[i] for i in used])
        begins = np.cumsum([0, *(len(right[i]) for i in used[:-1])])
        for row, query in zip(out, left, strict=True):
            largest = np.maximum.reduceat(query @ flat.T, begins, axis=1)
            row[used] = largest.sum(axis=0, dtype=np.float64)
    return out


def _blocks(lengths: Sequence[int], most: int) -> Iterator[tuple[int, int]]:
    """Ranges of documents of at most so many tokens together, or of one document."""
    start = tokens = 0
    for i, length in enumerate(lengths):
        if tokens and tokens + length > most:
            yield start, i
            start, tokens = i, 0
        tokens += length
    if start < len(lengths):
        yield start, len(lengths)


def _arrays(name: str, given: TokenVectors) -> list[Floats]:
    """Token vectors of each text, checked."""
    is_one = isinstance(given, np.ndarray) and given.ndim == 2
    if not is_one and not isinstance(given, Sequence | np.ndarray):
        raise InputTypeError(
            f"{name} must be token vectors (tokens, dim), or a list of them, not "
            f"{type(given).__name__}"
        )
    arrays: list[Floats] = []
    for item in [given] if is_one else given:  # type: ignore[union-attr]
        try:
            array = np.asarray(item, dtype=np.float32)
        except (TypeError, ValueError, OverflowError) as error:
            raise InputTypeError(f"{name} must be arrays of numbers: {first_line(error)}") from None
        if array.ndim != 2:
            raise InputValueError(f"{name} must be of shape (tokens, dim), not {array.shape}")
        arrays.append(array)
    return arrays
