"""Real text for benchmarks and training: paragraphs, sentences, seeded samples.

The splitter is a plain rule so that a benchmark's sentences are the same on every machine and
with every version of every library.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

__all__ = ["natural_sentences", "open_text", "read_paragraphs", "sample", "split_sentences"]

# A sentence ends at . ! or ? (with closing quotes or brackets) before a space and a capital, digit
# or opening quote, unless the word before the full stop is an initial or a common abbreviation.
_BOUNDARY = re.compile(r"""([.!?]['")\]\u2019\u201d]*)\s+(?=["'(\[\u2018\u201c]?[A-Z0-9])""")
_ABBREVIATION = re.compile(
    r"(?:^|[\s(\"'])(?:[A-Z]|Mr|Mrs|Ms|Dr|Prof|St|Sr|Jr|vs|No|Nos|Lt|Col|Gen|Capt|Sgt|Rev|Hon|Gov|"
    r"Sen|Rep|Mt|Ft|Co|Inc|Ltd|Bros|etc|e\.g|i\.e|cf|ca|c|approx|dept|est|vol|pp|p|ed|eds|fig|"
    r"Jan|Feb|Mar|Apr|Jun|Jul|Aug|Sep|Sept|Oct|Nov|Dec|U\.S|U\.K|Ph\.D|a\.m|p\.m)\.$"
)


def open_text(path: Path) -> Iterator[str]:
    """Yield the lines of a UTF-8 text file, plain or compressed as .xz, .gz or .bz2.

    Lines come without their line ends; undecodable bytes become U+FFFD.
    """
    openers: dict[str, Callable[..., IO[Any]]] = {
        ".xz": lzma.open,
        ".gz": gzip.open,
        ".bz2": bz2.open,
    }
    with openers.get(path.suffix, open)(path, "rt", encoding="utf-8", errors="replace") as lines:
        for line in lines:
            yield line.rstrip("\r\n")


def read_paragraphs(path: Path) -> Iterator[str]:
    """Yield the non-empty lines of a text file, stripped: one paragraph a line."""
    for line in open_text(path):
        paragraph = line.strip()
        if paragraph:
            yield paragraph


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


def natural_sentences(path: Path, minimum: int = 8, maximum: int = 60) -> Iterator[str]:
    """Yield the sentences of a paragraph file that have between `minimum` and `maximum` words."""
    for paragraph in read_paragraphs(path):
        for sentence in split_sentences(paragraph):
            if minimum <= len(sentence.split()) <= maximum:
                yield sentence


def sample(texts: Iterator[str], count: int, seed: int, among: int = 200_000) -> list[str]:
    """Choose `count` of the first `among` texts, with a seed, in random order.

    Raises:
        ValueError: there are fewer than `count` texts.
    """
    pool = [text for text, _ in zip(texts, range(among), strict=False)]
    if len(pool) < count:
        raise ValueError(f"asked for {count} texts, but there are only {len(pool)}")
    return random.Random(seed).sample(pool, count)
