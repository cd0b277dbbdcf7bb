"""Rows, queries and filters of the race of filtered searches. All are seeded."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from flowvec.vectors import merge_best, top_k

__all__ = ["Case", "FilterData", "cases_of", "write_data"]

Floats = npt.NDArray[np.float32]

_LATENT = 24  # about the dimensions that embeddings of texts spread in
_ROWS_OF_CLUSTER = 500
_NOISE = 0.5
_BLOCK = 50_000
_TENANTS = 1000
# Queries are drawn from the rows with the largest places: eligible rows are near them, or far.
_QUERY_SHARE = 0.0005


@dataclass(frozen=True, slots=True)
class Case:
    """Filters of one kind.

    Attributes:
        kind: `none`; `random`, which does not depend on the vectors; `near` the query or `far` from
            it; `tenant`, another one for each query.
        selectivity: share of the rows that meet the filter.
        filters: one for each query, as `workers.filters` takes them.
    """

    kind: str
    selectivity: float
    filters: list[list[Any] | None]

    @property
    def name(self) -> str:
        """Kind and selectivity."""
        return self.kind if self.kind == "none" else f"{self.kind} {self.selectivity:.2g}"


@dataclass(frozen=True, slots=True)
class FilterData:
    """Where the rows are.

    Attributes:
        folder: holds `vectors.npy`, float32 (rows, dim) of length one, `fields.npz` and
            `queries.npy`.
        vectors: the rows' vectors, mapped.
        fields: their fields: `random` from 0 to 1; `place`, the share of rows before them along one
            direction; and `tenant`.
        queries: float32 (queries, dim) of length one.
    """

    folder: Path
    vectors: Floats
    fields: dict[str, npt.NDArray[Any]]
    queries: Floats

    def eligible(self, wanted: list[Any] | None) -> npt.NDArray[np.bool_] | None:
        """Which rows meet a filter; None is all."""
        if wanted is None:
            return None
        field, sign, value = wanted
        column = self.fields[field]
        meets: npt.NDArray[np.bool_] = (
            column < value if sign == "<" else column >= value if sign == ">=" else column == value
        )
        return meets

    def nearest(self, case: Case, k: int = 10) -> npt.NDArray[np.int64]:
        """Numbers of the nearest eligible rows, (queries, k), by products with all of them."""
        distinct = {tuple(one) if one else None for one in case.filters}
        best = np.full((len(self.queries), k), -1)
        for key in distinct:
            asked = [
                i for i, one in enumerate(case.filters) if (tuple(one) if one else None) == key
            ]
            mask = self.eligible(list(key) if key else None)
            rows = np.arange(len(self.vectors)) if mask is None else np.flatnonzero(mask)
            best[asked] = self._nearest_among(self.queries[asked], rows, k)
        return best

    def _nearest_among(
        self, queries: Floats, rows: npt.NDArray[np.int64], k: int
    ) -> npt.NDArray[np.int64]:
        labels = np.empty((len(queries), 0), np.int64)
        scores = np.empty((len(queries), 0), np.float32)
        for first in range(0, len(rows), _BLOCK):
            part = rows[first : first + _BLOCK]
            nearest, their = top_k(queries, self.vectors[part], k, "cosine")
            labels, scores = merge_best(labels, scores, part[nearest], their, k)
        missing = k - labels.shape[1]
        return np.pad(labels, ((0, 0), (0, max(0, missing))), constant_values=-1)


def write_data(folder: Path, rows: int, queries: int, dim: int, seed: int) -> FilterData:
    """Make clustered vectors and fields, and write them.

    A row is a point near one of many centres in 24 dimensions, turned into `dim` dimensions by a
    random matrix. Its place is the rank of its first coordinate.
    """
    rng = np.random.default_rng(seed)
    centres = rng.standard_normal((max(2, rows // _ROWS_OF_CLUSTER), _LATENT), np.float32)
    turned = rng.standard_normal((_LATENT, dim), np.float32)

    def points(count: int) -> Floats:
        near = centres[rng.integers(0, len(centres), count)]
        return near + _NOISE * rng.standard_normal((count, _LATENT), np.float32)

    def vectors_of(latent: Floats) -> Floats:
        made = latent @ turned + 0.3 * rng.standard_normal((len(latent), dim), np.float32)
        unit: Floats = made / np.linalg.norm(made, axis=1, keepdims=True)
        return unit

    vectors: Floats = np.lib.format.open_memmap(
        folder / "vectors.npy", "w+", np.float32, (rows, dim)
    )
    first_coordinate = np.empty(rows, np.float32)
    for first in range(0, rows, _BLOCK):
        latent = points(min(_BLOCK, rows - first))
        first_coordinate[first : first + len(latent)] = latent[:, 0]
        vectors[first : first + len(latent)] = vectors_of(latent)
    place = np.empty(rows)
    place[np.argsort(first_coordinate)] = np.arange(rows) / rows
    fields = {
        "random": rng.random(rows),
        "place": place,
        "tenant": rng.integers(0, min(_TENANTS, max(1, rows // 20)), rows),
    }
    np.savez(
        folder / "fields.npz",
        random=fields["random"], place=fields["place"], tenant=fields["tenant"],
    )  # fmt: skip
    least = np.quantile(first_coordinate, 1 - _QUERY_SHARE)
    latent = points(64)
    while np.count_nonzero(latent[:, 0] > least) < queries:
        more = points(_BLOCK)
        latent = np.concatenate((latent[latent[:, 0] > least], more[more[:, 0] > least]))
    asked = vectors_of(latent[latent[:, 0] > least][:queries])
    np.save(folder / "queries.npy", asked)
    return FilterData(folder, vectors, fields, asked)


def cases_of(data: FilterData, selectivities: list[float], seed: int) -> list[Case]:
    """All cases: without a filter, each kind by selectivity, and tenants."""
    count = len(data.queries)
    cases = [Case("none", 1.0, [None] * count)]
    for share in selectivities:
        wanted = {
            "random": ["random", "<", share],
            "near": ["place", ">=", 1 - share],
            "far": ["place", "<", share],
        }
        cases += [Case(kind, share, [one] * count) for kind, one in wanted.items()]
    tenants = int(data.fields["tenant"].max()) + 1
    chosen = np.random.default_rng(seed).permutation(tenants)
    one_each = [["tenant", "=", int(chosen[i % tenants])] for i in range(count)]
    return [*cases, Case("tenant", 1 / tenants, list(one_each))]
