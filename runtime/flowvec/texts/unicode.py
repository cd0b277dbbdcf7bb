"""Lone surrogates, which UTF-8 cannot encode."""

from __future__ import annotations

__all__ = ["replace_surrogates"]


def replace_surrogates(text: str) -> str:
    """The text with each lone surrogate replaced by U+FFFD."""
    if text.isascii():
        return text
    # Through UTF-16, a pair of surrogates becomes its character, and a lone one U+FFFD.
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
