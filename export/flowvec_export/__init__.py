"""flowvec's build time: a checkpoint, its pooling and a transform become one ONNX graph.

from flowvec_export import export

export("path/to/checkpoint", "my-bundle", pooling="mean")
"""

from __future__ import annotations

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
