"""Markers of queries and documents, which ColBERT-style models are trained with, in a tokenizer."""

from __future__ import annotations

from collections.abc import Sequence

import tokenizers

from flowvec.errors import ExportError

__all__ = ["read_as_pylate", "register_markers"]

# Texts with which the markers of a tokenizer are tried.
_TRIED = ("", "a", "The cat.")


def register_markers(tokenizer: tokenizers.Tokenizer, markers: Sequence[str]) -> None:
    """Make prefixes that are known tokens one token each in a text too.

    A marker such as `[Q] ` is inserted as a token in training; in a text, a tokenizer could cut it
    into pieces.
    """
    for marker in markers:
        for token in (marker, *marker.split(None, 1)[:1]):
            number = tokenizer.token_to_id(token) if token else None
            if number is None:
                continue
            # By id: a tokenizer that lower-cases shows the token as `[q] `.
            if tokenizer.encode(token, add_special_tokens=False).ids != [number]:
                _add_marker(tokenizer, token)
            break


def read_as_pylate(tokenizer: tokenizers.Tokenizer, markers: Sequence[str], origin: str) -> None:
    """Make a tokenizer read texts as PyLate does: stripped, with a marker after the first token.

    Args:
        tokenizer: is changed.
        markers: each is put before a text.
        origin: name of the source, for messages.

    Raises:
        ExportError: with a marker before it, the tokenizer reads a text otherwise.
    """
    plain = tokenizers.Tokenizer.from_str(tokenizer.to_str())
    register_markers(tokenizer, markers)
    if plain.encode(" a ").ids != plain.encode("a").ids:
        # A marker that is not normalized is cut off first, so that the rest is stripped.
        for marker in markers:
            if marker:
                _add_marker(tokenizer, marker)
        steps = [tokenizers.normalizers.Strip()]
        if tokenizer.normalizer is not None:
            steps.append(tokenizer.normalizer)
        tokenizer.normalizer = tokenizers.normalizers.Sequence(steps)
    for marker in filter(None, markers):
        number = tokenizer.token_to_id(marker)
        for text in _TRIED:
            ids = plain.encode(text).ids
            if tokenizer.encode(marker + text).ids != [*ids[:1], number, *ids[1:]]:
                raise ExportError(
                    f"{origin} has the marker {marker!r}, which PyLate inserts after the first "
                    "token of a text; before a text, its tokenizer reads something else"
                )


def _add_marker(tokenizer: tokenizers.Tokenizer, token: str) -> None:
    tokenizer.add_special_tokens([tokenizers.AddedToken(token, normalized=False, special=True)])
