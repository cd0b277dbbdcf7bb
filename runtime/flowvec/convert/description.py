"""`flowvec.json`: how a folder says what `flowvec convert` has written into it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["NAME", "describe", "is_description", "is_ours"]

NAME = "flowvec.json"
_VERSION = 1


def describe(folder: Path, content: Mapping[str, Any]) -> None:
    """Write a folder's description."""
    text = json.dumps({"flowvec_convert": _VERSION, **content}, indent=1, ensure_ascii=False)
    (folder / NAME).write_text(text + "\n", encoding="utf-8")


def is_ours(folder: Path) -> bool:
    """Whether `flowvec convert` has written a folder; a Lance dataset also counts."""
    if any((folder / "_versions").glob("*.manifest")):  # without rows there is no `data`
        return True
    try:
        return is_description((folder / NAME).read_bytes())
    except OSError:
        return False


def is_description(content: bytes) -> bool:
    """Whether a file's content is a description by `flowvec convert`."""
    try:
        described = json.loads(content)
    except ValueError:
        return False
    return isinstance(described, dict) and "flowvec_convert" in described
