"""Spellings that are one word to a search: texts and queries are folded for the full-text index.

Both sides are folded here, so that SQLite only splits texts at what is not a letter:

- The form of Unicode does not count (NFC, NFD, NFKC, NFKD), nor do ligatures, full-width letters,
  presentation forms, soft hyphens and other characters without a shape of their own.
- Case does not count, in any script.
- Accents of Latin and Greek letters do not count, nor strokes and ligatures of Latin letters (ø, ł,
  đ, æ). In Cyrillic, stress does not, and ё is е; but й, ї, ў and others are letters of their own.
- Points and accents of Hebrew, Arabic and Syriac do not count, nor does the Arabic tatweel. So أ is
  ا, and ئ is ي.
- Marks of other scripts (vowel signs of Indic scripts, tone marks of Thai) are parts of words.
"""

# ruff: noqa: RUF001 - letters of other scripts
from __future__ import annotations

import re
import unicodedata
from functools import cache

__all__ = ["folded", "words_of"]

# Without a shape of their own, and removed: soft hyphen, joiners, marks of direction, fillers,
# selectors of variants, tags; and the tatweel, which only makes a word longer.
_IGNORED = re.compile(
    "[\u00ad\u034f\u061c\u0640\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200c-\u200f\u202a-\u202e"
    "\u2060-\u206f\ufe00-\ufe0f\ufeff\ufff9-\ufffb\U000e0000-\U000e0fff]"
)
# In scripts that write no spaces, a space of no width ends a word; elsewhere it is ignored.
_WITHOUT_SPACES = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u19e0-\u19ff\u3040-\u30ff\u3400-\u9fff"
_END_OF_WORD = re.compile(f"(?<=[{_WITHOUT_SPACES}])\u200b|\u200b(?=[{_WITHOUT_SPACES}])")
# In decomposed texts, where a mark follows its letter. After a Cyrillic letter, macron, breve,
# diaeresis, double acute and the acute of ѓ and ќ make another letter; except for ё.
_ACCENTS = re.compile(
    "[\u0300-\u036f\u0483-\u0489\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f"
    "\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7\ufb1e"
    "\u0610-\u061a\u064b-\u065f\u0670\u06d6-\u06dc\u06df-\u06e4\u06e7\u06e8\u06ea-\u06ed"
    "\u0711\u0730-\u074a\u0898-\u089f\u08ca-\u08e1\u08e3-\u08ff]"
    "(?<![гкГК]\u0301)(?<![\u0400-\u0414\u0416-\u0434\u0436-\u052f]\u0308)"
    "(?<![\u0400-\u052f][\u0304\u0306\u030b])"
)
# Scripts with accents, and accents that may follow letters of any script.
_MAY_HAVE_ACCENTS = re.compile(
    "[\u00c0-\u074a\u0898-\u08ff\u1ab0-\u1aff\u1dc0-\u1fff\u20d0-\u20ff\ufb1e\ufe20-\ufe2f]"
)
# Latin letters that Unicode does not decompose, in lower case.
_PLAIN = {"ø": "o", "ł": "l", "đ": "d", "ħ": "h", "ŧ": "t", "ı": "i", "æ": "ae", "œ": "oe",
          "ð": "d", "þ": "th"}  # fmt: skip
_NOT_PLAIN = re.compile(f"[{''.join(_PLAIN)}]")
_WIDE = re.compile("[\U00010000-\U0010ffff]")
_ASCII_WORD = re.compile(r"[0-9A-Z_a-z\x80-\U0010ffff]+")


def folded(text: str) -> str:
    """A text as the full-text index has it: see this module.

    Texts that differ only in what does not count become the same, and a folded text stays as it is.
    Of what is between words, only ASCII is left.
    """
    if text.isascii():
        return text.lower()
    if "\u200b" in text:
        text = _END_OF_WORD.sub(" ", text).replace("\u200b", "")
    text = _IGNORED.sub("", unicodedata.normalize("NFKC", text))
    if _MAY_HAVE_ACCENTS.search(text):  # others are slow to take apart, Japanese and Korean most
        text = _ACCENTS.sub("", unicodedata.normalize("NFD", text))
    text = text.casefold()
    text = _NOT_PLAIN.sub(lambda letter: _PLAIN[letter[0]], text)
    text = _between_words().sub(" ", unicodedata.normalize("NFC", text))
    return _WIDE.sub(lambda wide: wide[0] if _is_in_word(wide[0]) else " ", text)


def words_of(text: str) -> list[str]:
    """The words of a text, folded: runs of letters, digits, underscores and their marks."""
    return _ASCII_WORD.findall(folded(text))


@cache
def _between_words() -> re.Pattern[str]:
    """Characters of 8 to 16 bits that are in no word.

    As a class of ranges, which is searched a hundred times as fast as one of `\\w` and marks.
    """
    ranges, start = list[str](), 0x80
    for code in range(0x80, 0x10001):
        if code == 0x10000 or _is_in_word(chr(code)):
            if start < code:
                ranges.append(f"{chr(start)}-{chr(code - 1)}")
            start = code + 1
    return re.compile(f"[{''.join(ranges)}]+")


def _is_in_word(character: str) -> bool:
    # Private characters are somebody's letters.
    kind = unicodedata.category(character)
    return kind[0] in "LMN" or kind == "Co"
