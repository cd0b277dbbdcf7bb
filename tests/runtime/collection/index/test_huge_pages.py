"""A graph's memory uses huge pages if the system has them, and keeps its content."""

from __future__ import annotations

import gc
import mmap
import platform
import sys
import threading
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from flowvec.collection.index import huge_pages
from flowvec.collection.index.hnsw import Graph
from tests.conftest import RunCommand
from tests.makers import unit_vectors
from tests.runtime.collection.index.graphs import search

DIM = 16384
ROWS = 2200
SIZE = ROWS * DIM  # 36 MB in a graph, which no allocator takes from its heap


@pytest.fixture
def on_request() -> None:
    setting = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    if not (setting.exists() and "[madvise]" in setting.read_text()):
        pytest.skip("this system does not give huge pages on request")


@dataclass
class Pages:
    """Bytes of all of this process: the system joins blocks that lie side by side.

    Attributes:
        advised: written ones for which huge pages are requested.
        huge: in huge pages.
    """

    advised: int = 0
    huge: int = 0

    @classmethod
    def now(cls) -> Pages:
        settle()
        pages, sizes = cls(), dict[str, int]()
        for line in Path("/proc/self/smaps").read_text(errors="replace").splitlines():
            name, value, *_ = line.split()
            if name == "VmFlags:":  # the last line of a block
                pages.huge += 1024 * sizes["AnonHugePages:"]
                if "hg" in line.split():
                    pages.advised += 1024 * (sizes["Rss:"] + sizes["Swap:"])
            elif name.endswith(":") and value.isdigit():
                sizes[name] = int(value)
        return pages

    def grew(self, least: float) -> bool:
        """Whether at least so many bytes were advised since then, and are in huge pages.

        Where memory is scattered, the system has none to give; then nothing else gets them either.
        """
        now = Pages.now()
        assert now.advised - self.advised > least
        return now.huge - self.huge > least or not gives_huge_pages(int(least))


def gives_huge_pages(size: int) -> bool:
    """Whether the system has huge pages for a new block."""
    before = Pages.now().huge
    with mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as block:
        block.madvise(mmap.MADV_HUGEPAGE)
        for place in range(0, size, mmap.PAGESIZE):
            block[place] = 1
        return Pages.now().huge - before > 0.9 * size


def settle() -> None:
    """Wait for what still advises blocks, of this test or an earlier one."""
    gc.collect()
    for thread in threading.enumerate():
        if thread.name == "flowvec-huge-pages":
            thread.join()


def graph_of(rows: np.ndarray, room: int = 0) -> Graph:
    graph = Graph(DIM, "cosine", m=4, ef_construction=10, rows=room)
    graph.add(np.arange(1, len(rows) + 1), rows)
    return graph


def build() -> None:
    rows = unit_vectors(ROWS, DIM)
    before = Pages.now()
    graph = graph_of(rows, room=4 * ROWS)
    assert before.grew(SIZE * 0.7)
    # Only what is written: room for later rows takes no memory.
    assert Pages.now().advised - before.advised < SIZE * 2
    result = search(graph, rows, rows[:50], 1, 1000)
    assert result is not None
    assert (result[0][:, 0] == np.arange(1, 51)).mean() > 0.8  # few links find most


def read() -> None:
    rows = unit_vectors(ROWS, DIM)
    graph = graph_of(rows)
    graph.write(Path("graph"))
    expected = search(graph, rows, rows, 3)
    loaded = Graph(DIM, "cosine", m=4, ef_construction=10)
    before = Pages.now()
    loaded.load(Path("graph"), np.arange(1, ROWS + 1))
    meanwhile = search(loaded, rows, rows, 3)
    assert before.grew(SIZE * 0.7)
    again = search(loaded, rows, rows, 3)
    assert expected is not None
    for result in (meanwhile, again):
        assert result is not None
        np.testing.assert_array_equal(result[0], expected[0])
        np.testing.assert_array_equal(result[1], expected[1])


# In a process of its own, whose other memory does not change.
ALONE = """
import sys
sys.path.insert(0, sys.argv[1])
from tests.runtime.collection.index import test_huge_pages
getattr(test_huge_pages, sys.argv[2])()
"""


@pytest.mark.campaign
@pytest.mark.usefixtures("on_request")
@pytest.mark.parametrize("what", ["build", "read"])
def test_a_graph_that_is_built_or_read_is_in_huge_pages(python: RunCommand, what: str) -> None:
    if what == "read" and tuple(map(int, platform.release().split(".")[:2])) < (6, 1):
        pytest.skip("this system does not give huge pages on request")
    done = python(ALONE, Path(__file__).parents[4], what)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("setting", "size"),
    [
        ("always madvise [never]", 1 << 30),
        ("[always] madvise never", 1 << 30),
        (None, 1 << 30),
        ("always [madvise] never", 1 << 20),  # a small graph
    ],
)
def test_nothing_is_advised_unless_requested(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, setting: str | None, size: int
) -> None:
    file = tmp_path / "enabled"
    if setting is not None:
        file.write_text(setting)
    monkeypatch.setattr(huge_pages, "_advise_blocks", lambda *_: pytest.fail("it was called"))
    huge_pages.advise(size, setting=file)
    huge_pages.collapse(size, setting=file)
    settle()


@pytest.mark.skipif(sys.platform != "linux", reason="this system is not Linux")
def test_blocks_are_private_memory_alone(tmp_path: Path) -> None:
    # Not np.empty: after other tests its memory may be a part of the heap that was freed.
    private = mmap.mmap(-1, 64 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    mapped = np.memmap(tmp_path / "file", np.uint8, mode="w+", shape=(80 << 20,))
    blocks = list(huge_pages._blocks(60 << 20))
    block = np.frombuffer(private, np.uint8)
    address, other = block.ctypes.data, mapped.ctypes.data
    assert any(first <= address < end for first, end in blocks)
    assert not any(first <= other < end for first, end in blocks)


MAPS = b"""\
00400000-00452000 r-xp 00000000 08:02 173521      /usr/bin/\xff\xfe python
10000000-20000000 rw-p 00000000 00:00 0           [heap]
20000000-30000000 rw-p 00000000 00:00 0           [anon:vectors]
30000000-40000000 rw-p 00000000 00:00 0
40000000-40001000 rw-p 00000000 00:00 0
50000000-60000000 rw-s 00000000 00:00 0
60000000-70000000 r--p 00000000 00:00 0
70000000-80000000 rw-p 00000000 08:02 17          /tmp/file
"""


def test_blocks_are_read_whatever_else_is_mapped(tmp_path: Path) -> None:
    maps = tmp_path / "maps"
    maps.write_bytes(MAPS)
    expected = [(0x20000000, 0x30000000), (0x30000000, 0x40000000)]
    assert list(huge_pages._blocks(1 << 20, maps)) == expected


@pytest.mark.usefixtures("on_request")
def test_pages_are_within_their_block() -> None:
    page = int(huge_pages._PAGE_SIZE.read_text())
    pages = huge_pages._pages
    assert list(pages(page + 1, 4 * page - 1)) == [(2 * page, 3 * page)]
    assert list(pages(page, 3 * page)) == [(page, 2 * page), (2 * page, 3 * page)]
    assert list(pages(page + 1, 2 * page)) == []


@pytest.mark.parametrize("content", [None, b"", b"nothing of the kind", b"x-y rw-p 0 0 0"])
def test_missing_system_information_is_not_an_error(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "maps").write_bytes(content)
    huge_pages._advise_blocks(14, 1 << 30, maps=tmp_path / "maps")
