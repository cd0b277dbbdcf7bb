"""A long text's ids are those of the whole text, cut: whatever it begins with, and at what cost."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from flowvec.tokenizer.pairs import PairTokenizer
from flowvec.tokenizer.tokenizer import Tokenizer
from tests.drawing import examples
from tests.inside import library_texts
from tests.runtime.tokenizer.kinds import KINDS, file_of

_CAT = " the cat sleeps"
# Blanks, what normalizers delete or join, words of no known characters, parts of added tokens.
_ATOMS = [
    "a", "ab", "red ", "the", "12", "'s", "...", "[", "é", "e\u0301", "\u0301", "\u0316", " ", "\t",
    "\n", "\r\n", "\u00a0", "\u200b", "\u00ad", "\u2028", "\ufeff", "\x00", "\x7f", "漢", "かな",
    "𠮷", "🙂", "ก", "ा", "한", "\u1100\u1161", "ﬁ", "▁", "<mask>", "<ma", "<s>", "x" * 99,
    "x" * 101,
]  # fmt: skip
_SEGMENT = st.tuples(
    st.lists(st.sampled_from(_ATOMS), min_size=1, max_size=3),
    st.sampled_from([1, 7, 150, 900, 3000]),
    st.randoms(use_true_random=False) | st.none(),
).map(
    lambda drawn: "".join(
        drawn[0] * (drawn[1] // len(drawn[0]) or 1)
        if drawn[2] is None
        else drawn[2].choices(drawn[0], k=drawn[1])
    )
)


@cache
def _tokenizers(kind: str, length: int) -> tuple[Tokenizer, tokenizers.Tokenizer]:
    with TemporaryDirectory() as folder:
        file = file_of(kind, Path(folder))
        return Tokenizer(file, length), tokenizers.Tokenizer.from_file(str(file))


def _expected(library: tokenizers.Tokenizer, text: str, length: int) -> tuple[list[int], list[int]]:
    body = library.encode(text, add_special_tokens=False).ids
    first, last = library.encode("").ids
    return [first, *body[: length - 2], last], [0] if len(body) > length - 2 else []


@pytest.mark.parametrize("kind", KINDS)
@examples(25)
@given(segments=st.lists(_SEGMENT, min_size=1, max_size=4), length=st.sampled_from([4, 33]))
def test_ids_are_those_of_the_whole_text(kind: str, segments: list[str], length: int) -> None:
    tokenizer, library = _tokenizers(kind, length)
    text = "".join([*segments, _CAT])
    done = tokenizer([text])
    assert (done.ids[0], done.truncated) == _expected(library, text, length)


@pytest.mark.parametrize("kind", KINDS)
def test_long_runs_lose_nothing_after_them(kind: str) -> None:
    tokenizer, library = _tokenizers(kind, 16)
    texts = [atom * (60_000 // len(atom)) + _CAT for atom in (" ", "a", "\u200b", "ก", " \t")]
    texts += ["".join(atom * 15_000 for atom in "a\n\u200ba") + _CAT]
    done = tokenizer(texts)
    expected = [_expected(library, text, 16) for text in texts]
    assert done.ids == [ids for ids, _ in expected]
    assert done.truncated == [i for i, (_, cut) in enumerate(expected) if cut]


@pytest.mark.parametrize("kind", KINDS)
def test_a_text_of_any_length_costs_little(kind: str) -> None:
    tokenizer, _ = _tokenizers(kind, 16)
    with library_texts(tokenizer) as given:
        for atom in (
            "some words ",
            " ",
            "a",
            "abcdefghijk",
            "\u200b",
            " \t",
            "ก",
            "漢",
            "...",
            "é",
        ):
            tokenizer([atom * (10_000_000 // len(atom)) + _CAT])
            assert sum(map(len, given)) < 500_000, atom
            given.clear()


def test_of_two_long_texts_the_longer_keeps_the_odd_token(tmp_path: Path) -> None:
    file = file_of("WordPiece", tmp_path)
    tokenizer = PairTokenizer(file, 16, with_types=False)
    library = tokenizers.Tokenizer.from_file(str(file))
    library.enable_truncation(16)
    short, long = "the " * 150, "the cat " * 100
    pairs = [(short, long), (long, short), (short, short), ("the", long), (long, "the cat")]
    assert tokenizer(pairs).ids == [library.encode(*pair).ids for pair in pairs]


def test_a_text_cut_by_characters_counts_only_if_tokens_are_lost(tmp_path: Path) -> None:
    tokenizer = Tokenizer(file_of("WordPiece", tmp_path), 16, max_characters=20)
    texts = ["the cat" + " " * 100, "the cat" + " " * 100 + "sleeps", "the cat sleeps on the mat"]
    assert tokenizer(texts).truncated == [1, 2]
