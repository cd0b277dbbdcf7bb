"""Folders of bulk jobs with vectors that tests choose, as `encode_files` writes them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["write_job"]


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
