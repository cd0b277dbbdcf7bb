"""Rounds weights to 8 bits with little loss: later weights compensate each rounding error.

In a product x W, the error of W matters only through its product with the inputs x. GPTQ (Frantar
et al. 2023, after Hassibi and Stork 1993) rounds W row by row, and moves the error of each row into
the rows that are still exact, weighted by how its input correlates with theirs.

A few channels of a LayerNorm's output are much larger than the rest; part of their magnitude is
first moved into the weights (SmoothQuant, Xiao et al. 2023).
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
from onnx import TensorProto, helper

from flowvec.bundle.manifest import INPUTS, TOKEN_TYPES
from flowvec.encoder.batching import Batch, pad, plan
from flowvec.errors import ExportError
from flowvec.tokenizer.token_ids import TokenIds

__all__ = ["Observed", "Rounded", "observe", "round_matrix", "smoothing"]

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]

# How much of a channel's magnitude goes into the weights: bench/log/2026-11-21.md has .3 to .7.
_ALPHA = 0.7
_DAMPING = 0.01
_BLOCK = 128
# Columns that are rounded at once, in float64: a vocabulary's matrix is too large for all.
_COLUMNS = 8192
_TINY = 1e-12
_MAX_BATCH_TOKENS = 4096
# Tokens that are enough to observe; more change nothing: bench/log/2026-11-29.md.
_ENOUGH_TOKENS = 8192
# Most memory for second moments; more tensors need another pass over the texts.
_MAX_BYTES = 1 << 29


@dataclass(frozen=True, slots=True)
class Observed:
    """Statistics of a tensor of tokens, (batch, sequence, width), over texts.

    Attributes:
        loudness: largest magnitude per channel, float32 (width,).
        moments: mean over the tokens of the products of two channels, float32 (width, width).
    """

    loudness: Floats
    moments: Floats


@dataclass(frozen=True, slots=True)
class Rounded:
    """A matrix in 8 bits, approximately `values * scales`.

    Attributes:
        values: int8 (rows, columns), from -127 to 127.
        scales: float32 (columns,).
    """

    values: npt.NDArray[np.int8]
    scales: Floats


def observe(
    proto: onnx.ModelProto,
    widths: Mapping[str, int],
    ids: TokenIds,
    max_length: int,
    pad_id: int,
) -> Iterator[dict[str, Observed]]:
    """Run a graph over texts, and observe some of its tensors, one group at a time.

    Args:
        proto: the graph.
        widths: widths of the tensors, by name.
        ids: token ids of at least one text, or pair of texts.
        max_length: most tokens of a text.
        pad_id: the padding token's id.

    Raises:
        ExportError: no text has a token.
    """
    step = max(1, int(ids.lengths.sum()) // _ENOUGH_TOKENS)
    chosen = plan(ids.lengths[::step], _MAX_BATCH_TOKENS, max_length)
    batches = [Batch(tuple(step * row for row in batch.rows), batch.length) for batch in chosen]
    for names in _groups(widths):
        session = _observing(proto, names)
        loudness = {name: np.zeros(widths[name], np.float32) for name in names}
        sums = {name: np.zeros((widths[name], widths[name]), np.float32) for name in names}
        count = 0
        for batch in batches:
            feeds = pad(ids, batch, pad_id)
            # Not the mask: tokens that fill a query up have vectors, and may not be attended to.
            tokens = np.arange(batch.length) < ids.lengths[list(batch.rows), np.newaxis]
            if not tokens.any():  # empty texts, of a tokenizer without special tokens
                continue
            count += int(tokens.sum())
            named = dict(zip((*INPUTS, TOKEN_TYPES), feeds, strict=False))
            outputs = session.run(names, named)
            for name, values in zip(names, outputs, strict=True):
                rows = values[tokens]
                np.maximum(loudness[name], np.abs(rows).max(axis=0), out=loudness[name])
                sums[name] += rows.T @ rows
        if not count:
            raise ExportError("the calibration texts have no tokens")
        yield {name: Observed(loudness[name], sums[name] / np.float32(count)) for name in names}


def _groups(widths: Mapping[str, int]) -> Iterator[list[str]]:
    """Names whose second moments fit into memory together."""
    group: list[str] = []
    total = 0
    for name, width in widths.items():
        size = 4 * width * width
        if group and total + size > _MAX_BYTES:
            yield group
            group, total = [], 0
        group.append(name)
        total += size
    if group:
        yield group


def _observing(proto: onnx.ModelProto, names: Sequence[str]) -> onnxruntime.InferenceSession:
    observed = onnx.ModelProto()
    observed.CopyFrom(proto)
    del observed.graph.output[:]
    observed.graph.output.extend(
        helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in names
    )
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    with tempfile.TemporaryDirectory(prefix="flowvec-") as folder:
        path = Path(folder) / "observed.onnx"
        path.write_bytes(observed.SerializeToString())
        return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def smoothing(loudness: Floats, matrices: Sequence[Floats]) -> Floats:
    """Factors that divide each channel of an input, and multiply the rows of its matrices."""
    rows = np.max([np.abs(matrix).max(axis=1) for matrix in matrices], axis=0)
    factors = np.maximum(loudness, 1e-5) ** _ALPHA / np.maximum(rows, 1e-5) ** (1 - _ALPHA)
    balanced: Floats = (factors / factors.mean()).astype(np.float32)
    return balanced


def round_matrix(
    matrix: Floats,
    moments: Floats,
    *,
    most_of_pairs: int | None = None,
    rows_at_once: int = _BLOCK,
    columns_at_once: int = _COLUMNS,
) -> Rounded:
    """Round to 8 bits, with one scale per column.

    Args:
        matrix: float32 (rows, columns).
        moments: second moments of its inputs, float32 (rows, rows); see `Observed`.
        most_of_pairs: limits two numbers of the same sign in rows 2i and 2i + 1 of a column: the
            largest magnitude of their sum. None sets no limit.
        rows_at_once: rows whose errors are spread together.
        columns_at_once: columns that are rounded together, in float64.
    """
    scales = np.maximum(np.abs(matrix).max(axis=0), _TINY).astype(np.float64) / 127
    if most_of_pairs is not None:
        for signed in (matrix, -matrix):
            positive = np.maximum(signed, 0)
            sums = positive[: len(matrix) // 2 * 2].reshape(-1, 2, matrix.shape[1]).sum(axis=1)
            np.maximum(scales, sums.max(axis=0, initial=0.0) / most_of_pairs, out=scales)
    size = len(matrix)
    power = np.diag(moments).astype(np.float64)
    # The largest inputs first, so that most rows are left to compensate their errors.
    order = np.argsort(-power, kind="stable")
    curvature = moments[np.ix_(order, order)].astype(np.float64)
    curvature[np.diag_indices(size)] += _DAMPING * max(float(power.mean()), _TINY)
    spread = _spread(curvature)
    places = np.argsort(order)
    partners = np.append(places, size)[np.minimum(order ^ 1, size)]
    values = np.empty(matrix.shape, dtype=np.int8)
    for first in range(0, matrix.shape[1], columns_at_once):
        part = slice(first, first + columns_at_once)
        exact = matrix[order, part].astype(np.float64)
        pairs = None if most_of_pairs is None else (partners, most_of_pairs)
        values[order, part] = _round_rows(exact, scales[part], spread, rows_at_once, pairs)
    return Rounded(values, scales.astype(np.float32))


def _spread(curvature: Doubles) -> Doubles:
    """How to spread an error of a row over the rows after it: an upper triangle, U, of the inverse
    of the curvature, U' U."""
    # Here, so that exports without 8 bits do not wait for it.
    from scipy.linalg.lapack import dtrtri

    # The inverse of an upper triangle R with R R' = curvature.
    triangle = np.linalg.cholesky(curvature[::-1, ::-1])[::-1, ::-1]
    inverse, status = dtrtri(triangle, lower=0)
    if status:
        raise np.linalg.LinAlgError(f"dtrtri gave {status}")
    spread: Doubles = np.ascontiguousarray(inverse)
    return spread


def _round_rows(
    exact: Doubles,
    scales: Doubles,
    spread: Doubles,
    rows_at_once: int,
    pairs: tuple[npt.NDArray[np.int64], int] | None = None,
) -> npt.NDArray[np.int8]:
    """Round row after row, and move each row's error into the rows after it.

    Args:
        exact: the matrix (rows, columns); it is changed.
        scales: of each column (columns,).
        spread: how to spread an error (rows, rows).
        rows_at_once: rows whose errors are spread together.
        pairs: the row whose numbers limit those of each row, or one after the last, and the
            limit of their sums.
    """
    size = len(exact)
    values = np.zeros((size + 1, exact.shape[1]), dtype=np.int8)
    for first in range(0, size, rows_at_once):
        block = slice(first, min(first + rows_at_once, size))
        errors = np.empty((block.stop - first, exact.shape[1]))
        for i in range(first, block.stop):
            low: int | npt.NDArray[np.int16] = -127
            high: int | npt.NDArray[np.int16] = 127
            if pairs is not None:
                other = values[pairs[0][i]].astype(np.int16)  # 0 until it is rounded
                low = np.maximum(low, np.maximum(-other, 0) - pairs[1])
                high = np.minimum(high, pairs[1] - np.maximum(other, 0))
            rounded = np.clip(np.rint(exact[i] / scales), low, high)
            values[i] = rounded
            errors[i - first] = (exact[i] - rounded * scales) / spread[i, i]
            exact[i + 1 : block.stop] -= np.outer(spread[i, i + 1 : block.stop], errors[i - first])
        exact[block.stop :] -= spread[block, block.stop :].T @ errors
    return values[:size]
