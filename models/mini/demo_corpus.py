"""Chooses the passages that `flowvec demo` searches: short opening paragraphs of Wikipedia.

    python models/mini/demo_corpus.py

Writes runtime/flowvec/demo/passages.jsonl: id, title, text. A title is the paragraph's subject, up
to its first "is" or "are", because the text file has no titles. The queries in pairs.jsonl beside
it were written by hand.
"""

from __future__ import annotations

import argparse
import json
import random
import re
from collections.abc import Iterator
from pathlib import Path

from flowvec_bench.texts import open_text

HERE = Path(__file__).resolve().parent
OUT = HERE.parents[1] / "runtime/flowvec/demo/passages.jsonl"

_SUBJECT = re.compile(
    r"^(?:(?:The|An?) )?(\w[^.,;:()]{2,40}?)(?: \([^)]*\))?,? (?:is|are) (?:an?|the) "
)
# An encyclopedia is full of people, places, bands and seasons, which make a dull search. A passage
# must be about something with a common name, and not about one of these.
_DULL = re.compile(
    r"\b(born|footballer|politician|village|commune|municipality|census|township|album|song|"
    r"single|band|season|football|cricket|film|episode|television|actor|actress|singer|railway|"
    r"station|district|province|league|baseball|basketball|hockey|congress|genus|moth|beetle|"
    r"novel|school|constituency|species|surname|given name|legislation|rapper|guitarist|"
    r"unincorporated|population|player|tournament)\b",
    re.IGNORECASE,
)
# Topics that a demonstration in an office should not show.
_ADULT = re.compile(
    r"\b(sex\w*|penis|semen|vagina\w*|bondage|restraint|suicid\w*|euthanasia|torture|urin\w*|"
    r"genital\w*|racis\w*|antagonist|agonists?|inhibitor|chemical compound)\b",
    re.IGNORECASE,
)


def openings(path: Path) -> Iterator[str]:
    """Paragraphs after a blank line, which are the first of their articles."""
    after_blank = True
    for line in open_text(path):
        text = line.strip()
        if text and after_blank:
            yield text
        after_blank = not text


def passages(path: Path) -> Iterator[tuple[str, str]]:
    """(title, text) of openings of 30 to 80 words about something other than people and places."""
    for text in openings(path):
        subject = _SUBJECT.match(text)
        if (
            subject
            and 35 <= len(text.split()) <= 90
            and not _DULL.search(text)
            and not _ADULT.search(text)
        ):
            title = subject.group(1)
            if len(title) < 4 or title in ("This", "These", "There", "Name"):
                continue
            common = title[0].islower() or title.lower() in text[subject.end() :]
            if common and title.lower() == title[0].lower() + title[1:]:
                yield title[0].upper() + title[1:], text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--text", type=Path, default=Path("../shared/data/text/wiki.txt.xz"))
    parser.add_argument("--count", type=int, default=320)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--out", type=Path, default=OUT)
    args = parser.parse_args()
    unique = dict(passages(args.text))
    chosen = random.Random(args.seed).sample(sorted(unique.items()), args.count)
    with args.out.open("w", encoding="utf-8") as out:
        for number, (title, text) in enumerate(chosen, 1):
            row = {"id": number, "title": title, "text": text}
            out.write(json.dumps(row, ensure_ascii=False) + "\n")
    print(f"{len(unique)} candidates, {args.count} chosen")


if __name__ == "__main__":
    main()
