"""Writes faiss's file of an IndexIDMap over an IndexFlat, at constant memory and without faiss.

The file has the bytes of `faiss.write_index`. A flat index is the vectors one after another, so
they are written as they are read; faiss itself would first hold them all in memory. The layout is
that of `faiss/impl/index_write.cpp`: four letters that name the kind, a header, the vectors, and
then the labels.
"""

from __future__ import annotations

import shutil
import struct
from pathlib import Path

import numpy as np

from flowvec.convert.description import describe
from flowvec.convert.labelled_rows import labelled_rows, sparse_note
from flowvec.convert.rows import Rows

__all__ = ["NAME", "write_faiss"]

NAME = "index.faiss"
_INNER_PRODUCT, _L2 = 0, 1  # faiss.METRIC_INNER_PRODUCT, faiss.METRIC_L2
_UNUSED = 1 << 20


def write_faiss(out: Path, rows: Rows) -> tuple[str, ...]:
    """Write a folder with the index, `rows.parquet` and a description.

    Raises:
        ConvertError: an id cannot be a label, or the metric is cosine and a vector is not of
            length 1.
    """
    out.mkdir()
    info = rows.info
    metric = _L2 if info.metric == "l2" else _INNER_PRODUCT
    header = struct.pack("<iqqq?i", info.dim, info.rows, _UNUSED, _UNUSED, True, metric)
    labels_path = rows.scratch / "labels"
    with (
        (out / NAME).open("wb") as file,
        labels_path.open("wb+") as labels_file,
        labelled_rows(out, rows) as beside,
    ):
        file.write(b"IxMp" + header)
        file.write((b"IxF2" if metric == _L2 else b"IxFI") + header)
        file.write(struct.pack("<Q", info.rows * info.dim))
        for labels, block in rows.labelled():
            file.write(rows.inner_product_rows(block).astype("<f4", copy=False).data)
            labels_file.write(np.ascontiguousarray(labels, "<i8").data)
            beside.write(labels, block)
        file.write(struct.pack("<Q", info.rows))
        labels_file.seek(0)
        shutil.copyfileobj(labels_file, file)
    describe(
        out,
        {
            "format": "faiss", "index": NAME, "kind": "IndexIDMap, IndexFlat",
            "metric": info.metric, "faiss_metric": "L2" if metric == _L2 else "INNER_PRODUCT",
            "dim": info.dim, "rows": info.rows,
            "labels": "ids" if rows.labels_are_ids else "rows", **info.about,
        },
    )  # fmt: skip
    return (f'import faiss; index = faiss.read_index("{{target}}/{NAME}")', *sparse_note(rows))
