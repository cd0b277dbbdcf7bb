"""Ids by the table of words are those of `tokenizers`, for any text."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from flowvec.bundle.bundle import Bundle
from flowvec.tokenizer.tokenizer import Tokenizer
from flowvec.tokenizer.word_table import WordTable, ids_to_bytes

MINI = Bundle.load("mini").tokenizer

Config = dict[str, Any]


def cased(config: Config) -> None:
    config["normalizer"] |= {"lowercase": False}
    config["model"]["vocab"] |= {"The": 60_000, "##E": 60_001, "É": 60_002}


def with_accents(config: Config) -> None:
    config["normalizer"] |= {"strip_accents": False}
    config["model"]["vocab"] |= {"é": 60_000, "café": 60_001}


def not_cleaned(config: Config) -> None:
    config["normalizer"] |= {"clean_text": False, "handle_chinese_chars": False}


def word_level(config: Config) -> None:
    config["model"] = {
        "type": "WordLevel", "vocab": config["model"]["vocab"], "unk_token": "[UNK]"
    }  # fmt: skip


def with_added_tokens(config: Config) -> None:
    for i, content in enumerate(("<x>", "[FOO]", "a-b", "don't")):
        config["added_tokens"].append(
            {"id": 60_000 + i, "content": content, "single_word": i == 2, "lstrip": i == 1,
             "rstrip": False, "normalized": i != 0, "special": i == 0}
        )  # fmt: skip


KINDS: dict[str, Callable[[Config], None]] = {
    "mini": lambda config: None,
    "cased": cased,
    "with_accents": with_accents,
    "not_cleaned": not_cleaned,
    "word_level": word_level,
    "with_added_tokens": with_added_tokens,
}


@cache
def changed(change: Callable[[Config], None]) -> tokenizers.Tokenizer:
    config = json.loads(MINI.read_text(encoding="utf-8"))
    change(config)
    return tokenizers.Tokenizer.from_str(json.dumps(config))


@pytest.fixture(scope="module", params=list(KINDS))
def tokenizer(request: pytest.FixtureRequest) -> tokenizers.Tokenizer:
    return changed(KINDS[request.param])


@pytest.fixture(scope="module")
def table(tokenizer: tokenizers.Tokenizer) -> WordTable:
    made = WordTable.for_tokenizer(tokenizer)
    assert made is not None
    return made


def check(table: WordTable, tokenizer: tokenizers.Tokenizer, texts: Sequence[str]) -> int:
    """Compare ids; returns how many texts the table decided."""
    decided = 0
    whole = tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
    for text, encoding in zip(texts, whole, strict=True):
        ids = table(text)
        if ids is not None:
            decided += 1
            assert ids == ids_to_bytes(encoding.ids), ascii(text)
    return decided


CHARACTERS = st.characters(exclude_categories=("Cs",))
# Words of the vocabulary, marks, white space and odd characters beside each other.
PARTS = st.sampled_from(
    ["the", "The", "unbelievable", "xqzv", "don't", "a-b", "[MASK]", "[mask]", "[FOO]", "<x>", "#",
     "##ing", "1914", "3.5", " ", "  ", "\t", "\n", "\r\n", "\x00", "\x0b", "\x1c", "\x7f", "\x85",
     "\u00a0", "\u200b", "\u200d", "\u2028", "\u3000", "\ufeff", "\ufffd", "é", "e\u0301", "É",
     "\u0301", "ß", "İ", "ς", "Σ", "ﬁ", "—", "“quoted”", "…", "東京", "한국어", "😀", "👩\u200d🚀",
     "<\u0338", "≮x>", "ก็", "a\u302e\u3099", "\uff21", "²", "x" * 70, "é" * 70, "_", "€"]
)  # fmt: skip


@given(st.lists(st.one_of(PARTS, CHARACTERS), max_size=12).map("".join))
def test_ids_are_those_of_tokenizers_for_any_text(
    table: WordTable, tokenizer: tokenizers.Tokenizer, text: str
) -> None:
    check(table, tokenizer, [text])


def test_ids_are_those_of_tokenizers_for_every_character(
    table: WordTable, tokenizer: tokenizers.Tokenizer
) -> None:
    # Some: all of them, in more contexts, are compared by bench/tokenizer_parity.py.
    characters = [chr(c) for c in range(0, 0x30000, 31) if not 0xD800 <= c < 0xE000]
    texts = [f"a{c}B {c}c, {c}" for c in characters]
    assert check(table, tokenizer, texts) > 0.99 * len(texts)


def test_natural_texts_are_decided_by_their_words(
    table: WordTable, tokenizer: tokenizers.Tokenizer, shared_data: Path
) -> None:
    lines = (shared_data / "sts/STSB/train.tsv").read_text(encoding="utf-8").splitlines()[1::4]
    texts = [text for line in lines for text in line.split("\t")[1:3]]
    assert check(table, tokenizer, texts) > 0.99 * len(texts)


@pytest.mark.parametrize(
    "text",
    ["a [MASK] b", "a [mask] b", "\x00a", "a\x0bb", "a\x1cb", "a\x7f", "é[MASK]", "a\u302e\u0315"],
)
def test_texts_that_words_do_not_decide_are_left_to_tokenizers(text: str) -> None:
    tokenizer = changed(KINDS["mini"])
    table = WordTable.for_tokenizer(tokenizer)
    assert table is not None
    assert table(text) is None
    ids = Tokenizer(MINI, 64)([text, "a b"]).ids
    assert ids == [tokenizer.encode(t).ids for t in (text, "a b")]


def test_other_marks_around_a_word_do_not_ask_tokenizers() -> None:
    tokenizer = changed(KINDS["mini"])
    table = WordTable.for_tokenizer(tokenizer)
    assert table is not None
    assert check(table, tokenizer, ["see [1] and [a]", "mask", "é [1"]) == 2


@pytest.mark.parametrize(
    "change",
    [
        {"normalizer": None},
        {"normalizer": {"type": "Lowercase"}},
        {"pre_tokenizer": {"type": "Whitespace"}},
        {"pre_tokenizer": None},
    ],
)
def test_other_tokenizers_have_no_table(change: Config) -> None:
    assert WordTable.for_tokenizer(changed(lambda config: config.update(change))) is None


@pytest.mark.parametrize("content", ["covid", "new york", "é!", "a b!"])
def test_an_added_token_that_could_be_missed_means_no_table(content: str) -> None:
    def change(config: Config) -> None:
        config["added_tokens"].append(
            {"id": 60_000, "content": content, "single_word": False, "lstrip": False,
             "rstrip": False, "normalized": True, "special": False}
        )  # fmt: skip

    assert WordTable.for_tokenizer(changed(change)) is None


def test_the_table_is_bounded_and_forgets_nothing_wrongly() -> None:
    tokenizer = changed(KINDS["mini"])
    table = WordTable.for_tokenizer(tokenizer, most_words=50)
    assert table is not None
    numbers = random.Random(0)
    texts = [f"the {numbers.randrange(10_000)} w{numbers.randrange(999)}" for _ in range(2_000)]
    assert check(table, tokenizer, texts) == len(texts)
    words = table._words
    assert len(words) <= 50
    assert len(words._old) <= 50
    check(table, tokenizer, ["x" * 10_000, "y" * 65])
    assert max(map(len, words)) <= 64


def test_threads_share_a_table() -> None:
    tokenizer = changed(KINDS["mini"])
    table = WordTable.for_tokenizer(tokenizer, most_words=20)
    assert table is not None
    texts = [f"word{i % 97} and é{i % 89}" for i in range(2_000)]
    decided: list[int] = []
    threads = [
        threading.Thread(target=lambda: decided.append(check(table, tokenizer, texts)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert decided == [len(texts)] * 4
