"""A target that is a collection of Qdrant, which appears under its name whole or not at all.

Points go into a new collection `NAME-flowvec-XXXXXXXXXXXX`. When all are there, NAME becomes its
alias. A killed conversion leaves a collection of such a name without an alias; the next one to the
same name deletes it.
"""

from __future__ import annotations

import re
import tempfile
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from shutil import rmtree
from typing import Any
from uuid import uuid4

from flowvec.arguments import path_of
from flowvec.bundle.bundle import absolute_path
from flowvec.compat import override
from flowvec.convert.qdrant_connection import QdrantConnection, checked_url
from flowvec.convert.qdrant_points import SPARSE, Batch, batches
from flowvec.convert.rows import Rows
from flowvec.convert.target import Target, Written
from flowvec.errors import ConvertError, InputValueError
from flowvec.optional import require

__all__ = ["QdrantTarget"]

_DISTANCES = {"cosine": "COSINE", "ip": "DOT", "l2": "EUCLID"}
_FORBIDDEN = set('<>:"/\\|?*\0\x1f')
# Qdrant's limits: characters of a name, and numbers of a vector.
_NAME_LENGTH, _MOST_DIM = 255, 65_536
_LEAST_EF = 4
# Requests that a server has at a time, so that it does not wait for this side.
_REQUESTS = 4


class QdrantTarget(Target):
    """A collection of a server, or of a folder of qdrant-client's local mode."""

    def __init__(self, target: str | Path, name: str, *, overwrite: bool) -> None:
        """Look at the names; nothing is opened yet.

        Args:
            target: the server's URL, or the folder.
            name: the collection's name.
            overwrite: replace a collection of that name, if `convert` made it.

        Raises:
            InputTypeError, InputValueError: the target or the name is not valid.
            ConvertError: the folder holds something else.
            MissingDependencyError: qdrant-client is not installed.
        """
        require("a collection of Qdrant", "qdrant", "qdrant_client")
        self._url = checked_url(str(target))
        self.path = absolute_path(path_of("the target", target)) if self._url is None else None
        self.name = _checked_name(name)
        self._shown = str(target)
        self._overwrite = overwrite
        self._is_new = self.path is not None and not self.path.exists()
        if self.path is not None and self.path.exists():
            is_folder = self.path.is_dir()
            if not is_folder or (any(self.path.iterdir()) and not _is_storage(self.path)):
                raise ConvertError(f"{target} is not a folder of qdrant-client's local mode")

    @override
    def __enter__(self) -> QdrantTarget:
        """Connect, and look whether the collection may be written.

        Raises:
            ConvertError: the server cannot be reached, or the collection may not be replaced.
        """
        if self.path is not None:
            try:
                self.path.parent.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise ConvertError(f"cannot write {self._shown}: {error.strerror}") from error
        self._connection = QdrantConnection(self._url, self.path or Path())
        try:
            self._check(patience=0)
        except BaseException:
            self._close(failed=True)
            raise
        return self

    @override
    def __exit__(self, kind: object, *rest: object) -> None:
        self._close(failed=kind is not None)

    def _close(self, *, failed: bool) -> None:
        self._connection.close()
        if failed and self._is_new and self.path is not None:
            rmtree(self.path, ignore_errors=True)

    @property
    @override
    def work(self) -> Path:
        return Path(tempfile.gettempdir())

    @override
    def look(self) -> None:
        if self._url is not None:  # the local mode writes when it is opened
            with self:
                return

    @override
    def write(self, rows_with: Callable[[Path], Rows]) -> Written:
        try:
            scratch = tempfile.TemporaryDirectory(prefix="flowvec-")
        except OSError as error:
            raise ConvertError(f"cannot write temporary files: {error.strerror}") from error
        with scratch as folder:
            rows = rows_with(Path(folder))
            self._check_rows(rows)
            made = f"{self.name}-flowvec-{uuid4().hex[:12]}"
            try:
                self._delete_unfinished()
                self._create(made, rows)
                self._upload(made, rows)
                self._publish(made, rows.info.rows)
            except BaseException:
                with suppress(ConvertError):
                    self._delete_unfinished(made, patience=0)
                raise
        opened = f'url="{self._shown}"' if self._connection.is_server else f'path="{self._shown}"'
        note = (
            f"from qdrant_client import QdrantClient; client = QdrantClient({opened}); "
            f'client.query_points("{self.name}", query=vector)'
        )
        return Written(None, keeps_dtype=True, notes=(note,))

    # --- what is there ----------------------------------------------------------------------------

    def _aliases(self, **options: Any) -> dict[str, str]:
        """For each alias, its collection."""
        answer = self._connection.call("list aliases", "get_aliases", **options)
        return {one.alias_name: one.collection_name for one in answer.aliases}

    def _collections(self, **options: Any) -> list[str]:
        answer = self._connection.call("list collections", "get_collections", **options)
        return [one.name for one in answer.collections]

    def _check(self, **options: Any) -> str | None:
        """Refuse a collection that may not be replaced.

        Returns:
            The collection that has the name as an alias, and will be replaced, or None.
        """
        collections = self._collections(**options)
        old = self._aliases(**options).get(self.name)
        if old is None and self.name not in collections:
            return None
        place = f"the collection {self.name!r} of {self._shown}"
        if not self._overwrite:
            raise ConvertError(
                f"{place} exists: name another one with --collection (collection=), or give "
                "--overwrite (overwrite=True) to replace it"
            )
        if old is None or not self._is_ours(old):
            raise ConvertError(
                f"{place} was not made by `flowvec convert`, so it is not replaced: name another "
                "one with --collection (collection=)"
            )
        return old

    def _is_ours(self, collection: str) -> bool:
        return bool(re.fullmatch(re.escape(self.name) + "-flowvec-[0-9a-f]{12}", collection))

    def _delete_unfinished(self, only: str | None = None, **options: Any) -> None:
        """Delete what conversions to this name have left: collections without an alias.

        Args:
            only: delete no other one.
            options: of the calls.
        """
        for name in self._collections(**options):
            if (
                self._is_ours(name)
                and only in (None, name)
                and name not in self._aliases(**options).values()
            ):
                self._delete(name, **options)

    def _delete(self, name: str, **options: Any) -> None:
        self._connection.call(
            f"delete the collection {name!r}", "delete_collection", collection_name=name, **options
        )

    # --- writing ----------------------------------------------------------------------------------

    def _check_rows(self, rows: Rows) -> None:
        """Refuse what Qdrant does not store, before anything is written."""
        info = rows.info
        if info.dim > _MOST_DIM:
            raise ConvertError(
                f"{info.name}: Qdrant stores vectors of at most {_MOST_DIM} numbers, not {info.dim}"
            )
        if rows.options.ef_construction < _LEAST_EF:
            raise InputValueError(
                f"Qdrant takes an ef_construction of at least {_LEAST_EF}, not "
                f"{rows.options.ef_construction}"
            )
        try:
            rows.check_unique("Qdrant stores one point for each id")
        except OSError as error:
            raise ConvertError(
                f"cannot write temporary files in {rows.scratch.parent}: {error.strerror or error}"
            ) from error

    def _create(self, made: str, rows: Rows) -> None:
        info, models = rows.info, self._connection.models
        is_half = info.dtype == "float16"
        vectors = models.VectorParams(
            size=info.dim,
            distance=models.Distance[_DISTANCES[info.metric]],
            datatype=models.Datatype.FLOAT16 if is_half else None,
        )
        sparse = None if info.sparse_dim is None else {SPARSE: models.SparseVectorParams()}
        graph = models.HnswConfigDiff(m=rows.options.m, ef_construct=rows.options.ef_construction)
        about = {"flowvec_convert": 1, "metric": info.metric, "rows": info.rows, **info.about}
        # A repeated call finds the collection if only the answer to the first was lost.
        try:
            self._connection.call(
                f"create the collection {made!r}", "create_collection", collection_name=made,
                vectors_config=vectors, sparse_vectors_config=sparse, hnsw_config=graph,
                metadata=about,
            )  # fmt: skip
        except ConvertError:
            if made not in self._collections(patience=0):
                raise

    def _upload(self, made: str, rows: Rows) -> None:
        """Write all points, several requests at a time where the server takes them."""
        if not self._connection.is_server:
            for batch in batches(rows):
                self._upsert(made, batch)
            return
        sent: deque[Future[None]] = deque()
        with ThreadPoolExecutor(_REQUESTS, "flowvec-qdrant") as threads:
            try:
                for batch in batches(rows):
                    if len(sent) >= _REQUESTS:
                        sent.popleft().result()
                    sent.append(threads.submit(self._upsert, made, batch))
                while sent:
                    sent.popleft().result()
            except BaseException:
                self._connection.stop_repeating()
                threads.shutdown(wait=False, cancel_futures=True)
                raise

    def _upsert(self, made: str, batch: Batch) -> None:
        points = _points(self._connection.models, batch)
        count = len(batch.ids)
        what = (
            f"write {count} points from the id {batch.first!r}"
            if count > 1
            else (f"write the point of the id {batch.first!r}")
        )
        self._connection.call(what, "upsert", collection_name=made, points=points, wait=True)

    def _publish(self, made: str, count: int) -> None:
        """Give the collection its name, and delete the one that had it."""
        there = self._connection.call("count points", "count", collection_name=made, exact=True)
        if there.count != count:
            raise ConvertError(
                f"{self._shown} has {there.count} points of {count} that were written"
            )
        old, models = self._check(), self._connection.models
        changes: list[Any] = []
        if old is not None:
            changes.append(
                models.DeleteAliasOperation(delete_alias=models.DeleteAlias(alias_name=self.name))
            )
        alias = models.CreateAlias(collection_name=made, alias_name=self.name)
        changes.append(models.CreateAliasOperation(create_alias=alias))
        self._connection.call(
            f"name the collection {self.name!r}", "update_collection_aliases",
            change_aliases_operations=changes,
        )  # fmt: skip
        if old is not None:
            self._delete(old)


def _points(models: Any, batch: Batch) -> Any:
    """The points of a batch; those with a sparse vector have vectors by name."""
    dense = batch.vectors.tolist()
    # An empty sparse vector is found by no search, and some clients refuse it.
    if not any(one is not None and len(one[0]) for one in batch.sparse):
        return models.Batch(ids=batch.ids, vectors=dense, payloads=batch.payloads)
    points = []
    for key, vector, sparse, payload in zip(
        batch.ids, dense, batch.sparse, batch.payloads, strict=True
    ):
        named: dict[str, Any] = {"": vector}
        if sparse is not None and len(sparse[0]):
            indices, values = sparse
            named[SPARSE] = models.SparseVector(indices=indices.tolist(), values=values.tolist())
        points.append(models.PointStruct(id=key, vector=named, payload=payload))
    return points


def _is_storage(folder: Path) -> bool:
    return (folder / "meta.json").is_file()


def _checked_name(name: str) -> str:
    """A collection's name.

    Raises:
        InputValueError: Qdrant has no such names.
    """
    most = _NAME_LENGTH - len("-flowvec-") - 12
    if not name or name in (".", "..") or len(name.encode()) > most or _FORBIDDEN & set(name):
        raise InputValueError(
            f"a collection of Qdrant cannot have the name {name!r}: a name has 1 to {most} bytes, "
            'and none of < > : " / \\ | ? *; give --collection (collection=)'
        )
    return name
