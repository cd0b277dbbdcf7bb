"""What a path is that is not a checkpoint."""

from __future__ import annotations

from pathlib import Path

from flowvec.bundle.manifest import MANIFEST as BUNDLE
from flowvec.collection.store.absence import SHARDS_FILE
from flowvec.collection.store.store import FILE as COLLECTION
from flowvec.errors import ExportError
from flowvec_export.sources.onnx import find_graph

__all__ = ["check_folder", "mistaken_file"]

# In the folder of a bulk job, see `flowvec.bulk.job_folder`.
_JOB = "_manifest.json"
# Files by which a folder is read as a checkpoint; what else is wrong with it is said there.
_CHECKPOINT = ("config.json", "modules.json")
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack")
_ARCHIVES = (".zip", ".tar", ".gz", ".tgz", ".xz", ".bz2", ".zst")
_GGUF = b"GGUF"
_EXPECTED = (
    "give a folder with config.json, tokenizer.json and model.safetensors, or with an ONNX graph "
    "instead of the weights"
)
_OF_GGUF = (
    f"a format of llama.cpp, which is not read. Of the model that it was made of, {_EXPECTED}"
)
# How deep a checkpoint is looked for below the folder: the hub's cache has snapshots/COMMIT.
_DEPTH = 2


def check_folder(root: Path, name: str) -> None:
    """Refuse a folder that does not hold a checkpoint, and say what it is.

    Args:
        root: the folder.
        name: it, as the caller named it.

    Raises:
        ExportError: it has none of the files by which a checkpoint is known.
    """
    if any((root / file).is_file() for file in _CHECKPOINT):
        return
    # A bundle has a graph too, and no configuration beside it.
    if find_graph(root) is not None and not (root / BUNDLE).is_file():
        return
    raise ExportError(f"{name} {_folder_said(root, name)}")


def _folder_said(root: Path, name: str) -> str:
    """What a folder is, and what to give instead."""
    for file, what in (
        (COLLECTION, "a collection"),
        (SHARDS_FILE, "a collection in shards"),
        (_JOB, "the folder of a bulk job"),
    ):
        if (root / file).is_file():
            return f"is {what}, not a checkpoint: {_EXPECTED}"
    if (root / BUNDLE).is_file():
        return "is a bundle, which has been exported already; give its checkpoint"
    names = sorted(path.name for path in root.iterdir() if not path.name.startswith("."))
    if not names:
        return f"is an empty folder: {_EXPECTED}"
    if gguf := next((file for file in names if file.endswith(".gguf")), None):
        return f"holds a GGUF file ({gguf}), {_OF_GGUF}"
    if weights := next((file for file in names if file.endswith(_WEIGHTS)), None):
        return f"has weights ({weights}) but no config.json, which says what model they are of"
    if (below := _checkpoint_below(root, _DEPTH)) is not None:
        return f"has no config.json, but a folder in it has: give {name}/{below.relative_to(root)}"
    return f"is a folder without config.json: {_EXPECTED}"


def _checkpoint_below(folder: Path, depth: int) -> Path | None:
    """The first folder below with a checkpoint's configuration; None without any."""
    if depth == 0:
        return None
    folders = [p for p in sorted(folder.iterdir()) if p.is_dir() and not p.name.startswith(".")]
    for path in folders:
        if any((path / file).is_file() for file in _CHECKPOINT):
            return path
    below = (_checkpoint_below(path, depth - 1) for path in folders)
    return next((path for path in below if path is not None), None)


def mistaken_file(path: Path, name: str) -> ExportError:
    """The error about a file that is not a graph, or about a path that does not exist."""
    if not path.exists():
        return ExportError(f"{name} does not exist")
    if path.suffix == ".gguf" or (path.is_file() and _begins_as_gguf(path)):
        return ExportError(f"{name} is a GGUF file, {_OF_GGUF}")
    if path.suffix in _WEIGHTS:
        return ExportError(
            f"{name} is a file of weights, which do not say what model they are of: give its "
            "folder, with config.json and tokenizer.json"
        )
    if path.suffix in _ARCHIVES:
        return ExportError(f"{name} is an archive: unpack it, and give the folder")
    return ExportError(f"{name} is neither a folder nor an .onnx file: {_EXPECTED}")


def _begins_as_gguf(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(_GGUF)) == _GGUF
    except OSError:
        return False
