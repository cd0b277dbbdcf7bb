"""Huge pages for the memory that a search reads at random, if Linux gives them on request.

Each step of a search in a graph reads a vector at a random address. With pages of 4 KiB, most of
these reads also cost a walk through the page tables. Many systems give pages of 2 MiB only on
request (`madvise` in /sys/kernel/mm/transparent_hugepage/enabled). A graph's memory is a single
block, and a process has few large blocks. Advice for other blocks is harmless. See madvise(2).
"""

from __future__ import annotations

import ctypes
import logging
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

__all__ = ["advise", "collapse"]

logger = logging.getLogger(__name__)

# Smaller blocks fit into the processor's caches, with their page tables.
LEAST_BYTES = 32 << 20
_MADV_HUGEPAGE = 14
_MADV_COLLAPSE = 25  # since Linux 6.1
_SETTING = Path("/sys/kernel/mm/transparent_hugepage/enabled")
_PAGE_SIZE = Path("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size")
_MAPS = Path("/proc/self/maps")


def advise(size: int, *, setting: Path = _SETTING) -> None:
    """Request huge pages for blocks of this many bytes that are not written yet.

    Args:
        size: least bytes of a block.
        setting: the file that says when the system gives huge pages.
    """
    if _is_on_request(size, setting):
        _advise_blocks(_MADV_HUGEPAGE, size)


def collapse(size: int, *, setting: Path = _SETTING) -> Callable[[], None]:
    """Move written blocks of this many bytes into huge pages, in the background.

    It takes some seconds per gigabyte; they can be read and written meanwhile.

    Args:
        size: least bytes of a block.
        setting: the file that says when the system gives huge pages.

    Returns:
        A function that ends this, and waits for its thread.
    """
    if not _is_on_request(size, setting):
        return lambda: None
    stopped = threading.Event()

    def work() -> None:
        _advise_blocks(_MADV_HUGEPAGE, size)
        _advise_blocks(_MADV_COLLAPSE, size, stopped.is_set)

    # If a block is freed meanwhile, the advice is applied to what replaces it, which is harmless.
    thread = threading.Thread(target=work, name="flowvec-huge-pages", daemon=True)
    with suppress(RuntimeError):  # there are no more threads
        thread.start()

    def stop() -> None:
        stopped.set()
        if thread.ident is not None:
            thread.join()

    return stop


def _is_on_request(size: int, setting: Path) -> bool:
    """Whether the system gives huge pages on request, and the block is large enough."""
    if size < LEAST_BYTES or sys.platform != "linux":
        return False
    try:
        return "[madvise]" in setting.read_text()
    except OSError:
        return False


def _advise_blocks(
    advice: int,
    size: int,
    stopped: Callable[[], bool] = lambda: False,
    *,
    maps: Path = _MAPS,
) -> None:
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
        for block in _blocks(size, maps):
            # Linux stops at the first part of a block that was never written.
            parts = _pages(*block) if advice == _MADV_COLLAPSE else [block]
            for first, end in parts:
                if stopped():
                    return
                if libc.madvise(first, end - first, advice):
                    # Expected: an older kernel, no free huge pages, or memory that was never
                    # written.
                    logger.debug("madvise %d: error %d", advice, ctypes.get_errno())
    except (OSError, AttributeError, ValueError) as error:  # it is only an optimization
        logger.debug("no huge pages: %s", error)


def _pages(first: int, end: int) -> Iterator[tuple[int, int]]:
    """First and end address of each huge page inside a block."""
    size = int(_PAGE_SIZE.read_text())
    begin = -(-first // size) * size
    return ((page, page + size) for page in range(begin, end - size + 1, size))


def _blocks(size: int, maps: Path = _MAPS) -> Iterator[tuple[int, int]]:
    """First and end address of this process's private blocks of at least this many bytes."""
    # File names in it may be any bytes.
    for line in maps.read_text(encoding="ascii", errors="replace").splitlines():
        addresses, modes, _, _, inode, *name = line.split(maxsplit=5)
        first, end = (int(address, 16) for address in addresses.split("-"))
        is_private = modes.startswith("rw-p") and inode == "0"
        is_nameless = not name or name[0].startswith("[anon")  # some allocators name theirs
        if is_private and is_nameless and end - first >= size:
            yield first, end
