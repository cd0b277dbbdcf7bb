"""Names of the inputs and outputs of graphs that Optimum and similar tools write."""

from __future__ import annotations

__all__ = ["IDS", "MASK", "POOLER", "SENTENCE", "TOKENS", "TYPES"]

TOKENS = ("last_hidden_state", "token_embeddings")
SENTENCE = "sentence_embedding"
POOLER = "pooler_output"
IDS, MASK, TYPES = "input_ids", "attention_mask", "token_type_ids"
