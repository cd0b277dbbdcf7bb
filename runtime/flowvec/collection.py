"""Collection: ids, texts, metadata and vectors on disk, and their nearest neighbours."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from flowvec.bundle import absolute_path
from flowvec.encoder import Encoder
from flowvec.errors import (
    ClosedError,
    CollectionError,
    CorruptCollectionError,
    FingerprintMismatchError,
    InputTypeError,
    InputValueError,
)
from flowvec.exact import METRICS, Metric
from flowvec.hnsw import EF_CONSTRUCTION, M, sync_folder
from flowvec.neighbours import Neighbours
from flowvec.store import FILE, Id, Item, Store, check_ids, encode_metadata
from flowvec.tokenizer import check_texts, replace_surrogates
from flowvec.version import __version__

__all__ = ["Collection", "CollectionInfo", "Hit"]

logger = logging.getLogger("flowvec.collection")

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Hit:
    """One search result.

    Attributes:
        id: the id that the row was added under.
        score: higher is better: cosine, inner product, or minus the Euclidean distance.
        text: the row's text, if it has one.
        metadata: the row's metadata, if it has any.
    """

    id: Id
    score: float
    text: str | None
    metadata: dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class CollectionInfo:
    """What a collection is.

    Attributes:
        path: its directory.
        rows: rows in it.
        dim: length of its vectors.
        metric: `cosine`, `ip` or `l2`.
        model: name or directory of the bundle that it was created with.
        fingerprint: that bundle's fingerprint; None for a collection of plain vectors.
        compute: compute type that its first vectors were made with.
        search: `exact` or `hnsw`.
        graph_rows: rows in the graph held in memory, tombstones included.
        bytes: size of the directory on disk.
        created: when, ISO 8601.
        created_by: version of flowvec.
    """

    path: str
    rows: int
    dim: int
    metric: Metric
    model: str | None
    fingerprint: str | None
    compute: str | None
    search: str
    graph_rows: int
    bytes: int
    created: str
    created_by: str


class Collection:
    """A directory of vectors that can be searched.

    `collection.sqlite` is the truth; `graph-<n>.hnsw` is a cache that is verified before use and
    rebuilt from the truth when it is missing or damaged. A returned `add` or `delete` is on disk.

        >>> with Collection.create("notes", encoder=Encoder.load("mini")) as notes:
        ...     notes.add(["a", 2], ["The cat sleeps.", "Stocks fell."])
        ...     [hit.id for hit in notes.search("a sleeping animal", k=1)]
        ['a']

    Its methods may be called from several threads, which take turns. Other processes may read while
    one writes, and see what it has committed at their next call.
    """

    def __init__(self, path: Path, store: Store, encoder: Encoder | None) -> None:
        """Wrap an open store; use `Collection.create` or `Collection.open`."""
        self._path = path
        self._store = store
        self._encoder = encoder
        self._meta = store.read_meta()
        try:
            self._dim = int(self._meta["dim"])
            m, ef_construction = int(self._meta["M"]), int(self._meta["ef_construction"])
            self._metric = METRICS[METRICS.index(cast(Metric, self._meta["metric"]))]
            self._created = self._meta["created"], self._meta["created_by"]
        except (KeyError, ValueError) as error:
            raise CorruptCollectionError(f"{path}: its table meta is damaged: {error!r}") from None
        self._neighbours = Neighbours(store, path, self._dim, self._metric, m, ef_construction)
        self._lock = threading.RLock()
        self._process = os.getpid()
        self._closed = False

    # --- life -----------------------------------------------------------------------------------

    @classmethod
    def create(
        cls,
        path: str | Path,
        *,
        encoder: Encoder | None = None,
        dim: int | None = None,
        metric: Metric = "cosine",
    ) -> Collection:
        """Make a new, empty collection.

        Args:
            path: a directory that does not exist, or is empty.
            encoder: embeds texts; its fingerprint is kept, and later Encoders must match it.
            dim: length of the vectors, for a collection without an Encoder.
            metric: `cosine`, `ip` (inner product) or `l2` (Euclidean distance).

        Raises:
            InputValueError: not exactly one of encoder and dim, or an unknown metric.
            CollectionError: the directory is not empty or cannot be written.
        """
        if (encoder is None) == (dim is None):
            raise InputValueError("give either an encoder or a dim")
        if metric not in METRICS:
            raise InputValueError(f"metric must be one of {', '.join(METRICS)}, but is {metric!r}")
        if dim is not None and (
            isinstance(dim, bool) or not isinstance(dim, int | np.integer) or dim < 1
        ):
            raise InputValueError(f"dim must be a whole number from 1 on, but is {dim!r}")
        folder = absolute_path(path)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if any(folder.iterdir()):
                raise CollectionError(f"{folder} is not empty")
        except OSError as error:
            raise CollectionError(f"cannot create {folder}: {error}") from error
        meta = {
            "dim": str(encoder.dim if encoder else dim),
            "metric": metric,
            "vector_dtype": "float32",
            "M": str(M),
            "ef_construction": str(EF_CONSTRUCTION),
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "created_by": f"flowvec {__version__}",
        }
        if encoder is not None:
            meta |= _model_of(encoder)
        store = Store(folder / FILE, create=meta)
        for level in (folder, folder.parent):
            sync_folder(level)
        return cls(folder, store, encoder)

    @classmethod
    def open(cls, path: str | Path, *, encoder: Encoder | None = None) -> Collection:
        """Open an existing collection.

        Args:
            path: its directory.
            encoder: needed to add or search texts; without it vectors can be added and searched.

        Raises:
            CollectionError: there is no collection, or it is of another layout version.
            FingerprintMismatchError: the Encoder is not the model that made the vectors.
            CorruptCollectionError: the database is damaged.
        """
        folder = absolute_path(path)
        store = Store(folder / FILE)
        try:
            collection = cls(folder, store, encoder)
            if encoder is not None:
                collection._check_encoder(encoder)
        except BaseException:
            store.close()
            raise
        return collection

    def _check_encoder(self, encoder: Encoder) -> None:
        expected = self._meta.get("fingerprint")
        if expected is None and encoder.dim == self._dim:
            return  # the first texts that are added decide
        if encoder.fingerprint != expected:
            made_with = f"plain vectors of {self._dim} dimensions"
            if expected is not None:
                made_with = f"{self._meta.get('model')} (fingerprint {expected[:12]})"
            raise FingerprintMismatchError(
                f"{self._path} was made with {made_with}, and {encoder.bundle.manifest.name} is "
                f"another model (fingerprint {encoder.fingerprint[:12]}): their vectors cannot be "
                "compared"
            )
        compute = self._meta.get("compute")
        if compute != encoder.engine.compute:
            logger.warning(
                "%s was made in %s and is now used in %s: scores may differ in the third digit",
                self._path,
                compute,
                encoder.engine.compute,
            )

    def close(self) -> None:
        """Save the graph and close the files; calling it twice is harmless."""
        with self._lock:
            if self._closed:
                return
            if self._process == os.getpid():
                try:
                    self._neighbours.follow()
                    self._neighbours.save()
                except CollectionError as error:
                    # The graph is a cache: without it the next search takes longer, that is all.
                    logger.warning("%s", error)
                self._store.close()
            self._closed = True

    def __enter__(self) -> Collection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def _used(self, *, one_state: bool = False) -> Iterator[None]:
        """Take the lock, check that the collection can be used here, and follow other processes.

        With `one_state` all reads of the block see one state of the file.
        """
        with self._lock:
            if self._closed:
                raise ClosedError("this Collection is closed")
            if self._process != os.getpid():
                raise CollectionError("a Collection does not survive a fork; open it again")
            with self._store.reading() if one_state else nullcontext():
                self._neighbours.follow()
                yield

    # --- writing --------------------------------------------------------------------------------

    def add(
        self,
        ids: Sequence[Id],
        texts: Sequence[str],
        metadata: Sequence[dict[str, Any] | None] | None = None,
    ) -> None:
        """Embed texts and add them; rows of the same ids are replaced. On disk when it returns.

        Args:
            ids: any texts or whole numbers; 1 and "1" are two ids. Of equal ids the last counts.
            texts: as many texts, embedded by `Encoder.encode_document`.
            metadata: as many JSON objects or None.

        Raises:
            InputTypeError, InputValueError: an id, text or metadata is refused; nothing was added.
        """
        encoder = self._need_encoder()
        items = _as_list("texts", texts)
        check_texts(items)
        keys = check_ids(_as_list("ids", ids))
        _check_count("texts", len(items), len(keys))
        payload = _check_metadata(metadata, len(keys))
        kept = _last_of_each(keys)
        vectors = encoder.encode_document([items[i] for i in kept])
        self._write(
            [keys[i] for i in kept],
            vectors,
            [items[i] for i in kept],
            [payload[i] for i in kept],
            made_by=encoder,
        )

    def add_vectors(
        self,
        ids: Sequence[Id],
        vectors: npt.ArrayLike,
        texts: Sequence[str | None] | None = None,
        metadata: Sequence[dict[str, Any] | None] | None = None,
    ) -> None:
        """Add vectors made elsewhere; rows of the same ids are replaced. On disk on return.

        Args:
            ids: as in `add`.
            vectors: float32 (rows, dim); other number types are converted.
            texts: as many texts or None, kept and returned by searches.
            metadata: as in `add`.

        Raises:
            InputTypeError, InputValueError: something is refused; nothing was added.
        """
        rows = self._check_vectors(vectors, "vectors")
        keys = check_ids(_as_list("ids", ids))
        _check_count("vectors", len(rows), len(keys))
        items = [None] * len(rows) if texts is None else _as_list("texts", texts)
        _check_count("texts", len(items), len(keys))
        check_texts(["" if text is None else text for text in items])
        payload = _check_metadata(metadata, len(keys))
        kept = _last_of_each(keys)
        self._write(
            [keys[i] for i in kept],
            rows[kept],
            [items[i] for i in kept],
            [payload[i] for i in kept],
        )

    def _write(
        self,
        ids: Sequence[Id],
        vectors: Floats,
        texts: Sequence[str | None],
        metadata: Sequence[str | None],
        made_by: Encoder | None = None,
    ) -> None:
        if not ids:
            return
        stored = [None if text is None else replace_surrogates(text) for text in texts]
        with self._used():
            with self._store.transaction():
                if made_by is not None:
                    self._claim(made_by)
                labels, replaced = self._store.upsert(ids, vectors, stored, metadata)
            self._neighbours.replace(replaced, labels, vectors)
            if made_by is not None and "fingerprint" not in self._meta:
                self._meta = self._store.read_meta()

    def _claim(self, encoder: Encoder) -> None:
        """Let the first texts that are added decide whose vectors these are; in a transaction."""
        stored = self._store.read_meta()
        if "fingerprint" not in stored:
            self._store.write_meta(_model_of(encoder))
        elif stored["fingerprint"] != self._meta.get("fingerprint"):
            self._meta = stored  # another handle was first
            self._check_encoder(encoder)

    def delete(self, ids: Sequence[Id]) -> int:
        """Delete rows by id; on disk when it returns. Unknown ids are ignored.

        Returns:
            How many rows there were.
        """
        keys = check_ids(_as_list("ids", ids))
        with self._used():
            with self._store.transaction():
                labels = self._store.delete(keys)
            self._neighbours.replace(labels, [])
            return len(labels)

    # --- reading --------------------------------------------------------------------------------

    def __len__(self) -> int:
        """Rows in the collection."""
        with self._used():
            return len(self._neighbours)

    def get(self, ids: Sequence[Id]) -> list[Item | None]:
        """Rows by id, in the order of the ids; None for an unknown one.

        Raises:
            CorruptCollectionError: a row does not match its checksum.
        """
        keys = check_ids(_as_list("ids", ids))
        with self._used(one_state=True):
            labels = dict(self._store.labels_of(keys))
            items = self._store.read(list(labels.values()))
        found = [labels.get(key) for key in keys]
        return [None if label is None else items[label] for label in found]

    def search(
        self,
        query: str | npt.ArrayLike,
        k: int = 10,
        *,
        min_score: float | None = None,
    ) -> list[Hit]:
        """The rows nearest to a text or a vector.

        Args:
            query: a text, embedded by `Encoder.encode_query`, or a float32 vector (dim,).
            k: how many; always min(k, rows) hits are returned, unless `min_score` drops some.
            min_score: the least score of a hit.

        Returns:
            Hits, best first.

        Raises:
            InputValueError: negative k; a vector of another length, or with NaN or infinity.
            CollectionError: a text, but the collection was opened without an Encoder.
        """
        if isinstance(query, str):
            vectors = self._need_encoder().encode_query([query])
        else:
            vectors = self._check_vectors(np.asarray(query)[None], "query")
        return self._search(vectors, k, min_score)[0]

    def search_batch(
        self,
        queries: Sequence[str] | npt.ArrayLike,
        k: int = 10,
        *,
        min_score: float | None = None,
    ) -> list[list[Hit]]:
        """`search` for many texts, or vectors float32 (queries, dim), at once."""
        _refuse_single("queries", queries)
        if isinstance(queries, list | tuple) and any(isinstance(q, str) for q in queries):
            vectors = self._need_encoder().encode_query(cast(list[str], queries))
        else:
            vectors = self._check_vectors(queries, "queries")
        return self._search(vectors, k, min_score)

    def _search(self, vectors: Floats, k: int, min_score: float | None) -> list[list[Hit]]:
        if isinstance(k, bool) or not isinstance(k, int | np.integer):
            raise InputTypeError(f"k must be a whole number, not {type(k).__name__}")
        if k < 0:
            raise InputValueError(f"k must not be negative, but is {k}")
        with self._used(one_state=True):
            labels, scores = self._neighbours.search(vectors, int(k))
            items = self._store.read(np.unique(labels).tolist())
        hits = []
        for row_labels, row_scores in zip(labels.tolist(), scores.tolist(), strict=True):
            row = [
                Hit(items[label].id, score, items[label].text, items[label].metadata)
                for label, score in zip(row_labels, row_scores, strict=True)
                if min_score is None or score >= min_score
            ]
            hits.append(row)
        return hits

    def info(self) -> CollectionInfo:
        """The collection's figures."""
        with self._used():
            return CollectionInfo(
                path=str(self._path),
                rows=len(self._neighbours),
                dim=self._dim,
                metric=self._metric,
                model=self._meta.get("model"),
                fingerprint=self._meta.get("fingerprint"),
                compute=self._meta.get("compute"),
                search="exact" if self._neighbours.is_exact else "hnsw",
                graph_rows=self._neighbours.graph_rows,
                bytes=sum(f.stat().st_size for f in self._path.iterdir() if f.is_file()),
                created=self._created[0],
                created_by=self._created[1],
            )

    # --- checks ---------------------------------------------------------------------------------

    def _need_encoder(self) -> Encoder:
        if self._encoder is None:
            raise CollectionError(
                "this collection was opened without an encoder, so it takes vectors, not texts; "
                "open it with Collection.open(path, encoder=...)"
            )
        return self._encoder

    def _check_vectors(self, vectors: npt.ArrayLike, what: str) -> Floats:
        try:
            rows = np.asarray(vectors, dtype=np.float32)
        except (TypeError, ValueError) as error:
            raise InputTypeError(f"{what} are no numbers: {error}") from None
        if rows.size == 0 and rows.ndim == 1:
            rows = rows.reshape(0, self._dim)
        if rows.ndim != 2 or rows.shape[1] != self._dim:
            raise InputValueError(
                f"{what} must have {self._dim} dimensions each, but their shape is {rows.shape}"
            )
        # A square that overflows would give an infinite norm, and NaN for a score.
        with np.errstate(over="ignore"):
            bad = np.flatnonzero(~np.isfinite(np.einsum("ij,ij->i", rows, rows)))
        if len(bad):
            raise InputValueError(f"row {bad[0]} of {what} holds NaN, infinity or a huge number")
        return rows


def _model_of(encoder: Encoder) -> dict[str, str]:
    """What a collection keeps of the model that made its vectors."""
    return {
        "model": encoder.bundle.handle,
        "fingerprint": encoder.fingerprint,
        "compute": encoder.engine.compute,
    }


def _refuse_single(name: str, value: object) -> None:
    """A bare text is a sequence of its characters: hardly ever what was meant."""
    if isinstance(value, str | bytes):
        raise InputTypeError(f"{name} must be a list, not a single {type(value).__name__}")


def _as_list(name: str, values: Iterable[Any]) -> list[Any]:
    _refuse_single(name, values)
    return list(values)


def _check_count(name: str, count: int, ids: int) -> None:
    if count != ids:
        raise InputValueError(f"{ids} ids for {count} {name}")


def _check_metadata(metadata: Iterable[Any] | None, count: int) -> list[str | None]:
    if metadata is None:
        return [None] * count
    items = [encode_metadata(item, i) for i, item in enumerate(metadata)]
    _check_count("metadata", len(items), count)
    return items


def _last_of_each(ids: Sequence[Id]) -> list[int]:
    """Indices of the last occurrence of each id, ascending."""
    last = {item: i for i, item in enumerate(ids)}
    return sorted(last.values())
