"""Writes one model in the forms that peers read, all with the same weights and tokenizer."""

from __future__ import annotations

import json
import logging
import shutil
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import torch
import transformers
from torch import Tensor, nn

from flowvec.bundle.bundle import Bundle
from flowvec.engine.providers import CUDA, NATIVE, OPENVINO
from flowvec.engine.selection import provider_status
from flowvec.errors import InputValueError
from flowvec_bench.peers.registry import Forms, Peer
from flowvec_bench.peers.shapes import SHAPES
from flowvec_bench.peers.static_forms import make_static_forms
from flowvec_export import export
from flowvec_export.assembly.tracing import quiet_exporter
from flowvec_export.sources.load import read_source, read_torch_source
from flowvec_export.sources.sentence_transformers import POOLING_FLAGS
from flowvec_export.sources.static import StaticSource
from flowvec_export.sources.torch import TorchSource, quiet_transformers
from flowvec_export.variants.variants import Variant, VariantError

__all__ = [
    "SHAPES",
    "check_model",
    "computes_of",
    "export_with_variants",
    "make_forms",
    "opened_forms",
    "random_model",
    "write_graph",
    "write_plain_form",
]

logger = logging.getLogger(__name__)

_MAX_LENGTH = 256
# Files from which transformers makes a BERT tokenizer.
_TOKENIZERS = ("tokenizer.json", "vocab.txt")
# Where sentence-transformers had its modules until version 5.
_OLDER_MODULES = "sentence_transformers.models."
_KINDS_BEFORE_6 = frozenset(("Transformer", "Pooling", "Dense", "Normalize"))


def random_model(
    shape: str | Mapping[str, int], tokenizer: Path, max_length: int, folder: Path
) -> Path:
    """Write a random BERT as a sentence-transformers directory: mean pooling, normalized.

    Args:
        shape: one of `SHAPES`, or sizes as it has them.
        tokenizer: a directory with a transformers tokenizer.
        max_length: most tokens of a text.
        folder: the folder to create.

    Raises:
        InputValueError: there is no such shape.
    """
    if isinstance(shape, str):
        if shape not in SHAPES:
            raise InputValueError(f"{shape!r} is not a shape; choose from {', '.join(SHAPES)}")
        shape = SHAPES[shape]
    fast = transformers.AutoTokenizer.from_pretrained(tokenizer)
    sizes: dict[str, Any] = {"vocab_size": len(fast), "initializer_range": 0.05, **shape}
    config = transformers.BertConfig(**sizes)
    torch.manual_seed(0)
    model: Any = transformers.BertModel(config, add_pooling_layer=False)
    fast.model_max_length = max_length
    with quiet_transformers():
        model.save_pretrained(folder)
        fast.save_pretrained(folder)
    types = "sentence_transformers.models"
    modules = [
        {"idx": 0, "name": "0", "path": "", "type": f"{types}.Transformer"},
        {"idx": 1, "name": "1", "path": "1_Pooling", "type": f"{types}.Pooling"},
        {"idx": 2, "name": "2", "path": "2_Normalize", "type": f"{types}.Normalize"},
    ]
    width = config.hidden_size
    pooling = {"word_embedding_dimension": width, "pooling_mode_mean_tokens": True}
    limits = {"max_seq_length": max_length, "do_lower_case": False}
    for path, content in (
        ("modules.json", modules),
        ("sentence_bert_config.json", limits),
        ("1_Pooling/config.json", pooling),
    ):
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).write_text(json.dumps(content))
    (folder / "2_Normalize").mkdir(exist_ok=True)
    return folder


def check_model(model: str, tokenizer: Path | None) -> None:
    """Check that a model can race.

    Raises:
        InputValueError: it is neither a shape with a tokenizer nor a directory with its own, or
            there is no tokenizer in that directory.
    """
    if model in SHAPES and tokenizer is None:
        raise InputValueError(f"{model} has random weights and needs --tokenizer")
    if model not in SHAPES and not Path(model).is_dir():
        raise InputValueError(f"{model} is neither {' nor '.join(SHAPES)} nor a directory")
    if model not in SHAPES and tokenizer is not None:
        raise InputValueError(f"{model} has its own tokenizer: --tokenizer is not needed")
    if tokenizer is not None and not any((tokenizer / name).is_file() for name in _TOKENIZERS):
        raise InputValueError(
            f"{tokenizer} is not a tokenizer's directory: it has no {' and no '.join(_TOKENIZERS)}"
        )


@contextmanager
def opened_forms(
    model: str, tokenizer: Path | None, max_length: int | None, racers: Sequence[Peer]
) -> Iterator[tuple[Forms, Path]]:
    """A checked model in all the forms that peers read, and a folder for temporary files."""
    with tempfile.TemporaryDirectory(prefix="flowvec-") as temporary:
        folder = Path(temporary)
        source = Path(model)
        if tokenizer is not None:
            source = random_model(model, tokenizer, max_length or _MAX_LENGTH, folder / model)
        # By default flowvec uses float16 on a GPU; int8 is only created on request.
        computes = {"float16", *computes_of(racers)}
        yield make_forms(source, folder, max_length, computes), folder


def computes_of(racers: Sequence[Peer]) -> set[str]:
    """The compute types that flowvec's rows ask for."""
    return {peer.options.get("load", {}).get("compute") for peer in racers} - {None}


def make_forms(
    source: Path,
    folder: Path,
    max_length: int | None = None,
    computes: Collection[str] = ("int8", "float16"),
) -> Forms:
    """Write the other forms of a directory of sentence-transformers or model2vec.

    An ONNX file of token vectors is written if only mean pooling and normalization follow: its
    readers support nothing else.

    Args:
        source: the directory.
        folder: the folder to write to.
        max_length: most tokens of a text for all peers; None takes the model's own.
        computes: compute types besides float32 for which the bundle gets variants.

    Raises:
        ExportError: the model cannot be exported.
    """
    static = read_source(source)
    if isinstance(static, StaticSource):
        return make_static_forms(static, source, folder, max_length)
    checkpoint = read_torch_source(source)
    # A model without layers has no matrix products to compute in 8 bits.
    usable = computes if checkpoint.layers else set(computes) - {"int8"}
    bundle = export_with_variants(source, folder / "bundle", max_length, usable)
    max_length = bundle.manifest.max_length
    older = _write_older_form(source, checkpoint.pooling or "", max_length, folder / "older")
    paths = {"source": source, "older": older, "bundle": bundle.path}
    plain_mean = checkpoint.pooling == "mean" and checkpoint.word_weights is None
    if plain_mean and not checkpoint.transforms and checkpoint.normalize:
        paths["onnx"] = _write_onnx_form(source, checkpoint, max_length, folder / "onnx")
    return Forms(paths, max_length, bundle.manifest.dim)


def export_with_variants(
    source: Path, target: Path, max_length: int | None, computes: Collection[str]
) -> Bundle:
    """Export a model with the variants for some compute types that can run on this machine.

    Raises:
        ExportError: the model cannot be exported.
    """
    # Why each provider cannot run; None if it can.
    reasons = provider_status()
    variants: list[Variant] = []
    if "int8" in computes:
        variants.append("int8")
        if reasons[NATIVE] is None:
            variants.append("int8-native")
        if reasons[OPENVINO] is None:
            variants.append("int8-openvino")
    if "float16" in computes and reasons[CUDA] is None:
        variants.append("float16")
    while True:
        try:
            # None adds what an export adds by itself, which the row "flowvec" runs.
            return export(source, target, variants=variants or None, max_length=max_length)
        except VariantError as error:
            # Too far from float32, or wrong on this processor: its rows fail, the others run.
            logger.warning("left out: %s", error)
            variants.remove(cast(Variant, error.kind))


def _write_older_form(source: Path, pooling: str, max_length: int, folder: Path) -> Path:
    """A directory that sentence-transformers 3 to 5 read, which infinity and Optimum need.

    Version 6 writes other names of its modules and of their settings. What has only these modules
    is copied under the older names.

    Args:
        source: the directory.
        pooling: its pooling, as `flowvec_export` names it.
        max_length: most tokens of a text.
        folder: where to copy it.

    Returns:
        `source` itself, if it has the older names or cannot have them.
    """
    if not (source / "modules.json").is_file():
        return source
    modules = json.loads((source / "modules.json").read_text(encoding="utf-8-sig"))
    kinds = [module["type"].rpartition(".")[2] for module in modules]
    is_older = all(module["type"].startswith(_OLDER_MODULES) for module in modules)
    if is_older or not _KINDS_BEFORE_6.issuperset(kinds):
        return source
    shutil.copytree(source, folder)
    modes = pooling.split("+")
    for module, kind in zip(modules, kinds, strict=True):
        module["type"] = _OLDER_MODULES + kind
        config = folder / module["path"] / "config.json"
        if kind == "Transformer":
            settings = {"max_seq_length": max_length, "do_lower_case": False}
            config.with_name("sentence_bert_config.json").write_text(json.dumps(settings))
        elif kind == "Pooling":
            settings = json.loads(config.read_text(encoding="utf-8-sig"))
            width = settings.get("embedding_dimension", settings.get("word_embedding_dimension"))
            flags = {flag: mode in modes for flag, mode in POOLING_FLAGS.items()}
            config.write_text(json.dumps({"word_embedding_dimension": width, **flags}))
    (folder / "modules.json").write_text(json.dumps(modules))
    return folder


def _write_onnx_form(source: Path, checkpoint: TorchSource, max_length: int, folder: Path) -> Path:
    write_plain_form(source, max_length, folder)
    write_graph(_TokenVectors(checkpoint.model), "last_hidden_state", folder / "model.onnx")
    return folder


def write_plain_form(source: Path, max_length: int, folder: Path) -> Path:
    """Copy a model's configuration and tokenizer to a new folder, as fastembed reads them."""
    folder.mkdir()
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json",
                 "special_tokens_map.json", "vocab.txt"):  # fmt: skip
        if (source / name).is_file():
            shutil.copy(source / name, folder / name)
    file = folder / "tokenizer_config.json"
    settings = json.loads(file.read_text(encoding="utf-8-sig"))
    # fastembed truncates at the smaller of these two, and the tokenizer may have other values.
    settings |= {"model_max_length": max_length, "max_length": max_length}
    file.write_text(json.dumps(settings))
    special = folder / "special_tokens_map.json"
    if not special.is_file():  # transformers 5 keeps it in tokenizer_config.json
        kept = {k: v for k, v in settings.items() if k.endswith("_token") and isinstance(v, str)}
        special.write_text(json.dumps(kept))
    return folder


class _TokenVectors(nn.Module):
    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> Tensor:
        output = self.model(input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids)
        vectors: Tensor = output.last_hidden_state
        return vectors


def write_graph(module: nn.Module, output: str, path: Path, *, with_types: bool = True) -> None:
    """Write a graph as other exporters do: inputs (batch, sequence), and one output.

    Args:
        module: takes token ids, the mask of attention and, `with_types`, the token types.
        output: name of its output.
        path: the file to write.
        with_types: whether there are token types.
    """
    names = ["input_ids", "attention_mask", *(["token_type_ids"] if with_types else [])]
    axes = {0: torch.export.Dim("batch_size"), 1: torch.export.Dim("sequence_length")}
    mask = torch.ones(2, 7, dtype=torch.int64)
    mask[1, 5:] = 0
    with quiet_exporter():
        program = torch.onnx.export(
            module.eval(),
            (torch.ones_like(mask), mask, torch.zeros_like(mask))[: len(names)],
            dynamo=True,
            opset_version=20,
            input_names=names,
            output_names=[output],
            dynamic_shapes=dict.fromkeys(names, axes),
            verbose=False,
        )
    assert program is not None
    path.write_bytes(program.model_proto.SerializeToString())
