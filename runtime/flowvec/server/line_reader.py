"""Splits a body into lines as it comes, in bounded memory."""

from __future__ import annotations

__all__ = ["LineReader"]


class LineReader:
    """Lines of bytes that come in pieces; only a line feed ends one."""

    def __init__(self, most: int) -> None:
        """Nothing has come yet.

        Args:
            most: most bytes of a line; longer ones are not kept.
        """
        self._most = most
        self._number = 0
        self._parts: list[bytes] = []
        self._size = 0

    @property
    def held_bytes(self) -> int:
        """Bytes of the line whose end has not come."""
        return self._size if self._parts else 0

    def feed(self, piece: bytes) -> list[tuple[int, bytes | None]]:
        """The lines that end in a piece, each with its number, from 1.

        A line that is too long is None; a blank one is counted and left out.
        """
        first, *others = piece.split(b"\n")
        self._hold(first)
        lines: list[tuple[int, bytes | None]] = []
        for part in others:
            lines += self.end()
            self._hold(part)
        return lines

    def _hold(self, part: bytes) -> None:
        self._size += len(part)
        if self._size > self._most:
            self._parts.clear()
        elif part:
            self._parts.append(part)

    def end(self) -> list[tuple[int, bytes | None]]:
        """The line that was begun; none if it is blank."""
        line = b"".join(self._parts)
        is_long = self._size > self._most
        self._parts.clear()
        self._size = 0
        self._number += 1
        if is_long:
            return [(self._number, None)]
        return [(self._number, line)] if line.strip() else []
