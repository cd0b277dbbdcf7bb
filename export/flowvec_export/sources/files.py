"""Reading somebody else's directory: what is in it, nothing outside it, and no code.

A checkpoint comes from anywhere. Its files are read only from inside its directory, JSON only up to
a size, weights only from formats that cannot run code; what would need more says which option
allows it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from flowvec.errors import ExportError
from flowvec_export.trust import Trust

__all__ = [
    "check_config",
    "check_links",
    "check_tokenizer",
    "find_weights",
    "has_weights",
    "inside",
    "read_json",
]

# Configurations have a few kilobytes; the index of a model in many parts some hundreds.
MAX_JSON_BYTES = 8 << 20
# Vocabularies of 250,000 entries take 17 MB.
MAX_TOKENIZER_BYTES = 256 << 20
# A graph holds 2 GiB. Stored in float16 that is a billion weights, in float32 twice as much.
MAX_WEIGHT_BYTES = (4 << 30) + (64 << 20)
# What a directory may hold before it is taken for something else than a checkpoint.
_MAX_ENTRIES = 20_000

_SAFE = ("model.safetensors", "model.safetensors.index.json")
_PICKLED = ("pytorch_model.bin", "pytorch_model.bin.index.json")
_ADAPTER = "adapter_config.json"
_FOREIGN = ("tf_model.h5", "flax_model.msgpack", "model.ckpt.index", "adapter_model.safetensors")


def read_json(path: Path, kind: type = dict, *, missing_ok: bool = False) -> Any:
    """Read a JSON file that holds a `kind`; None for a missing one where that is allowed.

    Raises:
        ExportError: it is missing, too large, cannot be read, or holds something else.
    """
    if not path.is_file():
        if missing_ok:
            return None
        raise ExportError(f"{path} is missing")
    try:
        _require_small(path, MAX_JSON_BYTES)
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ExportError(f"cannot read {path}: {error}") from None
    if not isinstance(found, kind):
        raise ExportError(f"{path} must hold a JSON {'object' if kind is dict else 'array'}")
    return found


def inside(root: Path, relative: str) -> Path:
    """The path that a file of the directory names; it must lie in the directory.

    Raises:
        ExportError: it leaves it.
    """
    parts = Path(relative).parts
    if Path(relative).is_absolute() or ".." in parts or "\0" in relative:
        raise ExportError(f"{root} names {relative!r}, which leads out of it")
    if any(part.startswith(".") for part in parts):
        raise ExportError(f"{root} names {relative!r}, which is hidden; hidden files are not read")
    return root / relative


def check_links(root: Path) -> None:
    """Refuse links that lead out of a directory.

    In a download's cache every file is a link, into the folder of blobs beside it; those may be.

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
    """All that lies in a directory but what is hidden, which `inside` refuses; links not entered.

    Version control keeps hidden folders with more files than a checkpoint has.
    """
    count, folders = 0, [root]
    while folders:
        for path in sorted(folders.pop().iterdir()):
            if path.name.startswith("."):
                continue
            if (count := count + 1) > _MAX_ENTRIES:
                raise ExportError(f"{root} holds more than {_MAX_ENTRIES} files: no checkpoint")
            yield path
            if path.is_dir() and not path.is_symlink():
                folders.append(path)


def find_weights(folder: Path, origin: str, trust: Trust) -> list[Path]:
    """The files that hold an encoder's weights, all there and not too large.

    Raises:
        ExportError: there are none, one is missing, they are a pickle and that is not allowed, or
            they are more than a graph can hold.
    """
    if (folder / _ADAPTER).is_file():
        # transformers would follow it to another directory's weights, pickles among them.
        raise ExportError(
            f"{origin} is a PEFT adapter ({_ADAPTER}), which is a change of another model: merge "
            "it into that model (merge_and_unload), save the result, and export that"
        )
    found = next((name for name in _SAFE if (folder / name).is_file()), None)
    if found is None:
        found = next((name for name in _PICKLED if (folder / name).is_file()), None)
        if found is None:
            raise ExportError(f"{origin} has no weights: {_what_instead(folder)}")
        if not trust.pickle:
            raise ExportError(
                f"{origin} holds its weights as a pickle ({found}), a format that can run code; "
                "save it as safetensors, or export it with --allow-pickle"
            )
    files = [folder / found]
    if found.endswith(".index.json"):
        index = read_json(folder / found)
        parts = index.get("weight_map")
        if not isinstance(parts, dict) or not all(isinstance(p, str) for p in parts.values()):
            raise ExportError(f"{folder / found} maps no weights to files")
        files = [inside(folder, part) for part in sorted(set(parts.values()))]
        for file in files:
            if not trust.pickle and file.suffix != ".safetensors":
                raise ExportError(f"{folder / found} names {file.name}, which is not safetensors")
            if not file.is_file():
                raise ExportError(f"{file} is missing")
    if (size := sum(file.stat().st_size for file in files)) > MAX_WEIGHT_BYTES:
        raise ExportError(
            f"{origin} has {size / 1e9:.1f} GB of weights; a graph holds 2 GiB, in float16 a "
            "billion of them"
        )
    return files


def has_weights(folders: Iterable[Path], trust: Trust) -> bool:
    """Whether one of the folders has an encoder's weights in a form that torch may read.

    Args:
        folders: where to look.
        trust: whether a pickle may be read.
    """
    names = (*_SAFE, *_PICKLED) if trust.pickle else _SAFE
    return any((folder / name).is_file() for folder in folders for name in names)


def _what_instead(folder: Path) -> str:
    """What there is in place of weights that can be read."""
    others = [name for name in _FOREIGN if (folder / name).is_file()]
    if others:
        return f"{others[0]} is of a kind that is not read; save it as model.safetensors"
    return f"{folder / _SAFE[0]} is missing"


def _require_small(path: Path, most: int) -> None:
    """Raises ExportError for a file of more than so many bytes."""
    if (size := path.stat().st_size) > most:
        raise ExportError(f"{path} has {size / 1e6:.0f} MB; at most {most / 1e6:.0f} are read")


def check_config(path: Path, config: dict[str, Any]) -> None:
    """Refuse a config.json that sends transformers to files that were not checked.

    Raises:
        ExportError: it names other weights or other configurations.
    """
    for key in ("transformers_weights", "configuration_files"):
        if config.get(key) is not None:
            raise ExportError(f"{path} sends readers to other files ({key}); take that out")


def check_tokenizer(folder: Path) -> dict[str, Any]:
    """What tokenizer_config.json says; no file of a tokenizer may be too large or lie elsewhere.

    Raises:
        ExportError: it names files, which transformers would read from anywhere, or one is too
            large to be part of a tokenizer.
    """
    path = folder / "tokenizer_config.json"
    settings: dict[str, Any] = read_json(path, missing_ok=True) or {}
    for key, value in settings.items():
        # Many say where a map of special tokens was once, which is not read from there.
        named = key.endswith(("_file", "_files")) and key != "special_tokens_map_file"
        if named and value is not None:
            raise ExportError(f"{path} sends readers to other files ({key}); take that out")
    for file in folder.iterdir():
        if file.suffix in (".json", ".txt", ".model", ".bpe", ".vocab") and file.is_file():
            _require_small(file, MAX_TOKENIZER_BYTES)
    return settings
