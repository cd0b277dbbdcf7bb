"""Texts, and pairs of texts, to token ids, never padded."""

from flowvec.tokenizer.pairs import PairTokenizer
from flowvec.tokenizer.token_ids import TokenIds
from flowvec.tokenizer.tokenizer import Tokenized, Tokenizer

__all__ = ["PairTokenizer", "TokenIds", "Tokenized", "Tokenizer"]
