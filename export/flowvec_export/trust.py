"""What a checkpoint may do besides being read as data."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Trust"]


@dataclass(frozen=True, slots=True)
class Trust:
    """What a checkpoint may do besides being read as data; nothing by default.

        >>> source = read_source("my-checkpoint", trust=Trust(pickle=True))

    Attributes:
        remote_code: run Python files of the checkpoint, which can do anything.
        pickle: read weights from a pickle, with torch's restricted unpickler.
    """

    remote_code: bool = False
    pickle: bool = False
