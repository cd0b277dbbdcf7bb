"""Recognizes a checkpoint's directory, and tells whether its content has changed."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

from flowvec.bundle.manifest import MANIFEST
from flowvec.errors import BundleError
from flowvec.user_cache import write_cached

__all__ = ["digest_of", "is_checkpoint", "root_of_graph", "signature_of"]

# Files of which every checkpoint has one.
_MARKS = ("config.json", "modules.json", "model.onnx", "onnx/model.onnx")
_MOST_FILES = 20_000
# File systems keep times to two seconds at worst: a file that was written later than this before it
# was recorded may change again without a new time.
_SETTLED_NANOSECONDS = 3_000_000_000


def is_checkpoint(folder: Path) -> bool:
    """Whether a directory is a checkpoint, as `flowvec export` takes it, and not a bundle."""
    return not os.path.lexists(folder / MANIFEST) and any(
        (folder / name).is_file() for name in _MARKS
    )


def root_of_graph(graph: Path) -> Path:
    """The directory whose files decide what an .onnx file means."""
    above = graph.parent.parent if graph.parent.name == "onnx" else graph.parent
    return above if (above / "config.json").is_file() else graph.parent


def signature_of(root: Path) -> tuple[list[list[str | int]], int]:
    """Name, size, times and number of each file, and the latest time of a change in nanoseconds.

    Raises:
        BundleError: a file cannot be read, or there are too many.
    """
    rows: list[list[str | int]] = []
    latest = 0
    for path, name in _files(root):
        try:
            stat = path.stat()
        except OSError as error:
            raise BundleError(f"cannot read {path}: {error.strerror or error}") from None
        rows.append([name, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino])
        latest = max(latest, stat.st_mtime_ns, stat.st_ctime_ns)
    return rows, latest


def digest_of(root: Path, record: Path | None) -> str:
    """SHA-256 (hex) over the names and contents of a directory's files, hidden ones left out.

    Args:
        root: the directory.
        record: a file that keeps the digest with the files' sizes and times. While these are the
            same, contents are not read again. None keeps nothing.

    Raises:
        BundleError: a file cannot be read, or there are too many.
    """
    rows, latest = signature_of(root)
    if record is not None and (known := _recorded(record, rows)) is not None:
        return known
    now = time.time_ns()
    total = hashlib.sha256()
    for path, name in _files(root):
        try:
            with path.open("rb") as file:
                content = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise BundleError(f"cannot read {path}: {error.strerror or error}") from None
        total.update(json.dumps([name, content]).encode())
    digest = total.hexdigest()
    is_settled = latest < now - _SETTLED_NANOSECONDS and signature_of(root)[0] == rows
    if record is not None and is_settled:
        _keep(record, rows, digest)
    return digest


def _recorded(record: Path, rows: list[list[str | int]]) -> str | None:
    try:
        known = json.loads(record.read_text(encoding="utf-8"))
        return str(known["sha256"]) if known["files"] == rows else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _keep(record: Path, rows: list[list[str | int]], digest: str) -> None:
    try:
        write_cached(record, json.dumps({"files": rows, "sha256": digest}).encode())
    except OSError:
        return  # the next load reads the contents again


def _files(root: Path) -> Iterator[tuple[Path, str]]:
    """Regular files below a directory, in the order of their names; links to folders are left out.

    Raises:
        BundleError: there are too many, or a folder cannot be listed.
    """
    count, folders = 0, [root]
    while folders:
        folder = folders.pop()
        try:
            entries = sorted(folder.iterdir())
        except OSError as error:
            raise BundleError(f"cannot read {folder}: {error.strerror or error}") from None
        for path in entries:
            if path.name.startswith("."):
                continue
            if path.is_dir():
                if not path.is_symlink():
                    folders.append(path)
            elif path.is_file():
                if (count := count + 1) > _MOST_FILES:
                    raise BundleError(
                        f"{root} holds more than {_MOST_FILES} files, so it is not a checkpoint"
                    )
                yield path, path.relative_to(root).as_posix()
