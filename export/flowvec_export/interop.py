"""Writes bundles in the layouts of other libraries and servers."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, Literal, get_args

import onnx
import tokenizers
from onnx import TensorProto, helper

import flowvec
from flowvec import Bundle, Manifest
from flowvec.arguments import choice, flag, path_of
from flowvec.bundle.bundle import absolute_path
from flowvec.bundle.exported import open_bundle
from flowvec.errors import ExportError
from flowvec.texts.places import check_apart
from flowvec_export.graph.editing import Surgeon
from flowvec_export.graph.proto import OUTPUT, write_onnx
from flowvec_export.staging import check_target, staged_directory

__all__ = ["LAYOUTS", "Layout", "export_bundle"]

Layout = Literal["sentence-transformers", "tei"]
LAYOUTS: tuple[str, ...] = get_args(Layout)

# The output that sentence-transformers' ONNX backend reads.
_TOKENS = "last_hidden_state"
_CONFIG = "config_sentence_transformers.json"


def export_bundle(
    bundle: str | Path, out: str | Path, layout: Layout, *, overwrite: bool = False
) -> Path:
    """Write a bundle as another library's directory.

        >>> export_bundle("mini", "for-others", "sentence-transformers").name
        'for-others'

    Both layouts have the bundle's float32 graph, tokenizer, limits and prompts. They name `cls`
    pooling, which passes the finished vector on, so readers compute what the bundle computes.

    - `sentence-transformers`: for `SentenceTransformer(out, backend="onnx")`. `onnx/model.onnx` has
      a second output: each vector as the vector of a single token, (batch_size, 1, dim).
    - `tei`: for text-embeddings-inference's ONNX backend, which reads `sentence_embedding`.
      `model.onnx` is the bundle's file, byte for byte.

    Args:
        bundle: what `flowvec.Encoder.load` takes.
        out: the directory to create.
        layout: `sentence-transformers` or `tei`.
        overwrite: replace a directory that this function wrote.

    Returns:
        The directory.

    Raises:
        BundleError: there is no such bundle, or it is damaged.
        InputTypeError: an argument has the wrong type.
        InputValueError: the layout is unknown, or the path is not valid.
        ExportError: the directory exists or cannot be written, or the bundle is a reranker.
    """
    choice("layout", layout, LAYOUTS)
    target = absolute_path(path_of("out", out))
    flag("overwrite", overwrite)
    loaded = open_bundle(bundle)
    check_apart(target, [loaded.path])
    if loaded.manifest.kind != "embedder":
        raise ExportError(
            f"{loaded.path} is a {loaded.manifest.kind}, and the layouts are those of embedders; "
            "other tools read its checkpoint"
        )
    check_target(target, overwrite, _is_ours)
    with staged_directory(target, overwrite, _is_ours) as staged:
        if layout == "tei":
            shutil.copyfile(loaded.model, staged / "model.onnx")
        else:
            (staged / "onnx").mkdir()
            write_onnx(_with_tokens(loaded), staged / "onnx" / "model.onnx")
        shutil.copyfile(loaded.tokenizer, staged / "tokenizer.json")
        for name, content in _files(loaded).items():
            (staged / name).parent.mkdir(exist_ok=True)
            text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
            (staged / name).write_text(text, encoding="utf-8")
        (staged / "README.md").write_text(_card(loaded.manifest), encoding="utf-8")
    return target


def _is_ours(folder: Path) -> bool:
    """Whether this function wrote a directory; other checkpoints have the same files."""
    try:
        config = json.loads((folder / _CONFIG).read_text(encoding="utf-8"))
        return "flowvec" in config["__version__"]
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _with_tokens(bundle: Bundle) -> onnx.ModelProto:
    """The graph with a second output: each vector as the vector of a single token."""
    proto = onnx.load(bundle.model)
    surgeon = Surgeon(proto, "layout.")
    surgeon.free_name(_TOKENS)
    tokens = surgeon.unsqueeze(OUTPUT, 1)
    last = helper.make_node("Identity", [tokens], [_TOKENS], name=surgeon.prefix)
    proto.graph.node.append(last)
    axes: list[str | int | None] = ["batch_size", 1, bundle.manifest.dim]
    proto.graph.output.append(helper.make_tensor_value_info(_TOKENS, TensorProto.FLOAT, axes))
    onnx.checker.check_model(proto, full_check=True)
    return proto


def _files(bundle: Bundle) -> dict[str, Any]:
    """The JSON files beside the graph and the tokenizer."""
    manifest = bundle.manifest
    tokenizer = tokenizers.Tokenizer.from_file(str(bundle.tokenizer))
    names = ["Transformer", "Pooling", *(["Normalize"] if manifest.normalised else [])]
    folders = ["", "1_Pooling", "2_Normalize"]
    modules = [
        {"idx": n, "name": str(n), "path": folders[n], "type": f"sentence_transformers.models.{k}"}
        for n, k in enumerate(names)
    ]
    files: dict[str, Any] = {
        "modules.json": modules,
        # Readers need sizes and a model type that they know; the real model is in the graph.
        "config.json": {
            "architectures": ["BertModel"],
            "model_type": "bert",
            "hidden_size": manifest.dim,
            "num_attention_heads": 1,
            "num_hidden_layers": manifest.layers or 0,
            "intermediate_size": manifest.dim,
            "max_position_embeddings": manifest.max_length,
            "vocab_size": tokenizer.get_vocab_size(),
            "pad_token_id": manifest.pad_id,
        },
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": manifest.max_length,
            "pad_token": tokenizer.id_to_token(manifest.pad_id),
            "padding_side": "right",
            "truncation_side": "right",
            "model_input_names": list(manifest.inputs),
        },
        "sentence_bert_config.json": {
            "max_seq_length": manifest.max_length,
            "do_lower_case": False,
        },
        _CONFIG: {
            "__version__": {"flowvec": flowvec.__version__},
            "prompts": manifest.prompts,
            "default_prompt_name": manifest.default_prompt_name,
            "similarity_fn_name": manifest.similarity,
        },
        "1_Pooling/config.json": {
            "word_embedding_dimension": manifest.dim,
            "pooling_mode_cls_token": True,
            "pooling_mode_mean_tokens": False,
            "pooling_mode_max_tokens": False,
            "pooling_mode_mean_sqrt_len_tokens": False,
        },
    }
    if manifest.normalised:
        files["2_Normalize/config.json"] = {}
    return files


def _card(manifest: Manifest) -> str:
    steps = " -> ".join([f"{manifest.pooling} pooling", *manifest.transform])
    licence = f"license: {manifest.licence}\n" if manifest.licence else ""
    return (
        f"---\n{licence}library_name: sentence-transformers\npipeline_tag: sentence-similarity\n"
        f"---\n\n# {manifest.name}\n\n"
        f"{manifest.dim} dimensions, at most {manifest.max_length} tokens; {steps}"
        f"{', normalized' if manifest.normalised else ''}. Source: {manifest.source}.\n\n"
        "Written by flowvec. The ONNX graph includes pooling and everything after it. There are no "
        "weights for torch.\n"
    )
