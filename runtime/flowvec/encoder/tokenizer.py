"""Text to token ids: one tokenization, never padded, truncated and counted here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import tokenizers

from flowvec.errors import BundleError, InputTypeError, InputValueError, first_line
from flowvec.texts.unicode import replace_surrogates

__all__ = ["Tokenized", "Tokenizer", "check_texts", "joined"]

# A text longer than this many characters for each token of max_length is tokenized from its
# beginning only: a 10 MB text costs no more than its first kilobytes.
_CHARACTERS_PER_TOKEN = 16
# Where those give too few tokens, as a long unbroken run does, up to this many times as many
# characters are tried, and the text counts as truncated.
_MOST_TRIES = 64


@dataclass(frozen=True, slots=True)
class Tokenized:
    """Token ids of texts, without padding.

        >>> tokenized = Encoder.load("mini").tokenize(["A man is eating.", "Stocks fell."])
        >>> [len(ids) for ids in tokenized.ids], tokenized.truncated
        ([7, 5], [])

    Attributes:
        ids: token ids of each text, special tokens included.
        truncated: indices of the texts that were longer than max_length.
        replaced: indices of the texts in which lone surrogates became U+FFFD.
    """

    ids: list[list[int]]
    truncated: list[int]
    replaced: list[int]

    @property
    def lengths(self) -> list[int]:
        """Tokens of each text."""
        return [len(row) for row in self.ids]


def joined(parts: Sequence[Tokenized]) -> Tokenized:
    """Join the parts of consecutive texts."""
    whole = Tokenized([], [], [])
    for part in parts:
        first = len(whole.ids)
        whole.ids.extend(part.ids)
        whole.truncated.extend(first + i for i in part.truncated)
        whole.replaced.extend(first + i for i in part.replaced)
    return whole


class Tokenizer:
    """A `tokenizers` tokenizer that is never reconfigured, so any number of threads may use it."""

    def __init__(self, path: Path, max_length: int) -> None:
        """Read `tokenizer.json`.

        Raises:
            BundleError: the file cannot be parsed, or max_length leaves no room for a token.
        """
        self._path = path
        with self._named():
            try:
                self._tokenizer = tokenizers.Tokenizer.from_file(str(path))
            except Exception as error:  # the library raises bare Exception
                raise BundleError(f"{path} is not a tokenizer: {first_line(error)}") from None
            self._tokenizer.no_truncation()
            self._tokenizer.no_padding()
            self._prefix, self._suffix = self._special_tokens()
        self.max_length = max_length
        self._room = max_length - len(self._prefix) - len(self._suffix)
        if self._room < 1:
            raise BundleError(f"max_length {max_length} leaves no room beside the special tokens")

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Name the file if the library panics, which is not even an `Exception`.

        Raises:
            BundleError: it does.
        """
        try:
            yield
        except BaseException as error:
            if type(error).__name__ != "PanicException":
                raise
            raise BundleError(
                f"{self._path} makes the tokenizers library fail: {first_line(error)}"
            ) from None

    def _special_tokens(self) -> tuple[list[int], list[int]]:
        """The token ids that the template puts before and after a text."""
        body = self._tokenizer.encode("a", add_special_tokens=False).ids
        framed = self._tokenizer.encode("a").ids
        for start in range(len(framed) - len(body) + 1):
            if framed[start : start + len(body)] == body:
                return framed[:start], framed[start + len(body) :]
        raise BundleError("the tokenizer's template does not frame a text by special tokens")

    def __call__(self, texts: Sequence[str]) -> Tokenized:
        """Token ids of each text, cut at max_length as Hugging Face cuts them.

        Lone surrogates, which UTF-8 cannot encode, are replaced by U+FFFD and reported.

        Raises:
            BundleError: the tokenizer fails.
        """
        with self._named():
            return self._tokenized(texts)

    def _tokenized(self, texts: Sequence[str]) -> Tokenized:
        texts, replaced = _repair(texts)
        limit = _CHARACTERS_PER_TOKEN * self.max_length
        long = [i for i, text in enumerate(texts) if len(text) > limit]
        begun: dict[int, tuple[list[int], bool]] = {}
        if long:
            texts = list(texts)
            begun = {i: self._tokenize_beginning(texts[i], limit) for i in long}
            for i in long:
                texts[i] = ""
        encodings = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        bodies = [encoding.ids for encoding in encodings]
        for i, (body, _) in begun.items():
            bodies[i] = body
        cut = {i for i, (_, was_cut) in begun.items() if was_cut}
        truncated = [i for i, body in enumerate(bodies) if len(body) > self._room or i in cut]
        for i in truncated:
            bodies[i] = bodies[i][: self._room]
        prefix, suffix = self._prefix, self._suffix
        return Tokenized([prefix + body + suffix for body in bodies], truncated, replaced)

    def _tokenize_beginning(self, text: str, characters: int) -> tuple[list[int], bool]:
        """Token ids of a long text's beginning: those of the whole text, up to max_length + 1.

        Tokenizers first cut a text into words, and then each word by itself. So the tokens of a
        beginning are those of the whole text, except for its last word, which may have been cut in
        two. Also returns whether the text was cut inside a word that is too long to know this.
        """
        most = _MOST_TRIES * characters
        while characters < len(text):
            encoding = self._tokenizer.encode(text[:characters], add_special_tokens=False)
            words = encoding.word_ids
            last = words[-1] if words else None
            whole = next((i for i, word in enumerate(words) if word == last), 0)
            if last is not None and whole > self._room:
                return encoding.ids[:whole], False
            if characters >= most:
                return encoding.ids, True
            characters *= 4
        return self._tokenizer.encode(text, add_special_tokens=False).ids, False


def _repair(texts: Sequence[str]) -> tuple[Sequence[str], list[int]]:
    """Replace lone surrogates; the common case costs one UTF-8 pass over each text."""
    replaced: list[int] = []
    repaired: list[str] | None = None
    for i, text in enumerate(texts):
        if text.isascii():
            continue
        try:
            text.encode()
        except UnicodeEncodeError:
            if repaired is None:
                repaired = list(texts)
            repaired[i] = replace_surrogates(text)
            replaced.append(i)
    return texts if repaired is None else repaired, replaced


def check_texts(texts: Sequence[object], first: int = 0, *, refuse_empty: bool = False) -> None:
    """Check that every item is a text, before any work.

    Args:
        texts: the items.
        first: index of the first item, for messages.
        refuse_empty: refuse texts of white space only.

    Raises:
        InputTypeError: an item is not a str; the message names its index and type.
        InputValueError: an item is empty and `refuse_empty` is set.
    """
    for i, text in enumerate(texts):
        if not isinstance(text, str):
            hint = " (a hole in a pandas column?)" if isinstance(text, float) else ""
            raise InputTypeError(
                f"item {first + i} is {type(text).__name__}, not str{hint}: nothing was encoded"
            )
        if refuse_empty and not text.strip():
            raise InputValueError(f"item {first + i} is an empty text")
