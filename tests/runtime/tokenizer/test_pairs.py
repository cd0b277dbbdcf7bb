"""Pairs of texts: the ids, types and cuts of `tokenizers`, which transformers uses."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from flowvec import BundleError, InputTypeError, InputValueError
from flowvec.tokenizer.pairs import PairTokenizer, check_pairs, kept_tokens
from tests.conftest import DATA
from tests.drawing import examples

TOKENIZER = DATA / "bundles" / "reranker" / "tokenizer.json"
MAX_LENGTH = 24

words = st.sampled_from(
    ["cat", "dog", "sleeps", "the", "a", "x9", "bread,", "[SEP]", "é", "漢字", ""]
)
texts = st.one_of(
    st.lists(words, max_size=30).map(" ".join),
    st.text(max_size=40).filter(lambda text: text.isprintable()),
)


@pytest.fixture(scope="module")
def library() -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer.from_file(str(TOKENIZER))


@pytest.fixture(scope="module")
def tokenizer() -> PairTokenizer:
    return PairTokenizer(TOKENIZER, MAX_LENGTH, with_types=True)


@examples(300)
@given(pairs=st.lists(st.tuples(texts, texts), min_size=1, max_size=6))
def test_ids_and_types_are_those_of_the_library(
    pairs: list[tuple[str, str]], tokenizer: PairTokenizer, library: tokenizers.Tokenizer
) -> None:
    library.enable_truncation(MAX_LENGTH, strategy="longest_first")
    expected = library.encode_batch(pairs)
    result = tokenizer(pairs)
    assert result.ids == [encoding.ids for encoding in expected]
    assert result.token_ids.second is not None
    for begin, encoding in zip(result.token_ids.second, expected, strict=True):
        assert encoding.type_ids == [int(i >= begin) for i in range(len(encoding.ids))]
    library.no_truncation()
    whole = [len(encoding.ids) > MAX_LENGTH for encoding in library.encode_batch(pairs)]
    assert result.truncated == [i for i, is_longer in enumerate(whole) if is_longer]


@given(first=st.integers(0, 40), second=st.integers(0, 40), room=st.integers(2, 41))
def test_kept_tokens_are_those_of_the_library(
    first: int, second: int, room: int, library: tokenizers.Tokenizer
) -> None:
    pair = (" ".join(["cat"] * first), " ".join(["dog"] * second))
    special = library.num_special_tokens_to_add(True)
    library.enable_truncation(room + special, strategy="longest_first")
    ids = library.encode(*pair).ids
    a, b = kept_tokens(np.array([first]), np.array([second]), room, "longest_first")
    cat, dog = library.token_to_id("cat"), library.token_to_id("dog")
    assert (ids.count(cat), ids.count(dog)) == (a[0], b[0])


@given(first=st.integers(0, 20), second=st.integers(0, 40))
def test_only_second_never_cuts_the_first(first: int, second: int) -> None:
    a, b = kept_tokens(np.array([first]), np.array([second]), 21, "only_second")
    assert a[0] == first
    assert b[0] == min(second, 21 - first)


def test_only_second_refuses_a_first_text_that_leaves_no_room(tokenizer: PairTokenizer) -> None:
    room = MAX_LENGTH - 3
    assert tokenizer([("cat " * (room - 1), "dog")], "only_second").truncated == []
    pairs = [("cat", "dog"), ("cat " * room, "dog")]
    with pytest.raises(InputValueError, match="first text of pair 1 "):
        tokenizer(pairs, "only_second")


def test_a_long_document_costs_its_beginning(tokenizer: PairTokenizer) -> None:
    short = tokenizer([("cat", "dog " * 40)]).ids
    assert tokenizer([("cat", "dog " * 1_000_000)]).ids == short
    assert tokenizer([("cat", "x" * 2_000_000)]).truncated == []  # one unknown word


def test_equal_texts_are_tokenized_once(
    tokenizer: PairTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    bodies = tokenizer._bodies

    class Counting:
        def __call__(self, texts, room, max_length):
            seen.extend(texts)
            return bodies(texts, room, max_length)

        named = bodies.named

    monkeypatch.setattr(tokenizer, "_bodies", Counting())
    documents = [f"dog {i}" for i in range(50)]
    tokenizer([("the same query", document) for document in documents])
    assert sorted(seen) == sorted(["the same query", *documents])


def test_lone_surrogates_are_replaced_and_reported(tokenizer: PairTokenizer) -> None:
    result = tokenizer([("cat", "dog"), ("cat \ud800", "dog"), ("cat", "\udfff")])
    assert result.replaced == [1, 2]
    assert result.ids[1] == tokenizer([("cat \ufffd", "dog")]).ids[0]


def test_no_pairs(tokenizer: PairTokenizer) -> None:
    assert tokenizer([]).ids == []


def _with_template(tmp_path: Path, pair: list[object] | None) -> Path:
    content = json.loads(TOKENIZER.read_text())
    content["post_processor"]["pair"] = pair
    file = tmp_path / "tokenizer.json"
    file.write_text(json.dumps(content))
    return file


def test_the_separators_are_the_templates(tmp_path: Path) -> None:
    """RoBERTa puts two separators between the texts, and gives all tokens the type 0."""
    sep = {"SpecialToken": {"id": "[SEP]", "type_id": 0}}
    first, second = ({"Sequence": {"id": name, "type_id": 0}} for name in "AB")
    file = _with_template(tmp_path, [first, sep, sep, second, sep])
    result = PairTokenizer(file, MAX_LENGTH, with_types=True)([("cat", "dog sleeps")])
    reference = tokenizers.Tokenizer.from_file(str(file)).encode("cat", "dog sleeps")
    assert result.ids == [reference.ids]
    assert result.token_ids.second is not None
    assert result.token_ids.second.tolist() == [len(reference.ids)]


def test_a_template_without_the_first_text_is_refused(tmp_path: Path) -> None:
    file = _with_template(tmp_path, [{"Sequence": {"id": "B", "type_id": 0}}])
    with pytest.raises(BundleError, match="two texts into one row"):
        PairTokenizer(file, MAX_LENGTH, with_types=True)


def test_there_must_be_room_for_two_tokens() -> None:
    assert PairTokenizer(TOKENIZER, 5, with_types=False)([("cat", "dog")]).truncated == []
    with pytest.raises(BundleError, match="leaves no room"):
        PairTokenizer(TOKENIZER, 4, with_types=False)


@pytest.mark.parametrize(
    ("item", "message"),
    [
        ("ab", "item 3 must be a pair of texts, .* but is str"),
        (("a",), "tuple of 1 items"),
        (["a", "b", "c"], "list of 3 items"),
        (None, "NoneType"),
        (("a", None), "second text of item 3 is NoneType"),
        ((1, "b"), "first text of item 3 is int"),
        (("a", float("nan")), "a hole in a pandas column"),
        ({"a": "b"}, "is dict"),
        ({"a", "b"}, "is set"),
    ],
)
def test_what_is_not_a_pair_is_named(item: object, message: str) -> None:
    with pytest.raises(InputTypeError, match=message):
        check_pairs([("a", "b")] * 3 + [item])
