"""Methods of a Collection that describe it, check it and keep it fast."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import cast

import numpy as np
import numpy.typing as npt

from flowvec.arguments import choice, whole_number
from flowvec.collection.encoder_methods import EncoderMethods
from flowvec.collection.index.sparse_index import SparseIndex
from flowvec.collection.results import CollectionInfo, SearchKind
from flowvec.collection.row_methods import RowMethods
from flowvec.collection.store.full_text import TOKENIZERS, FullText, TextTokenizer
from flowvec.collection.validation import check_share, check_vectors, texts_of
from flowvec.errors import (
    CollectionBusyError,
    CollectionError,
    CorruptCollectionError,
    InputValueError,
)

__all__ = ["UpkeepMethods"]

logger = logging.getLogger(__name__)

Floats = npt.NDArray[np.float32]

# A measured recall is reported until the collection grows or shrinks by more than this factor.
_RECALL_VALID = 1.5
# Where the recall of a kind of search is kept.
_RECALL: dict[SearchKind, str] = {"scan": "recall of scan", "graph": "recall"}


class UpkeepMethods(RowMethods, EncoderMethods):
    """Figures, checks, indexes and the search depth."""

    _dim: int
    _sparse_index: SparseIndex

    def info(self) -> CollectionInfo:
        """The collection's settings and figures."""
        self.refresh()
        self._store.database.check_in_place()
        with self._access.reading():
            settings, rows = self._store.settings, self._store.meta.counts().rows
            kind = self._index.kind
            return CollectionInfo(
                path=str(self._path),
                rows=rows,
                dim=settings.dim,
                metric=settings.metric,
                model=settings.model,
                fingerprint=settings.fingerprint,
                compute=settings.compute,
                search=kind,
                graph_rows=self._index.graph_rows,
                vector_dtype=settings.vector_dtype,
                full_text=self._store.full_text.tokenizer,
                indexed_fields=tuple(self._store.field_indexes.fields()),
                ef_search=self._index.ef_search,
                recall=_measured_recall(self._store.meta.read(), kind, rows),
                bytes=_size_of(self._path),
                memory_bytes=self._index.memory_bytes,
                mapped_bytes=self._index.mapped_bytes,
                created=settings.created,
                created_by=settings.created_by,
                sparse_dim=self._store.sparse.dim,
                sparse_rows=self._store.sparse.count,
                sparse_model=self._store.meta.read_settings().sparse_model,
                sparse_memory_bytes=self._sparse_index.memory_bytes,
                token_model=self._store.meta.read_settings().token_model,
                token_dtype=self._store.meta.read_settings().token_dtype,
                token_rows=self._store.tokens.count,
                token_bytes=self._store.tokens.bytes,
                is_prepared=self._index.is_prepared,
            )

    def refresh(self) -> None:
        """Read what other processes have committed; every search does this by itself."""
        self._access.check()
        self._index.refresh()

    def verify(self) -> list[str]:
        """Check all checksums, SQLite's structure, the full-text index and the other files.

        Returns:
            One message for each problem. A missing cache is not a problem. `compact` rebuilds a
            damaged full-text index. Damaged rows are lost: `delete` removes them, or `salvage`
            creates a new collection of all other rows.
        """
        messages: list[str] = []
        with self._access.reading():
            for problems in (self._store.problems, self._index.problems):
                try:
                    messages.extend(problems())
                except CorruptCollectionError as error:
                    messages.append(str(error))
        return messages

    def prepare(self, stop: threading.Event | None = None) -> bool:
        """Load what the first search needs, and wait until all rows are in codes or the graph.

        Searches do not need it: they compare the other rows exactly, or scan them, while codes and
        the graph grow in the background. The graph is saved when it has grown by a quarter, and
        when the collection is closed.

        Args:
            stop: set it to stop within seconds; a graph of a million rows takes minutes.

        Returns:
            Whether everything is in memory; False if it was stopped.
        """
        self._access.check()
        return self._index.prepare(None if stop is None else stop.is_set)

    def index_texts(self, *, tokenizer: TextTokenizer | None = None) -> None:
        """Create the full-text index that hybrid searches need; changes keep it up to date.

        Args:
            tokenizer: `unicode61` finds words, whatever their English ending, case and accents.
                `trigram` finds parts of words and of texts without spaces, such as Chinese,
                Japanese and Thai; the index is a few times larger. It is kept with the collection;
                another one makes the index again, in one transaction. None keeps the one that is
                there, or is `unicode61`.

        Raises:
            InputValueError: there is no such tokenizer.
            CollectionError: the index has to be made, and the collection is read-only, or others
                were writing longer than `write_timeout`; or its SQLite has no `trigram`.
        """
        if tokenizer is not None:
            choice("tokenizer", tokenizer, TOKENIZERS)
        self._access.check()
        with self._access.reading():
            existing, is_complete = self._store.full_text.tokenizer, self._store.full_text.exists
        is_building = False
        try:
            with self._access.writing():
                is_building = True
                full_text = self._store.full_text
                if not full_text.exists or tokenizer not in (None, full_text.tokenizer):
                    self._say_what_is_made(full_text)
                    with self._store.transaction():
                        full_text.build(tokenizer)
        except CollectionError as error:
            if is_building:
                raise
            kind = type(error) if isinstance(error, CollectionBusyError) else CollectionError
            if existing is None:
                what = "this collection has none, and it cannot be created"
            elif not is_complete:
                what = "this collection's is incomplete, and it cannot be made again"
            else:
                raise kind(
                    f"the full-text index has the tokenizer {existing}, and it cannot be made "
                    f"again with {tokenizer} now: {error}"
                ) from error
            raise kind(f"hybrid searches need a full-text index; {what} now: {error}") from error

    def _say_what_is_made(self, full_text: FullText) -> None:
        if full_text.exists_in_part and not full_text.exists:
            logger.warning("%s: its full-text index is incomplete: it is made again", self._path)
        else:
            logger.info("%s: creating the full-text index", self._path)

    def _has_full_text(self) -> bool:
        with self._access.reading():
            return self._store.full_text.exists

    def compact(self) -> None:
        """Rebuild the vectors file, the full-text index and the graph, and free disk space.

        If searches of this object do not use the graph, its file stays for other programs, unless
        it is damaged or most of its rows were deleted. Searches go on meanwhile. Changes wait while
        files are written anew (seconds for 100,000 rows), but not while the graph is built.
        """
        with self._access.writing():
            if self._store.full_text.exists_in_part:
                with self._store.transaction():
                    self._store.full_text.build()
            self._index.compact_vectors()
        self._index.compact_graph()
        with self._access.writing():
            self._store.database.vacuum()

    def tune_recall(
        self,
        target: float = 0.95,
        *,
        queries: int | Sequence[str] | npt.ArrayLike = 500,
        seed: int = 0,
    ) -> float:
        """Measure the recall of searches; find the least depth of the graph that reaches a target.

        All searches use that depth from then on; a scan has none, so it is only measured. In a
        folder that cannot be written neither is kept. Queries are searched both ways, and exactly.
        Real queries are best. If you have none, each query is made as the mean of three rows; that
        is about as hard for the graph as texts that are in none of the rows, or a little harder.

        Args:
            target: share of the ten nearest rows that a search should find, above 0 and at most 1.
            queries: texts, or vectors float32 (queries, dim), or how many queries to make.
            seed: seed for the queries that are made.

        Returns:
            The recall that was reached: 1 for a collection that is searched exactly, and less than
            the target if no setting reaches it.
        """
        share = check_share(target, "target")
        seed = whole_number("seed", seed, 0, most=None)
        vectors: int | Floats
        if isinstance(queries, int | np.integer | float | str):
            vectors = whole_number("queries", queries, most=None)
        elif (texts := texts_of(queries)) is not None:
            vectors = self._checked_encoder().encode_query(texts)
        else:
            vectors = check_vectors(cast(npt.ArrayLike, queries), self._dim, "queries")
        if not isinstance(vectors, int) and not len(vectors):
            raise InputValueError("there must be at least one query")
        if self.info().search == "exact":
            return 1.0
        self.prepare()
        with self._access.reading():
            rows, kind = len(self), self._index.kind
            ef, recall = self._index.measure_recall(share, vectors, seed)
        if kind == "exact":  # most rows were deleted meanwhile
            return 1.0

        def keep() -> None:
            measured = {_RECALL[kind]: repr(recall), f"{_RECALL[kind]} rows": str(rows)}
            self._store.meta.write(measured | {"ef_search": str(ef)})
            self._store.meta.touch()
            self._index.stage(ef_search=ef)

        if self._store.database.is_writable:
            self._access.change(keep)
        else:
            logger.warning("%s is read-only: the recall and the depth are not kept", self._path)
        return recall


def _size_of(folder: Path) -> int:
    size = 0
    for file in folder.iterdir():
        with suppress(FileNotFoundError):  # a writer has removed it
            size += file.stat().st_size
    return size


def _measured_recall(meta: dict[str, str], kind: SearchKind, rows: int) -> float | None:
    """The recall that `tune_recall` measured; None if there is none, or the rows have changed."""
    if kind == "exact":
        return 1.0
    try:
        recall, rows_then = float(meta[_RECALL[kind]]), int(meta[f"{_RECALL[kind]} rows"])
    except (KeyError, ValueError):
        return None
    is_valid = rows_then <= _RECALL_VALID * rows and rows <= _RECALL_VALID * rows_then
    return recall if is_valid else None
