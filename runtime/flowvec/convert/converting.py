"""`convert`: vectors of a bulk job or a collection, in the format of another tool."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from flowvec.arguments import choice, flag, path_of
from flowvec.arrow import imported_arrow
from flowvec.bulk.verify import is_bulk_folder
from flowvec.collection.creation import is_collection
from flowvec.collection.store.absence import SHARDS_FILE
from flowvec.convert.bucket_target import bucket_target
from flowvec.convert.collection_source import CollectionSource
from flowvec.convert.file_target import KEEP_DTYPE, FileTarget
from flowvec.convert.job_source import JobSource
from flowvec.convert.options import (
    FORMATS,
    Converted,
    ConvertFormat,
    ConvertOptions,
    ConvertProgress,
    Labels,
)
from flowvec.convert.qdrant_target import QdrantTarget
from flowvec.convert.room import free_bytes, in_words, vector_bytes
from flowvec.convert.rows import Rows
from flowvec.convert.source import Source
from flowvec.convert.target import Target, Written
from flowvec.errors import BulkError, ConvertError, InputValueError
from flowvec.object_store import open_store
from flowvec.optional import require
from flowvec.texts.places import check_apart
from flowvec.texts.unicode import replace_surrogates
from flowvec.texts.urls import is_url, name_of, public, shown
from flowvec.vectors import Metric

__all__ = ["convert"]

# A Path drops one of the two slashes of a URL. A drive is one letter.
_PATH_OF_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")


def convert(
    source: str | Path,
    target: str | Path,
    to: ConvertFormat,
    *,
    metric: Metric | None = None,
    normalize: bool = False,
    labels: Labels | None = None,
    row_group_rows: int = 8192,
    m: int = 16,
    ef_construction: int = 200,
    table: str | None = None,
    collection: str | None = None,
    overwrite: bool = False,
    dry_run: bool = False,
    on_progress: Callable[[ConvertProgress], None] | None = None,
) -> Converted:
    """Write the vectors of a bulk job or a collection in the format of another tool.

        >>> size = Path("lines.txt").write_text("The cat sleeps.\\nStocks fell.\\n")
        >>> summary = encode_files("mini", "lines.txt", "lines", out_format="npy")
        >>> converted = convert("lines", "lines.parquet", "parquet")
        >>> converted.rows, converted.dtype
        (2, 'float32')

    Every row is written once, with its id, text and metadata, and its vector bit for bit. Shards of
    a job are compared with the SHA-256 in its manifest while they are read, and rows of a
    collection with their checksums. The target appears whole or not at all. Sparse vectors of a
    collection are written too; beside indexes of faiss and hnswlib, in `rows.parquet`.

    Memory does not grow with the rows, except for hnswlib, whose graph is built in memory. Where
    rows are sorted by id (Parquet, pgvector, and labels that are ids), temporary files of about the
    size of the source are written beside the target; a job without an id field is sorted already.

    Args:
        source: the folder or URL of a complete bulk job, or the directory of a collection.
        target: the file (`parquet`) or the folder (all others) to write, or its URL in an object
            store, such as `s3://bucket/vectors.parquet`. It is built in the temporary folder
            (TMPDIR) and then uploaded. For `qdrant`, the URL of a server, whose API key is taken
            from the environment variable QDRANT_API_KEY, or the folder of qdrant-client's local
            mode.
        to: the format: `parquet`, `faiss` (an IndexIDMap over an IndexFlat), `hnswlib`,
            `pgvector` (PostgreSQL's COPY in binary format, and a script for psql), `lance` or
            `qdrant`.
        metric: how the vectors are to be compared; None is the collection's, and `cosine` for a
            job. faiss and hnswlib compute cosines as inner products.
        normalize: divide each vector by its length, in float32.
        labels: what faiss and hnswlib return: the `ids`, or numbers of `rows` from 0. None takes
            the ids if all are whole numbers of at most 64 bits.
        row_group_rows: rows of a row group of Parquet files: fewer make it faster to find an id.
        m: links of a node of the HNSW graph of hnswlib, pgvector and Qdrant.
        ef_construction: search depth while that graph is built.
        table: name of pgvector's table, `TABLE` or `SCHEMA.TABLE`; None takes the target's name, up
            to its first dot.
        collection: name of Qdrant's collection; None takes the last part of the source's path.
        overwrite: replace a target that exists. A folder, or a collection of Qdrant, is replaced
            only if `convert` wrote it.
        dry_run: check the arguments, whether the source is complete, and whether the target may be
            written, and write nothing. `bytes` of the result are then those of the vectors alone.
        on_progress: called with the progress after each block.

    Raises:
        InputTypeError, InputValueError: an argument is not valid.
        ConvertError: the job is not complete or damaged, the target exists or cannot be written or
            reached, or the format cannot hold the rows.
        BulkError: the source is neither a job nor a collection, or cannot be read; or the object
            store cannot be reached, refuses access, or is lost to another process.
        CollectionError: the collection cannot be read.
        MissingDependencyError: pyarrow is not installed, or pylance for a Lance dataset, or
            qdrant-client for Qdrant, or the library of an object store.
    """
    began = time.monotonic()
    choice("to", to, FORMATS)
    flag("overwrite", overwrite)
    flag("dry_run", dry_run)
    options = ConvertOptions(
        metric, normalize, labels, row_group_rows, m, ef_construction, table, collection
    )
    imported_arrow("`flowvec convert`")
    destination = _target(source, target, to, collection, overwrite=overwrite)
    if table is None:
        name = replace_surrogates(destination.name.partition(".")[0])
        options = replace(options, table=name or "vectors")
    with _opened(source, metric) as opened:
        check_apart(destination.path or target, [source], ConvertError)
        if dry_run:
            written = _dry_run(Rows(opened, options, destination.work, None), destination, to)
        else:
            with destination:
                written = destination.write(
                    lambda scratch: Rows(opened, options, scratch, on_progress)
                )
        info = opened.info
    return Converted(
        target=public(str(target)),
        format=to,
        rows=info.rows,
        dim=info.dim,
        dtype=info.dtype if written.keeps_dtype else "float32",
        metric=info.metric,
        bytes=written.bytes,
        seconds=time.monotonic() - began,
        notes=written.notes,
    )


def _dry_run(rows: Rows, target: Target, to: ConvertFormat) -> Written:
    """What would be written, as far as it is known before the rows are read.

    Raises:
        ConvertError: the target may not be written or has too little room, or the format cannot
            hold the rows.
    """
    target.look()
    if to in ("faiss", "hnswlib"):
        _ = rows.labels_are_ids  # raises if the ids should be labels and cannot be
    size = vector_bytes(rows.info, to)
    note = f"it takes at least {in_words(size)}"
    if to != "qdrant":
        if not os.access(target.work, os.W_OK):
            raise ConvertError(f"cannot write to {target.work}: it is read-only")
        free = free_bytes(target.work)
        if free < size:
            raise ConvertError(
                f"{note}, and {target.work} has only {in_words(free)} free; nothing was written"
            )
        note += f"; {target.work} has {in_words(free)} free"
    return Written(size, to == "qdrant" or to in KEEP_DTYPE, (note,))


def _target(
    source: str | Path,
    target: str | Path,
    to: ConvertFormat,
    collection: str | None,
    *,
    overwrite: bool,
) -> Target:
    """The target of a conversion.

    Raises:
        InputTypeError, InputValueError, ConvertError: it is not valid, or may not be replaced.
        BulkError: its object store cannot be reached, or refuses access.
        MissingDependencyError: the library of the format or of the store is not installed.
    """
    if to == "qdrant":
        name = name_of(str(source)).rstrip("/").rpartition("/")[2] or "vectors"
        return QdrantTarget(target, name if collection is None else collection, overwrite=overwrite)
    if to == "lance":
        require("a Lance dataset", "lance", "lance")
    if is_url(str(target)):
        return bucket_target(str(target), to, overwrite=overwrite)
    path = path_of("the target", target)
    if _PATH_OF_URL.match(str(path)):
        raise InputValueError(
            f"{shown(str(path))} has one slash, and a URL has two after its scheme; in Python give "
            "it as a text, since a Path changes its slashes"
        )
    return FileTarget(path, to, overwrite=overwrite)


def _opened(source: str | Path, metric: Metric | None) -> Source:
    """Open a source.

    Raises:
        ConvertError, BulkError, CollectionError: it cannot be converted.
    """
    name = str(source) if is_url(str(source)) else str(path_of("the source", source))
    if not is_url(name) and is_collection(Path(name)):
        return CollectionSource(name, metric)
    if not is_url(name) and (Path(name) / SHARDS_FILE).is_file():
        raise ConvertError(
            f"{name} is a collection in shards: convert them one by one, such as "
            f"{Path(name) / 'shard-000'}"
        )
    if is_url(name):
        try:
            return JobSource(name, metric)
        except BulkError as error:
            if open_store(name).read(SHARDS_FILE) is None:
                raise
            raise ConvertError(
                f"{shown(name)} is a collection in shards, which cannot be converted from a URL: "
                "name the output of `flowvec encode` for the same texts"
            ) from error
    if is_bulk_folder(name):
        return JobSource(name, metric)
    missing = "" if Path(name).exists() else ": it does not exist"
    raise ConvertError(
        f"{shown(name)} is neither the folder of a bulk job nor a collection{missing}"
    )
