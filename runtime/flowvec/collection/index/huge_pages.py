"""Huge pages under what a search reads at random, where Linux gives them to those who ask.

Each step of a graph's search reads a vector that lies anywhere, and with pages of 4 KiB most of
them cost a walk through the page tables as well. Many systems give pages of 2 MiB only on request
(`madvise` in /sys/kernel/mm/transparent_hugepage/enabled). hnswlib does not ask, and does not say
where its memory is; but it is a single block, and the process's large ones are few. To ask for more
of them than the graph's is harmless: it is advice. See madvise(2).
"""

from __future__ import annotations

import ctypes
import logging
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

__all__ = ["advise", "collapse"]

logger = logging.getLogger(__name__)

# Smaller blocks lie in the processor's caches, with what leads to them.
LEAST_BYTES = 32 << 20
_MADV_HUGEPAGE = 14
_MADV_COLLAPSE = 25  # since Linux 6.1
_SETTING = Path("/sys/kernel/mm/transparent_hugepage/enabled")
_PAGE_SIZE = Path("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size")
_MAPS = Path("/proc/self/maps")


def advise(size: int) -> None:
    """Ask for huge pages under blocks of so many bytes that are yet to be written."""
    if _is_on_request(size):
        _tell(_MADV_HUGEPAGE, size)


def collapse(size: int) -> None:
    """Move blocks of so many bytes that were written already into huge pages, in the background.

    That takes some seconds for a gigabyte, in which they are read and written as before.
    """
    if not _is_on_request(size):
        return

    def work() -> None:
        _tell(_MADV_HUGEPAGE, size)
        _tell(_MADV_COLLAPSE, size)

    # At worst a block is freed meanwhile, and advice is given for what lies there then.
    with suppress(RuntimeError):  # there are no more threads
        threading.Thread(target=work, name="flowvec-huge-pages", daemon=True).start()


def _is_on_request(size: int) -> bool:
    """Whether the system gives huge pages to those who ask, and the block is worth it."""
    if size < LEAST_BYTES or sys.platform != "linux":
        return False
    try:
        return "[madvise]" in _SETTING.read_text()
    except OSError:
        return False


def _tell(advice: int, size: int) -> None:
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
        for block in _blocks(size):
            # Linux gives a collapse up at the first part that was never written.
            parts = _pages(*block) if advice == _MADV_COLLAPSE else [block]
            for first, end in parts:
                if libc.madvise(first, end - first, advice):
                    # Expected: an older kernel, no memory in such pieces, or nothing written there.
                    logger.debug("madvise %d: error %d", advice, ctypes.get_errno())
    except (OSError, AttributeError, ValueError) as error:  # nothing depends on it
        logger.debug("no huge pages: %s", error)


def _pages(first: int, end: int) -> Iterator[tuple[int, int]]:
    """First and end address of each huge page that lies within a block."""
    size = int(_PAGE_SIZE.read_text())
    begin = -(-first // size) * size
    return ((page, page + size) for page in range(begin, end - size + 1, size))


def _blocks(size: int) -> Iterator[tuple[int, int]]:
    """First and end address of each of this process's private blocks of at least so many bytes."""
    # Files are named there as well, by bytes of any kind.
    for line in _MAPS.read_text(encoding="ascii", errors="replace").splitlines():
        addresses, modes, _, _, inode, *name = line.split(maxsplit=5)
        first, end = (int(address, 16) for address in addresses.split("-"))
        is_private = modes.startswith("rw-p") and inode == "0"
        is_nameless = not name or name[0].startswith("[anon")  # some allocators name theirs
        if is_private and is_nameless and end - first >= size:
            yield first, end
