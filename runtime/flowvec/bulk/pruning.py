"""Deletes the rows of a collection whose rows are gone from the inputs."""

from __future__ import annotations

from flowvec.collection.collection import Collection
from flowvec.collection.store.rows import Id
from flowvec.errors import BulkError
from flowvec.texts.window import Fields, Window

__all__ = ["Pruning"]


class Pruning:
    """Ids of a collection's rows that no input row has had so far.

    They are held in memory, about 100 bytes each.
    """

    def __init__(self, collection: Collection | None) -> None:
        """Start with all rows of the collection as it is now; None has none.

        Rows that others add later are not deleted.
        """
        self._unseen: set[Id] = set() if collection is None else set(collection.ids())
        self._rows = 0
        self._nameless = 0

    def see(self, window: Window, fields: Fields) -> None:
        """Note the ids of a window before any row is removed from it; also of dead letters."""
        self._rows += window.rows - window.blank
        self._unseen.difference_update(window.ids(fields))
        for letter in window.dead:
            # The id of such a row cannot be read: it may be that of a row of the collection.
            if letter.id is None or letter.code == "bad_id":
                self._nameless += 1
            else:
                self._unseen.discard(letter.id)

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
        return collection.delete(list(self._unseen))
