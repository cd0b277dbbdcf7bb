"""Tells texts in UTF-16 and UTF-32 from UTF-8, which is what flowvec reads."""

from __future__ import annotations

import codecs
from typing import IO

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
    """A file of texts, whose beginning is checked when it is read."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._is_checked = False

    def read(self, size: int) -> bytes:
        """The next bytes, at most so many.

        Raises:
            OtherEncodingError: the file is in UTF-16 or UTF-32.
        """
        block = self._file.read(size)
        if not self._is_checked:
            check_encoding(block)
            self._is_checked = True
        return block


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
