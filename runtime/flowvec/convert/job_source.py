"""The output of a bulk job as a source: a folder or a URL, one job or shares of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from flowvec.arrow import file_for_arrow, imported_arrow
from flowvec.bulk.file_names import row_map_name
from flowvec.bulk.job_folder import JobFolder
from flowvec.bulk.open_folder import folder_at
from flowvec.bulk.records import ShardRecord, differences_of_shares, records_of
from flowvec.bundle.bundle import record_file
from flowvec.compat import override
from flowvec.convert.source import Source, SourceInfo, block_rows, id_type, vector_field
from flowvec.errors import BulkError, ConvertError
from flowvec.vectors import Metric

__all__ = ["JobSource"]

_PRECISIONS = ("float32", "float16")
_VERIFY = "`flowvec verify` names all damage, and the same `flowvec encode` restores it"


class JobSource(Source):
    """Vectors of a complete bulk job, each shard checked against the manifest before it is read."""

    def __init__(self, path: str, metric: Metric | None) -> None:
        """Read the manifests.

        Args:
            path: the job's folder or URL.
            metric: how the vectors are compared; None is `cosine`.

        Raises:
            ConvertError: the job is not complete, a shard is missing, or its vectors are integers.
            BulkError: it is not the folder of a bulk job, or a manifest cannot be read.
        """
        self._folder = folder_at(path)
        manifest, self._records = _complete_job(self._folder)
        try:
            options, model = manifest["options"], manifest["model"]
            self._format, precision = str(options["out_format"]), str(options["precision"])
            self._id_field, keep = options["id"], list(options["keep"])
            about = {"model": str(model["name"]), "fingerprint": str(model["fingerprint"])}
            columns = dict(manifest.get("columns") or {})
        except (KeyError, TypeError, ValueError):
            raise ConvertError(
                f"{self._folder.where(self._folder.manifest)} does not describe its job"
            ) from None
        if self._format not in ("parquet", "npy"):
            raise ConvertError(
                f"{self._folder.out} is the job of a collection: name the collection"
            )
        if precision not in _PRECISIONS:
            raise ConvertError(
                f"{self._folder.out} holds vectors of {precision}; only "
                f"{' and '.join(_PRECISIONS)} can be converted"
            )
        self._keeps = bool(keep)
        self._columns = columns
        dim = self._open_first(precision)
        self.info = SourceInfo(
            name=self._folder.out,
            rows=sum(record.rows for record in self._records),
            dim=dim,
            dtype=precision,
            metric=metric or "cosine",
            about=about,
            json_columns=tuple(n for n, kind in columns.items() if kind == "json" and n in keep)
            if self._format == "parquet"
            else (),
            is_sorted=self._id_field is None,
            has_unique_ids=self._id_field is None,
        )

    def _open_first(self, precision: str) -> int:
        """Set the schema from the first shard; return the length of the vectors."""
        pa = imported_arrow()
        if not self._records:
            raise ConvertError(f"{self._folder.out} holds no vectors")
        with self._shard(self._records[0]) as path:
            if self._format == "npy":
                dim = int(np.load(path, mmap_mode="r").shape[1])
                is_number = self._id_field is None or self._columns.get(self._id_field) == "int64"
                fields = [pa.field("id", pa.int64() if is_number else pa.string())]
                fields += [pa.field("metadata", pa.string())] if self._keeps else []
            else:
                written = pa.parquet.read_schema(file_for_arrow(path))
                dim = int(written.field("vector").type.list_size)
                fields = [
                    pa.field("id", id_type(field.type)) if field.name == "id" else field
                    for field in written
                    if field.name != "vector"
                ]
        self.schema = pa.schema([*fields, vector_field(dim, precision)])
        return dim

    @override
    def blocks(self) -> Iterator[Any]:
        read = self._npy_blocks if self._format == "npy" else self._parquet_blocks
        for record in self._records:
            rows = 0
            try:
                with self._shard(record) as path:
                    for block in read(path, record):
                        rows += len(block)
                        yield block
            except OSError as error:
                where = self._folder.where(record.file)
                raise ConvertError(f"cannot read {where}: {error.strerror or error}") from error
            if rows != record.rows:
                raise ConvertError(
                    f"{self._folder.where(record.file)} has {rows} rows, and should have "
                    f"{record.rows}; {_VERIFY}"
                )

    @contextmanager
    def _shard(self, record: ShardRecord) -> Iterator[Path]:
        """A shard's file, whose size and SHA-256 are those of the manifest."""
        with self._checked(record.file, record.sha256, record.bytes) as path:
            yield path

    @contextmanager
    def _checked(self, name: str, sha256: str, size: int | None = None) -> Iterator[Path]:
        where = self._folder.where(name)
        try:
            with self._folder.local(name) as path:
                actual = record_file(path)
                if actual.sha256 != sha256 or size not in (None, actual.bytes):
                    raise ConvertError(
                        f"{where} is not what was written: its size or SHA-256 differs; {_VERIFY}"
                    )
                yield path
        except FileNotFoundError:
            raise ConvertError(f"{where} is missing; {_VERIFY}") from None

    def _parquet_blocks(self, path: Path, record: ShardRecord) -> Iterator[Any]:
        pa = imported_arrow()
        where = self._folder.where(record.file)
        try:
            with pa.parquet.ParquetFile(file_for_arrow(path)) as file:
                names = self.schema.names
                for batch in file.iter_batches(block_rows(self._dim()), columns=names):
                    columns = [
                        batch.column(field.name).cast(field.type)
                        if field.name != "vector"
                        else batch.column("vector")
                        for field in self.schema
                    ]
                    yield pa.record_batch(columns, schema=self.schema)
        except (pa.ArrowException, KeyError) as error:
            raise ConvertError(f"{where} cannot be converted: {error}") from None

    def _npy_blocks(self, path: Path, record: ShardRecord) -> Iterator[Any]:
        pa = imported_arrow()
        vectors = np.load(path, mmap_mode="r")
        is_number = self.has_number_ids
        with self._checked(row_map_name(record.file), record.map_sha256 or "") as map_path:  # noqa: SIM117
            with map_path.open("rb") as lines, path.open("rb") as file:
                file.seek(vectors.offset)
                step, width = block_rows(self._dim()), vectors.dtype.itemsize * vectors.shape[1]
                while mapped := [json.loads(line) for line in islice(lines, step)]:
                    content = file.read(len(mapped) * width)
                    if len(content) != len(mapped) * width:
                        raise ConvertError(
                            f"{self._folder.where(record.file)} has fewer rows than its row map"
                        )
                    ids = [row["id"] for row in mapped]
                    columns = [pa.array(ids if is_number else list(map(str, ids)))]
                    if self._keeps:
                        columns.append(pa.array([self._metadata(row) for row in mapped]))
                    flat = pa.array(np.frombuffer(content, vectors.dtype))
                    kind = self.schema.field("vector").type
                    columns.append(pa.FixedSizeListArray.from_arrays(flat, type=kind))
                    yield pa.record_batch(columns, schema=self.schema)

    def _metadata(self, row: dict[str, Any]) -> str:
        fields = {name: value for name, value in row.items() if name not in ("row", "id")}
        return json.dumps(fields)

    def _dim(self) -> int:
        return int(self.schema.field("vector").type.list_size)

    @override
    def close(self) -> None:
        pass  # files are open while they are read


def _complete_job(folder: JobFolder) -> tuple[dict[str, Any], list[ShardRecord]]:
    """The manifest of a job, and its shards in order.

    Raises:
        ConvertError: it is not complete, or a shard is missing.
        BulkError: it is not the folder of a bulk job.
    """
    shares = folder.shares()
    if not shares:
        raise BulkError(f"{folder.out} is not the folder of a bulk job: it has no manifest")
    whole = [share for share in shares if share[1] == 1]
    shares = whole or shares
    count = shares[0][1]
    if missing := [i for i in range(1, count + 1) if (i, count) not in shares]:
        named = ", ".join(f"{i}/{count}" for i in missing[:5])
        raise ConvertError(
            f"{folder.out} is not complete: the manifest of share {named} is missing"
        )
    records: list[ShardRecord] = []
    first: dict[str, Any] = {}
    for share in shares:
        part = folder.with_share(share)
        manifest = part.read_manifest() or {}
        first = first or manifest
        where = part.where(part.manifest)
        if changed := list(differences_of_shares(first, manifest)):
            raise ConvertError(f"{where} belongs to another job: {'; '.join(changed[:5])}")
        if "shards" not in manifest:
            raise ConvertError(
                f"{folder.out} is not complete: run the same `flowvec encode` again to finish it"
            )
        records += records_of(manifest["shards"], where)
    sizes = folder.sizes()
    records = sorted(records, key=lambda record: record.shard)
    for record in records:
        if record.file and sizes.get(record.file) != record.bytes:
            state = "has another size than was written" if record.file in sizes else "is missing"
            raise ConvertError(f"{folder.where(record.file)} {state}; {_VERIFY}")
    return first, records
