"""Token ids of a long text's beginning, as if the whole text were tokenized.

A 100 MB text costs no more than its first kilobytes, if those give enough tokens. Where they do
not, the text is read on, and what adds no token is passed over: blanks, characters that the
tokenizer deletes, and a word that is too long to be known, however long they are.
"""

from __future__ import annotations

import re

import tokenizers

__all__ = ["BeginningTokenizer"]

# Words and characters after the last token that is needed. A text that is cut may have other last
# words than the whole: a cut in a run of blanks changes two, and one in an added token more.
_WORDS_AFTER = 3
_CHARACTERS_AFTER = 32
# Where a text may be cut without a difference, if it is one word: a boundary of tokens is among so
# many neighbouring places, since tokens are not longer.
_CUTS = 16
# A text of one word of which more than this many times the usual characters do not decide the first
# tokens is taken to end there.
_MOST_TRIES = 64
_BLANKS = re.compile(r"\s*")
# Characters that are read at a time.
_WINDOW = 1024
# Most different characters of a run that is passed over: their pairs are tokenized.
_MOST_DIFFERENT = 128


class BeginningTokenizer:
    """Tokenizes the beginning of long texts. Any number of threads may use it."""

    def __init__(self, tokenizer: tokenizers.Tokenizer) -> None:
        """For a tokenizer without truncation and padding."""
        self._tokenizer = tokenizer
        decoder = tokenizer.get_added_tokens_decoder()
        self._added = frozenset(decoder)
        added = list(decoder.values())
        longest = max((len(token.content) for token in added), default=0)
        word = int(getattr(tokenizer.model, "max_input_chars_per_word", 100))
        # A word of so many characters is too long to be known, and holds no added token by chance.
        self._edge = 2 * max(word, longest, _CHARACTERS_AFTER)
        self._stripping = tuple(token.content for token in added if token.lstrip)
        self._after = longest + _CHARACTERS_AFTER
        self.least = 2 * self._edge

    def __call__(self, text: str, characters: int, room: int) -> list[int]:
        """Token ids of the whole text if it has at most `room`, else at least one more.

        Args:
            text: the text.
            characters: how many to begin with; at least `least`.
            room: tokens that are needed.
        """
        taken, read = text[:characters], characters
        while read < len(text):
            ids, is_settled = self._first_ids(taken, room, text, read)
            if is_settled or (len(ids) > room and len(taken) > _MOST_TRIES * characters):
                return ids
            more, read = self._read_on(text, read, taken)
            taken += more
        return self._ids(taken)

    def _ids(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def _first_ids(self, taken: str, room: int, text: str, read: int) -> tuple[list[int], bool]:
        """Ids of what was taken of a text up to a place, and whether the whole text has them."""
        encoding = self._tokenizer.encode(taken, add_special_tokens=False)
        ids, words = encoding.ids, encoding.word_ids
        if len(ids) <= room:
            return ids, False
        start, end = encoding.offsets[room]
        if end + self._after > len(taken):
            return ids, False
        if ids[room] not in self._added and self._is_stripped(taken, start, text, read):
            return ids, False
        needed, last = words[room], words[-1]
        if needed is not None and last is not None and needed + _WORDS_AFTER <= last:
            decided = sum(word is not None and word <= last - _WORDS_AFTER for word in words)
            return ids[:decided], True
        if encoding.offsets[words.index(needed)][0] + self._edge > len(taken):
            return ids, False  # a word that may yet become too long to be known
        # One word. Models find its tokens from left to right, or so that each part between two
        # boundaries has the tokens that it has alone: if all cuts give the same first tokens, the
        # whole does too.
        first = ids[: room + 1]
        end = min(end + self._edge, len(taken))
        cuts = self._tokenizer.encode_batch_fast(
            [taken[: end - i] for i in range(_CUTS)], add_special_tokens=False
        )
        return first, all(cut.ids[: room + 1] == first for cut in cuts)

    def _is_stripped(self, taken: str, start: int, text: str, read: int) -> bool:
        """Whether the blanks from a place on belong to an added token that follows them."""
        if not self._stripping:
            return False
        end = _end_of_blanks(taken, start)
        following = taken[end:]
        if not following:
            end = _end_of_blanks(text, read)
            following = text[end : end + self._after]
        elif len(following) < self._after:
            following += text[read : read + self._after]
        return following.startswith(self._stripping)

    def _read_on(self, text: str, read: int, taken: str) -> tuple[str, int]:
        """Read three times as much as there is, without what adds no token.

        Returns:
            What is kept, and how far the text was read.
        """
        edge, size = self._edge, max(_WINDOW, 3 * self._edge)
        wanted, kept = 3 * len(taken), 0
        parts: list[str] = []
        before = taken[-2 * edge :]
        run: set[str] = set()  # characters of the run that has just been passed over
        while read < len(text) and kept < wanted:
            window, end = text[read : read + size], read + size
            run |= set(window)
            if end <= len(text) and self._are_idle(before, window, run):
                end = _end_of_run(text, end, run)
                start, last = window[:edge], text[end - edge : end]
                # What separates words must not be lost with the others.
                window = "".join((start, *sorted(set(run).difference(start, last)), last))
            else:
                run = set()
            parts.append(window)
            kept += len(window)
            read = end
            before = (before + window)[-2 * edge :]
        return "".join(parts), min(read, len(text))

    def _are_idle(self, before: str, window: str, run: set[str]) -> bool:
        """Whether the characters of a run add no token to what comes before, in any order."""
        if len(run) > _MOST_DIFFERENT:
            return False
        ids = self._ids(before)
        if self._ids(before + window) != ids:
            return False
        pairs = "".join(one + other for one in sorted(run) for other in sorted(run))
        return self._ids(before + window[: self._edge] + pairs + window[-self._edge :]) == ids


def _end_of_blanks(text: str, start: int) -> int:
    """Where the first character comes that is not white space."""
    match = _BLANKS.match(text, start)
    return start if match is None else match.end()


def _end_of_run(text: str, start: int, run: set[str]) -> int:
    """Where the first character comes that is not one of these."""
    match = re.compile(f"[{re.escape(''.join(sorted(run)))}]*").match(text, start)
    return start if match is None else match.end()
