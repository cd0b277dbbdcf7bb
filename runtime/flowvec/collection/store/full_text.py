"""A full-text index over the texts of a collection: SQLite's FTS5, ranked by BM25.

Its tokenizer is `unicode61`, which splits texts into words and strips English endings, or
`trigram`, which splits them into all runs of three characters: for languages without spaces, and to
find parts of words.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Sequence
from typing import Literal, get_args

from flowvec.collection.store.filters import Condition
from flowvec.collection.store.sqlite import Database
from flowvec.errors import CollectionError, CorruptCollectionError

__all__ = ["TOKENIZERS", "FullText", "TextTokenizer"]

logger = logging.getLogger(__name__)

TextTokenizer = Literal["unicode61", "trigram"]
TOKENIZERS: tuple[TextTokenizer, ...] = get_args(TextTokenizer)
_DEFAULT: TextTokenizer = "unicode61"
_TOKENIZE: dict[TextTokenizer, str] = {
    "unicode61": "tokenize='porter unicode61 remove_diacritics 2'",
    "trigram": "tokenize='trigram'",
}
_TRIGRAM_SINCE = (3, 34)
# The index reads texts from the rows. Triggers update it, so any version of flowvec keeps it.
_TABLE, *_TRIGGERS = _PARTS = ("words", "words_of_new", "words_of_old")
_CREATE = (
    "CREATE VIRTUAL TABLE words USING fts5(text, content='items', content_rowid='label', {})",
    "CREATE TRIGGER words_of_new AFTER INSERT ON items BEGIN "
    "INSERT INTO words(rowid, text) VALUES (new.label, new.text); END",
    "CREATE TRIGGER words_of_old AFTER DELETE ON items BEGIN "
    "INSERT INTO words(words, rowid, text) VALUES ('delete', old.label, old.text); END",
    "INSERT INTO words(words) VALUES ('rebuild')",
)
_INCOMPLETE = "its full-text index is incomplete; compact() rebuilds it"


class FullText:
    """The words of the texts in the table `items`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @property
    def exists(self) -> bool:
        """Whether there is a complete full-text index, which changes keep up to date."""
        return self._count_parts() == len(_PARTS)

    @property
    def exists_in_part(self) -> bool:
        """Whether there is a full-text index, complete or not."""
        return self._count_parts() > 0

    def _count_parts(self) -> int:
        marks = ", ".join("?" * len(_PARTS))
        with self._database.translated():
            row = self._database.connection.execute(
                f"SELECT count(*) FROM sqlite_master WHERE name IN ({marks})",  # noqa: S608 - marks
                _PARTS,
            ).fetchone()
        return int(row[0])

    @property
    def tokenizer(self) -> TextTokenizer | None:
        """The tokenizer of the index, as its table records it; None without an index."""
        with self._database.translated():
            rows = self._database.connection.execute(
                "SELECT sql FROM sqlite_master WHERE name = ?", (_TABLE,)
            ).fetchall()
        if not rows:
            return None
        return next((name for name, sql in _TOKENIZE.items() if sql in str(rows[0][0])), _DEFAULT)

    def build(self, tokenizer: TextTokenizer | None = None) -> None:
        """Build the index, replacing what exists of one; inside a transaction.

        Args:
            tokenizer: None keeps that of the index, or is `unicode61` for a new one.

        Raises:
            CollectionError: this SQLite does not have it.
        """
        chosen = tokenizer or self.tokenizer or _DEFAULT
        if chosen == "trigram" and sqlite3.sqlite_version_info < _TRIGRAM_SINCE:
            raise CollectionError(
                f"the tokenizer trigram needs SQLite 3.34, and this Python has "
                f"{sqlite3.sqlite_version}"
            )
        connection = self._database.connection
        for trigger in _TRIGGERS:
            connection.execute(f"DROP TRIGGER IF EXISTS {trigger}")
        connection.execute(f"DROP TABLE IF EXISTS {_TABLE}")
        for statement in _CREATE:
            connection.execute(statement.format(_TOKENIZE[chosen]))

    def search(
        self, expression: str, limit: int, condition: Condition | None = None
    ) -> dict[int, float]:
        """BM25 of the rows whose texts match best, by label, best first.

        Args:
            expression: an FTS5 query, as `hybrid.match_expression` makes it.
            limit: most rows to return.
            condition: which rows are eligible by their metadata.
        """
        # To look up every row that matches takes as long as to rank them.
        rows_of, chosen = "", condition or Condition("1", ())
        if condition is not None:
            rows_of = "JOIN items ON items.label = words.rowid"
        with self._database.translated():
            rows = self._database.connection.execute(
                f"SELECT words.rowid, words.rank FROM words {rows_of} "  # noqa: S608 - filter
                f"WHERE words MATCH ? AND {chosen.sql} ORDER BY words.rank, words.rowid LIMIT ?",
                (expression, *chosen.parameters, limit),
            ).fetchall()
        # SQLite gives negative scores, lowest first.
        return {int(label): -float(rank) for label, rank in rows}

    def scan(
        self, parts: Sequence[str], limit: int, condition: Condition | None = None
    ) -> dict[int, float]:
        """Rows whose texts contain parts that are too short for trigrams; it reads all texts.

        Args:
            parts: any texts; upper and lower case are alike.
            limit: most rows to return.
            condition: which rows are eligible.

        Returns:
            How many of the parts each row has, by label; those with most, then the shortest first.
        """
        found: list[str] = []
        written: list[str] = []
        for part in parts:
            forms = sorted({part, part.lower(), part.upper(), part.title()})
            found.append("(" + " OR ".join(["instr(items.text, ?) > 0"] * len(forms)) + ")")
            written += forms
        where, values = (condition.sql, condition.parameters) if condition else ("1", ())
        with self._database.translated():
            rows = self._database.connection.execute(
                f"SELECT label, {' + '.join(found)} AS parts FROM items "  # noqa: S608 - parameters
                f"WHERE parts > 0 AND {where} "
                "ORDER BY parts DESC, length(items.text), label LIMIT ?",
                (*written, *values, limit),
            ).fetchall()
        return {int(label): float(count) for label, count in rows}

    def problem(self) -> str | None:
        """What is wrong with the index; None if it is intact or missing."""
        if not self.exists:
            return _INCOMPLETE if self.exists_in_part else None
        try:
            tokenize = _TOKENIZE[self.tokenizer or _DEFAULT]
            connection = self._database.connect()
            try:
                _compare_with_rows(connection, tokenize)
            finally:
                connection.close()
        except (sqlite3.Error, UnicodeDecodeError) as error:
            if isinstance(self._database.translate(error), CorruptCollectionError):
                return (
                    f"its full-text index does not match its rows; compact() rebuilds it ({error})"
                )
            logger.warning("the full-text index was not checked: %s", error)  # no space for a copy
        return None


def _compare_with_rows(connection: sqlite3.Connection, tokenize: str) -> None:
    """Compare every word of the index with the rows.

    SQLite's own check counts as a change of the index, and would block all writers while it runs.
    So this checks a copy of the index in SQLite's temporary files, over a view of the rows. It only
    reads the collection, one state of it, and works on read-only files too.

    Raises:
        sqlite3.DatabaseError: they differ.
    """
    connection.execute("BEGIN")
    connection.execute("CREATE TEMP VIEW rows_of_copy AS SELECT label, text FROM main.items")
    connection.execute(
        "CREATE VIRTUAL TABLE temp.copy USING fts5(text, content='rows_of_copy', "
        f"content_rowid='label', {tokenize})"
    )
    for part in ("data", "idx", "docsize", "config"):
        connection.execute(f"DELETE FROM temp.copy_{part}")  # noqa: S608 - names from above
        connection.execute(f"INSERT INTO temp.copy_{part} SELECT * FROM main.words_{part}")  # noqa: S608
    connection.execute("INSERT INTO temp.copy(copy, rank) VALUES('integrity-check', 1)")
    connection.execute("ROLLBACK")
