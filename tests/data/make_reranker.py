"""Make the tiny reranker of this folder; run it only when the bundle format changes.

    python tests/data/make_reranker.py

Random weights, seed 0: a BERT of 2 layers and width 32 with token types and one label, and the
activation of a cross-encoder of sentence-transformers, a sigmoid.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import torch
from tests.data.make_bundles import tokenizer
from tokenizers import processors
from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

from flowvec_export import export

HERE = Path(__file__).resolve().parent / "bundles"


def main() -> None:
    torch.manual_seed(0)
    made = tokenizer()
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    config = BertConfig(
        vocab_size=made.get_vocab_size(),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=64,
        num_labels=1,
    )
    model = BertForSequenceClassification(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(std=0.3)
            if "LayerNorm.weight" in name:
                parameter.add_(1.0)
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        PreTrainedTokenizerFast(
            tokenizer_object=made,
            model_max_length=64,
            model_input_names=["input_ids", "token_type_ids", "attention_mask"],
            pad_token="[PAD]",
            unk_token="[UNK]",
        ).save_pretrained(folder)
        bundle = export(folder, HERE / "reranker", name="tiny-reranker", overwrite=True)
    print(json.dumps({"reranker": bundle.fingerprint}))


if __name__ == "__main__":
    main()
