"""Which static embedders get the float32-native variant; their vectors: sources/test_static.py."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from flowvec import Encoder
from flowvec.engine.native_session import native_status
from flowvec.errors import ExportError
from flowvec_export import export
from flowvec_export.variants.native_table import check_table

pytestmark = pytest.mark.skipif(native_status() is not None, reason="needs flowvec's own engine")

TEXTS = ["the cat sleeps", "a dog runs in the red garden on the house", "", "cat"]


@pytest.mark.parametrize(
    ("pooling", "has_variant"),
    [("mean", True), ("mean+cls", False), ("mean+max", False), ("cls", False), ("max", False)],
)
def test_an_encoder_without_layers(
    checkpoint, tmp_path: Path, pooling: str, has_variant: bool
) -> None:
    bundle = export(checkpoint("bert", num_hidden_layers=0), tmp_path / "b", pooling=pooling)
    assert bundle.variants == (("float32-native",) if has_variant else ())
    with (
        Encoder.load(bundle.path) as encoder,
        Encoder.load(bundle.path, provider="cpu") as exact,
    ):
        assert (encoder.engine.provider == "FlowvecNative") == has_variant
        np.testing.assert_allclose(encoder.encode(TEXTS), exact.encode(TEXTS), atol=2e-6)


def test_graphs_that_compute_something_else_are_refused(checkpoint, tmp_path: Path) -> None:
    bundle = export(checkpoint("bert", num_hidden_layers=0), tmp_path / "b", variants=())
    proto, manifest = onnx.load(bundle.model), bundle.manifest
    check_table(proto, manifest)
    with pytest.raises(ExportError, match="only a static embedder"):
        check_table(proto, replace(manifest, layers=1))
    nodes = {node.op_type: node for node in proto.graph.node}
    # Another axis, and positions from the second one on.
    for operation, place in (("Gather", None), ("LayerNormalization", None), ("Slice", 1)):
        changed = onnx.ModelProto()
        changed.CopyFrom(proto)
        changed.graph.initializer.append(numpy_helper.from_array(np.array([1]), "another"))
        for node in changed.graph.node:
            if node.op_type == operation and place is not None:
                node.input[place] = "another"
            elif node.op_type == operation:
                del node.attribute[:]
                node.attribute.append(helper.make_attribute("axis", 1))
        with pytest.raises(ExportError):
            check_table(changed, manifest)
    # Another operator between the rows and their mean, and one behind it.
    for operation in ("Softmax", "Abs"):
        for after in ("LayerNormalization", "Div"):
            changed = onnx.ModelProto()
            changed.CopyFrom(proto)
            output = nodes[after].output[0]
            for node in changed.graph.node:
                node.input[:] = ["between" if name == output else name for name in node.input]
            changed.graph.node.append(helper.make_node(operation, [output], ["between"]))
            if output == proto.graph.output[0].name:
                changed.graph.output[0].name = "between"
            with pytest.raises(ExportError):
                check_table(changed, manifest)
