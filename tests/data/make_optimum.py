"""Make the graphs of other exporters in this folder's `optimum`, with real Optimum.

Optimum goes with an older transformers than flowvec's own environment has, so it needs its own:

    python -m venv optimum && optimum/bin/python -m pip install torch "transformers==4.57.6" \
        "sentence-transformers==5.7.0" "optimum-onnx[onnxruntime]==0.1.0"
    optimum/bin/python tests/data/make_optimum.py

Random weights, seed 0, encoders of 2 layers and width 32, in the forms that people have:

    bert        Optimum's task feature-extraction: last_hidden_state, with token types
    roberta     the same, of an encoder whose positions begin after its padding token
    sentence    Optimum of a sentence-transformers model: token_embeddings and sentence_embedding
    hub         sentence-transformers' own export: modules.json beside onnx/model.onnx, without
                torch's weights

`expected.npz` holds what torch gives for `TEXTS` before any export: of plain encoders the masked
mean, of sentence-transformers models what `encode` gives.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
import torch
import transformers
from optimum.exporters.onnx import main_export
from sentence_transformers import SentenceTransformer, models
from tokenizers import models as kinds
from tokenizers import normalizers, pre_tokenizers, processors

HERE = Path(__file__).resolve().parent / "optimum"
WIDTH, LENGTH = 32, 24
TEXTS = [
    "",
    "the cat",
    "a man eats red bread",
    "stocks fell, stocks rose: 12.5",
    "The Dog Sleeps " * 12,
    "unknown 漢字 words",
]
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
    "red",
    "blue",
]


def make_tokenizer(special: dict[str, str]) -> transformers.PreTrainedTokenizerFast:
    letters = [chr(c) for c in range(ord("a"), ord("z") + 1)] + list("0123456789.,!?-'")
    pieces = [*special.values(), *letters, *[f"##{c}" for c in letters], *WORDS]
    vocabulary = {piece: number for number, piece in enumerate(dict.fromkeys(pieces))}
    made = tokenizers.Tokenizer(kinds.WordPiece(vocabulary, unk_token=special["unk_token"]))
    made.normalizer = normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    cls, sep = special["cls_token"], special["sep_token"]
    made.post_processor = processors.TemplateProcessing(
        single=f"{cls} $A {sep}",
        special_tokens=[(cls, vocabulary[cls]), (sep, vocabulary[sep])],
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, model_max_length=LENGTH, **special
    )


BERT = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
ROBERTA = {"cls_token": "<s>", "pad_token": "<pad>", "sep_token": "</s>", "unk_token": "<unk>"}


def make_encoder(folder: Path, kind: str) -> None:
    tokenizer = make_tokenizer(BERT if kind == "bert" else ROBERTA)
    pad = tokenizer.pad_token_id
    config: Any = transformers.AutoConfig.for_model(
        kind,
        vocab_size=len(tokenizer),
        hidden_size=WIDTH,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=4 * WIDTH,
        max_position_embeddings=LENGTH + (pad + 1 if kind == "roberta" else 0),
        pad_token_id=pad,
    )
    torch.manual_seed(0)
    model = transformers.AutoModel.from_config(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(std=0.25)
            if name.lower().endswith("norm.weight"):
                parameter.add_(1.0)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def masked_means(folder: Path) -> np.ndarray:
    model = transformers.AutoModel.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    rows = []
    for text in TEXTS:
        with torch.no_grad():
            output = model(**tokenizer(text, truncation=True, return_tensors="pt"))
        rows.append(output.last_hidden_state[0].mean(0).numpy())
    return np.stack(rows)


def make(target: Path) -> None:
    expected = {}
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        for kind in ("bert", "roberta"):
            make_encoder(work / kind, kind)
            expected[kind] = masked_means(work / kind)
            main_export(
                str(work / kind), output=target / kind, task="feature-extraction",
                library_name="transformers", do_validation=False,
            )  # fmt: skip
        torch.manual_seed(1)
        dense = models.Dense(WIDTH, 12, activation_function=torch.nn.Tanh())
        model = SentenceTransformer(
            modules=[
                models.Transformer(str(work / "bert")), models.Pooling(WIDTH, "mean"), dense,
                models.Normalize(),
            ],
            device="cpu", prompts={"query": "a man ", "document": ""},
        )  # fmt: skip
        model.save(str(work / "st"), create_model_card=False)
        expected["sentence"] = expected["hub"] = model.encode(TEXTS)
        main_export(
            str(work / "st"), output=target / "sentence", task="feature-extraction",
            library_name="sentence_transformers", do_validation=False,
        )  # fmt: skip
        exported = SentenceTransformer(str(work / "st"), backend="onnx", device="cpu")
        exported.save_pretrained(str(target / "hub"), create_model_card=False)
    np.savez(target / "expected.npz", **expected)


if __name__ == "__main__":
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE
    shutil.rmtree(folder, ignore_errors=True)
    make(folder)
