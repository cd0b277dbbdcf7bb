"""Texts to token ids, never padded."""

from flowvec.tokenizer.token_ids import TokenIds
from flowvec.tokenizer.tokenizer import Tokenized, Tokenizer

__all__ = ["TokenIds", "Tokenized", "Tokenizer"]
