"""Whether this process can see an NVIDIA GPU, without initializing the driver.

A child that is forked after the driver was initialized could not use the GPU. Whether a provider
really runs shows when a session is opened.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

__all__ = ["hides_all_gpus", "why_no_gpu"]

_VARIABLE = "CUDA_VISIBLE_DEVICES"


def why_no_gpu() -> str | None:
    """Why this process sees no NVIDIA GPU, or None if it may see one."""
    count = _installed_gpus()
    if count == 0:
        return "there is no NVIDIA GPU here that its driver can see"
    visible = os.environ.get(_VARIABLE)
    if visible is not None and hides_all_gpus(visible, count):
        return f"the environment variable {_VARIABLE}={visible!r} hides all NVIDIA GPUs"
    return None


def hides_all_gpus(visible: str, count: int | None) -> bool:
    """Whether a value of `CUDA_VISIBLE_DEVICES` leaves no GPU visible.

    CUDA reads a list of indices, or of identifiers that begin with `GPU-` or `MIG-`, up to the
    first entry that is not valid. So the first entry decides.

    Args:
        visible: the variable's value.
        count: GPUs that are installed; None if that is not known.
    """
    first = visible.split(",")[0].strip()
    if first.startswith(("GPU-", "MIG-")):
        return False
    index = re.match(r"\+?\d+", first)
    return index is None or (count is not None and int(index.group()) >= count)


def _installed_gpus() -> int | None:
    """GPUs with NVIDIA's driver; None if there may be some, and how many is not known."""
    if sys.platform == "win32":
        system = Path(os.environ.get("SYSTEMROOT", "C:/Windows"))
        return None if (system / "System32/nvcuda.dll").exists() else 0
    devices = Path("/dev")
    if (devices / "dxg").exists():  # Windows' subsystem for Linux
        return None
    return len([*devices.glob("nvidia[0-9]*")])
