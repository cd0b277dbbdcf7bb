"""flowvec and the engines that it imports open no network connections.

Two engines send usage data by default: ONNX Runtime's wheels (1.31 on Linux; see its Privacy.md)
from a background thread, and OpenVINO's Python package at each import. flowvec turns both off, by
the ways that they offer, before it imports them. If a program imports them before flowvec, its own
settings apply.
"""

from __future__ import annotations

import os
import sys
from typing import Any

__all__ = ["import_openvino", "silence_onnxruntime"]


def silence_onnxruntime() -> None:
    """Turn ONNX Runtime's telemetry off for this process and its children, unless it is
    configured."""
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")


def import_openvino() -> Any:
    """Import OpenVINO as if its telemetry package were not installed.

    Raises:
        ImportError: OpenVINO is not installed, or its libraries cannot be loaded.
    """
    name = "openvino_telemetry"
    if name in sys.modules:
        import openvino

        return openvino
    sys.modules[name] = None  # type: ignore[assignment]
    try:
        import openvino
    finally:
        del sys.modules[name]
    return openvino
