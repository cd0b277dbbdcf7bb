"""Reads single vectors of a bulk job's output, by shard and place."""

from __future__ import annotations

from collections import OrderedDict
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from flowvec.arrow import file_for_arrow, imported_arrow
from flowvec.bulk.file_names import texts_name
from flowvec.bulk.job_folder import JobFolder
from flowvec.errors import BulkError

__all__ = ["ENTRY", "OutputVectors"]

# A row of a texts file: the digest of the text, and 0, or the index of a code in `known_texts`.
ENTRY = np.dtype([("digest", "V16"), ("code", "u1")])
_MOST_OPEN = 4  # shards
_MOST_BLOCKS = 8  # row groups of Parquet in memory, of 6 MB with 384 float32 numbers per row


class OutputVectors:
    """Vectors of finished shards. Only a few shards are open at a time; `with` closes them."""

    def __init__(self, folder: JobFolder, out_format: str) -> None:
        """Read nothing yet.

        Args:
            folder: the job's folder.
            out_format: format of its shards.
        """
        self._folder = folder
        self._out_format = out_format
        self._open: OrderedDict[int, _Shard] = OrderedDict()

    def __enter__(self) -> OutputVectors:
        return self

    def __exit__(self, *exc: object) -> None:
        while self._open:
            self._open.popitem()[1].close()

    def entries(self, shard: int) -> npt.NDArray[Any]:
        """The texts file of a shard, as `ENTRY`: its rows in order, then texts without a vector.

        Raises:
            BulkError: there is none.
        """
        name = texts_name(self._file(shard))
        content = self._folder.read(name)
        if content is None or len(content) % ENTRY.itemsize:
            raise BulkError(f"{self._folder.where(name)} is missing, or not what was written")
        return np.frombuffer(content, ENTRY)

    def vector(self, shard: int, place: int) -> npt.NDArray[Any]:
        """The vector of the row at a place of a shard, (dim,)."""
        opened = self._open.get(shard)
        if opened is None:
            opened = self._open[shard] = _Shard(self._folder, self._file(shard))
            if len(self._open) > _MOST_OPEN:
                self._open.popitem(last=False)[1].close()
        self._open.move_to_end(shard)
        return opened.vector(place)

    def _file(self, shard: int) -> str:
        return f"part-{shard:06}.{self._out_format}"


class _Shard:
    def __init__(self, folder: JobFolder, name: str) -> None:
        self._stack = ExitStack()
        path = self._stack.enter_context(folder.local(name))
        self._file = _Npy(path) if path.suffix == ".npy" else _Parquet(path, self._stack)

    def vector(self, place: int) -> npt.NDArray[Any]:
        return self._file.vector(place)

    def close(self) -> None:
        del self._file
        self._stack.close()


class _Npy:
    def __init__(self, path: Path) -> None:
        self._vectors = np.load(path, mmap_mode="r")

    def vector(self, place: int) -> npt.NDArray[Any]:
        return np.array(self._vectors[place])


class _Parquet:
    def __init__(self, path: Path, stack: ExitStack) -> None:
        self._file = stack.enter_context(imported_arrow().parquet.ParquetFile(file_for_arrow(path)))
        about = self._file.metadata
        sizes = [about.row_group(i).num_rows for i in range(about.num_row_groups)]
        self._ends = np.cumsum(sizes)
        self._blocks: OrderedDict[int, npt.NDArray[Any]] = OrderedDict()

    def vector(self, place: int) -> npt.NDArray[Any]:
        group = int(np.searchsorted(self._ends, place, side="right"))
        block = self._blocks.get(group)
        if block is None:
            column = self._file.read_row_group(group, ["vector"])["vector"].combine_chunks()
            flat = column.flatten().to_numpy(zero_copy_only=False)
            block = self._blocks[group] = flat.reshape(len(column), -1)
            if len(self._blocks) > _MOST_BLOCKS // _MOST_OPEN:
                self._blocks.popitem(last=False)
        self._blocks.move_to_end(group)
        return np.array(block[place - (int(self._ends[group - 1]) if group else 0)])
