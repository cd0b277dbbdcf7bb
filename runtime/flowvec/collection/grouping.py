"""Merges the hits of a search that share a field, such as the chunks of one text."""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from flowvec.collection.store.json_field import field_names

__all__ = ["best_of_groups", "group_of"]

# Labels and scores of one query, best first.
Ranked = list[tuple[int, float]]

# How many times k rows are looked at first, and at least how many more than k.
_FIRST = 4
_FIRST_LEAST = 16
# How many times as many are looked at when they have too few groups.
_MORE = 4


def group_of(metadata: object, label: int, field: str) -> Hashable:
    """What hits are merged by: equal for rows whose fields are equal in filters.

    So 7 and 7.0 are one group, and 1, true and "1" are three.

    A row whose field is null or missing is a group by itself.

    Args:
        metadata: a row's metadata, or None.
        label: a number that no other row has.
        field: name of a field, as in filters.
    """
    value = metadata
    for name in field_names(field):
        value = value.get(name) if isinstance(value, dict) else None
    return label if value is None else json.dumps(_as_compared(value), sort_keys=True)


def _as_compared(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [_as_compared(part) for part in value]
    if isinstance(value, dict):
        return {name: _as_compared(part) for name, part in value.items()}
    return value


def best_of_groups(
    find: Callable[[Sequence[int], int], list[Ranked]],
    groups_of: Callable[[set[int]], dict[int, Hashable]],
    queries: int,
    k: int,
    min_score: float | None,
) -> list[Ranked]:
    """The best row of each of the k best groups, for each query, best first.

    More and more rows are looked at, until they have k groups or there are no others.

    Args:
        find: gives the best rows of some queries, by the indices of these queries, and at most how
            many rows.
        groups_of: gives the groups of rows, by their labels. A row without one, which was deleted
            meanwhile, is a group by itself.
        queries: how many queries there are.
        k: how many groups.
        min_score: rows with a lower score do not count.
    """
    best: list[Ranked] = [[] for _ in range(queries)]
    group_by_label: dict[int, Hashable] = {}
    open_queries: Sequence[int] = range(queries) if k else ()
    depth = max(_FIRST * k, k + _FIRST_LEAST)
    while open_queries:
        lines = find(open_queries, depth)
        labels = {label for line in lines for label, _ in line}
        group_by_label |= groups_of(labels - group_by_label.keys())
        still_open: list[int] = []
        for query, line in zip(open_queries, lines, strict=True):
            first: dict[Hashable, tuple[int, float]] = {}
            for label, score in line:
                first.setdefault(group_by_label.get(label, label), (label, score))
            best[query] = list(first.values())[:k]
            is_low = min_score is not None and bool(line) and line[-1][1] < min_score
            if len(first) < k and len(line) >= depth and not is_low:
                still_open.append(query)
        open_queries, depth = still_open, depth * _MORE
    return best
