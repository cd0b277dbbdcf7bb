"""`flowvec.json`: how a folder says what `flowvec convert` has written into it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["NAME", "describe", "is_ours"]

NAME = "flowvec.json"
_VERSION = 1


def describe(folder: Path, content: Mapping[str, Any]) -> None:
    """Write a folder's description."""
    text = json.dumps({"flowvec_convert": _VERSION, **content}, indent=1, ensure_ascii=False)
    (folder / NAME).write_text(text + "\n", encoding="utf-8")


def is_ours(folder: Path) -> bool:
    """Whether `flowvec convert` has written a folder; a Lance dataset also counts."""
    if (folder / "_versions").is_dir() and (folder / "data").is_dir():
        return True
    try:
        content = json.loads((folder / NAME).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(content, dict) and "flowvec_convert" in content
