"""The vectors of a collection by slot: those of a mapped file, then those that memory holds.

A slot is a row's place in the ascending order of labels. Deleted rows keep their slots until the
file is written again without them.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from flowvec.collection.index.codes.row_codes import RowCodes
from flowvec.collection.index.vector_file import VectorFile, VectorFileError
from flowvec.collection.index.vector_labels import placed_labels
from flowvec.collection.index.vector_scores import PART_NUMBERS, Parts, Scorer
from flowvec.errors import CollectionError
from flowvec.hnsw import Places
from flowvec.vectors import Metric, merge_best

__all__ = ["VectorTable"]

Floats = npt.NDArray[np.float32]
Labels = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
Array = TypeVar("Array", bound=npt.NDArray[np.generic])

# Below this share of the slots, copying the eligible rows costs less than multiplying all.
_GATHERED_SHARE = 1 / 3


class VectorTable:
    """Labels, vectors and marks of deletion, by slot.

    Any number of threads may read it, but not while one changes it. Records of the file are checked
    against their checksums before they are first used; a damaged one is read from the store again,
    and kept in memory.
    """

    def __init__(
        self,
        dim: int,
        metric: Metric,
        file: VectorFile | None = None,
        n: int = 0,
        live: Labels | None = None,
        reread: Callable[[Labels], Floats] | None = None,
    ) -> None:
        """A table of a file's records, or an empty one.

        Args:
            dim: length of the vectors.
            metric: what compares them.
            file: the vectors file; the caller closes it.
            n: how many of its records are valid.
            live: labels of the rows in the store, ascending. Rows above `newest` are not in the
                file: `append` them.
            reread: returns vectors of rows, float32 (rows, dim), as the metric compares them.

        Raises:
            VectorFileError: the file is too short, or lacks a row.
        """
        self.dim, self.metric = dim, metric
        self._file, self._reread = file, reread
        self._scorer = Scorer(metric)
        self._codes = RowCodes(dim, metric, file)
        self._mapped = n if file is not None else 0
        self._tail: Floats = np.empty((0, dim), np.float32)
        self._labels: Labels = np.empty(0, np.int64)
        self._live: Mask = np.empty(0, np.bool_)
        self.slots = self._mapped
        if file is not None:
            self._labels, self._live = placed_labels(file, n, live)
        self.count = int(np.count_nonzero(self._live))
        # Of every block of the file: how many of its records were checked; and the blocks that
        # had damaged ones, with the right vectors.
        self._checked = np.zeros(0, np.int64)
        self._repaired: dict[int, Floats] = {}
        self._checking = threading.Lock()
        self._note_blocks()

    def snapshot(self) -> VectorTable:
        """The table as it is now, for searches beside later changes. Vectors are not copied."""
        other = copy.copy(self)
        # Slots are added behind those of the copy, and vectors never change; marks of deletion do.
        other._live = self._live[: self.slots].copy()
        return other

    def close(self) -> None:
        """End the threads that compare, of its snapshots as well."""
        self._scorer.close()

    # --- rows -----------------------------------------------------------------------------------

    def __len__(self) -> int:
        """Rows that are not deleted."""
        return self.count

    @property
    def labels(self) -> Labels:
        """Labels by slot, ascending, int64 (slots,)."""
        return self._labels[: self.slots]

    @property
    def live(self) -> Mask:
        """Whether a slot's row is not deleted, bool (slots,)."""
        return self._live[: self.slots]

    @property
    def newest(self) -> int:
        """The highest label, deleted rows included; 0 if there are none."""
        return int(self._labels[self.slots - 1]) if self.slots else 0

    @property
    def mapped(self) -> int:
        """How many slots are records of the file."""
        return self._mapped

    def uses(self, file: VectorFile | None) -> bool:
        """Whether its mapped slots are records of this file."""
        return self._file is file

    @property
    def memory_bytes(self) -> int:
        """Memory that this process alone holds; the mapped file is shared."""
        repaired = sum(block.nbytes for block in self._repaired.values())
        held = self._labels.nbytes + self._live.nbytes + self._tail.nbytes
        return held + repaired + self._codes.nbytes

    @property
    def mapped_bytes(self) -> int:
        """Size of the mapped vectors and codes, which all processes share."""
        return self._mapped * self.dim * 4 + self._codes.mapped_bytes

    def slots_of(self, labels: Labels) -> Labels:
        """Slots of labels, deleted ones included, int64 like `labels`; -1 for unknown labels."""
        slots = np.searchsorted(self.labels, labels)
        if not self.slots:
            return np.full(labels.shape, -1, np.int64)
        known = self._labels[np.minimum(slots, self.slots - 1)] == labels
        return np.where(known, slots, -1)

    def dead(self, labels: Labels) -> Labels:
        """Those of some labels that have no live row."""
        slots = self.slots_of(labels)
        is_live = slots >= 0
        is_live[is_live] = self._live[slots[is_live]]
        return labels[~is_live]

    def vectors_of(self, slots: Labels) -> Floats:
        """Vectors of slots, float32 (slots, dim), a copy.

        Raises:
            VectorFileError: a record is damaged and its row could not be read again.
        """
        self._check_slots(slots)
        return self._copied(slots)

    def _copied(self, slots: Labels) -> Floats:
        if not self._mapped:
            return self._tail[slots]
        in_file = slots < self._mapped
        if in_file.all():
            return self._gathered(slots)
        vectors = np.empty((len(slots), self.dim), np.float32)
        vectors[in_file] = self._gathered(slots[in_file])
        vectors[~in_file] = self._tail[slots[~in_file] - self._mapped]
        return vectors

    def append(self, labels: Labels, vectors: Floats) -> None:
        """Add rows that are not in the file.

        Args:
            labels: ascending, above all labels of the table, int64 (rows,).
            vectors: float32 (rows, dim), as the metric compares them.
        """
        if not len(labels):
            return
        if labels[0] <= self.newest or (np.diff(labels) <= 0).any():
            raise CollectionError("a table takes labels in ascending order, each once")
        held = self.slots - self._mapped
        self._tail = _with_room(self._tail, held, len(labels))
        self._tail[held : held + len(labels)] = vectors
        self._add_slots(labels)

    def extend_mapped(self, n: int, live: Labels | None = None) -> None:
        """Take over records that were appended to the file and committed.

        Rows of the table that are not in the file yet must be the first of these records.

        Args:
            n: how many of the file's records are valid now.
            live: labels of those records that are in the store, ascending; None is all of them.

        Raises:
            VectorFileError: the file is too short, or does not hold these rows.
        """
        assert self._file is not None
        if n == self._mapped and self._mapped == self.slots:
            return
        labels = self._file.labels(n, self._mapped)
        held = self.slots - self._mapped
        new = labels[held:]
        if n < self.slots or (labels[:held] != self._labels[self._mapped : self.slots]).any():
            raise VectorFileError(f"{self._file.path} does not continue the table in memory")
        if len(new) and (new[0] <= self.newest or (np.diff(new) <= 0).any()):
            raise VectorFileError(f"{self._file.path} is damaged: its labels do not ascend")
        is_live = np.ones(len(new), np.bool_) if live is None else np.isin(new, live)
        if live is not None and np.count_nonzero(is_live) != np.count_nonzero(live > self.newest):
            raise VectorFileError(f"{self._file.path} is damaged: it lacks rows")
        self._mapped = n
        self._tail = self._tail[:0].copy()
        self._add_slots(new, is_live)
        self._note_blocks()

    def delete(self, labels: Labels) -> None:
        """Mark rows as deleted; unknown labels are ignored."""
        slots = self.slots_of(labels)
        self._live[slots[slots >= 0]] = False
        self.count = int(np.count_nonzero(self.live))

    def _add_slots(self, labels: Labels, live: Mask | None = None) -> None:
        last = self.slots + len(labels)
        self._labels = _with_room(self._labels, self.slots, len(labels))
        self._live = _with_room(self._live, self.slots, len(labels))
        self._labels[self.slots : last] = labels
        self._live[self.slots : last] = True if live is None else live
        self.count += len(labels) if live is None else int(np.count_nonzero(live))
        self.slots = last

    # --- search ---------------------------------------------------------------------------------

    def search(
        self, queries: Floats, k: int, mask: Mask | None = None, first: int = 0
    ) -> tuple[Labels, Floats]:
        """The k nearest live rows of each query, exactly; equal scores by ascending label.

        Args:
            queries: float32 (queries, dim), as the metric compares them.
            k: how many; fewer are returned if fewer are eligible.
            mask: slots that may be found, bool (slots,); None is all.
            first: only this slot and later ones.

        Returns:
            Labels int64 and scores float32, (queries, min(k, eligible)).

        Raises:
            VectorFileError: a record is damaged and its row could not be read again.
        """
        eligible = self.live[first:] if mask is None else self.live[first:] & mask[first:]
        count = int(np.count_nonzero(eligible))
        k = min(k, count)
        if k <= 0:
            return np.empty((len(queries), 0), np.int64), np.empty((len(queries), 0), np.float32)
        if count < _GATHERED_SHARE * len(eligible):
            return self.search_slots(queries, k, np.flatnonzero(eligible) + first)
        chosen = None if count == len(eligible) else np.flatnonzero(eligible)
        labels = self._labels[first : self.slots]
        labels = labels if chosen is None else labels[chosen]
        return self._scorer.best(queries, k, labels, self._parts(first), chosen)

    def scan(
        self, queries: Floats, k: int, mask: Mask | None = None, first: int = 0
    ) -> tuple[Labels, Floats]:
        """`search` by a scan of codes, which may miss a row now and then.

        Where a scan is no faster, because few rows are eligible or lack codes, it is exact.
        """
        eligible = self.live if mask is None else self.live & mask
        count = int(np.count_nonzero(eligible[first:]))
        k = min(k, count)
        if not self._codes.scan_pays(k, count):
            return self.search(queries, k, mask, first)
        last = self._codes.ready(self.slots, self._mapped, self.vectors_of)
        scanned = count if last == self.slots else int(np.count_nonzero(eligible[first:last]))
        if not self._codes.scan_pays(k, scanned):
            return self.search(queries, k, mask, first)
        places = self.places()
        allowed = None if scanned == last - first else eligible
        slots, scores = self._codes.search(queries, k, places, first, last, allowed)
        if not self.are_good(places) or (slots < 0).any():
            return self.search(queries, k, mask, first)
        if last == self.slots:
            return self._labels[slots], scores
        rest = self.search(queries, k, mask, last)
        return merge_best(self._labels[slots], scores, *rest, k)

    def places(self) -> Places:
        """Where the vectors of all slots are, unchecked: ask `are_good` after they were used."""
        blocks = None if self._file is None else self._file.blocks.vectors
        used = None if blocks is None else np.zeros(len(blocks), np.uint8)
        return Places(blocks, self._mapped, self._tail[: self.slots - self._mapped], used)

    def are_good(self, places: Places) -> bool:
        """Whether the vectors that were used are what was written.

        Raises:
            VectorFileError: as for `search`.
        """
        # A block that is repaired is noted before it counts as checked.
        if places.used is None or (self._checked.sum() == self._mapped and not self._repaired):
            return True
        self._check_blocks(np.flatnonzero(places.used[: len(self._checked)]))
        return not any(places.used[number] for number in list(self._repaired))

    def make_codes(self, stopped: Callable[[], bool] | None = None) -> bool:
        """Make the codes that are not there yet; False if there are still not all.

        Raises:
            VectorFileError: as for `search`.
        """
        return self._codes.follow(self.slots, self._mapped, self.vectors_of, stopped)

    @property
    def lacks_codes(self) -> bool:
        """Whether codes of some rows can be made, or should be written."""
        return self._codes.lacks(self.slots) or self._codes.worth_writing(self._mapped)

    @property
    def can_scan(self) -> bool:
        """Whether a scan needs nothing but the codes that are there."""
        has_codes = self._codes.is_usable and not self._codes.lacks(self.slots)
        return has_codes and not self._repaired

    def search_slots(self, queries: Floats, k: int, slots: Labels) -> tuple[Labels, Floats]:
        """`search` among these slots alone, ascending, whether they are live or not."""
        k = min(k, len(slots))
        return self._scorer.best(queries, k, self._labels[slots], self._copies(slots))

    def _parts(self, first: int) -> Parts:
        """Vectors of the slots from `first` on, not copied."""
        slices: list[tuple[int | None, slice]] = []
        starts: list[int] = []
        if self._file is not None:
            self._check_blocks(np.arange(first // self._rows, len(self._checked)))
            for block, inside, part in self._file.layout.parts(first, self._mapped):
                slices.append((block, inside))
                starts.append(part.start)
        held = self.slots - self._mapped
        for start in range(max(0, first - self._mapped), held, self._step):
            slices.append((None, slice(start, min(start + self._step, held))))
            starts.append(start + self._mapped - first)

        def get(number: int) -> Floats:
            block, inside = slices[number]
            return self._tail[inside] if block is None else self._block(block)[inside]

        return Parts(self.slots - first, starts, get)

    def _copies(self, slots: Labels) -> Parts:
        """Vectors of slots."""
        self._check_slots(slots)
        starts = list(range(0, len(slots), self._step))
        return Parts(
            len(slots), starts, lambda i: self._copied(slots[starts[i] : starts[i] + self._step])
        )

    @property
    def _step(self) -> int:
        return max(1, PART_NUMBERS // self.dim)

    # --- records of the file --------------------------------------------------------------------

    # Callers check records before they share them with other threads: reading a row again needs
    # the state that the caller reads from the store.

    @property
    def _rows(self) -> int:
        """Records of a block."""
        return self._file.layout.rows if self._file is not None else 1

    def _note_blocks(self) -> None:
        blocks = -(-self._mapped // self._rows)
        more = np.zeros(max(0, blocks - len(self._checked)), np.int64)
        self._checked = np.concatenate((self._checked, more))

    def _block(self, number: int) -> Floats:
        """Checked vectors of a block of the file, float32 (rows, dim)."""
        assert self._file is not None
        repaired = self._repaired.get(number)
        return self._file.blocks.vectors[number] if repaired is None else repaired

    def _gathered(self, slots: Labels) -> Floats:
        """Checked vectors of slots of the file, a copy."""
        assert self._file is not None
        vectors = self._file.gather(slots)
        for number, repaired in list(self._repaired.items()):
            here = np.flatnonzero(slots // self._rows == number)
            vectors[here] = repaired[slots[here] % self._rows]
        return vectors

    def _check_slots(self, slots: Labels) -> None:
        """Check the blocks of slots."""
        if self._mapped:
            self._check_blocks(slots[slots < self._mapped] // self._rows)

    def _check_blocks(self, blocks: Labels) -> None:
        """Check blocks that have records which were not checked before."""
        records = np.minimum(self._rows, self._mapped - blocks * self._rows)
        unchecked = blocks[self._checked[blocks] < records]
        if len(unchecked):
            for number in np.unique(unchecked).tolist():
                self._check(number)

    def _check(self, number: int) -> None:
        """Check a block's records that were not checked before, and repair damaged ones."""
        file = self._file
        assert file is not None
        rows = file.layout.rows
        with self._checking:
            done, last = int(self._checked[number]), min(rows, self._mapped - number * rows)
            damaged = file.damaged(number * rows + done, number * rows + last)
            repaired = self._repaired.get(number)
            if repaired is not None:
                repaired[done:last] = file.blocks.vectors[number, done:last]
            elif len(damaged):
                repaired = file.blocks.vectors[number].copy()
            if repaired is not None and len(damaged):
                repaired[damaged % rows] = 0.0
                live = damaged[self._live[damaged]]
                if len(live):
                    if self._reread is None:
                        raise VectorFileError(f"{file.path} is damaged")
                    vectors = self._reread(self._labels[live])
                    if len(vectors) != len(live):  # deleted meanwhile
                        raise VectorFileError(f"{file.path} is damaged")
                    repaired[live % rows] = vectors
                self._repaired[number] = repaired
            self._checked[number] = last


def _with_room(array: Array, used: int, more: int) -> Array:
    """An array whose first `used` rows are kept, with room for more."""
    if used + more <= len(array):
        return array
    grown = np.empty((max(used + more, 2 * used), *array.shape[1:]), array.dtype)
    grown[:used] = array[:used]
    return grown  # type: ignore[return-value]
