"""Writes a static embedder in the forms that peers read: one table, one tokenizer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy

from flowvec_bench.peers.registry import MODEL2VEC_FORM, STATIC_FORM, Forms
from flowvec_export import export
from flowvec_export.sources.static import StaticSource

__all__ = ["make_static_forms"]


def make_static_forms(
    source: StaticSource, path: Path, folder: Path, max_length: int | None
) -> Forms:
    """Write the forms of a static embedder.

    Args:
        source: what was read from the directory.
        path: the directory.
        folder: the folder to write to.
        max_length: most tokens of a text for all peers; None takes the model's own.

    Raises:
        ExportError: the model cannot be exported.
    """
    bundle = export(path, folder / "bundle", max_length=max_length)
    max_length = bundle.manifest.max_length
    paths = {"source": path, "older": path, "bundle": bundle.path}
    if (path / "modules.json").is_file():
        paths[STATIC_FORM] = path
    if not source.transforms:  # model2vec has no Dense layers
        paths[MODEL2VEC_FORM] = _write_model2vec(source, max_length, folder / "model2vec")
    return Forms(paths, max_length, bundle.manifest.dim)


def _write_model2vec(source: StaticSource, max_length: int, folder: Path) -> Path:
    """A directory that model2vec reads.

    Two entries of its configuration are the benchmark's own: whether unknown tokens count and
    whether texts are cut by characters, which model2vec's files cannot say.
    """
    folder.mkdir()
    table = source.table
    arrays: dict[str, Any] = {"embeddings": np.ascontiguousarray(table.rows)}
    if table.row_of is not None:
        arrays["mapping"] = table.row_of
    if table.weights is not None:
        arrays["weights"] = table.weights
    safetensors.numpy.save_file(arrays, folder / "model.safetensors")
    source.tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "model_type": "model2vec",
        "normalize": bool(source.normalize),
        "max_length": max_length,
        "counts_unknown": table.ignored is None,
        "cuts_characters": source.characters is not None,
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder
