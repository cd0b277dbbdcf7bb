"""Makes the graph of a static embedder: a mean of table rows, then transforms and normalization.

    token ids -> rows of the table -> times a weight -> mean over the text -> vector

It needs `onnx` only. Fitted transforms and Dense layers also need torch, which reads and folds
them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from flowvec.bundle.manifest import INPUTS
from flowvec_export.assembly.draft import Draft, Weights, describe
from flowvec_export.assembly.from_onnx import stored_graph, tail_of, through
from flowvec_export.assembly.parity import Reference
from flowvec_export.graph.editing import Surgeon
from flowvec_export.graph.proto import OPSET, clean

if TYPE_CHECKING:
    from flowvec_export.transforms import Transform

__all__ = ["Table", "draft_of_table"]

Floats = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]

# Names of added nodes start with it. `stored_graph` keeps weights with such names in float32.
_PREFIX = "flowvec."
_IR_VERSION = 9  # of OPSET, so that older engines read the file
_LEAST_LENGTH = 1e-12  # as in torch.nn.functional.normalize


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """A vector for each token, and how a text's tokens become one vector.

    Attributes:
        rows: float32 or int8 (rows, width). int8 numbers are used as they are, without a scale.
        row_of: row of each token id, int32 (vocabulary,); None if token id i has row i.
        weights: factor of each token id's row, float32 (vocabulary,); None if all are 1. The mean
            divides by the number of tokens, not by the sum of the weights.
        ignored: a token id that does not count, neither in the sum nor in the number of tokens.
    """

    rows: npt.NDArray[Any]
    row_of: npt.NDArray[np.int32] | None = None
    weights: Floats | None = None
    ignored: int | None = None

    @property
    def width(self) -> int:
        """Length of a vector."""
        return int(self.rows.shape[1])

    def rounded(self) -> Table:
        """The table with values that float16 can hold; too large ones are refused when stored."""
        if self.rows.dtype == np.int8:
            return self
        with np.errstate(over="ignore"):
            return replace(self, rows=self.rows.astype(np.float16).astype(np.float32))

    def mean(self, ids: Ids) -> npt.NDArray[np.float64]:
        """The vector of one text's token ids, by its definition; zeros if no token counts."""
        if self.ignored is not None:
            ids = ids[ids != self.ignored]
        if not len(ids):
            return np.zeros(self.width)
        vectors = self.rows[ids if self.row_of is None else self.row_of[ids]].astype(np.float64)
        if self.weights is not None:
            vectors *= self.weights[ids, np.newaxis]
        mean: npt.NDArray[np.float64] = vectors.mean(axis=0)
        return mean


def draft_of_table(
    table: Table, steps: Sequence[Transform], *, normalize: bool, weights: Weights, origin: str
) -> Draft:
    """Make the graph of a static embedder.

    Args:
        table: the vectors of the tokens.
        steps: transforms after the mean.
        normalize: whether to end in L2 normalization.
        weights: storage of the table, unless it is int8 already.
        origin: name of the source, for messages.

    Raises:
        ExportError: the graph cannot be made, or is larger than the 2 GiB that one file may hold.
    """
    kept = table if weights == "float32" else table.rounded()
    return Draft(
        proto=stored_graph(_graph(kept, steps, normalize), weights, _PREFIX),
        dim=steps[-1].out_dim if steps else table.width,
        pooling="mean",
        transform=describe(steps),
        normalized=normalize,
        reference=_reference(kept, steps, normalize),
        computed_by=f"the table of {origin}",
        original=_reference(table, steps, normalize) if weights == "float16" else None,
        attention=None,
    )


def _graph(table: Table, steps: Sequence[Transform], normalize: bool) -> onnx.ModelProto:
    """The graph from token ids to vectors, float32 (batch, dim)."""
    inputs = [helper.make_tensor_value_info(name, TensorProto.INT64, None) for name in INPUTS]
    proto = helper.make_model(
        helper.make_graph([], "graph", inputs, []),
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=_IR_VERSION,
    )
    surgeon = Surgeon(proto, _PREFIX)
    surgeon.set_inputs()
    vector, dim = _mean(surgeon, table), table.width
    tail = tail_of(steps)
    if tail is not None:
        vector, dim = surgeon.attach(tail.graph, vector), steps[-1].out_dim
    surgeon.set_output(surgeon.normalize(vector) if normalize else vector, dim)
    clean(proto)
    return proto


def _mean(surgeon: Surgeon, table: Table) -> str:
    """Append the mean of a text's rows, float32 (batch, width), and return its name."""

    def weight(name: str, values: npt.NDArray[Any]) -> str:
        surgeon.graph.initializer.append(numpy_helper.from_array(values, name))
        return name

    ids = INPUTS[0]
    counted = surgeon.to_float32(INPUTS[1])
    if table.ignored is not None:
        is_ignored = surgeon.node("Equal", ids, surgeon.constant(np.array(table.ignored, np.int64)))
        counted = surgeon.node("Mul", counted, surgeon.to_float32(surgeon.node("Not", is_ignored)))
    factors = counted
    if table.weights is not None:
        factors = surgeon.node(
            "Mul", counted, surgeon.node("Gather", weight("weights", table.weights), ids)
        )
    row = ids
    if table.row_of is not None:
        row = surgeon.node("Gather", weight("row_of", table.row_of), ids)
    rows = surgeon.node("Gather", weight("embeddings", table.rows), row)
    if table.rows.dtype != np.float32:
        # After the Gather, so that the table stays small in memory.
        rows = surgeon.to_float32(rows)
    # A product needs no copy of the rows, which a long text has many of.
    axis = surgeon.constant(np.array([1], np.int64))
    total = surgeon.node("MatMul", surgeon.unsqueeze(factors, 1), rows)
    total = surgeon.node("Squeeze", total, axis)
    count = surgeon.node("ReduceSum", counted, axis, keepdims=1)
    # A text without tokens has the vector 0, as 0 / 1.
    least = surgeon.constant(np.array(1.0, np.float32))
    return surgeon.node("Div", total, surgeon.node("Max", count, least))


def _reference(table: Table, steps: Sequence[Transform], normalize: bool) -> Reference:
    """A reference that computes each text by the definition, in float64."""

    def run(input_ids: Ids, attention_mask: Ids) -> Floats:
        rows = zip(input_ids, attention_mask, strict=True)
        vectors = through(steps, np.stack([table.mean(ids[mask > 0]) for ids, mask in rows]))
        if normalize:
            lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
            vectors = vectors / np.maximum(lengths, _LEAST_LENGTH)
        out: Floats = vectors.astype(np.float32)
        return out

    return run
