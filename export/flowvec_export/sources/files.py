"""Reads the files of a checkpoint that may come from anywhere.

Files are read only from inside its directory, JSON only up to a maximum size, and weights only from
formats that cannot run code. Errors name the option that allows more.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flowvec.errors import ExportError
from flowvec.files import BYTE_ORDER_MARK, lfs_advice
from flowvec_export.trust import Trust

__all__ = [
    "check_config",
    "check_links",
    "check_tokenizer",
    "find_weights",
    "has_weights",
    "inside",
    "read_json",
    "require_content",
    "require_weights",
    "without_marks",
]

# A configuration has a few kilobytes; the index of a model in many parts has some hundreds.
MAX_JSON_BYTES = 8 << 20
# Vocabularies of 250,000 entries take 17 MB.
MAX_TOKENIZER_BYTES = 256 << 20
# A graph holds 2 GiB. Stored in float16 that is a billion weights, in float32 twice as much.
MAX_WEIGHT_BYTES = (4 << 30) + (64 << 20)
# Most files of a directory; a checkpoint has fewer.
_MAX_ENTRIES = 20_000

_SAFE = ("model.safetensors", "model.safetensors.index.json")
_PICKLED = ("pytorch_model.bin", "pytorch_model.bin.index.json")
_ADAPTER = "adapter_config.json"
_FOREIGN = ("tf_model.h5", "flax_model.msgpack", "model.ckpt.index", "adapter_model.safetensors")


def read_json(path: Path, kind: type = dict, *, missing_ok: bool = False) -> Any:
    """Read a JSON file that holds a `kind`; None if it is missing and may be.

    Raises:
        ExportError: it is missing, too large, cannot be read, or holds something else.
    """
    if not path.is_file():
        if missing_ok:
            return None
        raise ExportError(f"{path} is missing")
    try:
        require_content(path)
        _require_small(path, MAX_JSON_BYTES)
        content = json.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError, RecursionError) as error:
        raise ExportError(f"cannot read {path}: {error}") from None
    if not isinstance(content, kind):
        raise ExportError(f"{path} must hold a JSON {'object' if kind is dict else 'array'}")
    return content


def require_content(path: Path) -> None:
    """Refuse a file that git-lfs has not downloaded.

    Raises:
        ExportError: it is a pointer of git-lfs.
    """
    if advice := lfs_advice(path):
        raise ExportError(advice)


@contextmanager
def without_marks(folder: Path) -> Iterator[Path]:
    """A directory that transformers can read: no JSON file begins with a byte order mark.

    It is the directory itself, or a temporary one that links to its other files.
    """
    marked = [path for path in folder.iterdir() if path.suffix == ".json" and _is_marked(path)]
    if not marked:
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="flowvec-") as temporary:
        for path in folder.iterdir():
            copy = Path(temporary) / path.name
            if path in marked:
                copy.write_bytes(path.read_bytes().removeprefix(BYTE_ORDER_MARK))
                continue
            try:
                copy.symlink_to(path.resolve())
            except OSError:  # Windows allows links to some users only
                (shutil.copytree if path.is_dir() else shutil.copyfile)(path, copy)
        yield Path(temporary)


def _is_marked(path: Path) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(BYTE_ORDER_MARK)) == BYTE_ORDER_MARK


def inside(root: Path, relative: str) -> Path:
    """A path that a file of the directory names; it must be inside the directory.

    Raises:
        ExportError: it is outside, or hidden.
    """
    parts = Path(relative).parts
    if Path(relative).is_absolute() or ".." in parts or "\0" in relative:
        raise ExportError(f"{root} names {relative!r}, which leads out of it")
    if any(part.startswith(".") for part in parts):
        raise ExportError(f"{root} names {relative!r}, which is hidden; hidden files are not read")
    return root / relative


def check_links(root: Path) -> None:
    """Refuse links that lead out of a directory.

    In a download cache, every file is a link into the blobs folder beside it; these are allowed.

    Raises:
        ExportError: a link leads elsewhere, or to nothing, or there are too many files.
    """
    real = root.resolve()
    homes = [real]
    if real.parent.name == "snapshots":
        homes.append(real.parent.parent / "blobs")
    for path in _entries(root):
        if not path.is_symlink():
            continue
        try:
            target = path.resolve(strict=True)
        except (OSError, RuntimeError):
            raise ExportError(f"{path} is a link that leads to nothing") from None
        if not any(target.is_relative_to(home) for home in homes):
            raise ExportError(
                f"{path} is a link that leads out of the directory; copy what it leads to"
            )


def _entries(root: Path) -> Iterator[Path]:
    """All files of a directory except hidden ones, which `inside` refuses; links are not followed.

    Hidden folders of version control have more files than a checkpoint.
    """
    count, folders = 0, [root]
    while folders:
        for path in sorted(folders.pop().iterdir()):
            if path.name.startswith("."):
                continue
            if (count := count + 1) > _MAX_ENTRIES:
                raise ExportError(
                    f"{root} holds more than {_MAX_ENTRIES} files, so it is not a checkpoint"
                )
            yield path
            if path.is_dir() and not path.is_symlink():
                folders.append(path)


def find_weights(folder: Path, origin: str, trust: Trust) -> list[Path]:
    """The files with an encoder's weights; all exist, and none is too large.

    Raises:
        ExportError: there are none, one is missing, they are a pickle that is not allowed, or they
            are larger than a graph can be.
    """
    if (folder / _ADAPTER).is_file():
        # transformers would read another directory's weights, which may be pickles.
        raise ExportError(
            f"{origin} is a PEFT adapter ({_ADAPTER}), which changes another model: merge "
            "it into that model (merge_and_unload), save the result, and export that"
        )
    weights = next((name for name in _SAFE if (folder / name).is_file()), None)
    if weights is None:
        weights = next((name for name in _PICKLED if (folder / name).is_file()), None)
        if weights is None:
            raise ExportError(f"{origin} has no weights: {_what_instead(folder)}")
        if not trust.pickle:
            raise ExportError(
                f"{origin} holds its weights as a pickle ({weights}), a format that can run code; "
                "save it as safetensors, or export it with --allow-pickle (allow_pickle=True in "
                "Python)"
            )
    files = [folder / weights]
    if weights.endswith(".index.json"):
        index = read_json(folder / weights)
        parts = index.get("weight_map")
        if not isinstance(parts, dict) or not all(isinstance(p, str) for p in parts.values()):
            raise ExportError(f"{folder / weights} does not map weights to files")
        files = [inside(folder, part) for part in sorted(set(parts.values()))]
        for file in files:
            if not trust.pickle and file.suffix != ".safetensors":
                raise ExportError(f"{folder / weights} names {file.name}, which is not safetensors")
            if not file.is_file():
                raise ExportError(f"{file} is missing")
    for file in files:
        require_content(file)
    if (size := sum(file.stat().st_size for file in files)) > MAX_WEIGHT_BYTES:
        raise ExportError(
            f"{origin} has {size / 1e9:.1f} GB of weights; a graph holds 2 GiB, which is a billion "
            "weights in float16"
        )
    return files


def has_weights(folders: Iterable[Path], trust: Trust) -> bool:
    """Whether one of the folders has an encoder's weights in a form that torch may read.

    Weights that git-lfs has not downloaded do not count: beside them there may be a graph.

    Args:
        folders: where to look.
        trust: whether a pickle may be read.
    """
    names = (*_SAFE, *_PICKLED) if trust.pickle else _SAFE
    files = (folder / name for folder in folders for name in names)
    return any(file.is_file() and lfs_advice(file) is None for file in files)


def require_weights(folders: Iterable[Path]) -> None:
    """Refuse weights that git-lfs has not downloaded, before packages that read them are needed.

    Raises:
        ExportError: a folder has such weights.
    """
    for folder in folders:
        for name in (*_SAFE, *_PICKLED):
            require_content(folder / name)


def _what_instead(folder: Path) -> str:
    """What the folder has instead of weights that can be read."""
    others = [name for name in _FOREIGN if (folder / name).is_file()]
    if others:
        return f"{others[0]} is in a format that is not read; save it as model.safetensors"
    return f"{folder / _SAFE[0]} is missing"


def _require_small(path: Path, most: int) -> None:
    """Raise ExportError if a file is larger than `most` bytes."""
    if (size := path.stat().st_size) > most:
        raise ExportError(f"{path} has {size / 1e6:.0f} MB; at most {most / 1e6:.0f} are read")


def check_config(path: Path, config: dict[str, Any]) -> None:
    """Refuse a config.json that makes transformers read files that were not checked.

    Raises:
        ExportError: it names other weights or other configurations.
    """
    for key in ("transformers_weights", "configuration_files"):
        if config.get(key) is not None:
            raise ExportError(f"{path} sends readers to other files ({key}); remove that entry")


def check_tokenizer(folder: Path) -> dict[str, Any]:
    """Content of tokenizer_config.json, after checking the tokenizer's files.

    Raises:
        ExportError: it names files, which transformers would read from anywhere, one is too large
            to be part of a tokenizer, or special tokens in texts are not read as such.
    """
    path = folder / "tokenizer_config.json"
    settings: dict[str, Any] = read_json(path, missing_ok=True) or {}
    for key, value in settings.items():
        # Many name an old path of the special tokens, which is not read.
        named = key.endswith(("_file", "_files")) and key != "special_tokens_map_file"
        if named and value is not None:
            raise ExportError(f"{path} sends readers to other files ({key}); remove that entry")
    if settings.get("split_special_tokens"):
        raise ExportError(
            f"{path} splits special tokens in texts (split_special_tokens), which is not supported"
        )
    for file in folder.iterdir():
        if file.suffix in (".json", ".txt", ".model", ".bpe", ".vocab") and file.is_file():
            require_content(file)
            _require_small(file, MAX_TOKENIZER_BYTES)
    return settings
