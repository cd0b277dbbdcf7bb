"""Token ids: those of the tokenizers library, cut at max_length."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from flowvec.bundle.bundle import Bundle
from flowvec.errors import BundleError, InputTypeError, InputValueError
from flowvec.texts.unicode import replace_surrogates
from flowvec.tokenizer.tokenizer import Tokenizer, check_texts
from tests.drawing import examples
from tests.inside import library_texts

MINI = Bundle.load("mini").tokenizer
MAX_LENGTH = 32


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer(MINI, MAX_LENGTH)


@pytest.fixture(scope="module")
def reference() -> tokenizers.Tokenizer:
    library = tokenizers.Tokenizer.from_file(str(MINI))
    library.enable_truncation(MAX_LENGTH)
    return library


STRANGE = [
    "",
    " ",
    "\n\t ",
    "\x00",
    "a\x00b",
    "\ufeffBOM",
    "👩\u200d👩\u200d👧 family",
    "שלום עולם",
    "مرحبا",
    "漢字かな交じり文",
    "e\u0301 \u00e9",
    "ﬁ ﬂ Ⅳ ½",
    "[SEP]",
    "[CLS] text [PAD] [MASK]",
    "\u202eright to left override",
    "q" * 5000,
    "word " * 500,
    "\x7f\x80\x9f",
    "\U0010ffff",
]


@pytest.mark.parametrize("text", STRANGE, ids=lambda t: ascii(t)[:24])
def test_ids_are_the_librarys(
    tokenizer: Tokenizer, reference: tokenizers.Tokenizer, text: str
) -> None:
    assert tokenizer([text]).ids == [reference.encode(text).ids]


@examples(200)
@given(text=st.text(max_size=300))
def test_ids_are_the_librarys_for_any_text(
    tokenizer: Tokenizer, reference: tokenizers.Tokenizer, text: str
) -> None:
    assert tokenizer([text]).ids == [reference.encode(replace_surrogates(text)).ids]


@examples(50)
@given(
    words=st.lists(
        st.sampled_from(["the", "anthropological", "x" * 150, "漢字", "...", "\n", "é", "2,000"]),
        min_size=200,
        max_size=900,
    ),
    glue=st.sampled_from([" ", "", "  \n"]),
)
def test_a_long_text_is_cut_from_its_beginning_as_the_library_cuts_it(
    tokenizer: Tokenizer, reference: tokenizers.Tokenizer, words: list[str], glue: str
) -> None:
    text = glue.join(words)
    assert tokenizer([text]).ids == [reference.encode(text).ids]


def test_ten_megabytes_cost_their_beginning(tokenizer: Tokenizer) -> None:
    text = "some words " * 1_000_000
    with library_texts(tokenizer) as given:
        tokenized = tokenizer([text])
    assert sum(map(len, given)) < 10_000
    assert len(tokenized.ids[0]) == MAX_LENGTH
    assert tokenized.truncated == [0]


def test_a_text_is_cut_by_characters_before_it_is_tokenized(tokenizer: Tokenizer) -> None:
    texts = ["", "a river", "a river flows", "a river flows on and on", "x" * 50]
    cut = Tokenizer(MINI, MAX_LENGTH, 13)(texts)
    assert cut.ids == tokenizer([text[:13] for text in texts]).ids
    assert cut.truncated == [3, 4]


def test_truncated_texts_are_counted(tokenizer: Tokenizer) -> None:
    exact = " ".join(["the"] * (MAX_LENGTH - 2))
    tokenized = tokenizer(["short", exact, exact + " the", "the " * 10_000])
    assert tokenized.truncated == [2, 3]
    assert tokenized.lengths == [3, MAX_LENGTH, MAX_LENGTH, MAX_LENGTH]


@pytest.mark.parametrize(
    ("text", "repaired"),
    [
        ("a\ud800b", "a\ufffdb"),
        ("\udc00", "\ufffd"),
        ("\ud83d\ude00", "😀"),
        ("plain é", "plain é"),
    ],
)
def test_lone_surrogates_are_replaced_and_reported(
    tokenizer: Tokenizer, text: str, repaired: str
) -> None:
    tokenized = tokenizer(["fine", text])
    assert replace_surrogates(text) == repaired
    assert tokenized.ids[1] == tokenizer([repaired]).ids[0]
    assert tokenized.replaced == ([] if text == repaired else [1])


@pytest.mark.parametrize("item", [None, float("nan"), 3, b"bytes", {"a": 1}, ["nested"], object()])
def test_items_that_are_not_texts_are_named(item: object) -> None:
    with pytest.raises(InputTypeError, match=rf"item 12 is {type(item).__name__}"):
        check_texts(["fine", "fine", item], first=10)


def test_empty_texts_are_refused_only_if_requested() -> None:
    check_texts(["", "  "])
    with pytest.raises(InputValueError, match="item 1"):
        check_texts(["a", " \n"], refuse_empty=True)


def test_one_tokenizer_serves_many_threads(tokenizer: Tokenizer) -> None:
    from concurrent.futures import ThreadPoolExecutor

    texts = [f"the text number {i} " * (i % 9 + 1) for i in range(400)]
    expected = tokenizer(texts).ids
    with ThreadPoolExecutor(8) as pool:
        for result in pool.map(lambda _: tokenizer(texts).ids, range(40)):
            assert result == expected


def test_the_path_of_a_broken_tokenizer_is_named(tmp_path: Path) -> None:
    from flowvec import BundleError

    broken = tmp_path / "tokenizer.json"
    broken.write_text("{}")
    with pytest.raises(BundleError, match=r"tokenizer\.json"):
        Tokenizer(broken, 16)


def test_a_panic_of_the_library_is_an_error_that_names_the_file(tiny_copy: Path) -> None:
    """A decoder's cleanup, or a template that names a token which is not there, panics."""
    file = tiny_copy / "tokenizer.json"
    content = json.loads(file.read_text())
    content["pre_tokenizer"] = {"type": "Split", "pattern": {"Regex": "("}, "behavior": "Isolated",
                                "invert": False}  # fmt: skip
    file.write_text(json.dumps(content))
    with pytest.raises(BundleError, match=r"tokenizer\.json"):
        Tokenizer(file, 16)
    content["pre_tokenizer"] = {"type": "Whitespace"}
    content["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "[NOWHERE]", "type_id": 0}},
                   {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [], "special_tokens": {},
    }  # fmt: skip
    file.write_text(json.dumps(content))
    with pytest.raises(BundleError, match=r"tokenizer\.json"):
        Tokenizer(file, 16)
