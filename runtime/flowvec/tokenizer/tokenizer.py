"""Text to token ids: one tokenization, never padded, truncated and counted here."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import numpy as np
import tokenizers

from flowvec.errors import BundleError, InputTypeError, InputValueError, first_line
from flowvec.texts.unicode import replace_surrogates
from flowvec.tokenizer.beginning import BeginningTokenizer
from flowvec.tokenizer.given_ids import GivenIds
from flowvec.tokenizer.pieces import Piece, pieces_of
from flowvec.tokenizer.token_ids import TokenIds
from flowvec.tokenizer.word_table import WordTable, ids_to_bytes

__all__ = ["ID_BYTES", "Bodies", "Tokenized", "Tokenizer", "check_texts", "joined", "repair"]

# A text longer than this many characters for each token of max_length is tokenized from its
# beginning only, as far as it is needed.
_CHARACTERS_PER_TOKEN = 16
ID_BYTES = 4
_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True, eq=False)
class Tokenized:
    """Token ids of texts, without padding.

        >>> tokenized = Encoder.load("mini").tokenize(["A man is eating.", "Stocks fell."])
        >>> [len(ids) for ids in tokenized.ids], tokenized.truncated
        ([7, 5], [])

    Attributes:
        token_ids: token ids of all texts in one array, special tokens included.
        truncated: indices of the texts that were longer than max_length.
        replaced: indices of the texts in which lone surrogates became U+FFFD.
    """

    token_ids: TokenIds
    truncated: list[int]
    replaced: list[int]

    @property
    def ids(self) -> list[list[int]]:
        """Token ids of each text, as Python numbers."""
        return self.token_ids.to_lists()

    @property
    def lengths(self) -> list[int]:
        """Tokens of each text."""
        lengths: list[int] = self.token_ids.lengths.tolist()
        return lengths


def joined(parts: Sequence[Tokenized]) -> Tokenized:
    """Join the parts of consecutive texts."""
    token_ids = TokenIds.joined([part.token_ids for part in parts])
    truncated: list[int] = []
    replaced: list[int] = []
    first = 0
    for part in parts:
        truncated.extend(first + i for i in part.truncated)
        replaced.extend(first + i for i in part.replaced)
        first += len(part.token_ids)
    return Tokenized(token_ids, truncated, replaced)


class Bodies:
    """Token ids of texts without special tokens, by a `tokenizers` tokenizer.

    The tokenizer is never reconfigured, so any number of threads may use it.
    """

    def __init__(self, path: Path) -> None:
        """Read `tokenizer.json`.

        Raises:
            BundleError: the file cannot be parsed.
        """
        self._path = path
        with self.named():
            try:
                self._tokenizer = tokenizers.Tokenizer.from_file(str(path))
            except Exception as error:  # the library raises bare Exception
                raise BundleError(f"{path} is not a tokenizer: {first_line(error)}") from None
            self._tokenizer.no_truncation()
            self._tokenizer.no_padding()
            self._words = WordTable.for_tokenizer(self._tokenizer)
            self._of_long = BeginningTokenizer(self._tokenizer)

    @property
    def is_parallel(self) -> bool:
        """Whether threads can tokenize at the same time: not by a table of words, which is Python's
        work."""
        return self._words is None

    @contextmanager
    def named(self) -> Iterator[None]:
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

    def template(self, text: str, second: str | None = None) -> tokenizers.Encoding:
        """What the tokenizer makes of a text, or of a pair of texts, with special tokens."""
        return self._tokenizer.encode(text, second)

    def plain(self, text: str) -> list[int]:
        """Token ids of a text without special tokens."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def encoding(self, text: str, *, special: bool) -> tokenizers.Encoding:
        """All that the tokenizer says of a text, with or without special tokens."""
        return self._tokenizer.encode(text, add_special_tokens=special)

    def decode(self, ids: Sequence[int], *, skip_special: bool) -> str:
        """The text of token ids."""
        text: str = self._tokenizer.decode(ids, skip_special_tokens=skip_special)
        return text

    def named_id(self, id: int) -> str:
        """A token and its id, for messages."""
        token = self._tokenizer.id_to_token(id)
        return f"id {id}" if token is None else f"{token!r} (id {id})"

    @property
    def largest_id(self) -> int:
        """The largest id of a token, added tokens included."""
        return max(self.vocabulary().values(), default=-1)

    def vocabulary(self) -> dict[str, int]:
        """The id of each token, added tokens included."""
        ids: dict[str, int] = self._tokenizer.get_vocab(with_added_tokens=True)
        return ids

    def count(self, text: str) -> int:
        """Tokens of a text without special tokens."""
        body = self._words(text) if self._words is not None else None
        return len(self.plain(text)) if body is None else len(body) // ID_BYTES

    def token_ends(self, texts: Sequence[str]) -> list[list[int]]:
        """Where the tokens of each text end, in characters, ascending."""
        encodings = self._tokenizer.encode_batch(texts, add_special_tokens=False)
        # Accents that are reordered may have offsets that are not ascending.
        return [list(accumulate((end for _, end in e.offsets), max)) for e in encodings]

    def __call__(self, texts: Sequence[str], room: int, max_length: int) -> list[bytes]:
        """Ids of each text, as the bytes of int32 numbers, and the texts that were cut already.

        Args:
            texts: without lone surrogates.
            room: tokens that are needed. A long text that has more may get the first ones only.
            max_length: most tokens of a text; it says which text is long.
        """
        limit = max(_CHARACTERS_PER_TOKEN * max_length, self._of_long.least)
        bodies: list[bytes] = [b""] * len(texts)
        asked: list[int] = []  # texts that `tokenizers` gets as a whole
        words = self._words
        for i, text in enumerate(texts):
            if len(text) > limit:
                bodies[i] = self._beginning(text, limit, room)
                continue
            body = words(text) if words is not None else None
            if body is None:
                asked.append(i)
            else:
                bodies[i] = body
        if asked:
            encodings = self._tokenizer.encode_batch_fast(
                [texts[i] for i in asked], add_special_tokens=False
            )
            for i, encoding in zip(asked, encodings, strict=True):
                bodies[i] = ids_to_bytes(encoding.ids)
        return bodies

    def _beginning(self, text: str, characters: int, room: int) -> bytes:
        """Token ids of a long text's beginning: all of them, or more than `room`."""
        if self._words is not None:
            body = self._words(text[:characters].rpartition(" ")[0])
            if body is not None and len(body) > room * ID_BYTES:
                return body
        return ids_to_bytes(self._of_long(text, characters, room))


class Tokenizer:
    """Texts to token ids with special tokens, cut at max_length. Threads may share it."""

    def __init__(self, path: Path, max_length: int, max_characters: int | None = None) -> None:
        """Read `tokenizer.json`.

        Args:
            path: of the file.
            max_length: most tokens of a text, special tokens included.
            max_characters: a text is cut to this many characters first; None does not.

        Raises:
            BundleError: the file cannot be parsed, or max_length leaves no room for a token.
        """
        self._bodies = Bodies(path)
        with self._bodies.named():
            self._prefix, self._suffix = self._special_tokens()
        self.max_length = max_length
        self._max_characters = max_characters
        self._room = max_length - len(self._prefix) - len(self._suffix)
        if self._room < 1:
            raise BundleError(f"max_length {max_length} leaves no room beside the special tokens")

    def with_max_length(self, max_length: int) -> Tokenizer:
        """The same tokenizer with another limit.

        Raises:
            BundleError: max_length leaves no room for a token.
        """
        if max_length == self.max_length:
            return self
        other = copy(self)
        other.max_length = max_length
        other._room = max_length - self.special_tokens
        if other._room < 1:
            raise BundleError(f"max_length {max_length} leaves no room beside the special tokens")
        return other

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

    def _special_tokens(self) -> tuple[list[int], list[int]]:
        """The token ids that the template puts before and after a text."""
        body = self._bodies.plain("a")
        framed = self._bodies.template("a").ids
        for start in range(len(framed) - len(body) + 1):
            if framed[start : start + len(body)] == body:
                return framed[:start], framed[start + len(body) :]
        raise BundleError("the tokenizer's template does not frame a text by special tokens")

    @property
    def special_tokens(self) -> int:
        """How many special tokens a text gets."""
        return len(self._prefix) + len(self._suffix)

    @property
    def max_characters(self) -> int | None:
        """Most characters of a text that are read; None is all."""
        return self._max_characters

    def vocabulary(self, size: int) -> list[str]:
        """The token of each id below `size`; "" for an id without a token."""
        tokens = [""] * size
        for token, place in self._bodies.vocabulary().items():
            if place < size:
                tokens[place] = token
        return tokens

    def count(self, text: str) -> int:
        """Tokens of a whole text, special tokens included.

        Raises:
            BundleError: the tokenizer fails.
        """
        with self._bodies.named():
            return self._bodies.count(repair([text])[0][0]) + self.special_tokens

    def pieces(self, text: str, *, special: bool = True) -> list[Piece]:
        """The tokens of a whole text one by one, with or without special tokens.

        Raises:
            BundleError: the tokenizer fails.
        """
        plain = _SURROGATE.sub("\ufffd", text)
        with self._bodies.named():
            return pieces_of(plain, self._bodies.encoding(plain, special=special))

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        """The text of token ids. Ids that are not in the vocabulary are left out.

        Raises:
            InputValueError: an id is below 0, or does not fit into 32 bits.
            BundleError: the tokenizer fails.
        """
        if ids and not 0 <= min(ids) <= max(ids) < 1 << 32:
            raise InputValueError("token ids must be from 0 to 4294967295")
        with self._bodies.named():
            return self._bodies.decode(ids, skip_special=skip_special)

    def token_ends(self, texts: Sequence[str]) -> list[list[int]]:
        """Where the tokens of each whole text end, in characters, ascending.

        Raises:
            BundleError: the tokenizer fails.
        """
        # One character for each surrogate, so that characters are counted as in the text.
        plain = [_SURROGATE.sub("\ufffd", text) for text in texts]
        with self._bodies.named():
            return self._bodies.token_ends(plain)

    def __call__(self, texts: Sequence[str | GivenIds]) -> Tokenized:
        """Token ids of each text, cut at max_length as Hugging Face cuts them.

        Lone surrogates, which UTF-8 cannot encode, are replaced by U+FFFD and reported. Given ids
        get the special tokens that they lack at their beginning and end.

        Raises:
            BundleError: the tokenizer fails.
        """
        with self._bodies.named():
            return self._tokenized(texts)

    def _tokenized(self, items: Sequence[str | GivenIds]) -> Tokenized:
        given = [(i, item) for i, item in enumerate(items) if isinstance(item, GivenIds)]
        texts, shortened = self._shortened([i if isinstance(i, str) else "" for i in items])
        texts, replaced = repair(texts)
        bodies = self._bodies(texts, self._room, self.max_length)
        for i, item in given:
            bodies[i] = self._body_of(item)
        lengths = np.fromiter(map(len, bodies), dtype=np.int64, count=len(bodies)) // ID_BYTES
        too_long = np.flatnonzero(lengths > self._room).tolist()
        truncated = {*too_long, *(i for i in shortened if self._loses(items[i], bodies[i]))}
        for i in too_long:
            bodies[i] = bodies[i][: self._room * ID_BYTES]
        lengths = np.minimum(lengths, self._room) + len(self._prefix) + len(self._suffix)
        prefix, suffix = ids_to_bytes(self._prefix), ids_to_bytes(self._suffix)
        flat = b"".join([part for body in bodies for part in (prefix, body, suffix)])
        token_ids = TokenIds.from_lengths(np.frombuffer(flat, dtype=np.int32), lengths)
        return Tokenized(token_ids, sorted(truncated), replaced)

    def _body_of(self, given: GivenIds) -> bytes:
        """Given ids after their prompt, without the special tokens that are put around them."""
        ids: list[int] = given.ids.tolist()
        before, after = len(self._prefix), len(self._suffix)
        if ids[:before] == self._prefix:
            ids = ids[before:]
        if after and ids[-after:] == self._suffix:
            ids = ids[:-after]
        if not (prompt := given.prompt):
            return ids_to_bytes(ids)
        # The blank between the two is a part of the text's first token, or of none.
        if self._bodies.plain(" a") == self._bodies.plain("a"):
            prompt = prompt.rstrip()
        return ids_to_bytes([*self._bodies.plain(prompt), *ids])

    def _loses(self, text: str | GivenIds, body: bytes) -> bool:
        """Whether a text that is cut by characters to these tokens has others after them."""
        whole, _ = repair([str(text)])
        return self._bodies(whole, self._room, self.max_length)[0] != body

    def _shortened(self, texts: Sequence[str]) -> tuple[Sequence[str], list[int]]:
        """Cut texts at `max_characters`; also returns the indices of those that were longer."""
        most = self._max_characters
        if most is None:
            return texts, []
        longer = [i for i, text in enumerate(texts) if len(text) > most]
        if longer:
            texts = [text[:most] for text in texts]
        return texts, longer


def repair(texts: Sequence[str]) -> tuple[Sequence[str], list[int]]:
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
        if isinstance(text, GivenIds):
            continue
        if not isinstance(text, str):
            hint = " (a hole in a pandas column?)" if isinstance(text, float) else ""
            raise InputTypeError(
                f"item {first + i} is {type(text).__name__}, not str{hint}: nothing was encoded"
            )
        if refuse_empty and not text.strip():
            raise InputValueError(f"item {first + i} is an empty text")
