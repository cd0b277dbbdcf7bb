"""Compacting, preparing, verifying and rebuilding."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from flowvec import Collection
from tests.makers import vectors
from tests.waiting import wait_until


def test_a_graph_of_mostly_tombstones_is_rebuilt(tmp_path: Path) -> None:
    with Collection.create(tmp_path / "c", dim=8, index="graph", exact_below=50) as c:
        c.add_vectors(range(400), vectors(400))
        c.prepare()
        c.delete(range(150))
        assert c.info().graph_rows == 400
        c.delete(range(150, 250))
        assert len(c.search(vectors(1)[0], k=1000)) == 150  # by the old one, until the new is there
        wait_until(lambda: c.info().graph_rows == 150)
        assert {h.id for h in c.search(vectors(1)[0], k=140)} <= set(range(250, 400))


def test_info_says_what_is_in_memory_and_what_is_mapped(tmp_path: Path) -> None:
    with Collection.create(tmp_path / "c", dim=8, index="graph", exact_below=50) as c:
        c.add_vectors(range(400), vectors(400))
        c.search(vectors(1)[0], exact=True)
        before = c.info()
        assert before.mapped_bytes == 400 * 8 * 4
        c.prepare()
        grown = c.info().memory_bytes - before.memory_bytes
        assert 400 * 8 * 4 < grown < 1024 * (8 * 4 + 300)  # 8 bits, and links of M 16
    with Collection.open(tmp_path / "c", index="graph", exact_below=50) as c:
        assert (c.info().memory_bytes, c.info().mapped_bytes) == (0, 0)


def test_no_progress_bar_without_a_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """tqdm's lock is shared by forked processes: one that is killed with it stops the others."""
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)  # to import it fails
    with Collection.create(tmp_path / "c", dim=4, index="graph", exact_below=20) as c:
        c.add_vectors(range(30), vectors(30, dim=4))
        assert c.prepare()
        c.compact()


def test_prepare_can_be_stopped(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).standard_normal((3000, 8))
    stop = threading.Event()
    stop.set()
    with Collection.create(tmp_path / "c", dim=8, index="graph", exact_below=100) as c:
        c.add_vectors(list(range(3000)), rows)
        assert c.prepare(stop) is False
        assert c.info().graph_rows == 0
        assert c.prepare(threading.Event()) is True
        assert c.info().graph_rows == 3000
        assert c.search(rows[7], k=1)[0].id == 7


def test_compacting_takes_tombstones_out_and_keeps_every_row(tmp_path: Path) -> None:
    with Collection.create(tmp_path / "c", dim=8, index="graph", exact_below=50) as c:
        c.add_vectors(range(400), vectors(400))
        c.prepare()
        c.delete(range(100))
        assert c.info().graph_rows == 400
        size = c.info().bytes
        c.compact()
        assert c.info().graph_rows == 300
        assert c.info().bytes < size
        assert {hit.id for hit in c.search(vectors(1)[0], k=400)} == set(range(100, 400))
        assert c.verify() == []
    with Collection.open(tmp_path / "c", index="graph", exact_below=50) as c:
        assert len(c.search(vectors(1)[0], k=400)) == 300
