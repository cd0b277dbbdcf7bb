"""A full-text index over the texts of a collection: SQLite's FTS5, ranked by BM25.

Texts are folded (`flowvec.texts.folding`), and so are queries: SQLite only splits them. Its
tokenizer is `unicode61`, which splits texts into words and strips English endings, or `trigram`,
which splits them into all runs of three characters: for languages without spaces, and to find parts
of words.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Sequence
from typing import Literal, get_args

from flowvec.collection.store.filters import Condition
from flowvec.collection.store.sqlite import FOLDED, Database
from flowvec.errors import CollectionError, CorruptCollectionError

__all__ = ["TOKENIZERS", "FullText", "TextTokenizer"]

logger = logging.getLogger(__name__)

TextTokenizer = Literal["unicode61", "trigram"]
TOKENIZERS: tuple[TextTokenizer, ...] = get_args(TextTokenizer)
_DEFAULT: TextTokenizer = "unicode61"
_TOKENIZE: dict[TextTokenizer, str] = {
    # All that is not ASCII is in words: what is not was removed.
    "unicode61": "tokenize='porter ascii'",
    "trigram": "tokenize='trigram case_sensitive 1'",
}
_TRIGRAM_SINCE = (3, 34)
# Keeps the folded texts as well: what a row added to the index must be known when the row goes, and
# another version of Python may know more letters. Triggers keep it up to date.
_CREATE = {
    "words": "CREATE VIRTUAL TABLE words USING fts5(text, {})",
    "words_of_new": "CREATE TRIGGER words_of_new AFTER INSERT ON items BEGIN "  # noqa: S608
    f"INSERT INTO words(rowid, text) VALUES (new.label, {FOLDED}(new.text)); END",
    "words_of_old": "CREATE TRIGGER words_of_old AFTER DELETE ON items BEGIN "
    "DELETE FROM words WHERE rowid = old.label; END",
}
_TABLE, *_TRIGGERS = _CREATE
_FILL = f"INSERT INTO words(rowid, text) SELECT label, {FOLDED}(text) FROM items"  # noqa: S608
_INCOMPLETE = "its full-text index is incomplete; compact() rebuilds it"


class FullText:
    """The words of the texts in the table `items`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @property
    def exists(self) -> bool:
        """Whether there is a complete full-text index."""
        return self._parts().keys() == _CREATE.keys()

    @property
    def exists_in_part(self) -> bool:
        """Whether there is a full-text index, complete or not."""
        return bool(self._parts())

    @property
    def tokenizer(self) -> TextTokenizer | None:
        """The tokenizer of the index, as its table records it; None without an index."""
        return _tokenizer_of(self._parts())

    def _parts(self) -> dict[str, str]:
        """The SQL of the table and the triggers that exist, by name."""
        marks = ", ".join("?" * len(_CREATE))
        with self._database.translated():
            return dict(
                self._database.connection.execute(
                    f"SELECT name, sql FROM sqlite_master WHERE name IN ({marks})",  # noqa: S608 - marks
                    tuple(_CREATE),
                ).fetchall()
            )

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
        for statement in _CREATE.values():
            connection.execute(statement.format(_TOKENIZE[chosen]))
        connection.execute(_FILL)

    def search(
        self, expression: str, limit: int, condition: Condition | None = None
    ) -> dict[int, float]:
        """BM25 of the rows whose texts match best, by label, best first.

        Args:
            expression: an FTS5 query.
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
            parts: folded texts.
            limit: most rows to return.
            condition: which rows are eligible.

        Returns:
            How many of the parts each row has, by label; those with most, then the shortest first.
        """
        found = " + ".join(["(instr(folded.c0, ?) > 0)"] * len(parts))
        rows_of, chosen = "", condition or Condition("1", ())
        if condition is not None:
            rows_of = "JOIN items ON items.label = folded.id"
        with self._database.translated():
            rows = self._database.connection.execute(
                f"SELECT folded.id, {found} AS parts FROM words_content AS folded {rows_of} "  # noqa: S608 - parameters
                f"WHERE parts > 0 AND {chosen.sql} "
                "ORDER BY parts DESC, length(folded.c0), folded.id LIMIT ?",
                (*parts, *chosen.parameters, limit),
            ).fetchall()
        return {int(label): float(count) for label, count in rows}

    def problem(self) -> str | None:
        """What is wrong with the index; None if it is intact, or if there is none."""
        parts = self._parts()
        if len(parts) < len(_CREATE):
            return _INCOMPLETE if parts else None
        try:
            connection = self._database.connect()
            try:
                _compare_with_rows(connection, _TOKENIZE[_tokenizer_of(parts) or _DEFAULT])
            finally:
                connection.close()
        except (sqlite3.Error, UnicodeDecodeError) as error:
            if isinstance(self._database.translate(error), CorruptCollectionError):
                return (
                    f"its full-text index does not match its rows; compact() rebuilds it ({error})"
                )
            logger.warning("the full-text index was not checked: %s", error)  # no space for a copy
        return None


def _tokenizer_of(parts: dict[str, str]) -> TextTokenizer | None:
    if _TABLE not in parts:
        return None
    return "trigram" if "trigram" in parts[_TABLE] else "unicode61"


def _compare_with_rows(connection: sqlite3.Connection, tokenize: str) -> None:
    """Compare every word of the index with the rows.

    SQLite's own check counts as a change of the index, and would block all writers while it runs.
    So this checks a copy of the index in SQLite's temporary files, over a view of the texts. It
    only reads the collection, one state of it, and works on read-only files too.

    Raises:
        sqlite3.DatabaseError: they differ.
    """
    connection.execute("BEGIN")
    differing = connection.execute(
        "SELECT count(*) FROM (SELECT label FROM main.items AS item LEFT JOIN main.words_content "  # noqa: S608
        f"AS entry ON entry.id = label WHERE entry.id IS NULL OR c0 IS NOT {FOLDED}(item.text) "
        "UNION ALL SELECT id FROM main.words_content "
        "WHERE id NOT IN (SELECT label FROM main.items))"
    ).fetchone()[0]
    if differing:
        raise sqlite3.DatabaseError(f"{differing} rows have other texts there")
    connection.execute(
        "CREATE TEMP VIEW rows_of_copy AS SELECT id AS label, c0 AS text FROM main.words_content"
    )
    connection.execute(
        "CREATE VIRTUAL TABLE temp.copy USING fts5(text, content='rows_of_copy', "
        f"content_rowid='label', {tokenize})"
    )
    for part in ("data", "idx", "docsize", "config"):
        connection.execute(f"DELETE FROM temp.copy_{part}")  # noqa: S608 - names from above
        connection.execute(f"INSERT INTO temp.copy_{part} SELECT * FROM main.words_{part}")  # noqa: S608
    connection.execute("INSERT INTO temp.copy(copy, rank) VALUES('integrity-check', 1)")
    connection.execute("ROLLBACK")
