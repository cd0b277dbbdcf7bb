"""Connections to one SQLite file: one that writes, and one for each thread that reads.

SQLite runs in WAL mode with synchronous=FULL: a commit that has returned is on disk, and readers
keep the state that they started with while another thread or process commits.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from flowvec.collection.store.absence import absence_of
from flowvec.collection.store.filters import add_functions
from flowvec.errors import (
    ClosedError,
    CollectionBusyError,
    CollectionError,
    CorruptCollectionError,
    FlowvecError,
    InputValueError,
)
from flowvec.files import lfs_advice
from flowvec.texts.folding import folded

__all__ = ["FOLDED", "Database"]

# The function of SQL that folds texts for the full-text index.
FOLDED = "flowvec_folded"

# How long to wait for another process's checkpoint.
_BUSY_TIMEOUT_S = 30.0
# How often a lock is asked for that another program has.
_RETRY_S = 0.02
# How long to wait for reads of other threads before closing, and how often to look.
_MOST_CLOSING_SECONDS, _POLL_SECONDS = 60.0, 0.002
_CLOSED = "this Collection is closed"
# What a function raised that SQLite called on this thread.
_RAISED = threading.local()
_DAMAGE_MESSAGES = ("Could not decode", "no such table", "no such column")


class Database:
    """One SQLite file.

    One thread at a time writes, in `transaction`. Any number of threads read at the same time, each
    in `reading`, which gives the thread its own connection and one state of the file. A file in a
    read-only folder is opened read-only.

    Attributes:
        patience: how long a transaction waits for a lock of another program, in seconds.
    """

    def __init__(self, path: Path, *, create: bool = False) -> None:
        """Open the file; with `create` it need not exist.

        Raises:
            CollectionError: it is missing, or cannot be opened.
            CorruptCollectionError: it is not a database.
        """
        try:
            if not create and not path.is_file():
                raise CollectionError(absence_of(path.parent, path.name))
            self._mode = "rwc" if create else _mode(path)
        except OSError as error:
            raise CollectionError(f"cannot read {path}: {error.strerror or error}") from error
        self.path = path
        self.patience = _BUSY_TIMEOUT_S
        self._local = threading.local()
        self._idle: deque[sqlite3.Connection] = deque()
        # Connections in use or about to be, and by which thread. Adding and removing a key is a
        # single step.
        self._lent: dict[object, int] = {}
        self._is_closed = False
        self._identity: tuple[int, int] | None = None
        self._writer = self.connect()
        self._identity = _identity(path)

    def connect(self) -> sqlite3.Connection:
        """A new connection, which the caller closes."""
        with self.translated():
            db = sqlite3.connect(
                f"{self.path.as_uri()}?mode={self._mode}",
                uri=True,
                timeout=_BUSY_TIMEOUT_S,
                isolation_level=None,
                check_same_thread=False,
            )
            try:
                if self._identity is not None:
                    self.check_in_place()
                add_functions(db)
                folding = _folding()
                next(folding)
                db.create_function(FOLDED, 1, folding.send, deterministic=True)
                if self.is_writable:
                    # In a new file SQLite itself does not wait for others that open it.
                    self._insist(db, "PRAGMA journal_mode=WAL")
                    db.execute("PRAGMA synchronous=FULL")
            except BaseException:
                db.close()
                raise
        return db

    def check_in_place(self) -> None:
        """Raise if the file is not the one that was opened.

        Its connections would go on with a file that nobody else can open.

        Raises:
            CollectionError: it was deleted, moved or replaced.
        """
        if _identity(self.path) != self._identity:
            raise CollectionError(
                f"{self.path.parent} was deleted, moved or replaced after it was opened: open it "
                "again"
            )

    @property
    def connection(self) -> sqlite3.Connection:
        """This thread's connection: the one of its `reading` block, else the one that writes."""
        db: sqlite3.Connection = getattr(self._local, "db", None) or self._writer
        return db

    @property
    def is_writable(self) -> bool:
        """Whether it was opened where it can be changed."""
        return self._mode.startswith("rw")

    @contextmanager
    def translated(self) -> Iterator[None]:
        """Raise SQLite's errors in the block as flowvec's."""
        try:
            yield
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise self.translate(error) from error

    def translate(self, error: Exception) -> FlowvecError:
        """An error of SQLite as one of flowvec.

        Raises:
            BaseException: what was raised inside a function that SQLite called, such as
                KeyboardInterrupt.
        """
        raised: BaseException | None = getattr(_RAISED, "error", None)
        if raised is not None:
            _RAISED.error = None
            raise raised
        if isinstance(error, sqlite3.DataError):
            return InputValueError(f"{self.path} cannot store a row this large: {error}")
        if isinstance(error, sqlite3.ProgrammingError) and self._is_closed:
            return ClosedError(_CLOSED)
        if _is_locked(error):
            return CollectionBusyError(
                f"{self.path} is locked by another program, such as sqlite3 or a backup. Try "
                "again, or open the collection with a longer write_timeout"
            )
        # Python's message for bytes that are not UTF-8, SQLite's for missing tables.
        if isinstance(error, sqlite3.OperationalError):
            is_damage = any(words in str(error) for words in _DAMAGE_MESSAGES)
        else:
            is_damage = not isinstance(error, sqlite3.IntegrityError | sqlite3.ProgrammingError)
        if is_damage:  # a UnicodeDecodeError as well: SQLite quotes the damaged bytes
            advice = lfs_advice(self.path)
            return CorruptCollectionError(advice or f"{self.path} is damaged: {error}")
        return CollectionError(f"{self.path}: {error}")

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Commit all changes of the block, or none if it raises. On disk when the block ends."""
        outer = getattr(self._local, "db", None)
        self.check_in_place()
        with self.translated():
            try:
                self._insist(self._writer, "BEGIN IMMEDIATE")
                # The block must read what it has written, even inside `reading`.
                self._local.db = self._writer
                yield
                self._writer.execute("COMMIT")
            except BaseException:
                if self._writer.in_transaction:
                    self._writer.execute("ROLLBACK")
                raise
            finally:
                self._local.db = outer

    def _insist(self, db: sqlite3.Connection, statement: str) -> None:
        """Execute what needs SQLite's lock to write, and wait for it; Ctrl-C ends the wait."""
        until = time.monotonic() + self.patience
        try:
            while True:
                db.execute("PRAGMA busy_timeout=0")
                try:
                    db.execute(statement)
                    return
                except sqlite3.OperationalError as error:
                    if not _is_locked(error) or time.monotonic() >= until:
                        raise
                time.sleep(_RETRY_S)
        finally:
            db.execute(f"PRAGMA busy_timeout={int(_BUSY_TIMEOUT_S * 1000)}")

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        """Keep the changes of the block for the transaction around it, or none if it raises."""
        with self.translated():
            self._writer.execute("SAVEPOINT change")
            try:
                yield
                self._writer.execute("RELEASE change")
            except BaseException:
                if self._writer.in_transaction:  # a full disk ends the whole transaction
                    self._writer.execute("ROLLBACK TO change")
                    self._writer.execute("RELEASE change")
                raise

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open: some errors of SQLite end it."""
        return self._writer.in_transaction

    @contextmanager
    def reading(self) -> Iterator[None]:
        """All reads of this thread in the block see one state of the file.

        That is the state at the first read. A nested block keeps the state of the outer one.
        """
        if getattr(self._local, "db", None) is not None:
            yield
            return
        db = self._borrowed()
        # On the path of every search, where a `with` would cost as much as the statement.
        try:
            try:
                db.execute("BEGIN")
            except sqlite3.Error as error:
                raise self.translate(error) from error
            self._local.db = db
            yield
        finally:
            self._local.db = None
            try:
                if db.in_transaction:
                    db.execute("ROLLBACK")
            except sqlite3.Error as error:
                raise self.translate(error) from error
            self._give_back(db)

    def newest(self, statement: str) -> list[tuple[Any, ...]]:
        """Rows of one statement on the newest state, outside any transaction."""
        db = self._borrowed()
        try:
            return db.execute(statement).fetchall()
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise self.translate(error) from error
        finally:
            self._give_back(db)

    def _borrowed(self) -> sqlite3.Connection:
        thread, place = threading.get_ident(), object()
        self._lent[place] = thread  # from here on `close` waits
        try:
            if self._is_closed:
                raise ClosedError(_CLOSED)
            try:
                db = self._idle.pop()
            except IndexError:
                db = self.connect()
            self._lent[db] = thread
        finally:
            del self._lent[place]
        return db

    def _give_back(self, db: sqlite3.Connection) -> None:
        place = object()
        self._lent[place] = threading.get_ident()  # `close` waits until it is idle or closed
        try:
            self._lent.pop(db, None)  # before another thread can borrow it
            self._idle.append(db)
            if self._is_closed:
                self._close_idle()
        finally:
            del self._lent[place]

    def renew(self) -> None:
        """Within `reading`: the next read is of the newest state."""
        with self.translated():
            self.connection.execute("ROLLBACK")
            self.connection.execute("BEGIN")

    def vacuum(self) -> None:
        """Rewrite the file without the space that deleted rows left."""
        with self.translated():
            self._insist(self._writer, "VACUUM")
            self._writer.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def close(self) -> None:
        """Close the file, after reads of other threads that have begun. Twice is harmless.

        SQLite merges its write-ahead log into it.
        """
        self._is_closed = True
        until = time.monotonic() + _MOST_CLOSING_SECONDS
        while self._is_read_elsewhere() and time.monotonic() < until:
            time.sleep(_POLL_SECONDS)
        self._close_idle()
        with self.translated():
            self._writer.close()

    def _is_read_elsewhere(self) -> bool:
        # A Ctrl-C can leave a connection behind, but only in a thread that ends or closes.
        alive = {thread.ident for thread in threading.enumerate()} - {threading.get_ident()}
        return not alive.isdisjoint(self._lent.copy().values())

    def _close_idle(self) -> None:
        with suppress(IndexError), self.translated():
            while True:
                self._idle.pop().close()


def _is_locked(error: Exception) -> bool:
    code = getattr(error, "sqlite_errorcode", None)
    return code is not None and code & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def _folding() -> Generator[Any, str | None, None]:
    """Folds each text that is sent.

    SQLite drops what a function raises, and says only that it did. Ctrl-C raises KeyboardInterrupt
    at the first step of Python's code, which here is inside the `try`: a function would raise it
    before that. It is kept for `Database.translate`.
    """
    result: Any = None
    while True:
        try:
            text = yield result
            result = None if text is None else folded(text)
        except GeneratorExit:
            return
        except BaseException as error:
            _RAISED.error = error
            result = _RAISED  # nothing that SQLite can store, so the statement ends


def _identity(path: Path) -> tuple[int, int] | None:
    """Device and number of a file; None if there is none."""
    try:
        status = os.stat(path)  # noqa: PTH116 - before each change, and twice as fast
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _mode(path: Path) -> str:
    """How to open a file: in WAL mode even readers write files beside it."""
    if _may_write(path) and _may_write(path.parent):
        return "rw"
    log, shared = (path.with_name(path.name + end) for end in ("-wal", "-shm"))
    if log.exists() and shared.exists():
        return "ro"  # a writer has it open, or was killed: SQLite reads its log too
    if log.exists() and log.stat().st_size:
        raise CollectionError(
            f"{path.parent} is read-only, and its write-ahead log ({log.name}) holds changes that "
            "are not in the database yet: open it once where it can be written"
        )
    return "ro&immutable=1"


def _may_write(path: Path) -> bool:
    # For the effective user, who may differ from the one that started the process.
    return os.access(path, os.W_OK, effective_ids=os.access in os.supports_effective_ids)
