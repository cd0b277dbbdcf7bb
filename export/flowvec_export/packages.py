"""Packages that an export needs. None of them is imported here."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from flowvec.errors import ExportError
from flowvec.files import lfs_advice
from flowvec.optional import require

__all__ = ["require_all", "require_packages"]

_FOR_GRAPHS = ("onnx", "onnx_ir", "scipy")
_FOR_CHECKPOINTS = ("torch", "transformers", "onnxscript", "safetensors")
_WEIGHTS = ("model.safetensors", "pytorch_model.bin")
_GRAPHS = ("model.onnx", "onnx/model.onnx")


def require_packages(what: str, source: str) -> None:
    """Check that the packages for exporting a source are installed.

    Of what is on the hub nothing is known yet: with the packages for graphs the export goes on, and
    says what it needs when it has read which kind of source it is.

    Args:
        what: what needs them, for the message.
        source: a directory, an .onnx file, or a name on the hub.

    Raises:
        MissingDependencyError: one is missing. The message names all that are.
        ExportError: git-lfs has not downloaded what would be exported.
    """
    if all(importlib.util.find_spec(name) is not None for name in _FOR_GRAPHS):
        return
    _require_content(Path(source).expanduser())
    if _needs_torch(source):
        require_all(what)
    require(what, "cpu,onnx", *_FOR_GRAPHS)


def _require_content(folder: Path) -> None:
    """Refuse a directory without weights or graph that git-lfs has downloaded."""
    files = [folder / name for name in (*_WEIGHTS, *_GRAPHS) if (folder / name).is_file()]
    advice = [lfs_advice(file) for file in files]
    if files and (pointer := advice[0]) and all(advice):
        raise ExportError(pointer)


def require_all(what: str) -> None:
    """Check that the packages for exporting any kind of source are installed.

    Args:
        what: what needs them, for the message.

    Raises:
        MissingDependencyError: one is missing. The message names all that are.
    """
    require(what, "cpu,export", *_FOR_CHECKPOINTS, *_FOR_GRAPHS)


def _needs_torch(source: str) -> bool:
    """Whether a source is a checkpoint that torch reads, as far as its files' names say so."""
    path = Path(source).expanduser()
    if path.is_file():
        return path.suffix != ".onnx"
    about = [path / name for name in ("modules.json", "config.json") if (path / name).is_file()]
    texts = [file.read_text(encoding="utf-8", errors="replace") for file in about]
    if any(kind in text for text in texts for kind in ("StaticEmbedding", "model2vec")):
        return False
    has_graph = any((path / name).is_file() for name in _GRAPHS)
    return not has_graph or any(path.glob("*.safetensors"))
