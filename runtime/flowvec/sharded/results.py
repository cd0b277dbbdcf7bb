"""What a `ShardedSearcher` returns."""

from __future__ import annotations

from dataclasses import dataclass

from flowvec.collection.results import Hit
from flowvec.collection.store.rows import Item

__all__ = ["ShardedHits", "ShardedRows"]


@dataclass(frozen=True, slots=True)
class ShardedHits:
    """The result of a search over all shards.

    Attributes:
        hits: hits of each query, best first.
        missing: shards that were not searched, by name, and why.
    """

    hits: list[list[Hit]]
    missing: dict[str, str]

    @property
    def partial(self) -> bool:
        """Whether a shard that did not answer may have better hits."""
        return bool(self.missing)


@dataclass(frozen=True, slots=True)
class ShardedRows:
    """Rows of all shards, by id.

    Attributes:
        rows: in the order of the ids; None for an id that no shard has that answered. A row's
            `label` is its number in its shard.
        missing: shards that did not answer, by name, and why.
    """

    rows: list[Item | None]
    missing: dict[str, str]

    @property
    def partial(self) -> bool:
        """Whether a row that is None may be in a shard that did not answer."""
        return bool(self.missing) and None in self.rows
