"""The rows of a conversion, as its output takes them: sorted, labelled, normalized, counted."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from flowvec.arrow import imported_arrow
from flowvec.convert.options import ConvertOptions, ConvertProgress
from flowvec.convert.sorting import sorted_by_id
from flowvec.convert.source import Source, SourceInfo, vectors_of
from flowvec.encoder.postprocess import normalize
from flowvec.errors import ConvertError

__all__ = ["Rows"]

Floats = npt.NDArray[np.float32]
# How far from 1 the length of a normalized vector may be; float16 rounds by half of this.
_UNIT = 1e-3


class Rows:
    """Rows of a source, of which each is read once or twice.

    Attributes:
        info: what is known of them.
        schema: Arrow schema of the blocks.
        options: options of the conversion.
        scratch: a folder for temporary files.
    """

    def __init__(
        self,
        source: Source,
        options: ConvertOptions,
        scratch: Path,
        on_progress: Callable[[ConvertProgress], None] | None,
    ) -> None:
        """Read nothing yet."""
        self.info: SourceInfo = source.info
        self.schema = source.schema
        self.options = options
        self.scratch = scratch
        self._source = source
        self._on_progress = on_progress
        self._began = time.monotonic()

    def unsorted(self) -> Iterator[Any]:
        """All blocks in the source's order."""
        return self._counted("writing", self._read())

    def sorted(self) -> Iterator[Any]:
        """All blocks in ascending order of id."""
        if self.info.is_sorted:
            return self.unsorted()
        blocks = self._counted("sorting", self._read())
        return self._counted("writing", sorted_by_id(blocks, self.schema, self.scratch))

    def labelled(self) -> Iterator[tuple[npt.NDArray[np.int64], Any]]:
        """Labels from 0, ascending and each once, and blocks: the ids, or numbers of the rows.

        Raises:
            ConvertError: an id is negative, or comes twice.
        """
        if not self.labels_are_ids:
            first = 0
            for block in self.unsorted():
                yield np.arange(first, first + len(block), dtype=np.int64), block
                first += len(block)
            return
        last = -1
        advice = "cannot be a label; give --labels rows (labels='rows') for numbers of rows"
        for block in self.sorted():
            labels = block.column("id").to_numpy()
            if len(labels) and labels[0] < 0:
                raise ConvertError(f"{self.info.name}: the id {labels[0]} {advice}")
            before = np.concatenate([[last], labels[:-1]])
            if len(repeated := labels[labels <= before]):
                raise ConvertError(
                    f"{self.info.name}: two rows have the id {repeated[0]}, so it {advice}"
                )
            yield labels, block
            last = int(labels[-1]) if len(labels) else last

    def check_unique(self, why: str) -> None:
        """Read all ids, and refuse two rows with the same.

        Args:
            why: the end of the message, which says why this is refused.

        Raises:
            ConvertError: two rows have the same id, or the source is damaged.
        """
        if self.info.has_unique_ids:
            return
        schema = imported_arrow().schema([self.schema.field("id")])
        blocks = self._counted("checking", self._source.checked_blocks())
        last = None
        ids = (block.select(["id"]) for block in blocks)
        for block in sorted_by_id(ids, schema, self.scratch):
            for key in block.column("id").to_pylist():
                if key == last:
                    raise ConvertError(f"{self.info.name}: two rows have the id {key!r}; {why}")
                last = key

    @property
    def labels_are_ids(self) -> bool:
        """Whether labels are the ids, rather than numbers of the rows from 0.

        Raises:
            ConvertError: the ids should be labels, and are texts.
        """
        if self.options.labels == "ids" and not self._source.has_number_ids:
            raise ConvertError(
                f"{self.info.name} has ids that are texts, which cannot be labels: give --labels "
                "rows (labels='rows')"
            )
        return self._source.has_number_ids and self.options.labels != "rows"

    def inner_product_rows(self, block: Any) -> Floats:
        """Vectors of a block for an index that knows no cosine, float32 (rows, dim).

        Raises:
            ConvertError: the metric is cosine, and a vector is not of length 1.
        """
        vectors = vectors_of(block).astype(np.float32, copy=False)
        if self.info.metric == "cosine":
            lengths = np.linalg.norm(vectors, axis=1)
            # The inner product with zeros is 0, which is also their cosine.
            if len(bad := np.flatnonzero((np.abs(lengths - 1) > _UNIT) & (lengths > 0))):
                key = block.column("id")[int(bad[0])].as_py()
                raise ConvertError(
                    f"{self.info.name}: the vector of the id {key!r} has the length "
                    f"{lengths[bad[0]]:.4g}, so its inner product is not the "
                    "cosine: give --normalize (normalize=True) to write vectors of length 1, or "
                    "another --metric (metric=)"
                )
        return np.ascontiguousarray(vectors)

    def _read(self) -> Iterator[Any]:
        blocks = self._source.checked_blocks()
        return map(self._normalized, blocks) if self.options.normalize else blocks

    def _normalized(self, block: Any) -> Any:
        pa = imported_arrow()
        vectors = normalize(vectors_of(block).astype(np.float32))
        flat = pa.array(vectors.astype(self.info.dtype).reshape(-1))
        place = self.schema.names.index("vector")
        columns = [*block.columns]
        columns[place] = pa.FixedSizeListArray.from_arrays(flat, type=self.schema.field(place).type)
        return pa.record_batch(columns, schema=self.schema)

    def uploading(self, total: int) -> Callable[[int], None]:
        """What to call with the bytes of each part of the output that was uploaded.

        Args:
            total: bytes of the output.
        """
        sent = 0

        def show(size: int) -> None:
            nonlocal sent
            sent += size
            self._show("uploading", self.info.rows * sent // max(1, total))

        return show

    def _counted(self, stage: str, blocks: Iterator[Any]) -> Iterator[Any]:
        rows = 0
        for block in blocks:
            yield block
            rows += len(block)
            self._show(stage, rows)

    def _show(self, stage: str, rows: int) -> None:
        if self._on_progress is not None:
            seconds = time.monotonic() - self._began
            self._on_progress(ConvertProgress(stage, rows, self.info.rows, seconds))
