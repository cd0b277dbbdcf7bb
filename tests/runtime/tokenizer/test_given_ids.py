"""Token ids in place of a text: what the model gets is what it would get for the text."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tokenizers

from flowvec.tokenizer.given_ids import GivenIds
from flowvec.tokenizer.tokenizer import Tokenizer
from tests.runtime.tokenizer.kinds import KINDS, file_of

TEXTS = [
    "the cat",
    "hello world, it's 12 345",
    "a <mask> b <unk> c </s> d",
    "日本 🙂 é",
    "the cat sleeps on the red mat " * 10,
    "the",
]


def given(ids: list[int]) -> GivenIds:
    return GivenIds(np.array(ids, np.int32))


@pytest.mark.parametrize("kind", KINDS)
def test_ids_give_what_their_text_gives(kind: str, tmp_path: Path) -> None:
    file = file_of(kind, tmp_path)
    library, tokenizer = tokenizers.Tokenizer.from_file(str(file)), Tokenizer(file, 24)
    expected = tokenizer(TEXTS)
    for special in (True, False):
        ids = [library.encode(text, add_special_tokens=special).ids for text in TEXTS]
        done = tokenizer([given(row) for row in ids])
        assert (done.ids, done.truncated) == (expected.ids, expected.truncated)
        mixed = [given(ids[0]), TEXTS[1], given(ids[2]), *TEXTS[3:]]
        assert tokenizer(mixed).ids == expected.ids


@pytest.mark.parametrize("kind", ["WordPiece", "WordLevel", "Unigram"])
def test_a_prompt_comes_after_the_first_special_tokens(kind: str, tmp_path: Path) -> None:
    file = file_of(kind, tmp_path)
    library, tokenizer = tokenizers.Tokenizer.from_file(str(file)), Tokenizer(file, 24)
    prompt = "red mat: "
    expected = tokenizer([prompt + text for text in TEXTS]).ids
    for special in (True, False):
        ids = [library.encode(text, add_special_tokens=special).ids for text in TEXTS]
        assert tokenizer([prompt + given(row) for row in ids]).ids == expected


def test_special_tokens_that_are_cut_away_are_put_back(tmp_path: Path) -> None:
    file = file_of("WordPiece", tmp_path)
    library, tokenizer = tokenizers.Tokenizer.from_file(str(file)), Tokenizer(file, 8)
    ids = library.encode(TEXTS[4]).ids
    assert tokenizer([given(ids[:8])]).ids == tokenizer([TEXTS[4]]).ids
    assert tokenizer([given(ids[:2])]).ids == tokenizer(["the"]).ids
    assert tokenizer([given([])]).ids == tokenizer([""]).ids
