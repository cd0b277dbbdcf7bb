"""Make the tiny bundles of this folder; run it only when the bundle format changes.

    python tests/data/make_bundles.py

Random weights, seed 0: a BERT of 2 layers and width 32, mean pooling, Dense with tanh, prompts, and
no normalization. `nan` is the same graph with NaN in the embedding of one word.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import tokenizers
import torch
from onnx import numpy_helper
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense, Pooling, Transformer
from tokenizers import models, normalizers, pre_tokenizers, processors
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

from flowvec.bundle.bundle import record_file
from flowvec.bundle.manifest import Manifest
from flowvec_export import export

HERE = Path(__file__).resolve().parent / "bundles"
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = [
    "the",
    "a",
    "cat",
    "dog",
    "sleeps",
    "runs",
    "stocks",
    "fell",
    "rose",
    "man",
    "woman",
    "eats",
    "bread",
    "nan",
    "red",
    "blue",
    "fast",
    "slow",
]


def tokenizer() -> tokenizers.Tokenizer:
    letters = [chr(c) for c in range(ord("a"), ord("z") + 1)] + list("0123456789.,!?-'")
    pieces = SPECIAL + letters + [f"##{c}" for c in letters] + [w for w in WORDS if len(w) > 1]
    made = tokenizers.Tokenizer(
        models.WordPiece({p: i for i, p in enumerate(pieces)}, unk_token="[UNK]")
    )
    made.normalizer = normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    made.add_special_tokens(SPECIAL)
    return made


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
    with tempfile.TemporaryDirectory() as folder:
        plain, source = Path(folder) / "plain", Path(folder) / "tiny"
        model = BertModel(config)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.normal_(std=0.3)
                if "LayerNorm.weight" in name:
                    parameter.add_(1.0)
        model.save_pretrained(plain)
        PreTrainedTokenizerFast(
            tokenizer_object=made, model_max_length=64, pad_token="[PAD]", unk_token="[UNK]"
        ).save_pretrained(plain)
        SentenceTransformer(
            modules=[Transformer(str(plain)), Pooling(32), Dense(32, 16)],
            prompts={"query": "the red ", "document": "a blue "},
            device="cpu",
        ).save(str(source), create_model_card=False)
        bundle = export(source, HERE / "tiny", name="tiny", overwrite=True)

    shutil.rmtree(HERE / "nan", ignore_errors=True)
    shutil.copytree(bundle.path, HERE / "nan")
    graph = onnx.load(HERE / "nan" / "model.onnx")
    for tensor in graph.graph.initializer:
        if tensor.name == "backbone.words":
            values = np.array(numpy_helper.to_array(tensor))
            values[made.token_to_id("nan")] = np.nan
            tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
    (HERE / "nan" / "model.onnx").write_bytes(graph.SerializeToString(deterministic=True))
    file = HERE / "nan" / "manifest.json"
    manifest = Manifest.from_json(file.read_text(), str(file))
    files = {name: record_file(HERE / "nan" / name) for name in manifest.files}
    file.write_text(replace(manifest, name="nan", files=files).to_json())
    print(json.dumps({"tiny": bundle.fingerprint}))


if __name__ == "__main__":
    main()
