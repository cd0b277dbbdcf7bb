"""Compares what a bundle's tokenizer and the source's own library make of real texts."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterator, Sequence
from itertools import islice, pairwise
from typing import TypeAlias

import tokenizers

from flowvec import Bundle
from flowvec.errors import ExportError
from flowvec.tokenizer.pairs import PairTokenizer
from flowvec.tokenizer.tokenizer import Tokenizer

__all__ = ["OwnTokens", "require_own_tokens", "require_same_files"]

# Token ids of a text, or of a pair, by the library that the source is of.
OwnTokens: TypeAlias = Callable[[str, str | None], list[int]]

# More than any of the texts has.
_MOST_TOKENS = 1 << 16
# Cases, accents, scripts without spaces, marks, emoji, characters that no vocabulary has, blanks.
_TEXTS = (
    "The Quick BROWN fox jumps over 13 lazy dogs, twice.",
    "naïve Café ÅNGSTRÖM Übergröße São Paulo Đặng",
    unicodedata.normalize("NFD", "naïve Café ÅNGSTRÖM Übergröße São Paulo Đặng"),
    "東京 tower 北京大学 ひらがな カタカナ 한국어 ภาษาไทย",
    "ПРИВЕТ Ёлка мир ΟΔΟΣ Ελλάδα İstanbul \u0131ş\u0131k ẞ",
    "हिन्दी में लिखा مرحبا بالعالم שָׁלוֹם",
    "🙂 smile 👩‍👩‍👧🏽 🇫🇷 ☕️",
    "ﬁne \uff46\uff55\uff4c\uff4c ½ ① x² №",
    "soft\u00adhyphen zero\u200bwidth no\u00a0break \ufeffmark line\u2028end",
    "a\ttab, a\nline, a\r\nreturn,  two  blanks ",
    " begins with a blank",
    "don't can't it's 3.14 1,000 $5 e-mail@example.org http://a.b/c?d=e#f",
    "''quoted`` \"text\" snake_case CamelCase a.b.c",
    "control \x01 \x7f characters, \U0001e900 \u0378 ꙮ unknown ones",
    "w" * 130,
    "",
)
_SPECIAL = (
    "[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]", "<s>", "</s>", "<unk>", "<pad>", "<mask>",
)  # fmt: skip
# Added tokens that are tried; some tokenizers have thousands of equal kind.
_MOST_ADDED = 200


def require_own_tokens(
    bundle: Bundle, own: OwnTokens | None, origin: str, markers: Sequence[str] = ()
) -> None:
    """Check that a bundle reads texts as the library does that its source is of.

    Args:
        bundle: the staged bundle.
        own: how that library reads a text, or a pair for a reranker; None if it is not installed.
        origin: name of the source, for messages.
        markers: prefixes that are tokens of the bundle alone, as those of ColBERT-style models.

    Raises:
        ExportError: a text becomes other tokens.
    """
    if own is None:
        return
    tokenizer = tokenizers.Tokenizer.from_file(str(bundle.tokenizer))
    texts = [text for text in _texts(tokenizer) if not any(m in text for m in markers if m)]
    rows: list[tuple[str, str | None]]
    if bundle.manifest.kind == "reranker":
        rows = list(pairwise([*texts, texts[0]]))
        pairs = PairTokenizer(bundle.tokenizer, _MOST_TOKENS, with_types=False)
        ours = pairs([(first, second or "") for first, second in rows]).ids
    else:
        rows = [(text, None) for text in texts]
        ours = Tokenizer(bundle.tokenizer, _MOST_TOKENS)(texts).ids
    _require_equal(rows, ours, own, origin)


def require_same_files(tokenizer: tokenizers.Tokenizer, own: OwnTokens, origin: str) -> None:
    """Check that a tokenizer that was read from files reads texts as their library does.

    Args:
        tokenizer: without truncation and padding.
        own: how the library reads a text.
        origin: name of the source, for messages.

    Raises:
        ExportError: a text becomes other tokens.
    """
    texts = list(_texts(tokenizer))
    ours = [encoding.ids for encoding in tokenizer.encode_batch(texts)]
    _require_equal([(text, None) for text in texts], ours, own, origin)


def _require_equal(
    rows: Sequence[tuple[str, str | None]],
    ours: Sequence[list[int]],
    own: OwnTokens,
    origin: str,
) -> None:
    for row, ids in zip(rows, ours, strict=True):
        if ids != (theirs := own(*row)):
            text = row[0] if row[1] is None else row
            both = enumerate(zip(ids, theirs, strict=False))
            place = next((i for i, (a, b) in both if a != b), 0)
            raise ExportError(
                f"{origin}: its tokenizer.json reads {text!r} otherwise than its own library does "
                "with the files beside it (tokenizer_config.json and others): "
                f"{_near(ids, place)} instead of {_near(theirs, place)}. Write them again with one "
                "version of transformers: "
                "AutoTokenizer.from_pretrained(folder).save_pretrained(folder). Nothing was written"
            )


def _texts(tokenizer: tokenizers.Tokenizer) -> Iterator[str]:
    """The texts to compare, and those with the added tokens."""
    yield from _TEXTS
    added = (token.content for token in tokenizer.get_added_tokens_decoder().values())
    for token in dict.fromkeys([*_SPECIAL, *islice(added, _MOST_ADDED)]):
        yield f"The {token} is{token}one, {token.lower()} {token.upper()}."


def _near(ids: Sequence[int], place: int) -> str:
    """A few token ids around a place."""
    start = max(0, place - 2)
    return f"{'... ' if start else ''}{list(ids[start : place + 4])}"
