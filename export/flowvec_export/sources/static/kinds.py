"""Recognizes static embedders."""

from __future__ import annotations

from pathlib import Path

from flowvec.errors import ExportError
from flowvec_export.sources.files import read_json
from flowvec_export.sources.sentence_transformers import Modules
from flowvec_export.sources.static.table import MODEL2VEC, types_of

__all__ = ["is_static", "may_be_static"]


def is_static(root: Path, modules: Modules | None) -> bool:
    """Whether a directory holds a static embedder.

    Args:
        root: the directory.
        modules: what its modules.json says, if it has one.

    Raises:
        MissingDependencyError: safetensors is not installed, and is needed to tell.
    """
    if modules is not None:
        return modules.is_static
    config = read_json(root / "config.json", missing_ok=True) or {}
    if "model_type" in config:
        return str(config["model_type"]) == "model2vec"
    # Older versions of model2vec do not name themselves.
    file = root / "model.safetensors"
    if not file.is_file():
        return False
    try:
        return MODEL2VEC in types_of(file, str(root))
    except ExportError:
        return False  # whoever reads the weights reports it


def may_be_static(root: Path) -> bool:
    """Whether a directory's configuration is that of a static embedder, as far as it says so.

    Its weights are not looked at, because they may not be downloaded yet.
    """
    modules = read_json(root / "modules.json", list, missing_ok=True)
    if modules:
        first = modules[0]
        return isinstance(first, dict) and str(first.get("type")).endswith("StaticEmbedding")
    config = read_json(root / "config.json", missing_ok=True) or {}
    return str(config.get("model_type", "model2vec")) == "model2vec"
