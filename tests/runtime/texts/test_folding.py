"""Folding: spellings of one word become the same, and other words do not."""

# ruff: noqa: RUF001 - letters of other scripts
from __future__ import annotations

import unicodedata
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowvec.texts.folding import folded, words_of
from tests.drawing import examples

FORMS: tuple[Any, ...] = ("NFC", "NFD", "NFKC", "NFKD")
# The iota below a Greek letter is a letter of its own in upper case only.
IOTA = "\u0345"


@examples(500)
@given(st.text(max_size=12), st.sampled_from(FORMS))
def test_forms_and_cases_of_any_text_are_one(text: str, form: Any) -> None:
    words = words_of(text)
    assert words_of(unicodedata.normalize(form, text)) == words
    assert words_of(folded(text)) == words
    assert folded(folded(text)) == folded(text)
    if IOTA not in unicodedata.normalize("NFD", text):
        assert words_of(text.upper()) == words_of(text.casefold()) == words


@examples(300)
@given(st.text(st.characters(categories=["L", "N"]), min_size=1, max_size=8))
def test_letters_and_digits_are_never_lost(text: str) -> None:
    fillers = "\u115f\u1160\u3164\uffa0\u0640"
    assert words_of(text) or set(text) <= set(fillers)


@pytest.mark.parametrize(
    "spellings",
    [
        "résumé re\u0301sume\u0301 RESUME",
        "Αθήνα ΑΘΗΝΑ αθηνα",
        "όσος ΌΣΟΣ οσοσ",
        "ёлка ЕЛКА елка",
        "за\u0301мок замок",
        "שָׁלוֹם שלום",
        "مُحَمَّد محمد محـــمد",
        "أحمد احمد",
        "co\u00adoperate co\u200boperate co\u2060operate cooperate",
        "می\u200cخواهم میخواهم",
        "क\u094d\u200dष क\u094dष",
        "oﬃce office ＯＦＦＩＣＥ",
        "ﾃﾞｰﾀ データ",
        "한국어 \u1112\u1161\u11ab\u1100\u116e\u11a8\u110b\u1165",
        "Việt viet VIÊT",
        "Łódź lodz",
        "Đà da",
        "Ærø aero",
        "İstanbul ISTANBUL ıstanbul istanbul",
        "STRASSE straße",
        "x² x2",
    ],
)
def test_these_are_one_word(spellings: str) -> None:
    assert len({tuple(words_of(word)) for word in spellings.split()}) == 1


@pytest.mark.parametrize(
    "pair",
    ["й и", "ї і", "ў у", "ѓ г", "किताब कुतुब", "का की", "ข้าว ขาว", "か が", "ハ バ", "கா கி", "é o"],
)
def test_these_are_two_words(pair: str) -> None:
    one, other = pair.split()
    assert words_of(one) != words_of(other)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("“Quoted” don’t—stop…", ["quoted", "don", "t", "stop"]),
        ("snake_case, a.b", ["snake_case", "a", "b"]),
        ("ไทย\u200bแลนด์", ["ไทย", "แลนด์"]),  # where no spaces are written, this is one
        ("👍🏽 ok ♥️", ["ok"]),
        ("𐐨𐐩 𠀀🎉𠀁", ["𐐨𐐩", "𠀀", "𠀁"]),
        ("\ud800a", ["a"]),
        ("हिन्दी भाषा।", ["हिन्दी", "भाषा"]),
    ],
)
def test_words_are_runs_of_letters_digits_and_their_marks(text: str, words: list[str]) -> None:
    assert words_of(text) == words
