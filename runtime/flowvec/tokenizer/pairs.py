"""Pairs of texts to token ids, as a cross-encoder reads them: both texts in one row."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from flowvec.errors import BundleError, InputTypeError, InputValueError
from flowvec.sequences import refuse_lookalike
from flowvec.tokenizer.token_ids import TokenIds
from flowvec.tokenizer.tokenizer import ID_BYTES, Bodies, Tokenized, repair
from flowvec.tokenizer.word_table import ids_to_bytes

__all__ = ["CUTS", "Cut", "PairTokenizer", "TextPair", "check_pairs", "kept_tokens"]

TextPair = tuple[str, str]
# Which text of a pair that is too long is cut: the longer one, or always the second.
Cut = Literal["longest_first", "only_second"]
CUTS: tuple[Cut, ...] = get_args(Cut)

# A pair's texts with more tokens than this count as equally long.
_MOST_COUNTED = 1 << 17

Counts = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _Template:
    """The special tokens around a pair of texts.

    Attributes:
        before: token ids before the first text.
        between: token ids between the two.
        after: token ids after the second.
        has_types: whether the second text, and what follows it, have token type 1.
    """

    before: list[int]
    between: list[int]
    after: list[int]
    has_types: bool

    @property
    def tokens(self) -> int:
        """How many special tokens there are."""
        return len(self.before) + len(self.between) + len(self.after)


class PairTokenizer:
    """Pairs of texts to token ids. Threads may share it.

    The special tokens are those that the tokenizer's own template puts around a pair: `[CLS] a
    [SEP] b [SEP]` for BERT, `<s> a </s></s> b </s>` for RoBERTa. Each text of a call is tokenized
    once, so a query costs nothing more for its second document.
    """

    def __init__(self, path: Path, max_length: int, *, with_types: bool) -> None:
        """Read `tokenizer.json`.

        Args:
            path: the file.
            max_length: most tokens of a pair, special tokens included.
            with_types: whether the graph takes token types.

        Raises:
            BundleError: the file cannot be parsed, its template does not frame a pair of texts, or
                max_length leaves no room for two tokens.
        """
        self._bodies = Bodies(path)
        with self._bodies.named():
            self._template = self._read_template(path)
        self._with_types = with_types
        self.max_length = max_length
        self._room = max_length - self._template.tokens
        if self._room < 2:
            raise BundleError(f"max_length {max_length} leaves no room beside the special tokens")

    @property
    def is_parallel(self) -> bool:
        """Whether threads can tokenize at the same time."""
        return self._bodies.is_parallel

    @property
    def largest_id(self) -> int:
        """The largest id of a token, added tokens included."""
        return self._bodies.largest_id

    def named_id(self, id: int) -> str:
        """A token and its id, for messages."""
        return self._bodies.named_id(id)

    def _read_template(self, path: Path) -> _Template:
        """Find the special tokens of a pair, by a pair of known texts."""
        first, second = self._bodies.plain("a"), self._bodies.plain("b c")
        encoding = self._bodies.template("a", "b c")
        ids, types = encoding.ids, encoding.type_ids
        for start in range(len(ids) - len(first) + 1):
            if ids[start : start + len(first)] != first:
                continue
            end = start + len(first)
            for begin in range(end, len(ids) - len(second) + 1):
                if ids[begin : begin + len(second)] != second:
                    continue
                after = begin + len(second)
                has_types = any(types)
                if types != [int(has_types and i >= begin) for i in range(len(ids))]:
                    break
                return _Template(ids[:start], ids[end:begin], ids[after:], has_types)
        raise BundleError(
            f"{path}: its template does not put two texts into one row, as a cross-encoder needs"
        )

    def __call__(self, pairs: Sequence[TextPair], cut: Cut = "longest_first") -> Tokenized:
        """Token ids of each pair, cut at max_length.

        Lone surrogates, which UTF-8 cannot encode, are replaced by U+FFFD and reported.

        Args:
            pairs: pairs of texts.
            cut: `longest_first` cuts the longer text of a pair, and both if both are longer than
                half of the room, as transformers does; `only_second` never cuts the first.

        Raises:
            InputValueError: with `only_second`, a first text leaves no room for the second.
            BundleError: the tokenizer fails.
        """
        with self._bodies.named():
            return self._tokenized(pairs, cut)

    def _tokenized(self, pairs: Sequence[TextPair], cut: Cut) -> Tokenized:
        # Equal texts are tokenized once: the query of a hundred pairs is one text.
        places: dict[str, int] = {}
        columns = [
            np.array([places.setdefault(pair[i], len(places)) for pair in pairs], dtype=np.int64)
            for i in (0, 1)
        ]
        texts, replaced_texts = repair(list(places))
        bodies = self._bodies(texts, self._room, self.max_length)
        tokens = np.fromiter(map(len, bodies), dtype=np.int64, count=len(bodies)) // ID_BYTES
        first, second = (tokens[column] for column in columns)
        if cut == "longest_first":
            self._count_further(texts, columns, first, second)
        if cut == "only_second":
            self._refuse_long_first(first)
        kept = kept_tokens(first, second, self._room, cut)
        is_cut = (kept[0] < first) | (kept[1] < second)
        is_replaced = np.isin(columns, replaced_texts).any(axis=0)
        template = self._template
        before, between, after = map(
            ids_to_bytes, (template.before, template.between, template.after)
        )
        parts: list[bytes] = []
        ends = [tokens * ID_BYTES for tokens in kept]
        for a, b, end, second_end in zip(*columns, *ends, strict=True):
            parts += (before, bodies[a][:end], between, bodies[b][:second_end], after)
        begin = kept[0] + len(template.before) + len(template.between)
        if not template.has_types:
            begin = kept[0] + kept[1] + template.tokens
        token_ids = TokenIds.from_lengths(
            np.frombuffer(b"".join(parts), dtype=np.int32),
            kept[0] + kept[1] + template.tokens,
            begin if self._with_types else None,
        )
        return Tokenized(
            token_ids, np.flatnonzero(is_cut).tolist(), np.flatnonzero(is_replaced).tolist()
        )

    def _count_further(
        self,
        texts: Sequence[str],
        columns: Sequence[npt.NDArray[np.int64]],
        first: Counts,
        second: Counts,
    ) -> None:
        """Count as many tokens of two long texts as it takes to say which has more, within reason.

        That one keeps the odd token. Counts up to the room are exact; others may be too small.
        """
        if self._room % 2 == 0:
            return
        for pair in np.flatnonzero((first > self._room) & (second > self._room)).tolist():
            both = [texts[column[pair]] for column in columns]
            room = 0
            counts = (int(first[pair]), int(second[pair]))
            while min(counts) > room < _MOST_COUNTED:
                room = max(counts)
                bodies = self._bodies(both, room, self.max_length)
                counts = (len(bodies[0]) // ID_BYTES, len(bodies[1]) // ID_BYTES)
            first[pair], second[pair] = counts

    def _refuse_long_first(self, tokens: Counts) -> None:
        if (long := np.flatnonzero(tokens >= self._room)).size:
            raise InputValueError(
                f"the first text of pair {long[0]} has {self._room} tokens or more, which leave no "
                "room for the second"
            )


def kept_tokens(first: Counts, second: Counts, room: int, cut: Cut) -> tuple[Counts, Counts]:
    """How many tokens of each pair's texts are kept.

    `longest_first` takes tokens from the longer text until both fit; if neither is shorter than
    half of the room, each keeps half, and the longer one keeps the odd token.

    Args:
        first: tokens of the first texts, int64 (pairs,).
        second: tokens of the second texts, int64 (pairs,).
        room: most tokens of both.
        cut: which text is cut.
    """
    if cut == "only_second":
        return first, np.minimum(second, np.maximum(room - first, 0))
    half = room // 2
    shorter = np.minimum(first, second)
    # The shorter text is whole, if it has at most half of the room.
    longer = np.where(shorter <= half, room - shorter, room - half)
    shorter = np.minimum(shorter, half)
    is_first = first <= second
    fits = first + second <= room
    return (
        np.where(fits, first, np.where(is_first, shorter, longer)),
        np.where(fits, second, np.where(is_first, longer, shorter)),
    )


def check_pairs(pairs: Iterable[object], first: int = 0) -> list[TextPair]:
    """Check that every item is a pair of texts, before any work.

    Args:
        pairs: the items.
        first: index of the first item, for messages.

    Raises:
        InputTypeError: an item is not a pair of str; the message names its index and type.
    """
    checked: list[TextPair] = []
    for i, pair in enumerate(pairs, first):
        if isinstance(pair, str) or not isinstance(pair, Sequence) or len(pair) != 2:
            size = f" of {len(pair)} items" if isinstance(pair, list | tuple) else ""
            raise InputTypeError(
                f"item {i} must be a pair of texts, (query, document), but is "
                f"{type(pair).__name__}{size}: nothing was scored"
            )
        refuse_lookalike(f"item {i}", pair)
        for name, text in zip(("first", "second"), pair, strict=True):
            if not isinstance(text, str):
                hint = " (a hole in a pandas column?)" if isinstance(text, float) else ""
                raise InputTypeError(
                    f"the {name} text of item {i} is {type(text).__name__}, not str{hint}: nothing "
                    "was scored"
                )
        checked.append((pair[0], pair[1]))
    return checked
