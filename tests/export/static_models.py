"""Random static embedders, as sentence-transformers and model2vec write them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import StaticEmbedding
from tokenizers import models, normalizers, pre_tokenizers, processors, trainers

from flowvec.demo import load_passages
from tests.vocabularies import fill_unigram, fill_word_piece

__all__ = [
    "PASSAGES",
    "TOKENIZERS",
    "WIDTH",
    "make_model2vec",
    "make_st",
    "random_table",
    "word_level",
    "word_piece",
]

WIDTH = 24
PASSAGES = [passage.text for passage in load_passages()]
_SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]


def word_piece() -> tokenizers.Tokenizer:
    """A tokenizer with a template that adds special tokens, as BERT's."""
    made = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    fill_word_piece(made, PASSAGES[:100], _SPECIAL, 900, "[UNK]")
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return made


def word_level() -> tokenizers.Tokenizer:
    """A tokenizer of whole words, to which most words of other texts are unknown."""
    words = sorted({word for text in PASSAGES[:30] for word in text.lower().split()})
    made = tokenizers.Tokenizer(
        models.WordLevel({word: i for i, word in enumerate([*_SPECIAL, *words])}, unk_token="[UNK]")
    )
    made.normalizer = normalizers.Lowercase()
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return made


def unigram() -> tokenizers.Tokenizer:
    made = tokenizers.Tokenizer(models.Unigram())
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    fill_unigram(made, PASSAGES[:60], ["<pad>", "<unk>"], 500, "<unk>")
    return made


def byte_bpe() -> tokenizers.Tokenizer:
    """A tokenizer without an unknown token."""
    made = tokenizers.Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=500, special_tokens=["<s>", "<pad>"], show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )  # fmt: skip
    made.train_from_iterator(PASSAGES[:60], trainer)
    return made


TOKENIZERS: dict[str, Callable[[], tokenizers.Tokenizer]] = {
    "WordPiece": word_piece, "WordLevel": word_level, "Unigram": unigram, "BPE": byte_bpe,
}  # fmt: skip


def random_table(rows: int, seed: int = 0) -> np.ndarray:
    """Vectors of different lengths, float32 (rows, WIDTH)."""
    rng = np.random.default_rng(seed)
    lengths = rng.lognormal(size=(rows, 1)).astype(np.float32)
    return rng.standard_normal((rows, WIDTH), dtype=np.float32) * lengths


def make_st(
    folder: Path, *after: Any, tokenizer: tokenizers.Tokenizer | None = None, **options: Any
) -> SentenceTransformer:
    """Write a StaticEmbedding and modules after it, as the installed version does."""
    tokenizer = tokenizer or word_piece()
    table = random_table(tokenizer.get_vocab_size())
    static = StaticEmbedding(tokenizer, embedding_weights=table)
    model = SentenceTransformer(modules=[static, *after], device="cpu", **options)
    model.save(str(folder), create_model_card=False)
    return model


def make_model2vec(
    folder: Path,
    tokenizer: tokenizers.Tokenizer | None = None,
    vectors: np.ndarray | None = None,
    *,
    normalize: bool = True,
    **options: Any,
) -> Any:
    """Write a model2vec directory, and return the model as model2vec reads it again."""
    model2vec = pytest.importorskip("model2vec", reason="needs model2vec")
    tokenizer = tokenizer or word_piece()
    # Until 0.9, model2vec kept no max_length, and did not find Unigram's unknown token.
    needs_newer = "max_length" in options or isinstance(tokenizer.model, models.Unigram)
    if needs_newer and not hasattr(model2vec.StaticModel, "max_length"):
        pytest.skip("needs model2vec 0.10")
    if vectors is None:
        vectors = random_table(tokenizer.get_vocab_size())
    config = {"normalize": normalize, "apply_pca": WIDTH, "sif_coefficient": 1e-4}
    model = model2vec.StaticModel(vectors, tokenizer, config, normalize=normalize, **options)
    model.save_pretrained(folder)
    return model2vec.StaticModel.from_pretrained(folder)
