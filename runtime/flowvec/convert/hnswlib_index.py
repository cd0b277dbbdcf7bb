"""Builds an HNSW graph and writes it as hnswlib's `save_index` does.

flowvec's library makes the file, so hnswlib is not needed. A graph is built in memory: it takes
the vectors and about 8 * M bytes a row beside them, as it will in hnswlib.
"""

from __future__ import annotations

from pathlib import Path

from flowvec.convert.description import describe
from flowvec.convert.labelled_rows import labelled_rows, sparse_note
from flowvec.convert.rows import Rows
from flowvec.errors import ConvertError
from flowvec.hnsw import HnswError, HnswlibIndex, Space
from flowvec.machine import available_cores

__all__ = ["NAME", "write_hnswlib"]

NAME = "index.bin"


def write_hnswlib(out: Path, rows: Rows) -> tuple[str, ...]:
    """Write a folder with the graph, `rows.parquet` and a description.

    Raises:
        ConvertError: an id cannot be a label, the metric is cosine and a vector is not of length 1,
            or there is not enough memory.
    """
    out.mkdir()
    info, options = rows.info, rows.options
    space: Space = "l2" if info.metric == "l2" else "ip"
    try:
        graph = HnswlibIndex(space, info.dim, info.rows, options.m, options.ef_construction)
        with labelled_rows(out, rows) as beside:
            for labels, block in rows.labelled():
                graph.add(labels, rows.inner_product_rows(block), available_cores())
                beside.write(labels, block)
        graph.save(out / NAME)
    except HnswError as error:
        raise ConvertError(f"{info.name}: the graph cannot be built: {error}") from error
    except MemoryError:
        raise ConvertError(
            f"not enough memory for a graph of {info.rows} vectors of length {info.dim}"
        ) from None
    # hnswlib's cosine is its inner product of vectors that it normalizes, queries too.
    named = "cosine" if info.metric == "cosine" else space
    describe(
        out,
        {
            "format": "hnswlib", "index": NAME, "space": named, "metric": info.metric,
            "dim": info.dim, "rows": info.rows, "m": options.m,
            "ef_construction": options.ef_construction,
            "labels": "ids" if rows.labels_are_ids else "rows", **info.about,
        },
    )  # fmt: skip
    load = f'index = hnswlib.Index("{named}", {info.dim}); index.load_index("{{target}}/{NAME}")'
    return (load, *sparse_note(rows))
