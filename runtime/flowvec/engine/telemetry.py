"""flowvec opens no connection, and neither do the engines that it imports.

Two of them report to their makers unless they are told not to: ONNX Runtime's wheels (1.31 on
Linux; its Privacy.md) from a thread of their own, and OpenVINO's Python package each time that it
is imported. Both are told, as they themselves provide for it, before they are imported. A program
that imports them before flowvec has decided for itself.
"""

from __future__ import annotations

import os
import sys
from typing import Any

__all__ = ["import_openvino", "silence_onnxruntime"]


def silence_onnxruntime() -> None:
    """Switch ONNX Runtime's reports off for this process and its children, unless it is set."""
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")


def import_openvino() -> Any:
    """Import OpenVINO as if what sends its reports, a package of its own, were not installed.

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
