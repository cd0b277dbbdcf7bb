"""Random ColBERT-style models with their tokenizers, and sentence-transformers' vectors of them."""

from __future__ import annotations

import json
import shutil
import string
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import AddedToken, processors
from transformers import AutoConfig, AutoModel, PreTrainedTokenizerFast

from tests.export.conftest import BERT, HEADS, LAYERS, POSITIONS, TOKENIZERS, WIDTH

DIM = 12
MARKERS = {"query": "[Q] ", "document": "[D] "}
EXPANSION = {"strategy": "fixed", "attend": False, "length": 16}


def make_encoder(
    folder: Path, architecture: str, markers: Any = MARKERS, added: Sequence[str] = ()
) -> Path:
    """Write a random encoder whose tokenizer has a mask token, markers and added tokens.

    The markers are added as PyLate adds them: tokens with a space, which are normalized.
    """
    train, names = TOKENIZERS.get(architecture, (TOKENIZERS["bert"][0], BERT))
    is_roberta = architecture in ("roberta", "xlm-roberta", "camembert", "mpnet")
    mask = "<mask>" if is_roberta else "[MASK]"
    tokenizer = train([*names.values(), mask])
    cls, sep, pad = (tokenizer.token_to_id(names[n]) for n in ("cls", "sep", "pad"))
    tokenizer.add_special_tokens([*names.values(), mask])
    tokenizer.add_tokens([*added, *(AddedToken(marker) for marker in markers.values())])
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{names['cls']} $A {names['sep']}",
        special_tokens=[(names["cls"], cls), (names["sep"], sep)],
    )
    sizes: dict[str, Any] = {
        "vocab_size": tokenizer.get_vocab_size(), "pad_token_id": pad, "hidden_size": WIDTH,
        "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "intermediate_size": 2 * WIDTH,
        "max_position_embeddings": POSITIONS + (pad + 1 if is_roberta else 0),
    }  # fmt: skip
    if architecture == "modernbert":
        sizes |= {
            "cls_token_id": cls, "sep_token_id": sep, "bos_token_id": cls, "eos_token_id": sep,
            "local_attention": 16, "reference_compile": False,
        }  # fmt: skip
    torch.manual_seed(0)
    model = AutoModel.from_config(AutoConfig.for_model(architecture, **sizes))
    randomize(model)
    model.save_pretrained(folder)
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_max_length=POSITIONS,
        model_input_names=["input_ids", "attention_mask"],
        mask_token=mask,
        **{f"{name}_token": token for name, token in names.items()},
    ).save_pretrained(folder)
    return folder


def randomize(model: torch.nn.Module) -> None:
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(std=0.25)
            if name.lower().endswith("norm.weight"):
                parameter.add_(1.0)


def make_colbert(
    folder: Path, architecture: str = "bert", expansion: Any = EXPANSION, **settings: Any
) -> Path:
    """A directory as sentence-transformers' MultiVectorEncoder saves it."""
    from sentence_transformers import MultiVectorEncoder
    from sentence_transformers.base.modules import Dense, Transformer
    from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask
    from sentence_transformers.sentence_transformer.modules import Normalize

    source = make_encoder(folder / "encoder", architecture)
    dense = Dense(
        WIDTH, DIM, bias=False, activation_function=torch.nn.Identity(),
        module_input_name="token_embeddings",
    )  # fmt: skip
    randomize(dense)
    skiplist = settings.pop("skiplist_words", [",", ".", "##s"])
    tasks = settings.pop("skiplist_tasks", None)
    model = MultiVectorEncoder(
        modules=[
            Transformer(str(source), query_expansion=expansion, **settings),
            dense,
            MultiVectorMask(skiplist_words=skiplist, skiplist_tasks=tasks),
            Normalize(module_input_name="token_embeddings"),
        ],
        prompts=MARKERS,
        device="cpu",
    )
    model.save_pretrained(str(folder / "colbert"))
    return folder / "colbert"


def make_pylate(folder: Path, **changes: Any) -> Path:
    """A directory as PyLate 1 saves it: markers beside the prompts, and two modules.

    A change to None leaves a key out. As in PyLate 1.0 and 1.1 is `model_type=None`; 1.0 wrote no
    name of the similarity either. The vocabulary has all punctuation: PyLate skips unknown words
    where it has not, and sentence-transformers does not.
    """
    encoder = make_encoder(folder / "encoder", "bert", added=string.punctuation)
    out = Path(shutil.copytree(encoder, folder / "pylate"))
    torch.manual_seed(1)
    linear = torch.nn.Linear(WIDTH, DIM, bias=False)
    (out / "1_Dense").mkdir()
    from safetensors.torch import save_file

    save_file({"linear.weight": linear.weight.detach()}, out / "1_Dense" / "model.safetensors")
    write_json(
        out / "1_Dense" / "config.json",
        in_features=WIDTH,
        out_features=DIM,
        bias=False,
        activation_function="torch.nn.modules.linear.Identity",
    )
    # PyLate sets the length at each call; this is what a query leaves behind.
    write_json(out / "sentence_bert_config.json", max_seq_length=15, do_lower_case=False)
    types = ("sentence_transformers.models.Transformer", "pylate.models.Dense.Dense")
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": kind}
        for i, (path, kind) in enumerate(zip(("", "1_Dense"), types, strict=True))
    ]
    (out / "modules.json").write_text(json.dumps(modules))
    about = {
        "model_type": "ColBERT",
        "prompts": {},
        "default_prompt_name": None,
        "similarity_fn_name": "MaxSim",
        "query_prefix": "[Q] ",
        "document_prefix": "[D] ",
        "query_length": 16,
        "document_length": 30,
        "attend_to_expansion_tokens": False,
        "skiplist_words": list(string.punctuation),
    }
    kept = {key: value for key, value in (about | changes).items() if value is not None}
    write_json(out / "config_sentence_transformers.json", **kept)
    return out


def write_json(file: Path, **content: Any) -> None:
    file.write_text(json.dumps(content), encoding="utf-8")


def vectors_of(folder: Path, texts: list[str]) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """sentence-transformers' token vectors of queries and documents, one text at a time."""
    from sentence_transformers import MultiVectorEncoder

    model = MultiVectorEncoder(str(folder), device="cpu")
    options: dict[str, Any] = {"convert_to_numpy": True, "show_progress_bar": False}
    return (
        [model.encode_query([text], **options)[0] for text in texts],
        [model.encode_document([text], **options)[0] for text in texts],
    )
