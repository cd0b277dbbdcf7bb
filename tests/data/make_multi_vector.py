"""Make the tiny multi-vector encoder of this folder; run it only when the bundle format changes.

    python tests/data/make_multi_vector.py

Random weights, seed 0: a BERT of 2 layers and width 32, a projection to 16, queries filled up to 24
tokens that are not attended to, and documents without vectors for punctuation.
"""

from __future__ import annotations

import json
import string
import tempfile
from pathlib import Path

import torch
from sentence_transformers import MultiVectorEncoder
from sentence_transformers.base.modules import Dense, Transformer
from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask
from sentence_transformers.sentence_transformer.modules import Normalize
from tests.data.make_bundles import tokenizer
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

from flowvec_export import export

HERE = Path(__file__).resolve().parent / "bundles"


def main() -> None:
    torch.manual_seed(0)
    made = tokenizer()
    made.add_special_tokens(["[Q]", "[D]"])
    config = BertConfig(
        vocab_size=made.get_vocab_size(),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=64,
    )
    model = BertModel(config, add_pooling_layer=False)
    dense = Dense(32, 16, bias=False, activation_function=torch.nn.Identity(),
                  module_input_name="token_embeddings")  # fmt: skip
    with torch.no_grad():
        for name, parameter in [*model.named_parameters(), *dense.named_parameters()]:
            parameter.normal_(std=0.3)
            if "LayerNorm.weight" in name:
                parameter.add_(1.0)
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(f"{folder}/bert")
        PreTrainedTokenizerFast(
            tokenizer_object=made,
            model_max_length=64,
            model_input_names=["input_ids", "attention_mask"],
            pad_token="[PAD]",
            unk_token="[UNK]",
            mask_token="[MASK]",
        ).save_pretrained(f"{folder}/bert")
        transformer = Transformer(
            f"{folder}/bert", query_expansion={"strategy": "fixed", "attend": False, "length": 24}
        )
        MultiVectorEncoder(
            modules=[
                transformer,
                dense,
                MultiVectorMask(skiplist_words=list(string.punctuation)),
                Normalize(module_input_name="token_embeddings"),
            ],
            prompts={"query": "[Q] ", "document": "[D] "},
            device="cpu",
        ).save_pretrained(f"{folder}/colbert")
        bundle = export(
            f"{folder}/colbert", HERE / "multi_vector", name="tiny-colbert", overwrite=True
        )
    print(json.dumps({"multi_vector": bundle.fingerprint}))


if __name__ == "__main__":
    main()
