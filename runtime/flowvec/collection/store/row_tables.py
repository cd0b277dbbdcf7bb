"""What the tables share that hold something more for some of the rows, by their labels."""

from __future__ import annotations

from flowvec.collection.store.sqlite import Database

__all__ = ["labels_without", "lines_without_row"]


def labels_without(database: Database, table: str, after: int, most: int) -> list[int]:
    """The next labels above one of rows that have a text and no line in a table, ascending.

    Args:
        database: the collection's.
        table: the table's name.
        after: labels are above it.
        most: how many labels.
    """
    statement = (
        "SELECT label FROM items WHERE label > ? AND text IS NOT NULL AND NOT EXISTS "  # noqa: S608
        f"(SELECT 1 FROM {table} t WHERE t.label = items.label) ORDER BY label LIMIT ?"
    )
    with database.translated():
        rows = database.connection.execute(statement, (after, most)).fetchall()
    return [int(label) for (label,) in rows]


def count_without(database: Database, table: str) -> int:
    """How many rows have a text and no line in a table."""
    with database.translated():
        ((count,),) = database.connection.execute(
            "SELECT count(*) FROM items WHERE text IS NOT NULL AND NOT EXISTS "  # noqa: S608
            f"(SELECT 1 FROM {table} t WHERE t.label = items.label)"
        ).fetchall()
    return int(count)


def lines_without_row(database: Database, table: str) -> int:
    """How many lines of a table belong to no row."""
    with database.translated():
        ((lost,),) = database.connection.execute(
            f"SELECT count(*) FROM {table} WHERE label NOT IN (SELECT label FROM items)"  # noqa: S608
        ).fetchall()
    return int(lost)
