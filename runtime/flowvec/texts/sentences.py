"""Splits text into sentences, by a plain rule.

The rule does not depend on the machine or on library versions, so that fits and measurements on
sentences can be repeated.
"""

from __future__ import annotations

import re

__all__ = ["split_sentences"]

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
