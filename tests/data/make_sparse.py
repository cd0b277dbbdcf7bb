"""Make the tiny sparse encoder of this folder; run it only when the bundle format changes.

    python tests/data/make_sparse.py

Random weights, seed 0: a BERT of 2 layers and width 32 with the head of a masked language model,
SPLADE's max pooling, and a bias that leaves about a fifth of the vocabulary active.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import torch
from sentence_transformers import SparseEncoder
from tests.data.make_bundles import tokenizer
from transformers import BertConfig, BertForMaskedLM, PreTrainedTokenizerFast

from flowvec_export import export

HERE = Path(__file__).resolve().parent / "bundles"


def main() -> None:
    torch.manual_seed(0)
    made = tokenizer()
    config = BertConfig(
        vocab_size=made.get_vocab_size(),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=64,
    )
    model = BertForMaskedLM(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(std=0.3)
            if "LayerNorm.weight" in name:
                parameter.add_(1.0)
            if name.endswith("predictions.bias"):
                parameter.sub_(4.0)
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(f"{folder}/mlm")
        PreTrainedTokenizerFast(
            tokenizer_object=made,
            model_max_length=64,
            model_input_names=["input_ids", "attention_mask"],
            pad_token="[PAD]",
            unk_token="[UNK]",
            mask_token="[MASK]",
        ).save_pretrained(f"{folder}/mlm")
        SparseEncoder(f"{folder}/mlm", device="cpu").save_pretrained(f"{folder}/splade")
        bundle = export(f"{folder}/splade", HERE / "sparse", name="tiny-sparse", overwrite=True)
    print(json.dumps({"sparse": bundle.fingerprint}))


if __name__ == "__main__":
    main()
