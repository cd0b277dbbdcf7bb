"""Small tokenizers of the kinds that models have, trained on the spot."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import tokenizers
from tokenizers import Regex, models, normalizers, pre_tokenizers, processors, trainers

from tests.vocabularies import fill_unigram, fill_word_piece

__all__ = ["KINDS", "file_of"]

_CORPUS = [
    "the cat sleeps on the red mat while the dog runs in the garden",
    "hello world, it's 12 345 o'clock; aaaa aaa aa a",
    "  indented\n\n\ttext with    blanks\r\n",
] * 20
_SPECIAL = ["<pad>", "<unk>", "<s>", "</s>", "<mask>"]
_GPT4 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

Made = tokenizers.Tokenizer


def _word_piece() -> Made:
    made = Made(models.WordPiece(unk_token="<unk>"))
    made.normalizer = normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    fill_word_piece(made, _CORPUS, _SPECIAL, 150, "<unk>")
    return made


def _word_level() -> Made:
    made = Made(models.WordLevel(unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.train_from_iterator(
        _CORPUS, trainers.WordLevelTrainer(special_tokens=_SPECIAL, show_progress=False)
    )
    return made


def _byte_bpe(pre_tokenizer: pre_tokenizers.PreTokenizer) -> Made:
    made = Made(models.BPE())
    made.pre_tokenizer = pre_tokenizer
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=_SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(_CORPUS, trainer)
    return made


def _gpt2() -> Made:
    return _byte_bpe(pre_tokenizers.ByteLevel(add_prefix_space=False))


def _gpt4() -> Made:
    cut = pre_tokenizers.Split(Regex(_GPT4), behavior="isolated")
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made = _byte_bpe(pre_tokenizers.Sequence([cut, level]))
    made.normalizer = normalizers.NFC()
    return made


def _unigram() -> Made:
    made = Made(models.Unigram())
    made.normalizer = normalizers.Sequence(
        [normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")]
    )
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    fill_unigram(made, _CORPUS, _SPECIAL, 80, "<unk>")
    return made


def _one_word() -> Made:
    """As Gemma's: a whole text is one word of BPE, and blanks are characters of it."""
    trained = Made(models.BPE())
    trained.normalizer = normalizers.Replace(" ", "▁")
    trained.train_from_iterator(
        _CORPUS,
        trainers.BpeTrainer(vocab_size=120, special_tokens=_SPECIAL, show_progress=False),
    )
    trained.model.unk_token = "<unk>"
    trained.model.fuse_unk = True
    return trained


KINDS = {
    "WordPiece": _word_piece,
    "WordLevel": _word_level,
    "GPT-2": _gpt2,
    "GPT-4": _gpt4,
    "Unigram": _unigram,
    "one word": _one_word,
}


@cache
def _content(kind: str) -> str:
    made = KINDS[kind]()
    made.add_special_tokens([tokenizers.AddedToken("<mask>", lstrip=True, special=True)])
    begin, end = made.token_to_id("<s>"), made.token_to_id("</s>")
    made.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>",
        pair="<s> $A </s> $B </s>",
        special_tokens=[("<s>", begin), ("</s>", end)],
    )
    return str(made.to_str())


def file_of(kind: str, folder: Path) -> Path:
    """The `tokenizer.json` of a kind, in a folder."""
    file = folder / "tokenizer.json"
    file.write_text(_content(kind), encoding="utf-8")
    return file
