"""Text files in UTF-8, without byte order mark; others are refused."""

from __future__ import annotations

import codecs
from typing import IO

from flowvec.files import BYTE_ORDER_MARK

__all__ = ["OtherEncodingError", "Utf8File", "check_encoding"]

_MARKS = (  # the marks of UTF-32 begin like those of UTF-16
    (b"\xff\xfe\x00\x00", "UTF-32LE"),
    (b"\x00\x00\xfe\xff", "UTF-32BE"),
    (b"\xff\xfe", "UTF-16LE"),
    (b"\xfe\xff", "UTF-16BE"),
)
# Which bytes of a character are 0 in most texts: places among its bytes, of how many, and the least
# share of characters.
_ZEROS = (
    ("UTF-32LE", (2, 3), 4, 0.5),
    ("UTF-32BE", (0, 1), 4, 0.5),
    # Spaces and line ends are a tenth of the characters in scripts other than Latin.
    ("UTF-16LE", (1,), 2, 0.1),
    ("UTF-16BE", (0,), 2, 0.1),
)
_SAMPLE = 4096  # bytes
_LONGEST_MARK = 4


class OtherEncodingError(Exception):
    """A text file is not in UTF-8. The message has no subject."""


def check_encoding(start: bytes) -> None:
    """Refuse the beginning of a file in UTF-16 or UTF-32, with or without a byte order mark.

    Raises:
        OtherEncodingError: it is one.
    """
    name = next((name for mark, name in _MARKS if start.startswith(mark)), None)
    if name is None and b"\0" in (sample := start[:_SAMPLE]):
        name = next((one[0] for one in _ZEROS if _has_zeros(sample, *one)), None)
    if name is not None:
        raise OtherEncodingError(
            f"is in {name}, and only UTF-8 is read: convert it, for example with "
            f"`iconv -f {name} -t UTF-8`"
        )


class Utf8File:
    """A file of texts, read in blocks. Its encoding is checked in the first one.

    Attributes:
        mark_bytes: bytes of a byte order mark, which is left out; known after the first block.
    """

    def __init__(self, file: IO[bytes], *, at_start: bool = True) -> None:
        """Read an open file, from its start or from any other place in it."""
        self.mark_bytes = 0
        self._file = file
        self._is_at_start = at_start

    def read(self, size: int, /) -> bytes:
        """The next bytes, about this many; empty at the end.

        Raises:
            OtherEncodingError: the file is in UTF-16 or UTF-32.
        """
        block = self._file.read(size)
        if not self._is_at_start:
            return block
        self._is_at_start = False
        while len(block) < _LONGEST_MARK and (more := self._file.read(size)):
            block += more
        check_encoding(block)
        if not block.startswith(BYTE_ORDER_MARK):
            return block
        self.mark_bytes = len(BYTE_ORDER_MARK)
        return block[self.mark_bytes :] or self._file.read(size)


def _has_zeros(sample: bytes, name: str, places: tuple[int, ...], width: int, share: float) -> bool:
    """Whether zeros are where an encoding has them, and nowhere else, and the rest is text."""
    sample = sample[: len(sample) // width * width]
    zeros = min(sample[place::width].count(0) for place in places)
    if zeros < max(2, share * len(sample) / width):
        return False
    if width == 2 and sample.count(0) - zeros > zeros / 4:
        return False
    try:
        text = codecs.getincrementaldecoder(name)().decode(sample)  # it may end within a pair
    except UnicodeDecodeError:
        return False
    return all(character.isprintable() or character.isspace() for character in text)
