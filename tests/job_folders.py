"""Folders of bulk jobs with vectors that tests choose, as `encode_files` writes them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from flowvec import Collection
from tests.makers import sparse_of

__all__ = ["sparse_collection", "write_job"]


def write_job(
    folder: Path,
    vectors: np.ndarray,
    ids: Sequence[str | int] | None = None,
    fields: dict[str, Sequence[Any]] | None = None,
    *,
    out_format: str = "npy",
    rows_per_shard: int = 100,
) -> Path:
    """A complete job.

    Args:
        folder: where it is written.
        vectors: float32 or float16 (rows, dim).
        ids: texts, or whole numbers; None are numbers of rows, of a job without an id field.
        fields: kept fields.
        out_format: `npy` or `parquet`.
        rows_per_shard: rows of a shard.
    """
    folder.mkdir()
    fields = fields or {}
    rows = range(len(vectors)) if ids is None else ids
    shards = []
    for shard, start in enumerate(range(0, len(vectors), rows_per_shard)):
        end = min(start + rows_per_shard, len(vectors))
        part = {name: values[start:end] for name, values in fields.items()}
        path = folder / f"part-{shard:06}.{out_format}"
        write = _write_npy if out_format == "npy" else _write_parquet
        beside = write(path, vectors[start:end], list(rows[start:end]), part, start)
        shards.append(
            {
                "shard": shard, "file": path.name, "rows": end - start, "dead": 0, "blank": 0,
                "bytes": path.stat().st_size, "sha256": _sha256(path),
                "map_sha256": None if beside is None else _sha256(beside),
            }
        )  # fmt: skip
    kinds = {int: "int64", float: "double", bool: "bool", str: "string"}
    columns = {name: kinds[type(values[0])] for name, values in fields.items()}
    if ids is not None:
        columns["key"] = kinds[type(ids[0])]
    manifest = {
        "flowvec_bulk": 1,
        "model": {"name": "none", "fingerprint": "0" * 64},
        "options": {
            "id": None if ids is None else "key", "keep": list(fields), "out_format": out_format,
            "precision": str(vectors.dtype), "share": [1, 1],
        },
        "columns": columns,
        "inputs": [],
        "shards": shards,
    }  # fmt: skip
    (folder / "_manifest.json").write_text(json.dumps(manifest))
    return folder


def _write_npy(
    path: Path, vectors: np.ndarray, ids: list[Any], fields: dict[str, Any], start: int
) -> Path:
    np.save(path, vectors)
    lines = [
        json.dumps({"row": start + i, "id": key} | {n: v[i] for n, v in fields.items()})
        for i, key in enumerate(ids)
    ]
    beside = path.with_name(f"{path.stem}.rows.jsonl")
    beside.write_text("\n".join(lines) + "\n")
    return beside


def _write_parquet(
    path: Path, vectors: np.ndarray, ids: list[Any], fields: dict[str, Any], start: int
) -> None:
    import pyarrow as pa
    import pyarrow.parquet

    number = pa.from_numpy_dtype(vectors.dtype)
    kind = pa.list_(pa.field("element", number, nullable=False), vectors.shape[1])
    column = pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), type=kind)
    arrays = {"id": pa.array(ids), **{name: pa.array(v) for name, v in fields.items()}}
    table = pa.table({**arrays, "vector": column})
    pyarrow.parquet.write_table(table, path)


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def sparse_collection(path: Path, rows: int = 60, **options: Any) -> dict[Any, Any]:
    """A collection of rows with sparse vectors of 50 dimensions.

    One row in seven has none, and one in seven an empty one. Weights are small whole numbers, some
    of them negative, so that products are exact. Ids are texts, and not in order.

    Returns:
        For each id its weights by index, or None.
    """
    rng = np.random.default_rng(2)
    ids = [f"k{i * 17 % rows:03}" for i in range(rows)]
    weights: list[Any] = []
    for i in range(rows):
        terms = sorted(rng.choice(50, rng.integers(1, 9), replace=False).tolist())
        given = {term: float(rng.integers(1, 9)) * (-1 if term % 11 == 3 else 1) for term in terms}
        weights.append(None if i % 7 == 2 else {} if i % 7 == 4 else given)
    there = [i for i, one in enumerate(weights) if one is not None]
    with Collection.create(path, dim=5, **options) as collection:
        vectors = np.random.default_rng(3).random((rows, 5), np.float32)
        collection.add_vectors(ids, vectors, [f"text {i}" for i in range(rows)])
        collection.set_sparse([ids[i] for i in there], sparse_of([weights[i] for i in there], 50))
    return dict(zip(ids, weights, strict=True))
