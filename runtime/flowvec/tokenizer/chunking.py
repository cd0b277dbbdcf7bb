"""Splits long texts into chunks that a model reads whole.

A text is a sequence of units: sentences, or words. Chunks take as many units as fit. A unit that
does not fit into any chunk is divided: a sentence into words, a word between tokens.
"""

from __future__ import annotations

import re
import sys
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, get_args

from flowvec.arguments import choice, whole_number
from flowvec.texts.sentences import sentence_spans
from flowvec.tokenizer.tokenizer import Tokenizer

__all__ = ["Chunk", "SplitBy", "split_texts"]

SplitBy = Literal["sentence", "word"]

# Texts whose tokens are held at once.
_TEXTS = 64
# Into how many parts of a chunk's tokens a longer word is divided, so that chunks are filled well.
_PARTS = 8
_WORD = re.compile(r"\S+")

Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Chunk:
    """A part of a text.

        >>> encoder = Encoder.load("mini")
        >>> text = "The cat sleeps. It is tired. Stocks fell on Monday."
        >>> for chunk in encoder.split_texts([text], max_tokens=12):
        ...     print(chunk)
        Chunk(text='The cat sleeps. It is tired.', parent=0, start=0, end=28, tokens=10)
        Chunk(text='Stocks fell on Monday.', parent=0, start=29, end=51, tokens=7)

    Attributes:
        text: the part.
        parent: index of the whole text in the call.
        start: where the part begins in the whole text, in characters.
        end: where it ends: `whole[start:end] == text`.
        tokens: tokens that the model reads: of the part, the document prompt, and special tokens.
    """

    text: str
    parent: int
    start: int
    end: int
    tokens: int


def split_texts(
    texts: Sequence[str],
    tokenizer: Tokenizer,
    prompt: str,
    *,
    max_tokens: int | None,
    overlap: int,
    by: SplitBy,
) -> list[Chunk]:
    """The chunks of texts, in order; `Encoder.split_texts` says what they are.

    Raises:
        InputTypeError, InputValueError: an option is not valid.
    """
    choice("by", by, get_args(SplitBy))
    fixed, longest = tokenizer.count(prompt), tokenizer.max_length
    most = longest if max_tokens is None else max_tokens
    most = whole_number("max_tokens", most, fixed + 1, longest)
    overlap = whole_number("overlap", overlap, 0, most - fixed - 1)
    limit = tokenizer.max_characters
    limits = _Limits(
        lambda part: tokenizer.count(prompt + part),
        most,
        fixed,
        sys.maxsize if limit is None else limit - len(prompt),
    )
    chunks: list[Chunk] = []
    for first in range(0, len(texts), _TEXTS):
        several = texts[first : first + _TEXTS]
        ends_of_each = tokenizer.token_ends(several)
        for i, (text, ends) in enumerate(zip(several, ends_of_each, strict=True), first):
            chunks += _Splitter(text, i, ends, limits, overlap, by).chunks()
    return chunks


@dataclass(frozen=True, slots=True)
class _Limits:
    """How a part of a text is measured.

    Attributes:
        count: tokens that the model reads of a part.
        most: most of them in a chunk.
        fixed: how many of them do not come from the text.
        characters: most characters of a chunk.
    """

    count: Callable[[str], int]
    most: int
    fixed: int
    characters: int


class _Splitter:
    """Splits one text."""

    def __init__(
        self,
        text: str,
        parent: int,
        token_ends: Sequence[int],
        limits: _Limits,
        overlap: int,
        by: SplitBy,
    ) -> None:
        self._text = text
        self._parent = parent
        # Chunks are planned by the tokens of the whole text, and then counted: a part may have
        # other tokens than the whole.
        self._ends = token_ends
        self._limits = limits
        self._overlap = overlap
        self._units = sentence_spans(text) if by == "sentence" else _words(text, (0, len(text)))

    def chunks(self) -> list[Chunk]:
        chunks: list[Chunk] = []
        first = 0  # the first unit of the chunk before
        unit = 0  # the first unit that is in no chunk yet
        while unit < len(self._units):
            if not self._may_fit(unit, unit + 1) and self._divide(unit):
                continue
            begin = self._repeated(first + 1, unit)
            end = unit + 1
            while end < len(self._units) and self._may_fit(begin, end + 1):
                end += 1
            while not self._fits(chunk := self._chunk(begin, end)):
                if end > unit + 1:
                    end -= 1
                elif begin < unit:
                    begin += 1
                else:
                    break
            if not self._fits(chunk) and self._divide(unit):
                continue
            chunks.append(chunk)
            first, unit = begin, end
        return chunks

    def _repeated(self, least: int, unit: int) -> int:
        """The first unit to repeat before `unit`; at least `least`."""
        begin = unit
        while (
            self._overlap
            and begin > least
            and self._tokens(begin - 1, unit) <= self._overlap
            and self._may_fit(begin - 1, unit + 1)
        ):
            begin -= 1
        return begin

    def _span(self, begin: int, end: int) -> Span:
        return self._units[begin][0], self._units[end - 1][1]

    def _tokens(self, begin: int, end: int) -> int:
        """Tokens of units, as they are in the whole text."""
        low, high = self._span(begin, end)
        return bisect_right(self._ends, high) - bisect_right(self._ends, low)

    def _may_fit(self, begin: int, end: int) -> bool:
        low, high = self._span(begin, end)
        return (
            high - low <= self._limits.characters
            and self._tokens(begin, end) + self._limits.fixed <= self._limits.most
        )

    def _fits(self, chunk: Chunk) -> bool:
        return chunk.tokens <= self._limits.most and len(chunk.text) <= self._limits.characters

    def _chunk(self, begin: int, end: int) -> Chunk:
        low, high = self._span(begin, end)
        part = self._text[low:high]
        return Chunk(part, self._parent, low, high, self._limits.count(part))

    def _divide(self, unit: int) -> bool:
        """Replace a unit by smaller ones; False if it is a single character."""
        low, high = self._units[unit]
        parts = _words(self._text, (low, high))
        if len(parts) == 1:
            cuts = self._cuts(low, high)
            parts = list(pairwise([low, *cuts, high]))
            if not cuts:
                return False
        self._units[unit : unit + 1] = parts
        return True

    def _cuts(self, low: int, high: int) -> list[int]:
        """Where to divide a word: after a part of the tokens that a chunk takes, or in half."""
        first, last = bisect_right(self._ends, low), bisect_left(self._ends, high)
        step = max(1, (self._limits.most - self._limits.fixed) // _PARTS)
        cuts = sorted({end for end in self._ends[first:last][step - 1 :: step] if low < end < high})
        if cuts or high - low == 1:
            return cuts
        return [(low + high) // 2]


def _words(text: str, span: Span) -> list[Span]:
    return [match.span() for match in _WORD.finditer(text, *span)]
