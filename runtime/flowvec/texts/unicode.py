"""Lone surrogates, which UTF-8 cannot encode."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

__all__ = ["is_utf8", "place_of_surrogate", "replace_surrogates", "without_surrogates"]


def is_utf8(text: str) -> bool:
    """Whether UTF-8 can encode the text: it holds no lone surrogate."""
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            return False
    return True


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
