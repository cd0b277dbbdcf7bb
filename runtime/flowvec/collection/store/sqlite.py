"""Connections to one SQLite file: one that writes, and one for each thread that reads meanwhile.

SQLite runs in WAL mode with synchronous=FULL, so a returned commit has reached the disk, and
readers keep the state that they began with while another commits.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from flowvec.collection.store.filters import add_functions
from flowvec.errors import (
    ClosedError,
    CollectionError,
    CorruptCollectionError,
    FlowvecError,
    InputValueError,
)

__all__ = ["Database"]

# Another process's checkpoint is waited for so long.
_BUSY_SECONDS = 30.0
_OF_DAMAGE = ("Could not decode", "no such table", "no such column")


class Database:
    """One SQLite file.

    One thread at a time writes, in `transaction`; any number read meanwhile, each in `reading`,
    which gives it a connection of its own and with it one state of the file. In a folder that
    cannot be written the file is read as it lies there.
    """

    def __init__(self, path: Path, *, create: bool = False) -> None:
        """Open the file, or make it.

        Raises:
            CollectionError: it is missing, exists already, or cannot be opened.
            CorruptCollectionError: it is no database.
        """
        try:
            if create and path.exists():
                raise CollectionError(f"{path} exists already")
            if not create and not path.is_file():
                raise CollectionError(f"{path.parent} is no collection: it has no {path.name}")
            self._mode = "rwc" if create else _mode(path)
        except OSError as error:
            raise CollectionError(f"cannot read {path}: {error.strerror or error}") from error
        self._path = path
        self._local = threading.local()
        self._idle: deque[sqlite3.Connection] = deque()
        self._is_closed = False
        self._writer = self._connect()

    def _connect(self) -> sqlite3.Connection:
        with self._translated():
            db = sqlite3.connect(
                f"{self._path.as_uri()}?mode={self._mode}",
                uri=True,
                timeout=_BUSY_SECONDS,
                isolation_level=None,
                check_same_thread=False,
            )
            try:
                add_functions(db)
                if self.is_writable:
                    db.execute("PRAGMA journal_mode=WAL")
                    db.execute("PRAGMA synchronous=FULL")
            except BaseException:
                db.close()
                raise
        return db

    @property
    def _db(self) -> sqlite3.Connection:
        """This thread's connection while it is `reading`, else the one that writes."""
        db: sqlite3.Connection = getattr(self._local, "db", None) or self._writer
        return db

    @property
    def is_writable(self) -> bool:
        """Whether it was opened where it can be changed."""
        return self._mode.startswith("rw")

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise self._ours(error) from error

    def _ours(self, error: Exception) -> FlowvecError:
        """An error of SQLite's as one of flowvec's."""
        if isinstance(error, sqlite3.DataError):
            return InputValueError(f"{self._path} cannot hold so much in a row: {error}")
        if isinstance(error, sqlite3.ProgrammingError) and self._is_closed:
            return ClosedError("this Collection is closed")
        # Python's words for texts that are no UTF-8, SQLite's for tables that are missing.
        if isinstance(error, sqlite3.OperationalError):
            is_damage = any(words in str(error) for words in _OF_DAMAGE)
        else:
            is_damage = not isinstance(error, sqlite3.IntegrityError | sqlite3.ProgrammingError)
        if is_damage:  # a UnicodeDecodeError is: SQLite quotes what is damaged
            return CorruptCollectionError(f"{self._path} is damaged: {error}")
        return CollectionError(f"{self._path}: {error}")

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All or nothing: committed and on disk when the block has ended without an error."""
        outer = getattr(self._local, "db", None)
        with self._translated():
            try:
                self._writer.execute("BEGIN IMMEDIATE")
                # What the block reads is what it has written, whatever state it read before.
                self._local.db = self._writer
                yield
                self._writer.execute("COMMIT")
            except BaseException:
                if self._writer.in_transaction:
                    self._writer.execute("ROLLBACK")
                raise
            finally:
                self._local.db = outer

    @contextmanager
    def reading(self) -> Iterator[None]:
        """One state of the file for all reads of this thread in the block, whoever commits.

        The state is that of the first read; within another such block that one's.
        """
        if getattr(self._local, "db", None) is not None:
            yield
            return
        db = self._borrowed()
        # Every search comes by here, and a `with` would cost it as much as the statement.
        try:
            try:
                db.execute("BEGIN")
            except sqlite3.Error as error:
                raise self._ours(error) from error
            self._local.db = db
            yield
        finally:
            self._local.db = None
            try:
                if db.in_transaction:
                    db.execute("ROLLBACK")
            except sqlite3.Error as error:
                raise self._ours(error) from error
            self._give_back(db)

    def newest(self, statement: str) -> list[tuple[Any, ...]]:
        """What one statement reads of the newest state, by itself: no transaction is begun."""
        db = self._borrowed()
        try:
            return db.execute(statement).fetchall()
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise self._ours(error) from error
        finally:
            self._give_back(db)

    def _borrowed(self) -> sqlite3.Connection:
        try:
            return self._idle.pop()
        except IndexError:
            return self._connect()

    def _give_back(self, db: sqlite3.Connection) -> None:
        self._idle.append(db)
        if self._is_closed:
            self._close_idle()

    def renew(self) -> None:
        """Within `reading`: the next read is of the newest state."""
        with self._translated():
            self._db.execute("ROLLBACK")
            self._db.execute("BEGIN")

    def vacuum(self) -> None:
        """Write the file anew, without the room that deleted rows have left."""
        with self._translated():
            self._writer.execute("VACUUM")
            self._writer.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def close(self) -> None:
        """Close the file; SQLite folds its write-ahead log into it."""
        self._is_closed = True
        self._close_idle()
        with self._translated():
            self._writer.close()

    def _close_idle(self) -> None:
        with suppress(IndexError), self._translated():
            while True:
                self._idle.pop().close()


def _mode(path: Path) -> str:
    """How to open a file: WAL mode writes beside it even for those who only read."""
    if _may_write(path) and _may_write(path.parent):
        return "rw"
    log, shared = (path.with_name(path.name + end) for end in ("-wal", "-shm"))
    if log.exists() and shared.exists():
        return "ro"  # somebody writes there, or did until a kill: SQLite reads the log with it
    if log.exists() and log.stat().st_size:
        raise CollectionError(
            f"{path.parent} cannot be written, and holds changes that its database has not taken "
            f"in yet ({log.name}): open it once where it can be written"
        )
    return "ro&immutable=1"


def _may_write(path: Path) -> bool:
    # Of whom the system asks it, which need not be who started the process.
    return os.access(path, os.W_OK, effective_ids=os.access in os.supports_effective_ids)
