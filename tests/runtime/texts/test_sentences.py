"""The splitter."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowvec.texts.sentences import sentence_spans, split_sentences


@pytest.mark.parametrize(
    ("paragraph", "sentences"),
    [
        ("One. Two! Three? Four", ["One.", "Two!", "Three?", "Four"]),
        (
            "Dr. Smith met J. K. Rowling. They spoke.",
            ["Dr. Smith met J. K. Rowling.", "They spoke."],
        ),
        ('He said "Go." Then he left.', ['He said "Go."', "Then he left."]),
        ("It costs 3.50 dollars. No. 5 is sold.", ["It costs 3.50 dollars.", "No. 5 is sold."]),
        ("In the U.S. Army. 1999 came.", ["In the U.S. Army.", "1999 came."]),
        ("e.g. this one is lower case. and so on", ["e.g. this one is lower case. and so on"]),
        ("", []),
        ("   ", []),
    ],
)
def test_sentences_end_where_a_reader_would_end_them(paragraph: str, sentences: list[str]) -> None:
    assert split_sentences(paragraph) == sentences


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("One. Two! Three? Four", ["One.", "Two!", "Three?", "Four"]),
        ("Dr. Smith met J. K. Rowling. They spoke.",
         ["Dr. Smith met J. K. Rowling.", "They spoke."]),
        ('He said "Go." Then he left.', ['He said "Go."', "Then he left."]),
        ("Ärzte warten. Öfen „Ja.“ Über", ["Ärzte warten.", "Öfen „Ja.“", "Über"]),
        ("猫が寝る。犬が\uff01「はい。」終", ["猫が寝る。", "犬が\uff01", "「はい。」", "終"]),
        ("वह सोता है। वह जाता है।", ["वह सोता है।", "वह जाता है।"]),
        ("هل هذا قط؟ نعم", ["هل هذا قط؟", "نعم"]),
        ("A heading\n\nA text\nof two lines.\n \n  The end", ["A heading", "A text\nof two lines.",
                                                             "The end"]),
        ("e.g. this one. and so on", ["e.g. this one. and so on"]),
        ("  \n\n ", []),
    ],
)  # fmt: skip
def test_sentences_of_any_script_have_spans(text: str, sentences: list[str]) -> None:
    assert [text[start:end] for start, end in sentence_spans(text)] == sentences


@given(text=st.text(st.sampled_from("aA.!?。 \n\"')é1।"), max_size=40))
def test_spans_of_sentences_hold_every_character_once(text: str) -> None:
    spans = sentence_spans(text)
    assert all(a[1] <= b[0] for a, b in pairwise(spans))
    assert all(text[start:end] == text[start:end].strip() != "" for start, end in spans)
    held = "".join(text[start:end] for start, end in spans)
    assert "".join(held.split()) == "".join(text.split())
