"""Which of several rows with the same id a bulk job writes.

A job reads all ids before anything is encoded. So it knows which rows to leave out in every shard,
and a job that continues, or does a share of the work, leaves out the same rows. Standard input
cannot be read twice: only earlier ids are known there.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from flowvec.arguments import choice
from flowvec.bulk.windows import read_windows
from flowvec.errors import BulkError
from flowvec.texts.sources import Source
from flowvec.texts.window import Columns, DeadLetter, Fields, Window

__all__ = ["OnDuplicate", "Repeats", "SeenIds", "check_rule", "find_repeats"]

OnDuplicate = Literal["last", "first", "error", "dead-letter"]
_CODE = "duplicate_id"  # code of the dead letters
_INT64 = 1 << 63
_NO_SHARDS = 1 << 62  # more rows than any input has

_Int64s = npt.NDArray[np.int64]
_Digests = npt.NDArray[np.uint64]


def check_rule(rule: str | None) -> None:
    """Refuse an unknown rule.

    Raises:
        InputValueError: it is not one of `OnDuplicate`.
    """
    if rule is not None:
        choice("on_duplicate", rule, get_args(OnDuplicate))


@dataclass(frozen=True, slots=True, eq=False)
class Repeats:
    """Rows that are left out because another row has the same id.

    Attributes:
        rows: numbers of these rows over all inputs, ascending.
        written: for each, the number of the row with the same id that is written.
        sources: the files, with their numbers of rows.
        fields: the fields that are read.
        rule: which row of an id is written.
    """

    rows: _Int64s
    written: _Int64s
    sources: tuple[Source, ...]
    fields: Fields
    rule: OnDuplicate

    def part_of(self, first: int, end: int, span: range) -> Repeats:
        """What a process needs to do the rows of one shard.

        Args:
            first: number of the shard's first row.
            end: the one after its last.
            span: indices of the shard's files.
        """
        begin, stop = np.searchsorted(self.rows, [first, end])
        written = self.written[begin:stop]
        sources: tuple[Source, ...] = ()
        if self.rule == "dead-letter" and len(written):  # it names places in other files
            ends = np.cumsum([source.rows or 0 for source in self.sources])
            needed = {*np.searchsorted(ends, written, side="right").tolist(), *span}
            sources = _only(self.sources, needed)
        return Repeats(self.rows[begin:stop], written, sources, self.fields, self.rule)

    def leave_out(self, window: Window) -> None:
        """Remove these rows from a window; they are counted, or become dead letters."""
        begin, end = np.searchsorted(self.rows, [window.first, window.first + window.rows])
        if begin == end:
            return
        numbers = np.asarray(window.numbers, np.int64)
        places = np.flatnonzero(np.isin(numbers, self.rows[begin:end], assume_unique=True)).tolist()
        if self.rule == "dead-letter":
            written = dict(zip(self.rows[begin:end].tolist(), self.written[begin:end], strict=True))
            ids = window.ids(self.fields)
            for place in places:
                source, row = place_of(self.sources, int(written[window.numbers[place]]))
                reason = f"its id is that of row {row} of {source}"
                _add_dead_letter(window, place, ids[place], reason, self.sources)
        _remove(window, places, self.fields, counted=self.rule != "dead-letter")


class SeenIds:
    """Ids that standard input has had so far.

    Memory grows by about 100 bytes per id.
    """

    def __init__(
        self, fields: Fields, rule: OnDuplicate, *, ids_become_texts: bool = False
    ) -> None:
        """Start without ids.

        Args:
            fields: the fields that are read.
            rule: `last` is for collections only, where a later row replaces an earlier one.
            ids_become_texts: as for `find_repeats`.
        """
        self._fields = fields
        self._key: Callable[[Any], Any] = str if ids_become_texts else lambda key: key
        self._rule = rule
        self._places: dict[bytes, tuple[str, int]] = {}

    def leave_out(self, window: Window) -> None:
        """Remove rows whose ids came before from a window, or count rows that replace others.

        Raises:
            BulkError: two rows have the same id, and the rule is `error`.
        """
        ids = window.ids(self._fields)
        digests = [_digest(self._key(key)) for key in ids]
        left_out: list[int] = []
        here: dict[bytes, int] = {}
        for place, digest in enumerate(digests):
            before = self._places.get(digest)
            if before is None:
                self._places[digest] = window.place(place)
            elif self._rule == "last":
                if digest in here:
                    left_out.append(here[digest])
                else:
                    window.replacing.add(window.numbers[place])
                    _report_repeated(window, ids[place])
            else:
                reason = f"its id is that of row {before[1]} of {before[0]}"
                if self._rule == "error":
                    source, row = window.place(place)
                    raise BulkError(f"{source}, row {row}: {reason} ({ids[place]!r})")
                if self._rule == "dead-letter":
                    _add_dead_letter(window, place, ids[place], reason)
                left_out.append(place)
            here[digest] = place
        _remove(window, sorted(left_out), self._fields, counted=self._rule != "dead-letter")


def find_repeats(
    sources: Sequence[Source],
    fields: Fields,
    columns: Columns | None,
    rule: OnDuplicate,
    stop: Callable[[], object],
    *,
    ids_become_texts: bool = False,
) -> Repeats | None:
    """Read all ids; None if all are distinct.

    It takes 24 bytes of memory per row meanwhile.

    Args:
        sources: the files, with their numbers of rows.
        fields: the fields that are read.
        columns: types of the fields.
        rule: which row of an id is written.
        stop: called now and then; it raises to give up.
        ids_become_texts: whether 1 and "1" are the same id in the output.

    Raises:
        InputValueError: a file cannot be read.
        BulkError: two rows have the same id, and the rule is `error`.
    """
    if fields.id is None:
        return None
    numbers: list[_Int64s] = []
    digests: list[_Digests] = []
    for window in _windows(sources, fields, columns):
        stop()
        ids: Sequence[Any] = window.ids(fields)
        if ids_become_texts:
            ids = list(map(str, ids))
        numbers.append(np.asarray(window.numbers, np.int64))
        digests.append(_digests(ids))
    rows = np.concatenate(numbers) if numbers else np.empty(0, np.int64)
    keys = np.concatenate(digests) if digests else np.empty((0, 2), np.uint64)
    del numbers, digests
    order = np.lexsort((keys[:, 0], keys[:, 1]))  # stable: rows with the same id keep their order
    keys = keys[order]
    is_same = (keys[1:] == keys[:-1]).all(axis=1)
    if not is_same.any():
        return None
    # Runs of equal ids: each place belongs to the run that starts at or before it.
    starts = np.flatnonzero(np.concatenate([[True], ~is_same]))
    ends = np.append(starts[1:], len(keys)) - 1
    run = np.cumsum(np.concatenate([[0], ~is_same]))
    chosen = (ends if rule == "last" else starts)[run]
    left = np.flatnonzero(chosen != np.arange(len(keys)))
    out, written = rows[order[left]], rows[order[chosen[left]]]
    by_number = np.argsort(out)
    repeats = Repeats(out[by_number], written[by_number], tuple(sources), fields, rule)
    if rule == "error":
        _refuse(repeats, columns)
    return repeats


def place_of(sources: Sequence[Source], number: int) -> tuple[str, int]:
    """The file of a row, and its number in the file, from its number over all inputs."""
    for source in sources:
        if number < (source.rows or 0):
            return source.name, number
        number -= source.rows or 0
    raise BulkError("an input has changed since its rows were counted")


def _only(sources: Sequence[Source], needed: set[int]) -> tuple[Source, ...]:
    """Some of the files in their order; each run of others becomes one with their rows."""
    kept: list[Source] = []
    before = 0
    for index in sorted(needed):
        if rows := sum(source.rows or 0 for source in sources[before:index]):
            kept.append(Source("", "txt", rows=rows))
        kept.append(sources[index])
        before = index + 1
    return tuple(kept)


def _windows(
    sources: Sequence[Source], fields: Fields, columns: Columns | None
) -> Iterator[Window]:
    return read_windows(sources, fields, rows_per_shard=_NO_SHARDS, columns=columns)


def _refuse(repeats: Repeats, columns: Columns | None) -> None:
    """Raise an error that names the first row whose id came before."""
    fields = repeats.fields
    number = int(repeats.rows[0])
    source, row = place_of(repeats.sources, number)
    before, before_row = place_of(repeats.sources, int(repeats.written[0]))
    named = ""
    for window in _windows(repeats.sources, fields, columns):
        if number < window.first + window.rows:
            named = f" {window.ids(fields)[window.numbers.index(number)]!r}"
            break
    raise BulkError(
        f"{source}, row {row}: its id{named} is that of row {before_row} of {before}; "
        f"{len(repeats.rows)} in all have the id of an earlier row. --on-duplicate (on_duplicate=) "
        "last, first or dead-letter chooses the row that is written"
    )


def _digests(ids: Sequence[Any]) -> _Digests:
    """128-bit hashes of ids, (ids, 2)."""
    is_plain = [type(key) is int and -_INT64 <= key < _INT64 for key in ids]
    numbers = [key for key, plain in zip(ids, is_plain, strict=True) if plain]
    plain_rows = np.array(is_plain, np.bool_)
    digests = np.zeros((len(ids), 2), np.uint64)
    digests[plain_rows, 0] = np.array(numbers, np.int64).view(np.uint64)
    if len(numbers) < len(ids):
        others = (_digest(key) for key, plain in zip(ids, is_plain, strict=True) if not plain)
        digests[~plain_rows] = np.frombuffer(b"".join(others), np.uint64).reshape(-1, 2)
    return digests


def _digest(key: Any) -> bytes:
    # The number 1 and the string "1" are two ids.
    text = f"i{key}" if isinstance(key, int) else f"t{key}"
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def _add_dead_letter(
    window: Window, place: int, key: Any, reason: str, sources: Sequence[Source] = ()
) -> None:
    window.dead.append(DeadLetter(*window.place(place), key, _CODE, reason))
    order = {source.name: i for i, source in enumerate(sources)}
    window.dead.sort(key=lambda letter: (order.get(letter.source, 0), letter.row))


def _report_repeated(window: Window, key: Any) -> None:
    window.repeated_ids.append(key)


def _remove(window: Window, places: Sequence[int], fields: Fields, *, counted: bool) -> None:
    if counted:
        ids = window.ids(fields) if places else []
        window.duplicates += len(places)
        for place in places:
            _report_repeated(window, ids[place])
    window.remove(places)
