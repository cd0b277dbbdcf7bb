"""Every file that is not a sound graph is refused."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from flowvec.hnsw import GraphFileError, HnswGraph, Places
from tests.graph_files import HEADER

DIM, M, ROWS = 5, 4, 700
ELEMENT = 4 * 2 * M + 4 + 16 + 32 + 8  # links, a head and a multiple of 32 numbers, a label


def graph(path: Path, rows: int = ROWS, dim: int = DIM, m: int = M, deleted: int = 0) -> Path:
    made = HnswGraph("ip", dim, rows, m, ef_construction=50, seed=1)
    vectors = np.random.default_rng(0).normal(size=(rows, dim)).astype(np.float32)
    made.add(np.arange(1, rows + 1), vectors)
    made.delete(np.arange(1, deleted + 1))
    made.save(path)
    return path


def load(path: Path, dim: int = DIM, m: int = M) -> int:
    return len(HnswGraph.load(path, "ip", dim, m))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return graph(tmp_path_factory.mktemp("graph") / "g", deleted=50).read_bytes()


@pytest.fixture
def changed(whole: bytes, tmp_path: Path):
    """Check a file that differs from a good one."""

    def check(change) -> None:
        data = bytearray(whole)
        result = change(data)
        file = tmp_path / "g"
        file.write_bytes(data if result is None else result)
        load(file)

    return check


@pytest.mark.parametrize(
    ("rows", "dim", "m", "deleted"),
    [(0, 5, 4, 0), (1, 5, 4, 0), (2, 1, 2, 1), (700, 5, 4, 700), (3000, 16, 16, 10)],
)
def test_what_is_written_is_a_graph(
    tmp_path: Path, rows: int, dim: int, m: int, deleted: int
) -> None:
    assert load(graph(tmp_path / "g", rows, dim, m, deleted), dim, m) == rows
    for other in ((dim + 1, m), (dim, m + 1)):
        with pytest.raises(GraphFileError, match="is not a graph"):
            load(tmp_path / "g", *other)


def test_a_good_file_passes(changed) -> None:
    changed(lambda data: None)


def head(name: str, value):
    def change(data: bytearray) -> None:
        header = np.frombuffer(data, HEADER, count=1)
        header[name] = value

    return change


def word(offset: int, value: int):
    def change(data: bytearray) -> None:
        data[offset : offset + 4 or None] = value.to_bytes(4, "little")

    return change


FIRST = HEADER.itemsize
TAIL = FIRST + ROWS * ELEMENT


@pytest.mark.parametrize(
    ("change", "part"),
    [
        (head("count", ROWS + 1), "room"),
        (head("count", ROWS - 1), "is not a graph"),
        (head("count", 1 << 62), "shorter than its number"),
        (head("count", 0), "dimension"),
        (head("max_elements", ROWS - 1), "more nodes than room"),
        (head("element_bytes", ELEMENT + 1), "element_bytes"),
        (head("label_offset", 1 << 40), "label_offset"),
        (head("data_offset", 0), "data_offset"),
        (head("offset_level0", 8), "offset_level0"),
        (head("max_level", 99), "highest level"),
        (head("max_level", -1), "highest level"),
        (head("entry_point", ROWS), "entry point is not a node"),
        (head("entry_point", 0xFFFFFFFF), "entry point is not a node"),
        (head("m", 5), "its m is 5"),
        (head("max_m", 1 << 30), "max_m"),
        (head("max_m0", 7), "max_m0"),
        (head("mult", float("nan")), "mult"),
        (head("ef_construction", 0), "ef_construction"),
        (head("ef_construction", 1 << 60), "ef_construction"),
        (word(FIRST, 2 * M + 1), "too many links"),
        (word(FIRST + 4, ROWS), "does not lead to a node"),
        (word(FIRST + 4, 0xFFFFFFFF), "does not lead to a node"),
        (word(FIRST + 4 + 8 * M, 0x7FC00000), "scale is out of range"),
        (word(FIRST + 4 + 8 * M, 0xBF800000), "scale is out of range"),
        (word(FIRST + 8 + 8 * M, 0x7FC00000), "term is not a number"),
        (word(FIRST + 20 + 8 * M, 0x80), "number is out of range"),
        (word(FIRST, 2 << 24 | 1), "mark of a group"),
        (word(FIRST, 1 << 24 | 1), "number of groups"),
        (word(-4 * DIM - 8, 0x7FC00000), "centre holds NaN"),
        (word(-4 * DIM - 16, 1), "kind of distance"),
        (word(-4 * DIM - 24, 4), "dimension"),
        (lambda data: data[:FIRST - 1], "shorter than a header"),
        (lambda data: data[:-4], "cut"),
        (lambda data: data[:-1], "cut"),
        (lambda data: data + bytes(4), "longer than its header"),
        (lambda data: data[:TAIL], "cut"),
        (lambda data: b"", "shorter than a header"),
    ],
)  # fmt: skip
def test_what_is_not_a_graph_is_refused(changed, change, part: str) -> None:
    with pytest.raises(GraphFileError, match=part):
        changed(change)


def test_an_entry_point_below_the_top_is_refused(whole: bytes, changed) -> None:
    header = np.frombuffer(whole, HEADER, count=1)[0]
    other = (int(header["entry_point"]) + 1) % ROWS
    with pytest.raises(GraphFileError, match="not on the highest level"):
        changed(head("entry_point", other))


def test_labels_are_unique(changed) -> None:
    end = FIRST + ELEMENT - 8
    with pytest.raises(GraphFileError, match="the same label"):
        changed(
            lambda data: data.__setitem__(
                slice(end, end + 8), data[end + ELEMENT : end + ELEMENT + 8]
            )
        )


def test_upper_links_lead_to_elements_of_their_level(whole: bytes, changed) -> None:
    words = np.frombuffer(whole[TAIL:], "<u4")
    place = int(np.flatnonzero(words)[0])  # the first element with upper levels
    count = int(words[place + 1]) & 0xFFFF
    assert count
    lowest = next(i for i in range(ROWS) if i != place)
    with pytest.raises(GraphFileError, match=r"on its level|lead to a node"):
        changed(word(TAIL + 4 * (place + 2), lowest if words[lowest] == 0 else ROWS))
    with pytest.raises(GraphFileError, match="not whole levels"):
        changed(word(TAIL + 4 * place, int(words[place]) + 4))
    with pytest.raises(GraphFileError, match="cut"):
        changed(word(TAIL + 4 * place, 4 * (M + 1) * 60_000_000))


@pytest.mark.parametrize("seed", range(4))
def test_no_random_damage_to_the_structure_gets_through_to_a_crash(
    whole: bytes, tmp_path: Path, python, seed: int
) -> None:
    """Files that pass are loaded and searched in a child: it must not die of a signal."""
    rng = np.random.default_rng(seed)
    passed = []
    for case in range(60):
        data = bytearray(whole)
        for _ in range(rng.integers(1, 4)):
            # Anywhere, and half of the time in the header, where it hurts most.
            place = int(rng.integers(0, FIRST if rng.integers(2) else len(data) - 8))
            size = int(rng.choice([1, 2, 4, 8]))
            data[place : place + size] = rng.bytes(size)
        file = tmp_path / f"{case}.hnsw"
        file.write_bytes(data)
        try:
            load(file)
        except GraphFileError:
            file.unlink()
        else:
            passed.append(file)
    code = """
import sys, numpy as np
from flowvec.hnsw import HnswGraph, Places
places = Places(None, 0, np.ones((700, 5), np.float32))
for name in sys.argv[1:]:
    graph = HnswGraph.load(name, "ip", 5, 4, 800)
    graph.search(np.ones((3, 5), np.float32), 10, 700, np.arange(1, 701), places)
    graph.add(np.arange(1 << 60, (1 << 60) + 50), np.eye(50, 5, dtype=np.float32))
    graph.save(name)
"""
    done = python(code, *passed)
    assert done.returncode == 0, done.stderr


def test_a_graph_shares_its_file_and_never_changes_it(tmp_path: Path) -> None:
    file = graph(tmp_path / "g", deleted=5)
    before = file.read_bytes()
    rows = np.random.default_rng(0).normal(size=(ROWS, DIM)).astype(np.float32)
    more = np.random.default_rng(1).normal(size=(300, DIM)).astype(np.float32)
    held = HnswGraph.load(file, "ip", DIM, M, ROWS + 100)
    if sys.platform != "win32":
        assert held.mapped_bytes == held.nodes * ELEMENT
        assert held.file_bytes - held.mapped_bytes < held.memory_bytes < 200 * (ROWS + 100)
    held.delete(np.arange(6, 16))
    held.add(np.arange(ROWS + 1, ROWS + 101), more[:100])
    other = HnswGraph.load(file, "ip", DIM, M)
    assert (len(held), held.deleted, len(other), other.deleted) == (ROWS + 100, 15, ROWS, 5)
    held.resize(ROWS + 300)  # it has outgrown the room behind the file
    assert held.mapped_bytes == 0
    held.add(np.arange(ROWS + 101, ROWS + 301), more[100:])
    assert file.read_bytes() == before
    # Whoever has the file that is written again keeps what was in it.
    held.save(file)
    for one, count, deleted in (
        (other, ROWS, 5), (HnswGraph.load(file, "ip", DIM, M), ROWS + 300, 15)
    ):  # fmt: skip
        vectors = np.concatenate((rows, more))[:count]
        found, _ = one.search(
            vectors[deleted:], 1, 100, np.arange(1, count + 1), Places(None, 0, vectors)
        )
        best = (vectors[deleted:] @ vectors[deleted:].T).argmax(1) + deleted + 1
        assert (len(one), one.deleted) == (count, deleted)
        assert (found[:, 0] == best).mean() > 0.98
