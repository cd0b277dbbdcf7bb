"""Splits text into sentences, by a plain rule.

The rule does not depend on the machine or on library versions, so that fits and measurements on
sentences can be repeated.
"""

from __future__ import annotations

import re

__all__ = ["sentence_spans", "split_sentences"]

# A sentence ends at . ! or ? (with closing quotes or brackets) before a space and a capital, digit
# or opening quote, unless the word before the full stop is an initial or a common abbreviation.
_BOUNDARY = re.compile(r"""([.!?]['")\]\u2019\u201d]*)\s+(?=["'(\[\u2018\u201c]?[A-Z0-9])""")
_ABBREVIATION = re.compile(
    r"(?:^|[\s(\"'])(?:[A-Z]|Mr|Mrs|Ms|Dr|Prof|St|Sr|Jr|vs|No|Nos|Lt|Col|Gen|Capt|Sgt|Rev|Hon|Gov|"
    r"Sen|Rep|Mt|Ft|Co|Inc|Ltd|Bros|etc|e\.g|i\.e|cf|ca|c|approx|dept|est|vol|pp|p|ed|eds|fig|"
    r"Jan|Feb|Mar|Apr|Jun|Jul|Aug|Sep|Sept|Oct|Nov|Dec|U\.S|U\.K|Ph\.D|a\.m|p\.m)\.$"
)


def split_sentences(paragraph: str) -> list[str]:
    """Split a paragraph into sentences by punctuation, capitals and a list of abbreviations."""
    sentences: list[str] = []
    start = 0
    for match in _BOUNDARY.finditer(paragraph):
        end = match.end(1)
        candidate = paragraph[start:end]
        if match.group(1).startswith(".") and _ABBREVIATION.search(candidate[-12:]):
            continue
        sentences.append(candidate.strip())
        start = match.end()
    tail = paragraph[start:].strip()
    if tail:
        sentences.append(tail)
    return sentences


_CLOSERS = r"""['")\]\u2019\u201c\u201d\u00bb\u300d\u300f\uff09\u3011]*"""
# Where a sentence of any script may end, and the white space after it: a blank line; a full stop of
# scripts that write no spaces; others before white space.
_END = re.compile(
    rf"(?P<line>\s*\n[^\S\n]*\n\s*)"
    rf"|(?P<wide>[\u3002\uff01\uff1f\uff61\u0964\u0965]+{_CLOSERS}\s*)"
    rf"|(?P<stop>[.!?\u2026\u061f\u06d4]+{_CLOSERS}\s+)"
)
_OPENERS = "\"'([\u2018\u201c\u00ab\u201e\u300c"
_LONGEST_ABBREVIATION = 12


def sentence_spans(text: str) -> list[tuple[int, int]]:
    """Where the sentences of a text of any script begin and end, without white space around them.

    Blank lines end a sentence too. Every character that is not white space is in one sentence.
    """
    spans: list[tuple[int, int]] = []
    start = 0
    for match in _END.finditer(text):
        if match.lastgroup == "stop" and not _ends(text, match.start(), match.end()):
            continue
        _add_span(spans, text, start, match.end())
        start = match.end()
    _add_span(spans, text, start, len(text))
    return spans


def _ends(text: str, stop: int, following: int) -> bool:
    """Whether a sentence ends at `stop`, before white space; the next word is at `following`."""
    word = text[following : following + 2].lstrip(_OPENERS)
    if word[:1].islower():
        return False
    before = text[max(0, stop + 1 - _LONGEST_ABBREVIATION) : stop + 1]
    return not (text[stop] == "." and _ABBREVIATION.search(before))


def _add_span(spans: list[tuple[int, int]], text: str, start: int, end: int) -> None:
    part = text[start:end]
    if stripped := part.strip():
        first = start + part.index(stripped[0])
        spans.append((first, first + len(stripped)))
