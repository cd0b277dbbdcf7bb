"""Bodies and answers of the routes that only the page uses."""

from __future__ import annotations

from typing import Annotated, Literal, NotRequired, TypedDict

import msgspec

from flowvec.collection.store.rows import Id
from flowvec.projection.collection_map import MAP_ROWS
from flowvec.server.answer_types import StoredRow

__all__ = [
    "MapFields", "MapIds", "MapPoints", "MapRows", "MapRowsFound", "MapStart", "MapState",
    "MapValues", "Space", "SpaceStart", "SpaceState",
]  # fmt: skip

_MOST_POINTS = 10_000


class _Body(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A body whose misspelt fields are refused."""


class MapStart(_Body):
    """Which map to make; `again` makes it anew, and `halt` leaves it as it is by now."""

    rows: Annotated[int, msgspec.Meta(ge=1, le=MAP_ROWS)] = MAP_ROWS
    seed: Annotated[int, msgspec.Meta(ge=0, le=1 << 31)] = 0
    again: bool = False
    halt: bool = False


class MapFields(_Body):
    """The field that colours the points."""

    field: Annotated[str, msgspec.Meta(max_length=1000)]


class MapRows(_Body):
    """Points whose rows are wanted, by their number."""

    points: Annotated[
        list[Annotated[int, msgspec.Meta(ge=0, le=MAP_ROWS)]],
        msgspec.Meta(max_length=_MOST_POINTS),
    ]
    text_limit: Annotated[int, msgspec.Meta(ge=0)] | None = None


class MapIds(_Body):
    """Rows whose points are wanted."""

    ids: Annotated[list[Id], msgspec.Meta(max_length=_MOST_POINTS)]


class MapState(TypedDict):
    """A map that is being made, or was.

    `version` rises whenever positions change; `is_stale` says that the collection has changed.
    """

    stage: Literal["none", "waiting", "axes", "neighbours", "layout", "done", "failed"]
    progress: float
    version: int
    points: int
    rows: int
    shares: list[float]
    is_stale: bool
    message: str


class MapValues(TypedDict):
    """Colours of the points: `codes` is base64 of a byte for each point.

    For texts and flags a code counts `values`, 254 is any other value, and 255 none. For numbers it
    is from 0 (`least`) to 254 (`most`), and 255 for none.
    """

    kind: Literal["texts", "numbers", "none"]
    values: list[str]
    counts: list[int]
    others: int
    least: float
    most: float
    codes: str


class MapPoints(TypedDict):
    """Points of rows; null for a row that is not on the map."""

    points: list[int | None]


class MapRowsFound(TypedDict):
    """Rows of points; null for a row that is gone."""

    rows: list[StoredRow | None]


class SpaceStart(_Body):
    """How many texts to compare; `again` measures anew."""

    texts: Annotated[int, msgspec.Meta(ge=2, le=4096)] = 1000
    again: bool = False


class Space(TypedDict):
    """One set of vectors: figures, the first two principal axes, and the spectrum."""

    mean_cosine: float
    isoscore: float
    spectrum: list[float]
    positions: list[list[float]]
    shares: list[float]


class SpaceState(TypedDict):
    """Vectors of the same texts before and after a model's transform."""

    stage: Literal["none", "waiting", "embedding", "done", "failed"]
    progress: float
    message: str
    model: str | None
    transform: list[str]
    texts: NotRequired[list[str]]
    before: NotRequired[Space | None]
    after: NotRequired[Space]
