"""A target that is a file or a folder of this machine."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from flowvec.bundle.bundle import absolute_path
from flowvec.compat import override
from flowvec.convert.faiss_index import write_faiss
from flowvec.convert.hnswlib_index import write_hnswlib
from flowvec.convert.lance_dataset import write_lance
from flowvec.convert.options import ConvertFormat
from flowvec.convert.parquet_file import write_parquet
from flowvec.convert.pgvector_files import write_pgvector
from flowvec.convert.rows import Rows
from flowvec.convert.staging import check_target, staged
from flowvec.convert.target import Target, Written
from flowvec.errors import ConvertError

__all__ = ["KEEP_DTYPE", "WRITERS", "FileTarget", "reason_of"]

# What writes a format to a path, and which formats keep float16.
WRITERS: Mapping[ConvertFormat, Callable[[Path, Rows], tuple[str, ...]]] = {
    "parquet": write_parquet,
    "faiss": write_faiss,
    "hnswlib": write_hnswlib,
    "pgvector": write_pgvector,
    "lance": write_lance,
}
KEEP_DTYPE = ("parquet", "pgvector", "lance")


class FileTarget(Target):
    """A file or folder, which is written beside its name and then renamed."""

    path: Path

    def __init__(self, target: Path, to: ConvertFormat, *, overwrite: bool) -> None:
        """Look whether it may be written.

        Args:
            target: its name.
            to: its format.
            overwrite: replace what is there.

        Raises:
            ConvertError: it exists and may not be replaced.
        """
        self.path = absolute_path(target)
        self.name = self.path.name
        self._shown = target
        self._to = to
        self._overwrite = overwrite
        check_target(self.path, overwrite=overwrite)

    @property
    @override
    def work(self) -> Path:
        return self.path.parent

    @override
    def write(self, rows_with: Callable[[Path], Rows]) -> Written:
        try:
            with staged(self.path, overwrite=self._overwrite) as (out, scratch):
                notes = WRITERS[self._to](out, rows_with(scratch))
        except OSError as error:
            raise ConvertError(f"cannot write {self._shown}: {reason_of(error)}") from error
        notes = tuple(note.replace("{target}", str(self._shown)) for note in notes)
        return Written(_size(self.path), self._to in KEEP_DTYPE, notes)


def _size(path: Path) -> int:
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    return sum(file.stat().st_size for file in files)


def reason_of(error: OSError) -> str:
    """What the system says, without the name of a file.

    Args:
        error: its error, as Python or pyarrow raised it.
    """
    # pyarrow's errors have a number only in their text.
    return os.strerror(error.errno) if error.errno else str(error).splitlines()[0]
