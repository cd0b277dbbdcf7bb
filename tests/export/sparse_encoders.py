"""Random SPLADE models with their tokenizers, and sentence-transformers' vectors of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import processors
from transformers import AutoConfig, AutoModelForMaskedLM, PreTrainedTokenizerFast

from tests.export.conftest import BERT, HEADS, LAYERS, POSITIONS, TOKENIZERS, WIDTH

# Subtracted from the logits' bias, so that about a tenth of the vocabulary is active.
_RARE = 2.0


def make_masked_lm(folder: Path, architecture: str, *, seed: int = 0, **changes: Any) -> Path:
    """Write a random masked language model with its tokenizer as a Hugging Face directory."""
    train, names = TOKENIZERS.get(architecture, (TOKENIZERS["bert"][0], BERT))
    is_roberta = architecture in ("roberta", "xlm-roberta", "camembert", "mpnet")
    mask = "<mask>" if is_roberta else "[MASK]"
    tokenizer = train([*names.values(), mask])
    cls, sep, pad = (tokenizer.token_to_id(names[n]) for n in ("cls", "sep", "pad"))
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{names['cls']} $A {names['sep']}",
        special_tokens=[(names["cls"], cls), (names["sep"], sep)],
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
    if architecture == "modernbert":
        sizes |= {
            "cls_token_id": cls, "sep_token_id": sep, "bos_token_id": cls, "eos_token_id": sep,
            "local_attention": 16, "reference_compile": False,
        }  # fmt: skip
    config = AutoConfig.for_model(architecture, **(sizes | changes))
    torch.manual_seed(seed)
    model = AutoModelForMaskedLM.from_config(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(std=0.25)
            if name.lower().endswith("norm.weight"):
                parameter.add_(1.0)
        decoder: Any = model.get_output_embeddings()
        decoder.bias.sub_(_RARE)
    model.save_pretrained(folder)
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_max_length=POSITIONS,
        model_input_names=["input_ids", "attention_mask"],
        mask_token=mask,
        **{f"{name}_token": token for name, token in names.items()},
    ).save_pretrained(folder)
    return folder


def make_splade(
    folder: Path,
    architecture: str = "bert",
    *,
    seed: int = 0,
    sizes: dict[str, Any] | None = None,
    **pooling: Any,
) -> Path:
    """A directory as sentence-transformers saves it; `pooling` changes its SpladePooling."""
    from sentence_transformers import SparseEncoder

    source = make_masked_lm(folder / "masked-lm", architecture, seed=seed, **(sizes or {}))
    SparseEncoder(str(source), device="cpu").save_pretrained(str(folder / "splade"))
    change_json(folder / "splade" / "1_SpladePooling" / "config.json", **pooling)
    return folder / "splade"


def change_json(file: Path, **changes: Any) -> None:
    content = json.loads(file.read_text(encoding="utf-8")) | changes
    file.write_text(json.dumps(content), encoding="utf-8")


def weights_of(folder: Path, texts: list[str], **options: Any) -> np.ndarray:
    """sentence-transformers' vectors, one text at a time, float32 (texts, vocabulary)."""
    from sentence_transformers import SparseEncoder

    model = SparseEncoder(str(folder), device="cpu")
    options |= {"convert_to_sparse_tensor": False, "show_progress_bar": False}
    rows = [model.encode([text], **options)[0].numpy() for text in texts]
    out: np.ndarray = np.stack(rows)
    return out
