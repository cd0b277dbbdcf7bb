"""Real text for benchmarks and training: paragraphs, sentences, seeded samples.

Sentences are split by flowvec's plain rule, the same on every machine.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from flowvec.texts.sentences import split_sentences

__all__ = ["natural_sentences", "open_text", "read_paragraphs", "sample", "split_sentences"]


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
    """Yield the non-empty lines of a text file, stripped: one paragraph per line."""
    for line in open_text(path):
        paragraph = line.strip()
        if paragraph:
            yield paragraph


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
