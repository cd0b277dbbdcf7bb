"""Random cross-encoders with their tokenizers, and sentence-transformers' scores of them."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import processors
from transformers import AutoConfig, AutoModelForSequenceClassification, PreTrainedTokenizerFast

from flowvec import Reranker
from flowvec_export import export
from tests import trace_memo
from tests.export.conftest import (
    BERT,
    CORPUS,
    HEADS,
    LAYERS,
    POSITIONS,
    TOKENIZERS,
    WIDTH,
    make_texts,
)

WITH_TYPES = ["input_ids", "token_type_ids", "attention_mask"]
WITHOUT_TYPES = ["input_ids", "attention_mask"]


def make_cross_encoder(
    folder: Path,
    architecture: str,
    labels: int = 1,
    model_input_names: list[str] | None = None,
    **changes: Any,
) -> Path:
    """Write a random cross-encoder with its tokenizer as a Hugging Face directory.

    `model_input_names` are the tokenizer's; by default those of the architecture's own.
    """
    train, names = TOKENIZERS.get(architecture, (TOKENIZERS["bert"][0], BERT))
    tokenizer = train(list(names.values()))
    cls, sep, pad = (tokenizer.token_to_id(names[n]) for n in ("cls", "sep", "pad"))
    is_roberta = architecture in ("roberta", "xlm-roberta", "camembert", "mpnet")
    c, s = names["cls"], names["sep"]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{c} $A {s}",
        pair=f"{c} $A {s} {s} $B {s}" if is_roberta else f"{c} $A {s} $B:1 {s}:1",
        special_tokens=[(c, cls), (s, sep)],
    )
    sizes: dict[str, Any] = {"vocab_size": tokenizer.get_vocab_size(), "pad_token_id": pad}
    if architecture == "distilbert":
        sizes |= {
            "dim": WIDTH, "n_layers": LAYERS, "n_heads": HEADS, "hidden_dim": 2 * WIDTH,
            "max_position_embeddings": POSITIONS,
        }  # fmt: skip
    else:
        sizes |= {
            "hidden_size": WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
            "intermediate_size": 2 * WIDTH,
            "max_position_embeddings": POSITIONS + (pad + 1 if is_roberta else 0),
        }  # fmt: skip
    if architecture == "deberta-v2":
        sizes |= {
            "relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 16,
            "norm_rel_ebd": "layer_norm", "share_att_key": True, "position_biased_input": False,
            "type_vocab_size": 0,
        }  # fmt: skip
    if architecture == "electra":
        sizes |= {"embedding_size": WIDTH}
    if architecture == "modernbert":
        sizes |= {
            "cls_token_id": cls, "sep_token_id": sep, "bos_token_id": cls, "eos_token_id": sep,
            "local_attention": 16, "reference_compile": False,
        }  # fmt: skip
    config = AutoConfig.for_model(architecture, num_labels=labels, **(sizes | changes))
    torch.manual_seed(0)
    model = AutoModelForSequenceClassification.from_config(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(std=0.25)
            if name.lower().endswith("norm.weight"):
                parameter.add_(1.0)
    model.save_pretrained(folder)
    takes_types = architecture in ("bert", "electra")
    names_of = WITH_TYPES if takes_types else WITHOUT_TYPES
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_max_length=POSITIONS,
        model_input_names=model_input_names or names_of,
        **{f"{name}_token": token for name, token in names.items()},
    ).save_pretrained(folder)
    return folder


def pairs_of(count: int = 40) -> list[tuple[str, str]]:
    """Short pairs, pairs above max_length by either text, and empty texts."""
    queries, documents = make_texts(count, 1), make_texts(count, 2)
    pairs = list(zip(queries, documents, strict=True))
    long = " ".join(CORPUS[:4])
    return [*pairs, (long, "cat"), ("cat", long), (long, long), ("", "cat"), ("cat", ""), ("", "")]


def scores_of(folder: Path, pairs: list[tuple[str, str]]) -> np.ndarray:
    """sentence-transformers' scores, one pair at a time."""
    from sentence_transformers import CrossEncoder

    model = CrossEncoder(str(folder), device="cpu")
    scores: np.ndarray = np.stack([model.predict([pair])[0] for pair in pairs])
    return scores


def exported_scores(folder: Path, out: Path, pairs: list[tuple[str, str]]) -> np.ndarray:
    export(folder, out)
    with Reranker.load(out, provider="cpu", compute="float32") as reranker:
        return reranker.predict(pairs)


def as_optimum_exports(source: Path, folder: Path) -> Path:
    """A directory with a graph as Optimum's task text-classification writes it."""
    folder.mkdir()
    files = (source / "config.json", source / "model.safetensors")
    key = hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()
    graph = trace_memo.remembered(f"optimum-{key}", lambda: _graph_of(source))
    (folder / "model.onnx").write_bytes(graph)
    for file in source.iterdir():
        if file.suffix == ".json":
            shutil.copy(file, folder)
    return folder


def _graph_of(source: Path) -> bytes:
    model = AutoModelForSequenceClassification.from_pretrained(source, attn_implementation="eager")

    class Logits(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model.eval()

        def forward(self, input_ids, attention_mask, token_type_ids):
            return self.model(
                input_ids=input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids
            ).logits

    ids = torch.ones(2, 5, dtype=torch.int64)
    mask = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
    axes = {0: torch.export.Dim("batch"), 1: torch.export.Dim("sequence")}
    names = ["input_ids", "attention_mask", "token_type_ids"]
    program = torch.onnx.export(
        Logits().eval(), (ids, mask, torch.zeros_like(ids)), dynamo=True, input_names=names,
        output_names=["logits"], dynamic_shapes=dict.fromkeys(names, axes), verbose=False,
    )  # fmt: skip
    return bytes(program.model_proto.SerializeToString())
