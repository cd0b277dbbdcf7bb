"""Token ids of words, kept in a table, for tokenizers that treat every word by itself.

BERT's normalizer works on single characters, its pre-tokenizer cuts a text at white space and
around punctuation, and WordPiece and word-level models then see one word at a time. So the ids of a
text are those of its words, one after another. Here a text is cut by one regular expression, and
its words are looked up; only a word that is not in the table costs a call of `tokenizers`. That
takes a fifth of the processor time of tokenizing each text as a whole.

How other characters than ASCII are normalized, and whether they are white space or punctuation, is
asked of `tokenizers` as well, once for each character. What is not decided by words alone is left
to `tokenizers`: texts with ASCII control characters, texts that may hold an added token such as
`[MASK]`, and combining characters whose order normalization may change.
"""

from __future__ import annotations

import re
import string
import sys
import unicodedata
from array import array
from collections.abc import Callable, Iterable

import tokenizers
from tokenizers.models import WordLevel, WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer

__all__ = ["WordTable", "ids_to_bytes"]

# Entries of each of two generations: about 11 MB together with English words.
_MOST_WORDS = 1 << 16
# Longer words are rare, and would fill the memory.
_MOST_CHARACTERS = 64

_PUNCTUATION = re.escape(string.punctuation)
_ASCII_WORDS = re.compile(rf"[0-9A-Za-z]+|[{_PUNCTUATION}]")
_ANY_WORDS = re.compile(rf"[^ \t\n\r{_PUNCTUATION}]+|[{_PUNCTUATION}]")
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_NOT_ASCII = re.compile(r"[^\x00-\x7f]+")
_LOWER = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)


def ids_to_bytes(ids: Iterable[int]) -> bytes:
    """Token ids as the bytes of int32 numbers."""
    return array("i", ids).tobytes()


class _UndecidedError(Exception):
    """A text's ids are not decided by its words alone."""


class _Words(dict[str, bytes]):
    """Ids of words; a word that is missing is asked for.

    Bounded by two generations: what was not used while one filled up is forgotten.
    """

    def __init__(self, ask: Callable[[str], bytes], most: int) -> None:
        self._ask, self._most = ask, most
        self._old: dict[str, bytes] = {}

    def __missing__(self, word: str) -> bytes:
        if len(word) > _MOST_CHARACTERS:
            return self._ask(word)
        ids = self._old.get(word)
        if ids is None:
            ids = self._ask(word)
        if len(self) >= self._most:
            self._old = dict(self)
            self.clear()
        self[word] = ids
        return ids


class _Characters(dict[int, str]):
    """What normalizing makes of a character, with spaces where words are cut. Not for ASCII."""

    def __init__(self, normalizer: BertNormalizer, pre_tokenizer: BertPreTokenizer) -> None:
        self._normalizer = normalizer
        self._pre_tokenizer = pre_tokenizer

    def __missing__(self, code: int) -> str:
        character = chr(code)
        if unicodedata.combining(character) and unicodedata.category(character) != "Mn":
            # Such marks are kept, and normalization may sort them.
            raise _UndecidedError
        normalized = "".join(map(self._cut, self._normalizer.normalize_str(character)))
        self[code] = normalized
        return normalized

    def _cut(self, character: str) -> str:
        if character.isascii():
            return character
        pieces = self._pre_tokenizer.pre_tokenize_str(f"a{character}a")
        # One word; or white space between two; or a word of its own between two.
        return {1: character, 2: " "}.get(len(pieces), f" {character} ")


class WordTable:
    """Texts to token ids by their words. Any number of threads may use it."""

    def __init__(
        self, tokenizer: tokenizers.Tokenizer, added: Iterable[str], most_words: int
    ) -> None:
        """Use `for_tokenizer`, which checks that the tokenizer is of the right kind."""
        self._lowercase = bool(tokenizer.normalizer.lowercase)
        self._model = tokenizer.model
        self._words = _Words(self._ask, most_words)
        self._characters = _Characters(tokenizer.normalizer, tokenizer.pre_tokenizer)
        # A text without any of these characters holds no added token.
        self._triggers = tuple({_rarest(token) for token in added})
        folded = (token.translate(_LOWER) for token in added)
        self._added = re.compile("|".join(map(re.escape, folded)) or r"(?!)")

    @classmethod
    def for_tokenizer(
        cls, tokenizer: tokenizers.Tokenizer, *, most_words: int = _MOST_WORDS
    ) -> WordTable | None:
        """A table for a tokenizer that treats every word by itself; None for any other."""
        model = tokenizer.model
        by_words = (
            isinstance(tokenizer.normalizer, BertNormalizer)
            and isinstance(tokenizer.pre_tokenizer, BertPreTokenizer)
            and isinstance(model, WordPiece | WordLevel)
        )
        if not by_words:
            return None
        added = [token.content for token in tokenizer.get_added_tokens_decoder().values()]
        if not all(_is_distinct(token) for token in added):
            return None
        return cls(tokenizer, added, most_words)

    def __call__(self, text: str) -> bytes | None:
        """The ids of a text without special tokens, as the bytes of int32 numbers.

        Returns:
            None if `tokenizers` must be asked for the whole text.
        """
        try:
            if text.isascii():
                if not text.isprintable() and _CONTROL.search(text):
                    return None
                if self._lowercase:
                    text = text.lower()
                for trigger in self._triggers:
                    if trigger in text and self._added.search(text.translate(_LOWER)):
                        return None
                words = _ASCII_WORDS.findall(text)
            else:
                if _CONTROL.search(text):
                    return None
                text = _NOT_ASCII.sub(self._normalized, text)
                for trigger in self._triggers:
                    if trigger in text:
                        return None
                words = _ANY_WORDS.findall(text)
            return b"".join(map(self._words.__getitem__, words))
        except _UndecidedError:
            return None

    def _normalized(self, match: re.Match[str]) -> str:
        return match[0].translate(self._characters)

    def _ask(self, word: str) -> bytes:
        """The ids of a word that is not in the table."""
        if self._lowercase:
            folded = word.translate(_LOWER)
            if folded != word:
                return self._words[folded]
        id_ = self._model.token_to_id(word) if len(word) <= _MOST_CHARACTERS else None
        if id_ is not None:
            return int(id_).to_bytes(4, sys.byteorder)
        return ids_to_bytes(token.id for token in self._model.tokenize(word))


def _is_distinct(token: str) -> bool:
    """Whether an added token can be recognized by an ASCII punctuation character."""
    return token.isascii() and token.isprintable() and " " not in token and bool(_marks(token))


def _marks(token: str) -> list[str]:
    return [character for character in token if character in string.punctuation]


def _rarest(token: str) -> str:
    """The punctuation character of a token that is rare in texts, if it has one."""
    marks = _marks(token)
    return next((mark for mark in marks if mark in "[]<>{}|_"), marks[0])
