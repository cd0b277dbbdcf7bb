"""flowvec's build time: a checkpoint, its pooling and a transform become one ONNX graph.

    from flowvec_export import export

    export("path/to/checkpoint", "my-bundle", pooling="mean")

Names are imported when they are first used, so that `flowvec --help` does not wait for torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flowvec_export.build import export
    from flowvec_export.parity import Parity
    from flowvec_export.pooling import POOLINGS
    from flowvec_export.source import Source, read_source
    from flowvec_export.transforms import Dense, Identity, Transform

__all__ = [
    "POOLINGS",
    "Dense",
    "Identity",
    "Parity",
    "Source",
    "Transform",
    "export",
    "read_source",
]

_HOMES = {
    "POOLINGS": "pooling",
    "Dense": "transforms",
    "Identity": "transforms",
    "Parity": "parity",
    "Source": "source",
    "Transform": "transforms",
    "export": "build",
    "read_source": "source",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
