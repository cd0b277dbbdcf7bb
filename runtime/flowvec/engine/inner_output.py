"""The vectors that a graph's transform takes, as a further output of the graph.

Exported graphs name the weights of their transforms `transforms.N...`, and those that were
attached to a given graph or a table `flowvec.N...`. What the first node with such a weight computes
on is the pooled vector.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import numpy.typing as npt

from flowvec.bundle.bundle import Bundle
from flowvec.bundle.onnx_file import GRAPH, NAME, OUTPUT, encoded, fields_of, nodes_of
from flowvec.engine.onnxruntime_session import open_graph
from flowvec.errors import BundleError

__all__ = ["BeforeTransform", "HiddenTransformError", "transform_input", "with_output"]

_WEIGHT = re.compile(r"(?:transforms|flowvec[^.]*)\.\d+\.")
# Nodes that only take a part of a vector, or name it anew.
_PARTS = frozenset(("Slice", "Split", "Gather", "Identity", "Cast", "Reshape", "Squeeze"))


class HiddenTransformError(BundleError):
    """A graph does not name the vectors that its transform takes."""


class BeforeTransform:
    """Runs a bundle's graph on ONNX Runtime, and gives vectors before and after its transform."""

    def __init__(self, bundle: Bundle) -> None:
        """Load the graph once more, on one thread.

        Raises:
            HiddenTransformError: the graph has no transform that can be found.
            BundleError: the graph cannot be loaded.
        """
        name = None
        if bundle.manifest.transform:
            model = Path(bundle.model).read_bytes()
            name = transform_input(model)
        if name is None:
            raise HiddenTransformError(
                f"the graph of {bundle.manifest.name} shows no vector to transform"
            )
        self._names = [name, bundle.manifest.output]
        self._session = open_graph(with_output(model, name), bundle.manifest.name)

    def run(
        self, ids: npt.NDArray[np.int64], mask: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
        """Vectors of a padded batch, int64 (batch, sequence): before, and after, (batch, dim)."""
        before, after = self._session.run(self._names, {"input_ids": ids, "attention_mask": mask})
        return before.reshape(len(ids), -1), after


def transform_input(model: bytes) -> str | None:
    """The name of what a graph's transform takes; None if none can be found.

    Raises:
        BundleError: the file is damaged.
    """
    made_by: dict[str, tuple[str, list[str]]] = {}
    for number, graph in fields_of(memoryview(model)):
        if number != GRAPH:
            continue
        for node in nodes_of(graph):
            if any(map(_WEIGHT.match, node.inputs)):
                given = next((name for name in node.inputs if name in made_by), None)
                while given is not None and made_by[given][0] in _PARTS:
                    given = next((n for n in made_by[given][1] if n in made_by), None)
                if given is not None:
                    return given
            made_by |= dict.fromkeys(node.outputs, (node.kind, node.inputs))
    return None


def with_output(model: bytes, name: str) -> bytes:
    """A graph with a further output: parts of a message that come twice are merged."""
    value = encoded(NAME, name.encode())
    return model + encoded(GRAPH, encoded(OUTPUT, value))
