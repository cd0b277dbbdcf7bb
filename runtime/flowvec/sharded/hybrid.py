"""A hybrid search over shards: rankings of each are merged, fused, and become hits."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from flowvec.collection.grouping import best_of_groups, group_of
from flowvec.collection.query import Queries, SearchOptions
from flowvec.collection.results import Hit
from flowvec.collection.store.rows import Id, Item
from flowvec.sharded.fusion import Fused, Key, fused, total_statistics
from flowvec.sharded.shard_calls import ShardCalls

__all__ = ["HybridSearch"]


@dataclass(frozen=True, slots=True)
class HybridSearch:
    """One hybrid search.

    It asks each shard three times: for vectors, sparse vectors and counts of words; for words; and
    for the rows that became hits.

    Attributes:
        calls: of the shards.
        queries: vectors, texts and sparse vectors.
        fingerprint: of the model that made the sparse vectors of the queries; None if unknown.
        options: of the search before reranking.
        timeout: seconds that a shard may take for a call; None is the one of `calls`.
    """

    calls: ShardCalls
    queries: Queries
    fingerprint: str | None
    options: SearchOptions
    timeout: float | None

    def hits(self) -> tuple[list[list[Hit]], dict[str, str]]:
        """The k best hits of each query, and why shards are missing."""
        if self.options.group_by is None:
            return self._fused(self.queries, self.options)
        return self._grouped(self.options.group_by)

    def _grouped(self, field: str) -> tuple[list[list[Hit]], dict[str, str]]:
        """`_fused` with only the best row of each value of a field."""
        options = self.options
        missing: dict[str, str] = {}
        number_by_id: dict[Id, int] = {}
        hits: list[dict[int, Hit]] = [{} for _ in range(len(self.queries))]

        def find(places: Sequence[int], depth: int) -> list[list[tuple[int, float]]]:
            lines, late = self._fused(self.queries.some(places), replace(options, k=depth))
            missing.update(late)
            for place, line in zip(places, lines, strict=True):
                hits[place] = {number_by_id.setdefault(h.id, len(number_by_id)): h for h in line}
            return [[(number, h.score) for number, h in hits[i].items()] for i in places]

        def groups_of(numbers: set[int]) -> dict[int, Hashable]:
            metadata = {number: h.metadata for line in hits for number, h in line.items()}
            return {number: group_of(metadata[number], number, field) for number in numbers}

        best = best_of_groups(find, groups_of, len(self.queries), options.k, options.min_score)
        chosen = [[its[number] for number, _ in line] for line, its in zip(best, hits, strict=True)]
        return chosen, missing

    def _fused(
        self, queries: Queries, options: SearchOptions
    ) -> tuple[list[list[Hit]], dict[str, str]]:
        """The k best rows of each query by several rankings, and why shards are missing."""
        vectors, texts, shares = queries.vectors, queries.texts, options.shares
        candidates, missing = self.calls.ask_all(
            "rankings", (queries, self.fingerprint, options), self.timeout
        )
        words: dict[str, Any] = {}
        if shares.words > 0.0 and texts is not None:
            totals = total_statistics(candidates)
            words_of = Queries(vectors, texts)
            asked_words = dict.fromkeys(candidates, (words_of, totals, options))
            words, late = self.calls.ask("words", asked_words, self.timeout)
            missing |= late
        items: dict[Key, Item | None] = {}
        while True:
            there = [name for name in candidates if name not in missing]
            lines = [
                fused(
                    {name: candidates[name][i] for name in there},
                    {name: words[name][i] for name in there if name in words},
                    options,
                )
                for i in range(len(vectors))
            ]
            chosen = [_chosen(line, items, options) for line in lines]
            wanted: dict[str, list[int]] = {}
            for name, label in {key for keys in chosen for key, _ in keys if key not in items}:
                wanted.setdefault(name, []).append(label)
            if not wanted:
                break
            asked = {name: (sorted(labels),) for name, labels in wanted.items()}
            rows, late = self.calls.ask("items", asked, self.timeout)
            missing |= late
            for name, its in rows.items():
                items |= {(name, label): its.get(label) for label in wanted[name]}
        hits = [
            [
                line.hit(key, score, item, with_vector=options.with_vectors)
                for key, score in keys
                if (item := items[key]) is not None
            ]
            for line, keys in zip(lines, chosen, strict=True)
        ]
        return hits, missing


def _chosen(
    line: Fused, items: Mapping[Key, Item | None], options: SearchOptions
) -> list[tuple[Key, float]]:
    """The k best rows of different ids, as far as rows are known, without deleted ones."""
    chosen: list[tuple[Key, float]] = []
    ids: set[Id] = set()
    for key, score in line.ranked:
        if len(chosen) >= options.k or (
            options.min_score is not None and score < options.min_score
        ):
            break
        if key in items:
            item = items[key]
            if item is None or item.id in ids:
                continue
            ids.add(item.id)
        chosen.append((key, score))
    return chosen
