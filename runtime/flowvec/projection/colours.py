"""Values of a field as colours of points."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypedDict

import numpy as np
import numpy.typing as npt

__all__ = ["ColoursAbout", "PointColours", "point_colours"]

Value = str | int | float | bool

# Values of texts that have a colour of their own; more cannot be told apart.
_COLOURS = 12
_OTHER, _NONE = 254, 255


class ColoursAbout(TypedDict):
    """What colours mean: `PointColours` without its codes."""

    kind: Literal["texts", "numbers", "none"]
    values: list[str]
    counts: list[int]
    others: int
    least: float
    most: float


@dataclass(frozen=True, slots=True, eq=False)
class PointColours:
    """A code for each point, and what codes mean.

    Attributes:
        kind: `numbers` if the field has more than a dozen different numbers and nothing else.
        codes: uint8 (points,). Of texts a code counts `values`, 254 is any other value, and 255
            none; of numbers it is from 0 (`least`) to 254 (`most`), and 255 for none.
        values: the most frequent values.
        counts: how many points have them.
        others: how many further values there are.
        least: the lowest number.
        most: the highest number.
    """

    kind: Literal["texts", "numbers", "none"]
    codes: npt.NDArray[np.uint8]
    values: tuple[str, ...] = ()
    counts: tuple[int, ...] = ()
    others: int = 0
    least: float = 0.0
    most: float = 0.0

    def described(self) -> ColoursAbout:
        """Everything but the codes, for JSON."""
        return {
            "kind": self.kind,
            "values": list(self.values),
            "counts": list(self.counts),
            "others": self.others,
            "least": self.least,
            "most": self.most,
        }


def point_colours(
    value_by_label: Mapping[int, Value], labels: npt.NDArray[np.int64]
) -> PointColours:
    """Colours of points, from the values of a field.

    Args:
        value_by_label: values; rows without one are missing.
        labels: rows of the points, int64 (points,).
    """
    found = [value_by_label.get(label) for label in labels.tolist()]
    codes = np.full(len(found), _NONE, np.uint8)
    counts = Counter(_written(v) for v in found if v is not None)
    is_number = [isinstance(v, int | float) and not isinstance(v, bool) for v in found]
    if counts and sum(is_number) == counts.total() and len(counts) > _COLOURS:
        numbers = np.array([v for v in found if v is not None], np.float64)
        relative = numbers / (np.abs(numbers).max() or 1.0)  # so that no difference overflows
        relative -= relative.min()
        codes[np.array(is_number)] = np.round(relative / (relative.max() or 1.0) * _OTHER)
        least, most = float(numbers.min()), float(numbers.max())
        return PointColours("numbers", codes, least=least, most=most)
    if not counts:
        return PointColours("none", codes)
    common = counts.most_common(_COLOURS)
    code_by_value = {value: code for code, (value, _) in enumerate(common)}
    codes[:] = [_NONE if v is None else code_by_value.get(_written(v), _OTHER) for v in found]
    values, numbers_of = zip(*common, strict=True)
    return PointColours("texts", codes, values, numbers_of, len(counts) - len(common))


def _written(value: Value) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
