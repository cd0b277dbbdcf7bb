"""Texts that need not be embedded again: an earlier row, or an earlier job, has their vectors.

The first row of each text is embedded, and its vector is copied to later rows. `changed_since`
copies the vectors of texts that an earlier job embedded. Each shard gets a texts file beside it,
`_part-000000.texts`, with a digest of the text of each row, so that this job can continue after a
kill, and later jobs can carry vectors over. Digests, and the vectors of texts that come again, are
in SQLite files of the machine's temporary folder, so memory stays constant.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from flowvec.bulk.output_vectors import ENTRY, OutputVectors
from flowvec.texts.window import Window

__all__ = ["CODES", "Choice", "KnownTexts"]

# Codes of dead letters that depend on the text alone, by their number in a texts file.
CODES = ("", "too_long", "non_finite", "no_row")
_CARRIED = -1  # the row of texts whose vectors an earlier job has
_CACHE_KB = 16_384  # of memory that SQLite takes for each file


@dataclass(frozen=True, slots=True)
class Choice:
    """Which texts of a window are embedded.

    Attributes:
        texts: these texts.
        index: for each row of the window, its text's index among them; -1 if its vector is known.
        digests: for each row, its text's digest.
        origins: for each row, the first row with its text, over all inputs, and how many rows have
            it; or -1, and where its vector is in the earlier job.
    """

    texts: list[str]
    index: npt.NDArray[np.int64]
    digests: list[bytes]
    origins: list[tuple[int, int]]


class KnownTexts:
    """What is known about the texts of a job. `with` closes it.

    Attributes:
        repeated: rows of this run whose text an earlier row has.
        carried: rows of this run whose text the earlier job has.
    """

    def __init__(self, scratch: Path, own: OutputVectors, rows_per_shard: int) -> None:
        """Start without texts.

        Args:
            scratch: a folder for temporary files.
            own: the job's output, for shards that earlier runs finished.
            rows_per_shard: input rows of a shard.
        """
        self.repeated = 0
        self.carried = 0
        self._stack = ExitStack()
        self._own = self._stack.enter_context(own)
        self._rows_per_shard = rows_per_shard
        self._earlier: OutputVectors | None = None
        self._shards: list[tuple[int, int]] = []  # of the earlier job: first row, number
        self._texts = self._database(
            scratch / "texts.sqlite",
            "create table texts (digest blob primary key, row int, times int) without rowid",
        )
        self._vectors = self._database(
            scratch / "vectors.sqlite", "create table vectors (digest blob primary key, value blob)"
        )
        self._written: list[bytes] = []  # digests of the shard that is being written
        self._dead: dict[bytes, int] = {}  # its texts without a vector, with their codes

    def __enter__(self) -> KnownTexts:
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    def _database(self, path: Path, schema: str) -> sqlite3.Connection:
        database = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._stack.callback(database.close)
        for setting in ("journal_mode=off", "synchronous=off", f"cache_size=-{_CACHE_KB}"):
            database.execute(f"pragma {setting}")
        database.execute(schema)
        return database

    # --- before the job ---------------------------------------------------------------------------

    def carry(self, earlier: OutputVectors, rows: Mapping[int, int]) -> None:
        """Carry over the vectors of an earlier job.

        Args:
            earlier: its output.
            rows: for each of its shards, how many rows were written.
        """
        self._earlier = self._stack.enter_context(earlier)
        first = 0
        for shard, count in sorted(rows.items()):
            digests = earlier.entries(shard)["digest"][:count].tolist()
            self._shards.append((first, shard))
            self._texts.execute("begin")
            self._texts.executemany(
                "insert or ignore into texts values (?, ?, ?)",
                ((digest, _CARRIED, first + place) for place, digest in enumerate(digests)),
            )
            self._texts.execute("commit")
            first += count

    def plan(self, windows: Iterable[Window]) -> None:
        """Find the first row of each text; the windows are all of this share of the job."""
        for window in windows:
            self._texts.execute("begin")
            self._texts.executemany(
                "insert into texts values (?, ?, 1) on conflict (digest) do update set "
                "times = times + (row >= 0)",
                zip(map(_digest, window.texts), window.numbers, strict=True),
            )
            self._texts.execute("commit")

    # --- on the reading thread --------------------------------------------------------------------

    def choose(self, window: Window) -> Choice:
        """The texts of a window that must be embedded."""
        choice = Choice([], np.full(len(window.texts), -1, np.int64), [], [])
        for place, (text, number) in enumerate(zip(window.texts, window.numbers, strict=True)):
            digest = _digest(text)
            origin: tuple[int, int] = self._texts.execute(
                "select row, times from texts where digest = ?", (digest,)
            ).fetchone()
            if origin[0] == number:
                choice.index[place] = len(choice.texts)
                choice.texts.append(text)
            choice.digests.append(digest)
            choice.origins.append(origin)
        return choice

    # --- on the writing thread --------------------------------------------------------------------

    def resolve(
        self, choice: Choice, vectors: npt.NDArray[Any], bad: Mapping[int, str]
    ) -> tuple[npt.NDArray[Any], dict[int, str]]:
        """The vectors of all rows of a window.

        Args:
            choice: of the window.
            vectors: of the embedded texts, (texts, dim).
            bad: embedded texts that are dead letters, by their index, with their codes.

        Returns:
            The vectors, (rows, dim), and which rows are dead letters, with their codes.
        """
        out = np.zeros((len(choice.digests), vectors.shape[1]), vectors.dtype)
        dead: dict[int, str] = {}
        self._vectors.execute("begin")
        for place, (digest, (row, times)) in enumerate(
            zip(choice.digests, choice.origins, strict=True)
        ):
            text = int(choice.index[place])
            if text >= 0:
                code = CODES.index(bad.get(text, ""))
                out[place] = vectors[text]
                if times > 1:
                    self._keep(digest, code, out[place])
            elif row == _CARRIED:
                self.carried += 1
                code, out[place] = 0, self._carried_vector(times)
            else:
                self.repeated += 1
                code, out[place] = self._repeated_vector(digest, row, out[place])
            if code:
                dead[place] = CODES[code]
                self._dead[digest] = code
            else:
                self._written.append(digest)
        self._vectors.execute("commit")
        return out, dead

    def end_shard(self) -> bytes:
        """The texts file of the shard whose rows were resolved."""
        entries = np.zeros(len(self._written) + len(self._dead), ENTRY)
        entries["digest"] = np.frombuffer(b"".join((*self._written, *self._dead)), "V16")
        entries["code"][len(self._written) :] = list(self._dead.values())
        self._written, self._dead = [], {}
        return entries.tobytes()

    def _keep(self, digest: bytes, code: int, vector: npt.NDArray[Any]) -> None:
        self._vectors.execute(
            "insert or replace into vectors values (?, ?)",
            (digest, bytes([code]) + vector.tobytes()),
        )

    def _carried_vector(self, place: int) -> npt.NDArray[Any]:
        assert self._earlier is not None
        at = np.searchsorted([first for first, _ in self._shards], place, side="right") - 1
        first, shard = self._shards[at]
        return self._earlier.vector(shard, place - first)

    def _repeated_vector(
        self, digest: bytes, row: int, like: npt.NDArray[Any]
    ) -> tuple[int, npt.NDArray[Any]]:
        """The code and the vector of a text whose first row was written before."""
        kept = self._vectors.execute(
            "select value from vectors where digest = ?", (digest,)
        ).fetchone()
        if kept is not None:
            return kept[0][0], np.frombuffer(kept[0], like.dtype, offset=1)
        shard = row // self._rows_per_shard  # an earlier run finished it
        entries = self._own.entries(shard)
        place = int(np.flatnonzero(entries["digest"] == np.void(digest))[0])
        code = int(entries["code"][place])
        vector = like if code else self._own.vector(shard, place).astype(like.dtype)
        self._keep(digest, code, vector)
        return code, vector


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
