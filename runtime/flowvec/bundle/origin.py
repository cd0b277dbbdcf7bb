"""What a cached bundle was made from: the key of the cache, and a small file beside the bundle."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal

from flowvec.bundle.manifest import FORMAT_VERSION

__all__ = ["Origin", "read_origin"]

# Raised when the exporter makes other graphs of the same checkpoint, so that they are made again.
_EXPORT_VERSION = 1
_MOST_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Origin:
    """What a cached bundle was made from.

    Attributes:
        kind: `hub`, or `directory` for a local checkpoint.
        name: the hub's name, or the absolute path.
        commit: the hub's commit, or SHA-256 of the directory's content.
        trust_remote_code: whether code of the checkpoint was allowed to run.
        allow_pickle: whether weights were allowed to be a pickle.
        made_by: version of flowvec.
        created: when, in seconds since 1970.
        seconds: how long download and export took.
    """

    kind: Literal["hub", "directory"]
    name: str
    commit: str
    trust_remote_code: bool = False
    allow_pickle: bool = False
    made_by: str = ""
    created: float = 0.0
    seconds: float = 0.0

    @property
    def key(self) -> str:
        """SHA-256 (hex) of all that decides what the bundle is."""
        material = {
            "export": _EXPORT_VERSION,
            "format": FORMAT_VERSION,
            "kind": self.kind,
            "name": self.name,
            "commit": self.commit,
            "trust_remote_code": self.trust_remote_code,
            "allow_pickle": self.allow_pickle,
        }
        text = json.dumps(material, sort_keys=True)
        return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()

    def __str__(self) -> str:
        return f"{self.name}@{self.commit}" if self.kind == "hub" else self.name


def read_origin(file: Path) -> Origin | None:
    """Read the file of an origin; None if it is missing or not such a file."""
    try:
        if file.stat().st_size > _MOST_BYTES:
            return None
        content = json.loads(file.read_text(encoding="utf-8", errors="surrogateescape"))
        origin = Origin(**{field.name: content[field.name] for field in fields(Origin)})
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    texts = (origin.name, origin.commit, origin.made_by)
    flags = (origin.trust_remote_code, origin.allow_pickle)
    numbers = (origin.created, origin.seconds)
    fits = (
        origin.kind in ("hub", "directory")
        and all(isinstance(text, str) for text in texts)
        and all(isinstance(flag, bool) for flag in flags)
        and all(isinstance(number, int | float) for number in numbers)
    )
    return origin if fits else None
