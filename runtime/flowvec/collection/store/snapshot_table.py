"""Records of a collection's graph files, in its SQLite file."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import astuple, dataclass

from flowvec.collection.store.sqlite import Database

__all__ = ["Snapshot", "SnapshotTable"]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A record of a graph file: which rows it holds, and its size and SHA-256."""

    n: int
    file: str
    bytes: int
    sha256: str
    max_label: int
    count: int
    m: int
    ef_construction: int
    created: str


class SnapshotTable:
    """The table `snapshots`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def all(self) -> list[Snapshot]:
        """All records, newest first."""
        with self._database.translated():
            rows = self._database.connection.execute(
                "SELECT * FROM snapshots ORDER BY n DESC"
            ).fetchall()
        return [Snapshot(*row) for row in rows]

    def add(self, snapshot: Snapshot) -> None:
        """Record a graph file; inside a transaction."""
        connection = self._database.connection
        marks = ", ".join("?" * len(astuple(snapshot)))
        connection.execute(
            f"INSERT INTO snapshots VALUES ({marks})",  # noqa: S608 - only question marks
            astuple(snapshot),
        )

    def remove(self, numbers: Iterable[int]) -> None:
        """Remove records; inside a transaction."""
        self._database.connection.executemany(
            "DELETE FROM snapshots WHERE n = ?", ((n,) for n in numbers)
        )
