"""Step 4: finds which tokens are forms of one word, and which words WordNet relates.

    python models/mini/words.py --wordnet /usr/share/wordnet

It reads words, irregular forms and relations of WordNet 3.0 (synonyms, hypernyms, similar
adjectives and derivations between the first two senses of words). Glosses and examples are not
read, because some STS sets were made from them. Debian has the files as the package wordnet-base.
Writes `words.npz` to models/mini/work:

- group: int64 (vocabulary,), the word that each token is a form of;
- synonym, hypernym, similar, derivation: int64 (edges, 2), related groups;
- ids, offsets: terms as concatenated token ids; pairs: int64 (pairs, 2), related terms.
"""

from __future__ import annotations

import argparse
import hashlib
import re
from collections.abc import Iterator, Mapping
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

import numpy as np
from Stemmer import Stemmer
from tokenizers import Tokenizer

HERE = Path(__file__).resolve().parent
PARTS = {"n": "noun", "v": "verb", "a": "adj", "r": "adv"}
RELATIONS = {"@": "hypernym", "&": "similar", "+": "derivation"}
LAST_SENSE = 1  # counted from 0; rarer senses would relate a word to what it seldom means
# SHA-256 of the twelve files, in the order of `wordnet_files`.
SHA256 = "186220b806452fb73737eaf7df4c4b389a44fd9639a2966de98aa4757689a272"


# WordNet's rules for regular forms, by the part of speech of the word.
REGULAR = (
    ("n", "men", "man"), ("n", "ies", "y"), ("n", "es", ""), ("n", "s", ""),
    ("v", "ies", "y"), ("v", "es", ""), ("v", "s", ""), ("v", "ied", "y"), ("v", "ed", "e"),
    ("v", "ed", ""), ("v", "ing", "e"), ("v", "ing", ""),
    ("a", "ier", "y"), ("a", "iest", "y"), ("a", "er", "e"), ("a", "est", "e"), ("a", "er", ""),
    ("a", "est", ""),
)  # fmt: skip
DOUBLED = ("ed", "ing", "er", "est")  # "stopped", "bigger"


class Synset(NamedTuple):
    """Words of one meaning, and its relations as (relation, part of speech, synset)."""

    lemmas: list[str]
    pointers: list[tuple[str, str, str]]


def wordnet_files(folder: Path) -> list[Path]:
    """The files to read, in a fixed order; SystemExit if one is missing."""
    files = [
        folder / name
        for part in PARTS.values()
        for name in (f"data.{part}", f"index.{part}", f"{part}.exc")
    ]
    if missing := [path.name for path in files if not path.exists()]:
        raise SystemExit(
            f"{folder} lacks {', '.join(missing)} of WordNet 3.0: on Debian and Ubuntu they come "
            "with `apt-get install wordnet-base`; if they are elsewhere, give --wordnet"
        )
    digest = hashlib.sha256()
    for path in files:
        digest.update(path.read_bytes())
    if digest.hexdigest() != SHA256:
        print(f"{folder} is not the WordNet that mini was trained with: {digest.hexdigest()}")
    return files


def read_wordnet(folder: Path) -> tuple[dict[tuple[str, str], Synset], dict[tuple[str, ...], int]]:
    """Synsets by (part of speech, name), and the number of each sense (lemma, part, name)."""
    synsets: dict[tuple[str, str], Synset] = {}
    senses: dict[tuple[str, ...], int] = {}
    for part, file in PARTS.items():
        for line in (folder / f"data.{file}").read_text(encoding="utf-8").splitlines():
            if line.startswith(" "):  # the licence
                continue
            name, _, _, count, *fields = line.split("|")[0].split()
            words = int(count, 16)
            # Symbol, synset, part of speech and word numbers; frames of verbs follow.
            first = 2 * words + 1
            pointers = fields[first : first + 4 * int(fields[first - 1])]
            synsets[part, name] = Synset(
                # Without the marker of an adjective's position, such as "(a)".
                [
                    re.sub(r"\(.*\)", "", word).replace("_", " ").lower()
                    for word in fields[: 2 * words : 2]
                ],
                [
                    (RELATIONS[symbol], other.replace("s", "a"), target)
                    for symbol, target, other in zip(
                        pointers[0::4], pointers[1::4], pointers[2::4], strict=True
                    )
                    if symbol in RELATIONS
                ],
            )
        for line in (folder / f"index.{file}").read_text(encoding="utf-8").splitlines():
            if line.startswith(" "):
                continue
            fields = line.split()
            lemma, names = fields[0].replace("_", " "), fields[6 + int(fields[3]) :]
            senses.update({(lemma, part, name): sense for sense, name in enumerate(names)})
    return synsets, senses


class Lemmatizer:
    """Finds the word of a form: WordNet's, or else the stem that Snowball gives.

    A form that is itself a noun stays one unless WordNet derives it from the word ("building" is a
    form of "build", but "evening" is not one of "even"). A form that is far more common than the
    word also stays.
    """

    def __init__(
        self,
        folder: Path,
        wordnet: tuple[dict[tuple[str, str], Synset], dict[tuple[str, ...], int]],
        counts: Mapping[str, int],
    ) -> None:
        synsets, senses = wordnet
        self.counts = counts
        self.parts: dict[str, set[str]] = {}
        for lemma, part, _ in senses:
            self.parts.setdefault(lemma, set()).add(part)
        self.derived = {
            (form, word)
            for synset in synsets.values()
            for relation, part, name in synset.pointers
            if relation == "derivation"
            for form in synset.lemmas
            for word in synsets[part, name].lemmas
        }
        self.irregular: dict[str, list[tuple[str, str]]] = {}
        for part, file in PARTS.items():
            for line in (folder / f"{file}.exc").read_text(encoding="utf-8").splitlines():
                form, word, *_ = line.split()
                self.irregular.setdefault(form, []).append((part, word))
        self.stemmer = Stemmer("english")

    def knows(self, word: str) -> bool:
        """Whether WordNet has this word."""
        return word in self.parts

    def __call__(self, form: str) -> str:
        """The word; a stem starts with "~", because it is not a word."""
        if not form.isalpha() or len(form) <= 2:
            return form
        is_noun = "n" in self.parts.get(form, ())
        often = self.counts.get(form, 0)
        words = []
        for part, word in self._candidates(form):
            count = self.counts.get(word, 0)
            if is_noun and part == "n":
                fits = 2 * count >= often
            else:
                fits = 20 * count >= often and (not is_noun or (form, word) in self.derived)
            if fits:
                words.append((count, word))
        if words:
            return max(words)[1]
        return form if self.knows(form) else "~" + self.stemmer.stemWord(form)

    def _candidates(self, form: str) -> Iterator[tuple[str, str]]:
        yield from self.irregular.get(form, ())
        for part, ending, instead in REGULAR:
            word = form.removesuffix(ending) + instead
            # "gas" is not the plural of "ga", but "does" is a form of "do".
            short = len(word) < (2 if part == "v" else 3)
            if not form.endswith(ending) or form.endswith("ss") or short:
                continue
            if part in self.parts.get(word, ()):
                yield part, word
                continue
            doubled = not instead and ending in DOUBLED and word[-1] == word[-2]
            if doubled and part in self.parts.get(word[:-1], ()):
                yield part, word[:-1]


def group_forms(vocabulary: Mapping[str, int], lemmatizer: Lemmatizer) -> np.ndarray:
    """The group of each token, numbered in order of appearance: int64 (vocabulary,)."""
    groups: dict[str, int] = {}
    group = np.zeros(len(vocabulary), dtype=np.int64)
    for token, number in sorted(vocabulary.items(), key=lambda item: item[1]):
        group[number] = groups.setdefault(lemmatizer(token), len(groups))
    return group


def related_terms(
    synsets: dict[tuple[str, str], Synset], senses: dict[tuple[str, ...], int]
) -> Iterator[tuple[str, str, str]]:
    """(relation, term, term) between the first senses of words."""

    def usual(part: str, name: str) -> list[str]:
        lemmas = synsets[part, name].lemmas
        return [x for x in lemmas if senses.get((x, part, name), LAST_SENSE + 1) <= LAST_SENSE]

    for (part, name), synset in synsets.items():
        terms = usual(part, name)
        for first, second in combinations(terms, 2):
            yield "synonym", first, second
        for relation, other, target in synset.pointers:
            if terms and (others := usual(other, target)) and terms[0] != others[0]:
                yield relation, terms[0], others[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, default=HERE / "work")
    parser.add_argument("--wordnet", type=Path, default=Path("/usr/share/wordnet"))
    args = parser.parse_args()
    wordnet_files(args.wordnet)
    tokenizer = Tokenizer.from_file(str(args.work / "tokenizer.json"))
    vocabulary = tokenizer.get_vocab()
    frequency = np.load(args.work / "frequency.npy")
    wordnet = read_wordnet(args.wordnet)
    counts = {token: int(frequency[number]) for token, number in vocabulary.items()}
    lemmatizer = Lemmatizer(args.wordnet, wordnet, counts)
    group = group_forms(vocabulary, lemmatizer)

    relations = list(related_terms(*wordnet))
    terms = {
        term: n for n, term in enumerate(dict.fromkeys(t for _, *both in relations for t in both))
    }
    encodings = tokenizer.encode_batch_fast(list(terms), add_special_tokens=False)
    unknown = tokenizer.token_to_id("[UNK]")
    # A term of many pieces would teach its pieces a meaning that they do not have elsewhere.
    usable = np.array(
        [
            0 < len(e.ids) <= len(term.split()) + 1 and unknown not in e.ids
            for term, e in zip(terms, encodings, strict=True)
        ]
    )
    edges: dict[str, list[tuple[int, int]]] = {
        relation: [] for relation in ("synonym", *RELATIONS.values())
    }
    pairs: list[tuple[int, int]] = []
    for relation, first, second in relations:
        a, b = terms[first], terms[second]
        if usable[a] and usable[b]:
            pairs.append((a, b))
            one = [encodings[term].ids for term in (a, b)]
            if all(len(ids) == 1 for ids in one):
                left, right = (int(group[ids[0]]) for ids in one)
                if left != right:
                    edges[relation].append((left, right))
    lengths = [len(e.ids) for e in encodings]
    np.savez(
        args.work / "words.npz",
        group=group,
        ids=np.concatenate([np.asarray(e.ids, dtype=np.int64) for e in encodings]),
        offsets=np.concatenate(([0], np.cumsum(lengths))),
        pairs=np.asarray(pairs),
        **{relation: np.asarray(both) for relation, both in edges.items()},
    )
    print(
        f"{len(group):,} tokens are forms of {group.max() + 1:,} words; {len(pairs):,} related "
        f"terms, {', '.join(f'{len(e):,} {r}s' for r, e in edges.items())} between words"
    )


if __name__ == "__main__":
    main()
