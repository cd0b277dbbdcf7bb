"""Methods of a Collection that read and change rows without a query."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import eq
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from flowvec.arguments import explaining, flag, whole_number
from flowvec.collection.access import Access
from flowvec.collection.foreign import OF_ROWS
from flowvec.collection.index.vector_index import VectorIndex
from flowvec.collection.results import Row
from flowvec.collection.store.filters import Condition, Filter, compile_filter
from flowvec.collection.store.rows import Id, Item, encode_metadata
from flowvec.collection.store.store import Store
from flowvec.collection.validation import Changes, changed_metadata, check_changes, ids_of
from flowvec.errors import FlowvecError, InputTypeError, InputValueError
from flowvec.spelled import Spelled
from flowvec.unpicklable import OfOneProcess

__all__ = ["RowMethods"]

T = TypeVar("T")

_MOST_ROWS = 1 << 40
_MOST_LABEL = 1 << 62
_READ_ROWS = 4096


class RowMethods(OfOneProcess):
    """Rows by id, by filter and in their order."""

    _path: Path
    _store: Store
    _index: VectorIndex
    _access: Access

    def __repr__(self) -> str:
        """Path, rows and model: `Collection('notes', rows=3, model='mini')`."""
        return self._described(type(self).__name__)

    def _described(self, kind: str) -> str:
        path = str(self._path)
        try:
            settings, rows = self._store.settings, len(self)
        except FlowvecError as error:  # closed or damaged
            return f"<{kind} {path!r}: {error}>"
        model = f"model={settings.model!r}" if settings.model else f"dim={settings.dim}"
        return f"{kind}({path!r}, rows={rows}, {model})"

    def __len__(self) -> int:
        """Rows in the collection."""
        with self._access.reading():
            return self._store.meta.counts().rows

    @explaining(OF_ROWS)
    def count(self, filter: Filter | None = None) -> int:
        """How many rows meet a filter.

        Args:
            filter: as for `search`; None counts all rows.

        Raises:
            InputTypeError, InputValueError: the filter is not valid.
        """
        condition = _condition(filter)
        if condition is None:
            return len(self)
        with self._access.reading():
            count = self._store.count_where(condition)
        return self._said(condition, count)

    @explaining(OF_ROWS)
    def ids(self, filter: Filter | None = None) -> builtins.list[Id]:
        """Ids of the rows that meet a filter, in the order in which the rows were added.

        Args:
            filter: as for `search`; None is all rows.

        Raises:
            InputTypeError, InputValueError: the filter is not valid.
            CorruptCollectionError: the ids do not match their checksums.
        """
        condition = _condition(filter)
        with self._access.reading():
            found = [item for item, _ in self._store.ids_where(condition)]
        return self._said(condition, found)

    @explaining(OF_ROWS)
    def get(self, ids: Sequence[Id] | Id) -> builtins.list[Item | None]:
        """Rows by id, in the order of the ids; None for an unknown id.

            >>> with Collection.create("few", dim=2) as collection:
            ...     collection.add_vectors(["a", "b"], [[1, 0], [0, 1]], ["one", "two"])
            ...     [row.text for row in collection.get(["b", "a"])], collection.get("c")
            Added(rows=2, replaced=0, truncated=0)
            (['two', 'one'], [None])

        Args:
            ids: ids of the rows, or one id, which gives a list of one.

        Raises:
            InputTypeError, InputValueError: an id is not valid.
            CorruptCollectionError: a row does not match its checksum.
        """
        keys = ids_of(ids)
        with self._access.reading():
            labels = dict(self._store.labels_of(keys))
            items = self._store.read(list(labels.values()))
        ordered = [labels.get(key) for key in keys]
        return [None if label is None else items[label] for label in ordered]

    @explaining(OF_ROWS)
    def list(
        self,
        filter: Filter | None = None,
        limit: int = 100,
        after: Row | int | None = None,
        *,
        with_vectors: bool = False,
    ) -> builtins.list[Row]:
        """A page of rows, in the order in which they were added.

            >>> with Collection.create("pages", dim=2) as collection:
            ...     collection.add_vectors(["a", "b", "c"], [[1, 0], [0, 1], [1, 1]])
            ...     first = collection.list(limit=2)
            ...     rest = collection.list(limit=2, after=first[-1])
            Added(rows=3, replaced=0, truncated=0)
            >>> [row.id for row in first], [row.id for row in rest]
            (['a', 'b'], ['c'])

        Pages are stable while others write: a row that stays is on one page, and a row that is
        added comes at the end. A row that is replaced moves to the end; `update_metadata` leaves
        it in its place.

        Args:
            filter: as for `search`; None is all rows.
            limit: most rows. A shorter page is the last one.
            after: the last row of the page before, or its `label`; None begins with the first row.
            with_vectors: whether the rows have their vectors.

        Raises:
            InputTypeError, InputValueError: an argument is not valid.
            CorruptCollectionError: a row does not match its checksum.
        """
        flag("with_vectors", with_vectors)
        condition = _condition(filter)
        most = min(whole_number("limit", limit, 0, most=None), _MOST_ROWS)
        label = 0 if after is None else _label_of(after)
        with self._access.reading():
            rows: builtins.list[Row] = []
            while len(rows) < most and (
                items := self._store.page(label, condition, most - len(rows))
            ):
                rows += [
                    Row(i.label, i.id, i.text, i.metadata, i.vector if with_vectors else None)
                    for i in items
                ]
                label = items[-1].label
        return rows if after is not None else self._said(condition, rows)

    @explaining(OF_ROWS)
    def rows(self, filter: Filter | None = None) -> Iterator[Item]:
        """All rows in the order in which they were added, at constant memory.

        Rows that are added or deleted meanwhile may or may not be included. A row that is replaced
        meanwhile is yielded before the change, after it, or both.

        Args:
            filter: as for `search`; None is all rows.

        Raises:
            InputTypeError, InputValueError: the filter is not valid.
            CorruptCollectionError: a row does not match its checksum.
        """
        condition = _condition(filter)
        self._access.check()
        return self._rows(condition)

    def _rows(self, condition: Condition | None) -> Iterator[Item]:
        after = 0
        while True:
            with self._access.reading():
                items = self._store.page(after, condition)
            if not items:
                return
            yield from items
            after = items[-1].label

    @explaining(OF_ROWS)
    def delete(self, ids: Sequence[Id] | Id | None = None, *, filter: Filter | None = None) -> int:
        """Delete rows by id or by a filter. Unknown ids are ignored. On disk when it returns.

        Args:
            ids: ids of the rows, or one id.
            filter: as for `search`: all rows that meet it when they are deleted. `{}` is all rows.

        Returns:
            How many rows were deleted.

        Raises:
            InputTypeError, InputValueError: an id or the filter is not valid; both or neither are
                given.
        """
        keys, condition = _checked_choice(ids, filter)

        def change() -> int:
            if condition is None:
                labels = self._store.delete(keys)
            else:
                labels = self._store.delete_rows(self._store.ids_where(condition))
            if labels:
                self._index.stage(labels)
            return len(labels)

        return self._said(condition, self._changed(change))

    @explaining(OF_ROWS)
    def update_metadata(
        self,
        ids: Sequence[Id] | Id | None = None,
        changes: Changes | None = None,
        *,
        filter: Filter | None = None,
    ) -> int:
        """Change fields of rows' metadata; nothing is embedded again. On disk when it returns.

            >>> with Collection.create("changed", dim=2) as collection:
            ...     collection.add_vectors(["a"], [[1, 0]], metadata=[{"n": 1, "draft": True}])
            ...     collection.update_metadata(["a"], {"n": 2, "draft": None})
            ...     collection.list()[0].metadata
            Added(rows=1, replaced=0, truncated=0)
            1
            {'n': 2}

        Args:
            ids: ids of the rows, or one id; unknown ones are ignored.
            changes: a dict of fields and their new values for all of these rows, or a list with a
                dict for each id. None removes a field; other fields stay as they are. A field that
                holds a dict is replaced as a whole. Names are those of filters: `"author.name"` is
                the field `name` in `author`, made if needed, and `"a\\.b"` is the field `a.b`.
            filter: instead of ids, as for `search`: all rows that meet it when they are changed.

        Returns:
            How many rows there are with these ids, or that meet the filter.

        Raises:
            InputTypeError, InputValueError: an argument is not valid, or a row's metadata would not
                be; nothing was changed.
            CorruptCollectionError: a row does not match its checksum.
        """
        keys, condition = _checked_choice(ids, filter)
        each = check_changes(changes, None if condition is not None else len(keys))
        if condition is not None:
            # All rows are chosen first: a change may make other rows meet the filter.
            changed = self._changed(
                lambda: self._change_metadata(
                    self._store.labels(condition).tolist(), lambda _: each
                )
            )
            return self._said(condition, changed)
        changes_by_id: dict[Id, builtins.list[dict[str, Any]]] = {}
        for key, fields in zip(keys, each, strict=True):
            changes_by_id.setdefault(key, []).append(fields)
        return self._changed(lambda: self._change_rows(changes_by_id))

    def _change_rows(self, changes_by_id: Mapping[Id, Sequence[Mapping[str, Any]]]) -> int:
        pairs = self._store.labels_of(builtins.list(changes_by_id))
        return self._change_metadata(
            [label for _, label in pairs], lambda item: changes_by_id[item.id]
        )

    def _change_metadata(
        self,
        labels: Sequence[int],
        changes_of: Callable[[Item], Sequence[Mapping[str, Any]]],
    ) -> int:
        """Change the metadata of rows; inside a change. Returns how many rows there are."""
        is_changed = False
        for start in range(0, len(labels), _READ_ROWS):
            items = builtins.list(self._store.read(labels[start : start + _READ_ROWS]).values())
            before = [encode_metadata(item.metadata, 0) for item in items]
            after = [changed_metadata(item.id, item.metadata, changes_of(item)) for item in items]
            places = [i for i, same in enumerate(map(eq, before, after)) if not same]
            self._store.replace_metadata([items[i] for i in places], [after[i] for i in places])
            is_changed = is_changed or bool(places)
        if is_changed:
            self._store.meta.touch()
            self._index.stage()  # the same rows, in a state of another number
        return len(labels)

    def _said(self, condition: Condition | None, found: T) -> T:
        """What a filter has found; if that is nothing, a misspelt field is named in a warning."""
        if not found:
            self._store.field_hints.after_nothing(condition)
        return found

    def _changed(self, change: Callable[[], int]) -> int:
        """Make a change in a transaction, and return what it returns."""
        return self._access.change(change)


def _condition(filter: Filter | None) -> Condition | None:
    return None if filter is None else compile_filter(filter)


def _label_of(after: object) -> int:
    if isinstance(after, Row | Item):
        return after.label
    if isinstance(after, bool) or not isinstance(after, int | np.integer):
        raise InputTypeError(
            f"after must be the last row of the page before, or its label, not {after!r:.40}"
        )
    return min(max(int(after), 0), _MOST_LABEL)


def _checked_choice(
    ids: Sequence[Id] | Id | None, filter: Filter | None
) -> tuple[builtins.list[Id], Condition | None]:
    """Checked ids, or a filter's condition.

    Raises:
        InputTypeError, InputValueError: they are not valid, or both or neither are given.
    """
    if (ids is None) == (filter is None):
        raise InputValueError(
            "give ids or filter; a filter may name ids too: ",
            Spelled(
                "{'$id': {'in': ids}, 'field': value}",
                '{"$id": {"in": [ID, ...]}, "FIELD": VALUE}',
            ),
            ", and {} is all rows",
        )
    if ids is None:
        return [], _condition(filter)
    return ids_of(ids, ordered=False), None
