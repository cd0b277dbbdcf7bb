"""Deletes the rows of a collection whose rows are gone from the inputs."""

from __future__ import annotations

from collections.abc import Callable

from flowvec.bulk.splitting import owner_of, prefix_of
from flowvec.collection.collection import Collection
from flowvec.collection.store.rows import Id
from flowvec.errors import BulkError
from flowvec.texts.window import Fields, Window

__all__ = ["Pruning"]


class Pruning:
    """Ids of a collection's rows that no input row has had so far.

    They are held in memory, about 100 bytes each.
    """

    def __init__(self, collection: Collection | None, *, are_split: bool = False) -> None:
        """Start with all rows of the collection as it is now. Rows added later are not deleted.

        Args:
            collection: where the rows are; None has none.
            are_split: whether the collection has chunks of the input rows.
        """
        # The input row of a row: a chunk's is the one that was split.
        self._owner_of: Callable[[Id], Id] = owner_of if are_split else _itself
        self._key_of: Callable[[Id], Id] = prefix_of if are_split else _itself
        self._unseen: dict[Id, list[Id]] = {}
        for key in () if collection is None else collection.ids():
            self._unseen.setdefault(self._owner_of(key), []).append(key)
        self._rows = 0
        self._nameless = 0

    def see(self, window: Window, fields: Fields) -> None:
        """Note the ids of a window before any row is removed or split; also of dead letters."""
        self._rows += window.rows - window.blank
        for key in window.ids(fields):
            self._unseen.pop(self._key_of(key), None)
        for letter in window.dead:
            # The id of such a row cannot be read: it may be that of a row of the collection.
            if letter.id is None or letter.code == "bad_id":
                self._nameless += 1
            else:
                self._unseen.pop(self._key_of(letter.id), None)

    def prune(self, collection: Collection) -> int:
        """Delete the rows that are left, and return how many there were.

        Raises:
            BulkError: which rows are gone cannot be known.
        """
        why = None
        if not self._rows:
            why = "the inputs have no rows; flowvec delete --filter '{}' deletes all rows"
        elif self._nameless:
            why = (
                f"the ids of {self._nameless} input rows cannot be read, so which rows are gone is "
                "not known; see the dead letters"
            )
        if why is not None:
            raise BulkError(f"all rows are added, but nothing was pruned: {why}")
        return collection.delete([key for keys in self._unseen.values() for key in keys])


def _itself(key: Id) -> Id:
    return key
