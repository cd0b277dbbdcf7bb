"""What of a source may be more than data."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Trust"]


@dataclass(frozen=True, slots=True)
class Trust:
    """What of a checkpoint may be more than data; nothing, unless its user says so.

    Attributes:
        remote_code: Python files that come with it may be run, which can do anything.
        pickle: weights may be read from a pickle, by torch's restricted unpickler.
    """

    remote_code: bool = False
    pickle: bool = False
