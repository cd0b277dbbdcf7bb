"""What the tests of collections share."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable

from flowvec.collection.store.settings import CollectionSettings

TEXTS = ["the cat sleeps", "a dog runs", "stocks fell", "a man eats bread"]
SETTINGS = CollectionSettings(
    dim=3, metric="cosine", m=16, ef_construction=200, created="now", created_by="a test"
)


def refusing(refused: int) -> Callable[..., int]:
    """An authorizer of SQLite that refuses an action, such as `sqlite3.SQLITE_INSERT`."""

    def allow(action: int, *_: object) -> int:
        return sqlite3.SQLITE_DENY if action == refused else sqlite3.SQLITE_OK

    return allow
