"""A full-text index over the texts of a collection's rows: SQLite's FTS5, ranked by BM25."""

from __future__ import annotations

import logging
import sqlite3

from flowvec.collection.store.filters import Condition
from flowvec.collection.store.sqlite import Database
from flowvec.errors import CorruptCollectionError

__all__ = ["FullText"]

logger = logging.getLogger(__name__)

_TOKENS = "tokenize='porter unicode61 remove_diacritics 2'"
# The index reads texts from the rows; triggers let any version of flowvec keep it.
_WORDS = (
    "CREATE VIRTUAL TABLE words USING fts5(text, content='items', content_rowid='label', "
    f"{_TOKENS})",
    "CREATE TRIGGER words_of_new AFTER INSERT ON items BEGIN "
    "INSERT INTO words(rowid, text) VALUES (new.label, new.text); END",
    "CREATE TRIGGER words_of_old AFTER DELETE ON items BEGIN "
    "INSERT INTO words(words, rowid, text) VALUES ('delete', old.label, old.text); END",
    "INSERT INTO words(words) VALUES ('rebuild')",
)
_PARTS_OF_WORDS = ("words", "words_of_new", "words_of_old")
_NOT_WHOLE = "its full-text index is not whole; compacting makes it anew"


class FullText(Database):
    """A database whose table `items` can be searched by the words of its texts."""

    def has_words(self) -> bool:
        """Whether there is a full-text index, which changes keep."""
        return self._parts_of_words() == len(_PARTS_OF_WORDS)

    def has_part_of_words(self) -> bool:
        """Whether there is a full-text index, or what is left of one."""
        return self._parts_of_words() > 0

    def _parts_of_words(self) -> int:
        marks = ", ".join("?" * len(_PARTS_OF_WORDS))
        with self._translated():
            found = self._db.execute(
                f"SELECT count(*) FROM sqlite_master WHERE name IN ({marks})",  # noqa: S608 - marks
                _PARTS_OF_WORDS,
            ).fetchone()
        return int(found[0])

    def index_words(self) -> None:
        """Make the full-text index, and let every later change keep it; inside a transaction.

        What there is of one is made anew.
        """
        _, *triggers = _PARTS_OF_WORDS
        for trigger in triggers:
            self._db.execute(f"DROP TRIGGER IF EXISTS {trigger}")
        self._db.execute("DROP TABLE IF EXISTS words")
        for statement in _WORDS:
            self._db.execute(statement)

    def find_words(
        self, expression: str, limit: int, condition: Condition | None = None
    ) -> dict[int, float]:
        """BM25 of the rows whose texts match best, by label, best first.

        Args:
            expression: as `hybrid.match_expression` gives.
            limit: at most so many.
            condition: of their metadata.
        """
        where = "1" if condition is None else condition.sql
        parameters = () if condition is None else condition.parameters
        with self._translated():
            rows = self._db.execute(
                "SELECT words.rowid, words.rank FROM words JOIN items ON items.label = words.rowid "  # noqa: S608
                f"WHERE words MATCH ? AND {where} ORDER BY words.rank, words.rowid LIMIT ?",
                (expression, *parameters, limit),
            ).fetchall()
        # SQLite's is negative: its least is its best.
        return {int(label): -float(rank) for label, rank in rows}

    def problem_of_words(self) -> str | None:
        """What is wrong with the index, in words; None where there is none, or all is well."""
        if not self.has_words():
            is_part = self.has_part_of_words()
            return _NOT_WHOLE if is_part else None
        try:
            db = self._connect()
            try:
                _compare_words(db)
            finally:
                db.close()
        except (sqlite3.Error, UnicodeDecodeError) as error:
            if isinstance(self._ours(error), CorruptCollectionError):
                return (
                    "its full-text index does not match its rows; compacting makes it anew "
                    f"({error})"
                )
            logger.warning("the full-text index was not checked: %s", error)  # no room for a copy
        return None


def _compare_words(db: sqlite3.Connection) -> None:
    """Compare every word of the index with the rows.

    To SQLite this check is a change of the index, which would keep all writers waiting while it
    lasts. So it checks a copy of the index in its temporary files, over a view of the rows: that
    only reads the collection, one state of it, and works where nothing can be written, too.

    Raises:
        sqlite3.DatabaseError: they differ.
    """
    db.execute("BEGIN")
    db.execute("CREATE TEMP VIEW rows_of_copy AS SELECT label, text FROM main.items")
    db.execute(
        "CREATE VIRTUAL TABLE temp.copy USING fts5(text, content='rows_of_copy', "
        f"content_rowid='label', {_TOKENS})"
    )
    for part in ("data", "idx", "docsize", "config"):
        db.execute(f"DELETE FROM temp.copy_{part}")  # noqa: S608 - of this tuple
        db.execute(f"INSERT INTO temp.copy_{part} SELECT * FROM main.words_{part}")  # noqa: S608
    db.execute("INSERT INTO temp.copy(copy, rank) VALUES('integrity-check', 1)")
    db.execute("ROLLBACK")
