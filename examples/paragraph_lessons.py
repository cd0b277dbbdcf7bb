"""Lessons in search from paragraphs alone: which one did this sentence come from?"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice, pairwise
from pathlib import Path

import bm25s
from datasets import Dataset

from flowvec.errors import InputValueError
from flowvec.texts.rows import read_rows
from flowvec.texts.sentences import split_sentences

__all__ = ["LESSONS", "Lesson", "make_data", "make_triplets", "read_paragraphs", "split_lessons"]

# Documents of a query besides its own: drawn from the best by BM25, and from all.
NEAR, RANDOM = 2, 2
BEST = 20
LEAST_SENTENCES = 3
MOST_WORDS = 100


@dataclass(frozen=True, slots=True)
class Lesson:
    """What the queries and documents of a lesson are; cross_encoder.py describes them."""

    name: str
    taken_out: bool
    near: int


LESSONS = (
    Lesson("easy", taken_out=False, near=0),
    Lesson("words", taken_out=False, near=NEAR),
    Lesson("hard", taken_out=True, near=NEAR),
)


def read_paragraphs(corpus: Path, skip: int, count: int) -> list[list[str]]:
    """The sentences of `count` paragraphs that have enough of them, after the first `skip`.

    Raises:
        InputValueError: there are fewer than two.
    """
    found = list(islice(_long_enough(corpus), skip, skip + count))
    if len(found) < 2:
        after = f" after the first {skip:,}" if skip else ""
        raise InputValueError(
            f"{corpus} must have two or more paragraphs of at least {LEAST_SENTENCES} "
            f"sentences{after}"
        )
    return found


def _long_enough(corpus: Path) -> Iterator[list[str]]:
    for row in read_rows(str(corpus)):
        sentences = split_sentences(row.text)
        if len(sentences) >= LEAST_SENTENCES:
            yield sentences


def split_lessons(
    found: list[list[str]], easy: float, words: float
) -> list[tuple[Lesson, list[list[str]]]]:
    """The lessons that have a share of the paragraphs, with their paragraphs, in order.

    Raises:
        InputValueError: no lesson has two.
    """
    ends = [0, round(easy * len(found)), round((easy + words) * len(found)), len(found)]
    parts = zip(LESSONS, pairwise(ends), strict=True)
    lessons = [(lesson, found[first:last]) for lesson, (first, last) in parts if last > first + 1]
    if not lessons:
        raise InputValueError("a lesson needs at least two paragraphs")
    return lessons


def make_data(lesson: Lesson, found: list[list[str]], seed: int) -> Dataset:
    """Queries, five documents of each, and labels for ListNet; the first document is the right one.

    Args:
        lesson: what they are.
        found: the sentences of at least two paragraphs.
        seed: draws sentences, words and documents.
    """
    draw = random.Random(seed)
    chosen = [draw.randrange(len(sentences)) for sentences in found]
    queries = [_query(s[i], draw) for s, i in zip(found, chosen, strict=True)]
    texts = [
        _first_words(s[:i] + s[i + 1 :] if lesson.taken_out else s)
        for s, i in zip(found, chosen, strict=True)
    ]
    best = _best_others(queries, texts) if lesson.near else [[] for _ in texts]
    documents = []
    for own, others in enumerate(best):
        near = draw.sample(others, min(lesson.near, len(others)))
        far = _random_others(texts, own, NEAR + RANDOM - len(near), draw)
        documents.append([texts[own], *(texts[row] for row in near), *far])
    # ListNet compares softmaxes: that of a label of 10 is a certainty.
    labels = [[10.0] + [0.0] * (NEAR + RANDOM)] * len(documents)
    return Dataset.from_dict({"query": queries, "docs": documents, "labels": labels})


def make_triplets(found: list[list[str]], taken_out: float, seed: int) -> Dataset:
    """Queries, the paragraph of each, and another that is among the best for its words by BM25.

    Args:
        found: the sentences of at least four paragraphs.
        taken_out: share of the queries whose sentence is taken out of its paragraph, 0 to 1.
        seed: draws sentences, words, documents and the order of rows.
    """
    columns: dict[str, list[str]] = {"query": [], "positive": [], "negative": []}
    for lesson, part in split_lessons(found, 0, 1 - taken_out):
        data = make_data(lesson, part, seed)
        columns["query"] += data["query"]
        columns["positive"] += [documents[0] for documents in data["docs"]]
        columns["negative"] += [documents[1] for documents in data["docs"]]
    return Dataset.from_dict(columns).shuffle(seed=seed)


def _best_others(queries: list[str], texts: list[str]) -> list[list[int]]:
    """Rows of the best texts for each query by BM25, without its own."""
    index = bm25s.BM25()
    options = {"stopwords": "english", "show_progress": False}
    index.index(bm25s.tokenize(texts, **options), show_progress=False)
    rows, _ = index.retrieve(
        bm25s.tokenize(queries, return_ids=False, **options),
        k=min(BEST + 1, len(texts)),
        show_progress=False,
    )
    return [[row for row in best if row != own] for own, best in enumerate(rows.tolist())]


def _random_others(texts: list[str], own: int, count: int, draw: random.Random) -> list[str]:
    others = [draw.randrange(len(texts) - 1) for _ in range(count)]
    return [texts[row + (row >= own)] for row in others]


def _first_words(sentences: list[str]) -> str:
    return " ".join(" ".join(sentences).split()[:MOST_WORDS])


def _query(sentence: str, draw: random.Random) -> str:
    words = sentence.split()
    if draw.random() < 0.5:
        kept = sorted(draw.sample(range(len(words)), max(1, len(words) // 2)))
        words = [words[i] for i in kept]
    return " ".join(words)
