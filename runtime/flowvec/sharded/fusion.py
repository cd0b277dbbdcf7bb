"""The fusion of a hybrid search over shards: the one of a collection that has all rows.

Each ranking of the shards is merged first, and cut where a collection cuts it. Then scores are
scaled and places are counted, so that a shard's own best score, 500th row and places have no part
in it. Rows of equal score are in the order of the shards, and in a shard in that of its rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice

from flowvec.collection.hybrid import HYBRID_DEPTH, fuse_ranks, fuse_scores, rank_share, scaled
from flowvec.collection.part_search import Candidates, Words
from flowvec.collection.query import SearchOptions
from flowvec.collection.results import Hit
from flowvec.collection.store.bm25 import WordStatistics
from flowvec.collection.store.rows import Item
from flowvec.errors import CollectionError

__all__ = ["Fused", "Key", "fused", "total_statistics"]

# A shard and a label in it.
Key = tuple[str, int]
Scores = dict[Key, float]

_ALL = 1 << 62


@dataclass(frozen=True, slots=True)
class Fused:
    """The candidates of one query, best first.

    Attributes:
        ranked: rows and their scores.
        words: what the words gave to each score.
        sparse: what the sparse vectors gave; None if the search has none.
    """

    ranked: list[tuple[Key, float]]
    words: Scores
    sparse: Scores | None

    def hit(self, key: Key, score: float, item: Item, *, with_vector: bool) -> Hit:
        """A hit of a row."""
        return Hit(
            item.id,
            score,
            item.text,
            item.metadata,
            vector=item.vector if with_vector else None,
            word_score=self.words.get(key, 0.0),
            sparse_score=None if self.sparse is None else self.sparse.get(key, 0.0),
        )


def total_statistics(
    answers: Mapping[str, Sequence[Candidates]],
) -> list[WordStatistics | None]:
    """Statistics of the words of each query over all shards that answered.

    Raises:
        CollectionError: shards have full-text indexes with different tokenizers.
    """
    names: dict[str, str] = {}
    for name, answer in answers.items():
        for one in answer:
            if one.tokenizer is not None:
                names.setdefault(one.tokenizer, name)
    if len(names) > 1:
        described = ", ".join(f"{name} has {tokenizer}" for tokenizer, name in names.items())
        raise CollectionError(
            f"the full-text indexes of the shards have different tokenizers: {described}; "
            "Collection.index_texts makes them alike"
        )
    totals: list[WordStatistics | None] = []
    for line in zip(*answers.values(), strict=True):
        parts = [one.statistics for one in line if one.statistics is not None]
        totals.append(WordStatistics.total(parts) if parts else None)
    return totals


def fused(
    candidates: Mapping[str, Candidates], words: Mapping[str, Words], options: SearchOptions
) -> Fused:
    """All candidates of one query, best first.

    Args:
        candidates: of each shard.
        words: of each shard; none for a search without words.
        options: of the search.
    """
    shares = options.shares
    near = _best(((name, one.near) for name, one in candidates.items()), HYBRID_DEPTH)
    further = _best(((name, one.further) for name, one in candidates.items()), options.k)
    by_sparse = _best(((name, one.sparse) for name, one in candidates.items()), HYBRID_DEPTH)
    by_words = _best_by_words(words)
    give = scaled if options.fusion == "weights" else rank_share
    from_words, from_sparse = give(shares.words, by_words), give(shares.sparse, by_sparse)
    if options.fusion == "weights":
        vector_scores = {
            (name, label): score
            for part in (candidates, words)
            for name, one in part.items()
            for label, score in one.vector_scores.items()
        }
        ranked = fuse_scores(
            near,
            further,
            from_words,
            from_sparse,
            _ALL,
            # A row that was deleted meanwhile has none.
            scores_of=lambda far: {key: vector_scores[key] for key in far if key in vector_scores},
            self_score=next((one.self_score for one in candidates.values()), 0.0),
            vector_weight=shares.vector,
        )
    else:
        # Rows of `further` get nothing from their place, so that no score depends on k.
        places = dict.fromkeys(further, 0.0) | rank_share(shares.vector, near)
        ranked = fuse_ranks([places, from_words, from_sparse], _ALL)
    return Fused(ranked, from_words, from_sparse if shares.sparse > 0.0 else None)


def _best(rankings: Iterable[tuple[str, Mapping[int, float]]], count: int) -> Scores:
    """The best rows of the rankings of all shards."""
    pairs = chain.from_iterable(
        (((name, label), score) for label, score in ranking.items()) for name, ranking in rankings
    )
    return dict(islice(sorted(pairs, key=lambda pair: -pair[1]), count))


def _best_by_words(words: Mapping[str, Words]) -> Scores:
    """The best rows by words; a shard's rows of equal score and size are in its order."""
    rows = [
        ((name, label), score, one.sizes.get(label, 0))
        for name, one in words.items()
        for label, score in one.scores.items()
    ]
    rows.sort(key=lambda row: (-row[1], row[2]))
    return {key: score for key, score, _ in rows[:HYBRID_DEPTH]}
