"""Sorts the hits of a search again, by a model that reads the query and each text."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from flowvec.arguments import whole_number
from flowvec.collection.query import SearchOptions
from flowvec.collection.results import Hit
from flowvec.errors import InputTypeError, InputValueError
from flowvec.multi_vector.encoder import MultiVectorEncoder
from flowvec.multi_vector.scoring import maxsim
from flowvec.reranker.reranker import Reranker
from flowvec.reranker.scores import Ranking
from flowvec.reranker.shared_reranker import SharedReranker
from flowvec.spelled import argument

__all__ = [
    "LOGITS", "RERANK_FROM", "DocumentTokens", "Reranking", "late_scores", "pairs_of",
    "sorted_again", "stored_scores", "texts_of_hits",
]  # fmt: skip

Floats = npt.NDArray[np.float32]
# Token vectors of the texts of hits, by text; None where none are stored.
DocumentTokens = Callable[[MultiVectorEncoder, list[list[Hit]]], dict[str, Floats] | None]

# Hits of the search that are read by the reranker.
RERANK_FROM = 50
# Hits whose stored token vectors are in memory at once, except of a single query with more of them.
# Those of 256 tokens of 128 dimensions take 134 MB.
_HITS_AT_ONCE = 1024
# The activation of scores that are sorted: none.
LOGITS: Final = "identity"


@dataclass(frozen=True, slots=True)
class Reranking:
    """A second stage after a search.

    Attributes:
        reranker: gives the scores.
        hits: how many hits of the search it reads.
    """

    reranker: Reranker | SharedReranker | MultiVectorEncoder
    hits: int

    @classmethod
    def checked(
        cls, reranker: object, rerank_from: int, queries: object, texts: str
    ) -> Reranking | None:
        """Check a caller's options; None without a reranker.

        Args:
            reranker: the caller's.
            rerank_from: how many hits it reads.
            queries: texts, or None if there are only vectors.
            texts: the argument for the texts of vectors, for messages.

        Raises:
            InputTypeError, InputValueError: one of them is not valid.
        """
        whole_number("rerank_from", rerank_from)
        if reranker is None:
            return None
        if not isinstance(reranker, Reranker | SharedReranker | MultiVectorEncoder):
            hint = ""
            if isinstance(reranker, str):
                hint = f": write Reranker.load({reranker!r}), or MultiVectorEncoder.load"
            raise InputTypeError(
                "rerank must be a Reranker or a MultiVectorEncoder, not "
                f"{type(reranker).__name__}{hint}"
            )
        if len(reranker.head.labels) > 1:
            raise InputValueError(
                f"rerank needs a reranker of one label; this one has "
                f"{', '.join(reranker.head.labels)}"
            )
        if queries is None:
            raise InputValueError(
                "rerank needs a text: a reranker cannot read a vector. Give its text as ",
                argument(texts),
            )
        return cls(reranker, rerank_from)

    def first_stage(self, options: SearchOptions) -> SearchOptions:
        """Options of the search whose hits are sorted again."""
        return replace(options, k=max(options.k, self.hits), min_score=None)

    def __call__(
        self,
        queries: Sequence[str],
        hits: list[list[Hit]],
        options: SearchOptions,
        document_tokens: DocumentTokens,
    ) -> list[list[Hit]]:
        """The best k hits of each query by the reranker.

        Args:
            queries: texts.
            hits: of the first stage, best first.
            options: of the whole search.
            document_tokens: gives a MultiVectorEncoder the stored token vectors of the hits.

        Raises:
            InputValueError: a row has no text.
        """
        rankings = self.rankings(queries, hits, options)
        logits: Floats | None = None
        if isinstance(self.reranker, MultiVectorEncoder):
            logits = stored_scores(self.reranker, queries, hits, document_tokens)
        if logits is None:
            logits = self.reranker.predict(pairs_of(rankings), activation=LOGITS)
        return sorted_again(rankings, hits, logits, options)

    def rankings(
        self, queries: Sequence[str], hits: list[list[Hit]], options: SearchOptions
    ) -> list[Ranking]:
        """The pairs of each query that the reranker reads; arguments and errors as above."""
        return [
            self.reranker.ranking(query, texts, top_k=options.k or 1)
            for query, texts in zip(queries, texts_of_hits(hits), strict=True)
        ]


def stored_scores(
    encoder: MultiVectorEncoder,
    queries: Sequence[str],
    hits: list[list[Hit]],
    document_tokens: DocumentTokens,
    *,
    hits_at_once: int = _HITS_AT_ONCE,
) -> Floats | None:
    """MaxSim of queries with the stored token vectors of their hits, float32 (pairs,).

    The hits of some queries at a time, so that memory does not grow with the number of queries.

    Returns:
        None if the collection has no token vectors of this model.
    """
    vectors: list[Floats] = []
    scores: list[Floats] = []
    start = 0
    while start < len(hits) or not scores:
        stop, count = start, 0
        while stop < len(hits) and (stop == start or count + len(hits[stop]) <= hits_at_once):
            count += len(hits[stop])
            stop += 1
        part = hits[start:stop]
        tokens = document_tokens(encoder, part)
        if tokens is None:
            return None
        vectors = vectors or encoder.encode_query(list(queries))
        scores.append(late_scores(vectors[start:stop], texts_of_hits(part), tokens))
        start = stop
    return np.concatenate(scores)


def pairs_of(rankings: Sequence[Ranking]) -> list[tuple[str, str]]:
    """All pairs of some rankings, in order."""
    return [pair for ranking in rankings for pair in ranking.pairs]


def sorted_again(
    rankings: Sequence[Ranking],
    hits: list[list[Hit]],
    logits: npt.NDArray[np.float32],
    options: SearchOptions,
) -> list[list[Hit]]:
    """The best k hits of each query, by the logits of its pairs, float32 (pairs,)."""
    sorted_hits: list[list[Hit]] = []
    start = 0
    for ranking, line in zip(rankings, hits, strict=True):
        ranked = ranking.of(logits[start : start + len(line)])[: options.k]
        start += len(line)
        sorted_hits.append(
            [
                replace(
                    before,
                    score=row["score"],
                    search_score=before.score,
                    search_rank=row["corpus_id"] + 1,
                )
                for row in ranked
                for before in [line[row["corpus_id"]]]
                if options.min_score is None or row["score"] >= options.min_score
            ]
        )
    return sorted_hits


def late_scores(
    queries: Sequence[Floats], texts: Sequence[Sequence[str]], tokens: Mapping[str, Floats]
) -> Floats:
    """MaxSim of each query with each of its texts, float32 (pairs,).

    Args:
        queries: token vectors of each query, float32 (tokens, dim).
        texts: the texts of each query.
        tokens: the token vectors of each text, float32 (tokens, dim).
    """
    scores = [np.empty(0, np.float32)]
    for query, line in zip(queries, texts, strict=True):
        if line:
            scores.append(maxsim(query, [tokens[text] for text in line])[0])
    return np.concatenate(scores)


def texts_of_hits(hits: Sequence[Sequence[Hit]]) -> list[list[str]]:
    """The texts of the hits of each query.

    Raises:
        InputValueError: a row has no text.
    """
    return [[_text_of(hit) for hit in line] for line in hits]


def _text_of(hit: Hit) -> str:
    if hit.text is None:
        raise InputValueError(f"the row {hit.id!r} has no text, which a reranker needs")
    return hit.text
