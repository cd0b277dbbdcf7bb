"""Lists of labels as blobs with a checksum, for records of what changed."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

__all__ = ["packed", "unpacked"]

_DIGEST_BYTES = 8


def packed(labels: Sequence[int]) -> bytes:
    """Labels as bytes: their digest, then each as a little-endian int64."""
    content = np.asarray(labels, "<i8").tobytes()
    return _digest(content) + content


def unpacked(blob: object) -> npt.NDArray[np.int64] | None:
    """The labels of a blob, int64; None if it is damaged or None."""
    if not isinstance(blob, bytes) or len(blob) % 8 or len(blob) < _DIGEST_BYTES:
        return None
    content = blob[_DIGEST_BYTES:]
    return np.frombuffer(content, "<i8") if _digest(content) == blob[:_DIGEST_BYTES] else None


def _digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=_DIGEST_BYTES).digest()
