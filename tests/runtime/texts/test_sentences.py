"""The splitter."""

from __future__ import annotations

import pytest

from flowvec.texts.sentences import split_sentences


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
