"""Writes the forms in which other libraries read a multi-vector encoder."""

from __future__ import annotations

import json
import shutil
import string
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tokenizers
from torch import Tensor, nn

from flowvec_bench.peers.model_forms import write_graph, write_plain_form
from flowvec_export.sources.late_interaction import MultiVectorSource
from flowvec_export.sources.load import read_any_source

if TYPE_CHECKING:
    from flowvec_export.transforms import Dense

__all__ = ["FASTEMBED_MARKER", "PYLATE_FORM", "TOKENS_FORM", "write_token_forms"]

# PyLate's directory, and an ONNX file of token vectors beside a tokenizer, for fastembed.
PYLATE_FORM, TOKENS_FORM = "pylate", "tokens"
# The id of the token that fastembed inserts into documents.
FASTEMBED_MARKER = 2
# Files that are sentence-transformers' own, or the graph's.
_OTHER_FILES = ("modules.json", "config_sentence_transformers.json", "README.md")
_DENSE_SETTINGS = ("in_features", "out_features", "bias", "activation_function", "use_residual")


def write_token_forms(source: Path, document_length: int, folder: Path) -> dict[str, Path]:
    """Write the forms of a multi-vector encoder that can be written, by name.

    Documents alone are raced, so what concerns queries is left out.

    Args:
        source: a directory of sentence-transformers' MultiVectorEncoder or of PyLate.
        document_length: most tokens of a document.
        folder: the folder to write to.

    Raises:
        ExportError: the source cannot be read.
    """
    read = read_any_source(source)
    assert isinstance(read, MultiVectorSource)
    about = read.about
    marker = about.prompts.get("document", "")
    number = read.encoder.tokenizer.token_to_id(marker) if marker else None
    forms: dict[str, Path] = {}
    if about.is_pylate:
        forms[PYLATE_FORM] = source
    elif about.normalize and (not marker or number is not None):
        target = folder / PYLATE_FORM
        _write_pylate_form(read, marker, document_length, target)
        forms[PYLATE_FORM] = target
    # fastembed has a marker, skips all punctuation and needs a mask token.
    is_fastembeds = number == FASTEMBED_MARKER and {*about.skipped} == {*string.punctuation}
    if about.normalize and is_fastembeds and _has_mask(read.encoder.tokenizer):
        target = write_plain_form(about.folder, document_length, folder / TOKENS_FORM)
        graph = _TokenVectors(read.encoder.model, read.dense)
        # fastembed inserts the marker into ids and mask, but not into token types.
        write_graph(graph, "token_vectors", target / "model.onnx", with_types=False)
        forms[TOKENS_FORM] = target
    return forms


def _has_mask(tokenizer: tokenizers.Tokenizer) -> bool:
    return tokenizer.token_to_id("[MASK]") is not None


def _write_pylate_form(read: MultiVectorSource, marker: str, length: int, folder: Path) -> None:
    about = read.about
    folder.mkdir()
    for file in about.folder.iterdir():
        if file.is_file() and file.name not in _OTHER_FILES:
            shutil.copy(file, folder / file.name)
    _write(folder / "sentence_bert_config.json", {"max_seq_length": length, "do_lower_case": False})
    modules = [
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"}
    ]
    for number, dense in enumerate(about.dense, 1):
        target = folder / f"{number}_Dense"
        shutil.copytree(dense, target)
        settings = json.loads((target / "config.json").read_text(encoding="utf-8"))
        kept = {key: settings[key] for key in _DENSE_SETTINGS if key in settings}
        _write(target / "config.json", kept)
        kind = "pylate.models.Dense.Dense"
        modules.append({"idx": number, "name": str(number), "path": target.name, "type": kind})
    _write(folder / "modules.json", modules)
    _write(
        folder / "config_sentence_transformers.json",
        {
            "model_type": "ColBERT",
            "similarity_fn_name": "MaxSim",
            "prompts": {},
            "query_prefix": "",
            "document_prefix": marker,
            "query_length": length,
            "document_length": length,
            "do_query_expansion": False,
            "attend_to_expansion_tokens": False,
            "skiplist_words": list(about.skipped),
        },
    )


def _write(file: Path, content: Any) -> None:
    file.write_text(json.dumps(content), encoding="utf-8")


class _TokenVectors(nn.Module):
    """Token vectors before normalization, which fastembed does itself."""

    def __init__(self, model: Any, dense: Sequence[Dense]) -> None:
        super().__init__()
        self.model = model
        self.dense = nn.ModuleList(dense)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        output = self.model(input_ids, attention_mask=attention_mask)
        vectors: Tensor = output.last_hidden_state
        for layer in self.dense:
            vectors = layer(vectors)
        return vectors
