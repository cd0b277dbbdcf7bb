"""Sizes of the models with random weights; this module imports nothing heavy."""

from __future__ import annotations

__all__ = ["SHAPES"]

# BERT's sizes by name; random weights, since speed does not depend on them.
SHAPES: dict[str, dict[str, int]] = {
    "minilm-l6": {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12,
                  "intermediate_size": 1536},
    "bert-base": {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12,
                  "intermediate_size": 3072},
    "bert-large": {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16,
                   "intermediate_size": 4096},
}  # fmt: skip
