"""The tokens of a text one by one, with their places in it."""

from __future__ import annotations

from dataclasses import dataclass

import tokenizers

__all__ = ["Piece", "pieces_of"]


@dataclass(frozen=True, slots=True)
class Piece:
    """One token.

    Attributes:
        id: its id.
        text: the characters that it stands for; its name for a special token.
        special: whether the tokenizer put it there.
        start: where it begins in the text, in characters; None for a special token.
        stop: where it ends.
    """

    id: int
    text: str
    special: bool
    start: int | None
    stop: int | None


def pieces_of(text: str, encoding: tokenizers.Encoding) -> list[Piece]:
    """The tokens of a text, from what the tokenizer gave."""
    columns = (encoding.ids, encoding.tokens, encoding.offsets, encoding.special_tokens_mask)
    return [
        Piece(number, name, True, None, None)
        if special
        else Piece(number, text[start:stop], False, start, stop)
        for number, name, (start, stop), special in zip(*columns, strict=True)
    ]
