"""Chunks of long texts: nothing is lost, and the model reads each whole."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any, get_args

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from flowvec import Chunk, Encoder, InputTypeError, InputValueError
from flowvec.texts.sentences import sentence_spans
from flowvec.tokenizer.chunking import SplitBy, split_texts
from flowvec.tokenizer.tokenizer import Tokenizer
from tests.drawing import examples
from tests.vocabularies import fill_unigram

DATA = Path(__file__).resolve().parents[2] / "data"
CORPUS = ["The cat sleeps on the red mat. It's tired!", "Füchse jagen naïve Hühner.",
          "日本語の文章です。猫が寝る。", "don't re-enter 12,345.67 $"] * 50  # fmt: skip


def byte_level() -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=["<s>", "</s>"], initial_alphabet=alphabet
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def unigram() -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    fill_unigram(tokenizer, CORPUS, ["<s>", "</s>", "<unk>"], 120, "<unk>")
    return tokenizer


@pytest.fixture(scope="module", params=["word pieces", "bytes", "unigram"])
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: Any) -> Tokenizer:
    """A tokenizer of each kind, which reads 64 tokens."""
    if request.param == "word pieces":
        return Tokenizer(DATA / "bundles/tiny/tokenizer.json", 64)
    made = byte_level() if request.param == "bytes" else unigram()
    made.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 1)]
    )
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    made.save(str(path))
    return Tokenizer(path, 64)


def split(
    texts: list[str], tokenizer: Tokenizer, max_tokens: int | None = None, overlap: int = 0,
    by: SplitBy = "sentence", prompt: str = "",
) -> list[Chunk]:  # fmt: skip
    return split_texts(texts, tokenizer, prompt, max_tokens=max_tokens, overlap=overlap, by=by)


def check_laws(texts: list[str], chunks: list[Chunk], tokenizer: Tokenizer, most: int) -> None:
    """Chunks are parts in order, cover everything, and fit."""
    assert [chunk.parent for chunk in chunks] == sorted(chunk.parent for chunk in chunks)
    for parent, text in enumerate(texts):
        end = start = -1
        covered: set[int] = set()
        for chunk in (chunk for chunk in chunks if chunk.parent == parent):
            assert text[chunk.start : chunk.end] == chunk.text == chunk.text.strip() != ""
            assert chunk.start > start
            assert chunk.end > end
            start, end = chunk.start, chunk.end
            covered.update(range(chunk.start, chunk.end))
            (length,) = tokenizer([chunk.text]).lengths
            if len(chunk.text) > 1:  # one character may have more tokens than a chunk
                assert chunk.tokens == length <= most
        assert {i for i, c in enumerate(text) if not c.isspace()} <= covered


PIECES = st.sampled_from(
    ["The cat sleeps.", "It's tired!", " ", "\n\n", "naïve", "日本語の文章です。", "猫が寝る",
     "don't", "x" * 90, "ab " * 40, "Dr. Smith", "12,345.67", "😀", "e\u0301", "\ud800", "\ufdfa",
     "?!", "\t"]
)  # fmt: skip
TEXTS = st.lists(st.lists(PIECES, max_size=12).map("".join) | st.text(max_size=40), max_size=3)


@examples(150)
@given(
    texts=TEXTS,
    most=st.integers(12, 64),
    overlap=st.integers(0, 8),
    by=st.sampled_from(get_args(SplitBy)),
)
def test_chunks_cover_texts_in_order_and_fit(
    tokenizer: Tokenizer, texts: list[str], most: int, overlap: int, by: SplitBy
) -> None:
    chunks = split(texts, tokenizer, most, overlap, by)
    check_laws(texts, chunks, tokenizer, most)
    if not overlap:
        for before, after in pairwise(chunks):
            assert before.parent < after.parent or before.end <= after.start


def test_a_short_text_is_one_chunk(tokenizer: Tokenizer) -> None:
    assert [c.text for c in split(["  The cat.  It sleeps. "], tokenizer)] == [
        "The cat.  It sleeps."
    ]
    assert split(["", "  \n\t", "\u3000"], tokenizer) == []
    assert split([], tokenizer) == []


def test_chunks_end_where_sentences_end(tokenizer: Tokenizer) -> None:
    text = "The cat sleeps on the mat. " * 30
    ends = {end for _, end in sentence_spans(text)}
    chunks = split([text], tokenizer)
    assert 1 < len(chunks) < 30
    assert {chunk.end for chunk in chunks} <= ends
    # As many sentences as fit: with one more, the chunk would be too long.
    for chunk in chunks[:-1]:
        longer = f"{chunk.text} The cat sleeps on the mat."
        assert tokenizer.count(longer) > 64 >= tokenizer.count(chunk.text)


@pytest.mark.parametrize("by", get_args(SplitBy))
def test_an_overlap_repeats_the_end_of_the_chunk_before(tokenizer: Tokenizer, by: SplitBy) -> None:
    text = "".join(f"The cat {n}. " for n in range(200))
    chunks = split([text], tokenizer, 40, 16, by)
    repeated = [text[b.start : a.end] for a, b in pairwise(chunks)]
    assert all(repeated)
    special = tokenizer.special_tokens
    for part in repeated:
        assert tokenizer.count(part) - special <= 16 + 1  # a part may begin with one more token
        if by == "sentence":
            assert part.startswith("The cat")
    assert not any(
        a.end > b.start
        for a, b in zip(*[iter(split([text], tokenizer, 40, 0, by))] * 2, strict=False)
    )


def test_long_words_are_divided_and_chunks_filled(tokenizer: Tokenizer) -> None:
    text = "猫犬本日語文章寝る" * 200
    chunks = split([text], tokenizer, 40)
    check_laws([text], chunks, tokenizer, 40)
    assert all(chunk.tokens >= 30 for chunk in chunks[:-1])
    assert "".join(chunk.text for chunk in chunks) == text


def test_the_prompt_counts(tokenizer: Tokenizer) -> None:
    text = "The cat sleeps. " * 40
    chunks = split([text], tokenizer, prompt="the red mat: ")
    for chunk in chunks:
        assert tokenizer.count("the red mat: " + chunk.text) == chunk.tokens <= 64
    assert len(chunks) >= len(split([text], tokenizer))


def test_an_encoder_reads_its_chunks_whole(tiny: Encoder) -> None:
    """The tiny bundle has prompts, and max_length 64."""
    texts = ["The cat sleeps. A dog runs in the garden! " * 20, "the", "", "cat " * 300]
    chunks = tiny.split_texts(texts)
    assert [*dict.fromkeys(chunk.parent for chunk in chunks)] == [0, 1, 3]
    prompt = tiny.info().prompts[tiny.document_prompt]
    tokenized = tiny.tokenize([prompt + chunk.text for chunk in chunks])
    assert tokenized.truncated == []
    assert tokenized.lengths == [chunk.tokens for chunk in chunks]
    assert tiny.split_texts("the cat") == tiny.split_texts(["the cat"])
    assert tiny.split_texts(iter(["the cat"])) == tiny.split_texts(["the cat"])


def test_a_text_is_not_cut_by_its_characters(tokenizer: Tokenizer) -> None:
    limited = Tokenizer(DATA / "bundles/tiny/tokenizer.json", 64, 30)
    chunks = split(["The cat sleeps. " * 9 + "y" * 99], limited)
    assert max(len(chunk.text) for chunk in chunks) <= 30
    assert sum(len(chunk.text.replace(" ", "")) for chunk in chunks) == 9 * 13 + 99


@pytest.mark.parametrize(
    ("given_options", "error", "part"),
    [
        ({"max_tokens": 2}, InputValueError, "max_tokens must be from 3 to 64"),
        ({"max_tokens": 65}, InputValueError, "max_tokens must be from 3 to 64"),
        ({"max_tokens": 9.5}, InputTypeError, "max_tokens"),
        ({"max_tokens": 10, "overlap": 8}, InputValueError, "overlap must be from 0 to 7"),
        ({"overlap": -1}, InputValueError, "overlap"),
        ({"by": "page"}, InputValueError, "by must be one of sentence, word"),
    ],
)  # fmt: skip
def test_invalid_options_are_refused(
    tokenizer: Tokenizer, given_options: dict[str, Any], error: Any, part: str
) -> None:
    with pytest.raises(error, match=part):
        split(["a"], tokenizer, **given_options)


def test_what_is_not_a_text_is_refused(tiny: Encoder) -> None:
    with pytest.raises(InputTypeError, match="item 1 is int"):
        tiny.split_texts(["a", 3])  # type: ignore[list-item]
