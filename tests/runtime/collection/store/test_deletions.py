"""Which rows were deleted last: known exactly, or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowvec.collection.store.deletions import Deletions
from flowvec.collection.store.label_lists import packed, unpacked
from flowvec.collection.store.settings import CollectionSettings
from flowvec.collection.store.store import FILE, Store
from tests.runtime.collection.conftest import SETTINGS


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    assert isinstance(SETTINGS, CollectionSettings)
    store = Store(tmp_path / FILE, create=SETTINGS)
    rows = np.zeros((60, SETTINGS.dim), np.float32)
    with store.transaction():
        store.upsert(list(range(60)), rows, [None] * 60, [None] * 60)
    yield store
    store.close()


def delete(store: Store, *ids: int) -> None:
    with store.transaction():
        store.delete(ids)


def since(store: Store, count: int) -> list[int] | None:
    labels = store.deletions.since(count)
    return None if labels is None else sorted(labels.tolist())


def test_deletions_and_replacements_are_listed_by_count(store: Store) -> None:
    assert since(store, 0) == []
    delete(store, 0, 1)  # labels 1 and 2
    delete(store, 99)  # unknown
    with store.transaction():
        store.upsert([5], np.zeros((1, SETTINGS.dim), np.float32), [None], [None])
    delete(store, 7)
    assert [since(store, n) for n in (0, 2, 3, 4)] == [[1, 2, 6, 8], [6, 8], [8], []]
    assert since(store, 1) is None  # in the middle of a change: another history


def test_a_gap_is_noticed(store: Store) -> None:
    """A count without a list is not believed; old and large changes are forgotten."""
    delete(store, 0)
    with store.transaction():
        store.meta.count_change(0, 1)
    delete(store, 1)
    assert since(store, 0) is None
    assert since(store, 2) == [2]
    store.deletions = Deletions(store.database, store.meta, kept=2, most_labels=3)
    delete(store, *range(10, 14))
    assert since(store, 3) is None
    for i in range(20, 24):
        delete(store, i)
    assert since(store, 9) == [23, 24]
    assert since(store, 7) is None


@pytest.mark.parametrize("damage", ["labels || x'00'", "x'00'", "NULL", "7", "zeroblob(16)"])
def test_a_damaged_list_is_not_believed(store: Store, damage: str) -> None:
    delete(store, 0)
    db = store.database.connection
    if damage == "NULL":
        db.execute("DELETE FROM deletions")
    else:
        db.execute(f"UPDATE deletions SET labels = {damage}")
    assert since(store, 0) is None


@given(st.lists(st.integers(0, 2**62)), st.integers(0, 2**30))
def test_lists_survive_as_bytes_and_notice_a_flipped_bit(labels: list[int], place: int) -> None:
    blob = packed(labels)
    back = unpacked(blob)
    assert back is not None
    assert back.tolist() == labels
    broken = bytearray(blob)
    broken[place // 8 % len(blob)] ^= 1 << place % 8
    assert unpacked(bytes(broken)) is None
