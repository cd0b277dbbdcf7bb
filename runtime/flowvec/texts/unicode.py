"""Lone surrogates, which UTF-8 cannot encode, and characters that a terminal obeys."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

__all__ = [
    "is_utf8", "place_of_surrogate", "printable", "replace_surrogates", "without_surrogates",
]  # fmt: skip

# Control characters, also those of eight bits; marks that turn the direction of a text; line ends.
_NOT_PRINTED = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
_SURROGATE = re.compile("[\ud800-\udfff]")


def is_utf8(text: str) -> bool:
    """Whether UTF-8 can encode the text: it holds no lone surrogate."""
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            return False
    return True


def printable(text: str) -> str:
    r"""One line for a terminal or a log, whatever names of files are in it.

    Control characters are escaped, and bytes of a name that are not UTF-8.

        >>> printable("a\nb\x1b[31m")
        'a\\nb\\x1b[31m'
    """
    if text.isprintable():
        return text
    text = _NOT_PRINTED.sub(lambda found: repr(found[0])[1:-1], text)
    return _SURROGATE.sub(lambda found: _escaped(found[0]), text)


def _escaped(surrogate: str) -> str:
    """A byte of a name that is not UTF-8 as `\\xe9`; any other lone surrogate as `\\ud800`."""
    code = ord(surrogate)
    return f"\\x{code - 0xDC00:02x}" if 0xDC80 <= code <= 0xDCFF else f"\\u{code:04x}"


def replace_surrogates(text: str) -> str:
    """The text with each lone surrogate replaced by U+FFFD."""
    if text.isascii():
        return text
    # Through UTF-16, a pair of surrogates becomes its character, and a lone one U+FFFD.
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def without_surrogates(value: Any) -> Any:
    """A value of JSON with each lone surrogate of its texts and keys replaced by U+FFFD."""
    if isinstance(value, str):
        return replace_surrogates(value)
    if isinstance(value, Mapping):
        return {without_surrogates(key): without_surrogates(part) for key, part in value.items()}
    return [without_surrogates(part) for part in value] if isinstance(value, list) else value


def place_of_surrogate(value: Any, path: str = "") -> str | None:
    """Where a value of JSON holds a lone surrogate, such as `'a'[0]`; None if it holds none."""
    if isinstance(value, str):
        return None if replace_surrogates(value) == value else path
    parts: Iterable[tuple[Any, Any]] = ()
    if isinstance(value, Mapping):
        parts = value.items()
    elif isinstance(value, list):
        parts = enumerate(value)
    for key, part in parts:
        inner = f"{path}[{key!r}]" if path else repr(key)
        for item in (key, part):
            place = place_of_surrogate(item, inner)
            if place is not None:
                return place
    return None
