"""Checks hnswlib's files before hnswlib reads them.

hnswlib trusts its files: a wrong count, size or link makes it read or write outside its memory
(hnswlib#673). A hash shows that a file is the one that was written; this shows that it is a graph.

Layout, little-endian, of hnswlib 0.8's `saveIndex`: a header of 96 bytes; for every element its
links on the lowest level (a count in two bytes, a mark of deletion, `2 M` numbers of elements), its
vector and its label; then for every element the size of its upper levels' links in bytes and those
links, with room for `M` on each level.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from flowvec.errors import CollectionError

__all__ = ["HEADER", "check_graph_file", "remove_room"]

HEADER = np.dtype(
    [
        ("offset_level0", "<u8"),
        ("max_elements", "<u8"),
        ("count", "<u8"),
        ("element_bytes", "<u8"),
        ("label_offset", "<u8"),
        ("data_offset", "<u8"),
        ("max_level", "<i4"),
        ("entry_point", "<u4"),
        ("max_m", "<u8"),
        ("max_m0", "<u8"),
        ("m", "<u8"),
        ("mult", "<f8"),
        ("ef_construction", "<u8"),
    ]
)
_LABEL_BYTES = 8
# hnswlib allocates by `max_elements`, which grows by halves.
_MOST_ROOM = 2.0
_LEAST_ROOM = 1024

Numbers = npt.NDArray[np.int64]


def check_graph_file(path: Path, dim: int, m: int) -> int:
    """Check that a file is a complete graph of vectors of this length, with valid links.

    Args:
        path: the file.
        dim: length of the vectors, float32.
        m: links of an element on the upper levels.

    Returns:
        How many elements it has.

    Raises:
        CollectionError: it is not. The message says what is wrong.
    """
    try:
        return _Check(path, dim, m).run()
    except _UnsoundError as error:
        raise CollectionError(f"{path} is not a graph: {error}") from None
    except OSError as error:
        raise CollectionError(f"cannot read {path}: {error}") from None


def remove_room(path: Path) -> None:
    """Let a file's header reserve no room for more elements than it has.

    Raises:
        OSError: the file could not be written.
    """
    with path.open("r+b") as file:
        header = np.frombuffer(file.read(HEADER.itemsize), HEADER).copy()
        header["max_elements"] = header["count"]
        file.seek(0)
        file.write(header.tobytes())


class _UnsoundError(Exception):
    """What is wrong with a file."""


def _need(condition: object, what: str) -> None:
    if not condition:
        raise _UnsoundError(what)


class _Check:
    def __init__(self, path: Path, dim: int, m: int) -> None:
        self.dim, self.m = dim, m
        self.size = path.stat().st_size
        _need(self.size >= HEADER.itemsize, "it is shorter than a header")
        # As a plain array, which is faster to slice.
        self.bytes: Any = np.asarray(np.memmap(path, dtype=np.uint8, mode="r"))
        self.header = self.bytes[: HEADER.itemsize].view(HEADER)[0]
        self.count = int(self.header["count"])

    def run(self) -> int:
        self._header()
        if self.count == 0:
            _need(self.size == HEADER.itemsize, "it is longer than its header says")
            return 0
        elements = self._elements()
        levels, lists = self._upper_levels()
        top = int(levels.max())
        entry = int(self.header["entry_point"])
        _need(entry < self.count, "its entry point is not an element")
        _need(int(self.header["max_level"]) == top, "its highest level is not that of its elements")
        _need(levels[entry] == top, "its entry point is not on the highest level")
        self._links(elements["count"], elements["links"], np.zeros(self.count, np.int64))
        for level in range(1, top + 1):
            on = [words for element, words in lists if levels[element] >= level]
            width = self.m + 1
            block = np.stack([words[(level - 1) * width : level * width] for words in on])
            counts = (block[:, 0] & 0xFFFF).astype(np.int64)
            self._links(counts, block[:, 1:], np.maximum(level - levels, 0))
        labels = np.sort(elements["label"])
        _need(labels[-1] < 1 << 63, "a label is out of range")
        _need((labels[1:] != labels[:-1]).all(), "two elements have the same label")
        _need(np.isfinite(elements["vector"]).all(), "a vector holds NaN or infinity")
        return self.count

    def _header(self) -> None:
        header, m = self.header, self.m
        links = 4 * (2 * m) + 4
        expected = {
            "offset_level0": 0,
            "max_m": m,
            "max_m0": 2 * m,
            "m": m,
            "data_offset": links,
            "label_offset": links + 4 * self.dim,
            "element_bytes": links + 4 * self.dim + _LABEL_BYTES,
        }
        for name, value in expected.items():
            _need(int(header[name]) == value, f"its {name} is {header[name]} instead of {value}")
        _need(
            self.count * expected["element_bytes"] <= self.size - HEADER.itemsize,
            "it is shorter than its number of elements",
        )
        room = int(header["max_elements"])
        most = max(_LEAST_ROOM, int(_MOST_ROOM * self.count))
        _need(self.count <= room <= most, f"its header reserves room for {room} elements")
        _need(0 < int(header["ef_construction"]) < 1 << 20, "its ef_construction is out of range")
        _need(
            math.isclose(float(header["mult"]), 1 / math.log(m)),
            "its level multiplier does not match M",
        )

    def _elements(self) -> Any:
        """The lowest level as a table."""
        kind = np.dtype(
            [
                ("count", "<u2"),
                ("mark", "u1"),
                ("unused", "u1"),
                ("links", "<u4", (2 * self.m,)),
                ("vector", "<f4", (self.dim,)),
                ("label", "<u8"),
            ]
        )
        first = HEADER.itemsize
        table = self.bytes[first : first + self.count * kind.itemsize].view(kind)
        _need((table["mark"] <= 1).all(), "a mark of deletion is not valid")
        return table

    def _upper_levels(self) -> tuple[Numbers, list[tuple[int, npt.NDArray[np.uint32]]]]:
        """The level of each element, and the links of those above the lowest."""
        first = HEADER.itemsize + self.count * int(self.header["element_bytes"])
        tail = self.bytes[first:]
        _need(len(tail) % 4 == 0, "its end is cut")
        words = tail.view("<u4")
        nonzero = np.flatnonzero(words)
        levels = np.zeros(self.count, dtype=np.int64)
        lists = []
        width = self.m + 1
        place = element = 0
        while element < self.count:
            # An element on the lowest level only is a zero: go to the next one that is not.
            following = np.searchsorted(nonzero, place)
            here = int(nonzero[following]) if following < len(nonzero) else len(words)
            if element + (here - place) >= self.count:
                place += self.count - element
                break
            element += here - place
            _need(here < len(words), "its end is cut")
            size, rest = divmod(int(words[here]), 4 * width)
            _need(rest == 0, "an element's upper links are not whole levels")
            _need(here + 1 + size * width <= len(words), "its end is cut")
            levels[element] = size
            lists.append((element, words[here + 1 : here + 1 + size * width]))
            place = here + 1 + size * width
            element += 1
        _need(place == len(words), "it is longer or shorter than its header says")
        return levels, lists

    def _links(self, counts: Any, links: Any, below: Numbers) -> None:
        """Check links of one level; `below` is above 0 for elements that do not reach it."""
        room = links.shape[1]
        _need((counts <= room).all(), "an element has too many links")
        used = np.arange(room) < np.asarray(counts)[:, None]
        numbers = links[used]
        _need((numbers < self.count).all(), "a link does not lead to an element")
        _need((below[numbers] == 0).all(), "a link leads to an element that is not on its level")
