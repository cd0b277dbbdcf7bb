"""Token vectors of rows, made of their texts by a MultiVectorEncoder: for reranking only.

They can be made again from the texts, so neither `salvage` nor Parquet files have them. Each has a
checksum, and a digest of the text that it was made of.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from flowvec.collection.store.meta import MetaTable
from flowvec.collection.store.row_tables import count_without, labels_without, lines_without_row
from flowvec.collection.store.settings import TokenDtype
from flowvec.collection.store.sqlite import Database
from flowvec.errors import InputValueError

__all__ = ["TokenCodec", "TokenTable", "text_digest"]

Floats = npt.NDArray[np.float32]

_ROWS, _BYTES = "token_rows", "token_bytes"
_READ_ROWS = 256
_LISTED = "SELECT value FROM json_each(?)"


@dataclass(frozen=True, slots=True)
class TokenCodec:
    """How token vectors are stored.

    Attributes:
        dim: their length.
        dtype: `float16`, or `signs`: one bit for each number. A vector of signs is read as numbers
            of equal size whose squares have the sum 1.
    """

    dim: int
    dtype: TokenDtype

    @property
    def bytes_per_token(self) -> int:
        """Bytes of one token's vector."""
        return 2 * self.dim if self.dtype == "float16" else (self.dim + 7) // 8

    def encode(self, vectors: Floats) -> bytes:
        """Token vectors float32 (tokens, dim) as bytes.

        Raises:
            InputValueError: a number is too large for float16.
        """
        if self.dtype == "signs":
            return np.packbits(vectors > 0, axis=1).tobytes()
        with np.errstate(over="ignore"):
            halves = vectors.astype("<f2")
        if not np.isfinite(halves).all():
            raise InputValueError("a token vector has a number that is too large for float16")
        return halves.tobytes()

    def decode(self, content: bytes) -> Floats:
        """Token vectors, float32 (tokens, dim), as they were stored."""
        if self.dtype == "float16":
            return np.frombuffer(content, "<f2").reshape(-1, self.dim).astype(np.float32)
        packed = np.frombuffer(content, np.uint8).reshape(-1, self.bytes_per_token)
        bits = np.unpackbits(packed, axis=1, count=self.dim).astype(np.float32)
        return np.asarray((2 * bits - 1) / np.sqrt(self.dim), np.float32)


class TokenTable:
    """The table `token_vectors` of one collection."""

    def __init__(self, database: Database, meta: MetaTable) -> None:
        self._database, self._meta = database, meta

    @property
    def has_any(self) -> bool:
        """Whether a model is recorded; its token vectors may all be deleted."""
        return self._meta.number("token_dim") > 0

    @property
    def codec(self) -> TokenCodec | None:
        """How token vectors are stored; None before a model is recorded."""
        if not self.has_any:
            return None
        settings = self._meta.read_settings()
        assert settings.token_dim is not None
        assert settings.token_dtype is not None
        return TokenCodec(settings.token_dim, settings.token_dtype)

    @property
    def count(self) -> int:
        """How many rows have token vectors, as they were counted."""
        return self._meta.number(_ROWS)

    @property
    def bytes(self) -> int:
        """The size of all token vectors, as it was counted."""
        return self._meta.number(_BYTES)

    def record_model(self, codec: TokenCodec, model: str, fingerprint: str) -> None:
        """Record the model that makes them, and how they are stored; inside a transaction."""
        self._meta.write_settings(
            {"token_dim": str(codec.dim), "token_dtype": codec.dtype, "token_model": model,
             "token_fingerprint": fingerprint}
        )  # fmt: skip

    def drop(self) -> None:
        """Delete all token vectors and forget their model; inside a transaction."""
        if not self.has_any:
            return
        self._database.connection.execute("DELETE FROM token_vectors")
        self._meta.write_settings(
            {"token_dim": "0", "token_dtype": "", "token_model": "", "token_fingerprint": ""}
        )
        self._meta.write({_ROWS: "0", _BYTES: "0"})

    def put(self, labels: Sequence[int], texts: Sequence[str], vectors: Sequence[Floats]) -> None:
        """Write token vectors of rows that exist and have none; inside a transaction.

        Args:
            labels: of the rows.
            texts: what they were made of.
            vectors: float32 (tokens, dim) for each row.

        Raises:
            InputValueError: a number is too large for float16.
        """
        codec = self.codec
        assert codec is not None, "`record_model` comes first"
        contents = [codec.encode(one) for one in vectors]
        digests = map(text_digest, texts)
        self._database.connection.executemany(
            "INSERT INTO token_vectors (label, text, vectors, checksum) VALUES (?, ?, ?, ?)",
            (
                (label, digest, content, _checksum(label, digest, content))
                for label, digest, content in zip(labels, digests, contents, strict=True)
            ),
        )
        self._count(len(labels), sum(map(len, contents)))

    def delete(self, labels: Sequence[int]) -> None:
        """Delete the token vectors of rows, where they have some; inside a transaction."""
        if not labels or not self.has_any:
            return
        rows = size = 0
        for label in labels:
            # RETURNING would need SQLite 3.35.
            found = self._database.connection.execute(
                "SELECT length(vectors) FROM token_vectors WHERE label = ?", (label,)
            ).fetchall()
            if found:
                self._database.connection.execute(
                    "DELETE FROM token_vectors WHERE label = ?", (label,)
                )
            rows, size = rows + len(found), size + sum(length for (length,) in found)
        self._count(-rows, -size)

    def _count(self, rows: int, size: int) -> None:
        if rows:
            self._meta.write({_ROWS: str(self.count + rows), _BYTES: str(self.bytes + size)})

    def missing(self, after: int, most: int) -> list[int]:
        """The next labels above one of rows that have a text and no token vectors, ascending."""
        return labels_without(self._database, "token_vectors", after, most)

    def lacking(self) -> int:
        """How many rows have a text and no token vectors; 0 before the first ones."""
        return count_without(self._database, "token_vectors") if self.has_any else 0

    def read(self, texts_by_label: Mapping[int, str]) -> dict[int, Floats]:
        """Token vectors of rows by label, float32 (tokens, dim).

        Those that are missing, damaged, or made of another text are left out: they can be made.

        Args:
            texts_by_label: the text of each row.
        """
        codec = self.codec
        if codec is None:
            return {}
        found: dict[int, Floats] = {}
        labels = list(texts_by_label)
        for start in range(0, len(labels), _READ_ROWS):
            part = json.dumps(labels[start : start + _READ_ROWS])
            with self._database.translated():
                rows = self._database.connection.execute(
                    "SELECT label, text, vectors, checksum FROM token_vectors "  # noqa: S608
                    f"WHERE label IN ({_LISTED})",
                    (part,),
                ).fetchall()
            for row in rows:
                label, digest, content, _ = row
                if _is_intact(row, codec) and digest == text_digest(texts_by_label[label]):
                    found[label] = codec.decode(content)
        return found

    def problems(self) -> Iterator[str]:
        """What is wrong with the token vectors, one message each; inside `reading`.

        Raises:
            CorruptCollectionError: too much is damaged to go on.
        """
        codec = self.codec
        if codec is None:
            return
        name, after, seen = self._database.path.name, -1, 0
        while rows := self._page(after):
            for row in rows:
                if not _is_intact(row, codec):
                    yield f"{name}: the token vectors of row {row[0]} do not match their checksum"
            seen, after = seen + len(rows), rows[-1][0]
        if seen != self.count:
            yield f"{name}: it holds token vectors of {seen} rows, but {self.count} were written"
        if lost := lines_without_row(self._database, "token_vectors"):
            yield f"{name}: token vectors of {lost} rows belong to no row"

    def _page(self, after: int) -> list[tuple[Any, ...]]:
        with self._database.translated():
            return self._database.connection.execute(
                "SELECT label, text, vectors, checksum FROM token_vectors WHERE label > ? "
                "ORDER BY label LIMIT ?",
                (after, _READ_ROWS),
            ).fetchall()


def text_digest(text: str) -> bytes:
    """Eight bytes that tell a text apart from others: BLAKE2b-64."""
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()


def _checksum(label: int, digest: bytes, content: bytes) -> bytes:
    """BLAKE2b-128 over a row's label, the digest of its text and its vectors."""
    return hashlib.blake2b(b"%d:" % label + digest + content, digest_size=16).digest()


def _is_intact(row: tuple[Any, ...], codec: TokenCodec) -> bool:
    label, digest, content, checksum = row
    try:
        is_whole = len(content) % codec.bytes_per_token == 0
        return is_whole and _checksum(label, digest, content) == checksum
    except TypeError:  # a value of another type
        return False
