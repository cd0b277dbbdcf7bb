"""Finds and opens the inputs of a bulk job: files, globs, folders, or standard input."""

from __future__ import annotations

import glob
import io
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO, Any, cast

from flowvec.arguments import choice
from flowvec.arrow import file_for_arrow, imported_arrow
from flowvec.errors import InputValueError
from flowvec.files import lfs_advice
from flowvec.texts.compression import (
    DAMAGE,
    TEXT_FORMATS,
    decompressed,
    format_of,
    is_compressed,
    is_hidden,
    without_links,
)
from flowvec.texts.encodings import OtherEncodingError, Utf8File
from flowvec.texts.remote import open_remote, remote_files, state_of
from flowvec.texts.urls import is_url, name_of, public, recorded, shown, without_secrets
from flowvec.texts.window import is_dead_letters

__all__ = ["FORMATS", "STDIN", "Source", "find_sources", "is_of_vectors", "open_binary"]

STDIN = "-"
FORMATS = (*TEXT_FORMATS, "parquet")
_BLOCK = 1 << 20
# The end of the name of the row map beside a .npy file of a bulk job.
_ROW_MAP = ".rows.jsonl"

_Binary = IO[bytes]


@dataclass(frozen=True, slots=True)
class Source:
    """One file to read.

    Attributes:
        path: path or URL as it was found; `-` is standard input.
        format: `txt`, `jsonl`, `csv` or `parquet`.
        bytes: its size; None for standard input, like the following attributes.
        modified: modification time, ns since 1970.
        sha256: SHA-256 of its raw bytes.
        rows: number of lines (txt, jsonl), records (csv) or rows (Parquet).
        absolute: absolute path for workers; None if `path` is enough.
    """

    path: str
    format: str
    bytes: int | None = None
    modified: int | None = None
    sha256: str | None = None
    rows: int | None = None
    absolute: str | None = None

    @property
    def name(self) -> str:
        """Its name in dead letters and errors."""
        return "standard input" if self.path == STDIN else public(self.path)

    @property
    def is_compressed(self) -> bool:
        """Whether it is read through a decompressor, so that reading cannot start in the middle."""
        return is_compressed(name_of(self.path))

    def open(self) -> _Binary:
        """Its raw bytes, unbuffered.

        Raises:
            OSError: it cannot be opened.
            InputValueError: its URL cannot be reached, or it is a pointer of git-lfs.
        """
        if self.path == STDIN:
            if sys.stdin is None:
                raise InputValueError("there is no standard input to read")
            # Standard input is not closed here.
            return io.FileIO(sys.stdin.fileno(), closefd=False)
        if is_url(self.path):
            return open_remote(self.path)
        return io.FileIO(self._local())

    def for_arrow(self) -> Any:
        """What pyarrow can open: a path, or an open file.

        Raises:
            InputValueError: its URL cannot be reached, or it is a pointer of git-lfs.
        """
        return open_remote(self.path) if is_url(self.path) else file_for_arrow(self._local())

    def _local(self) -> str:
        """Its path on this machine."""
        path = self.absolute or self.path
        if advice := lfs_advice(Path(path)):
            raise InputValueError(advice)
        return path

    def state(self) -> tuple[int, int]:
        """Its size in bytes, and its modification time in ns since 1970.

        Raises:
            OSError: it is gone.
            InputValueError: its URL cannot be reached.
        """
        if is_url(self.path):
            there = state_of(self.path)
            return there.bytes, there.modified
        status = Path(self.absolute or self.path).stat()
        return status.st_size, status.st_mtime_ns


# --- finding ------------------------------------------------------------------------------------


def find_sources(
    inputs: Iterable[str | Path],
    file_format: str | None = None,
    is_own: Callable[[str], bool] = lambda path: False,
) -> list[Source]:
    """The files of inputs, in their order; files of a folder or glob by name.

    Dead letters and row maps are not found in a folder or by a glob, nor are Parquet files of
    vectors beside other files, and the output of a bulk job is not found in a folder above it: name
    them to read them.

    Args:
        inputs: files, folders (all readable files below them, except names that start with a dot or
            an underscore, and dead letters), globs (`**` matches folders below), or URLs of these
            (`s3://bucket/texts`, see `flowvec.texts.remote`); or only `-`. Links to another of the
            files are left out.
        file_format: format of all files; None decides by each file's extension, and is `txt` for
            standard input.
        is_own: whether the job that reads has written a file, which is then not found in a folder
            or by a glob.

    Raises:
        InputValueError: there is no such file, a glob or folder has no files, a format is unknown,
            or a file is named twice.
    """
    if file_format is not None:
        choice("the format", file_format, FORMATS)
    named = [str(one) for one in inputs]
    if not named:
        raise InputValueError("there is nothing to read")
    if STDIN in named:
        if len(named) > 1:
            raise InputValueError("standard input cannot be combined with other inputs")
        return [_source(STDIN, file_format)]
    sources: list[Source] = []
    for one in named:
        path = Path(one)
        if is_url(one):
            sources += _remote_sources(one, file_format, is_own)
            continue
        if path.is_dir():
            is_of_job = _jobs_below(path)
            files = [str(file) for file in sorted(path.rglob("*")) if _is_read(file, path)]
            files = [file for file in files if file_format or format_of(file)]
            files = [file for file in files if not (is_own(file) or is_of_job(file))]
        elif not path.exists() and glob.has_magic(one):
            matches = glob.glob(one, recursive=True)  # noqa: PTH207 - absolute ones, too
            files = sorted(file for file in matches if Path(file).is_file())
            files = [
                file for file in files
                if not (is_dead_letters(file) or _is_beside_shards(Path(file)) or is_own(file))
            ]  # fmt: skip
        else:
            files = [one]
        if not files:
            raise InputValueError(f"{shown(one)} has no files to read")
        if len(files) > 1:
            files = [file for file in files if not is_of_vectors(file)] or files
        sources += [_source(file, file_format) for file in files]
    seen: set[str] = set()
    for source in sources:
        place = recorded(source.path) if is_url(source.path) else os.path.abspath(source.path)  # noqa: PTH100 - without resolving links
        if place in seen:
            raise InputValueError(f"{source.name} is named twice")
        seen.add(place)
    kept = set(without_links([one.path for one in sources if not is_url(one.path)]))
    return [one for one in sources if is_url(one.path) or one.path in kept]


def _jobs_below(folder: Path) -> Callable[[str], bool]:
    """A function that tells whether a file below a folder is in the folder of a bulk job there.

    Its shards and row maps are not texts. The folder itself may be that of a job, if it is named.
    """

    @cache
    def is_in_job(inner: Path) -> bool:
        return inner != folder and (
            any(map(_is_job_manifest, _manifests_in(inner))) or is_in_job(inner.parent)
        )

    return lambda file: _is_beside_shards(Path(file)) or is_in_job(Path(file).parent)


def _is_beside_shards(file: Path) -> bool:
    """Whether a file is a row map beside its vectors, or a hidden one of a bulk job."""
    if file.name.endswith(_ROW_MAP):
        return file.with_name(file.name.removesuffix(_ROW_MAP) + ".npy").is_file()
    return file.name.startswith("_") and any(map(_is_job_manifest, _manifests_in(file.parent)))


def is_of_vectors(path: str | Path) -> bool:
    """Whether a Parquet file holds vectors, as a bulk job wrote it."""
    if Path(path).suffix.lower() != ".parquet":
        return False
    arrow = imported_arrow()
    try:
        schema = arrow.parquet.read_schema(file_for_arrow(path))
        about = json.loads((schema.metadata or {}).get(b"flowvec", b"{}"))
    except (OSError, ValueError, arrow.ArrowException):
        return False
    # A collection that was written as Parquet has no precision. Whoever adds columns to the file,
    # such as the texts, has them after the vectors.
    return "precision" in about and schema.names[-1:] == ["vector"]


def _manifests_in(folder: Path) -> Iterator[Path]:
    return folder.glob("_manifest*.json")


def _is_job_manifest(file: Path) -> bool:
    with suppress(OSError), file.open("rb") as opened:
        return b'"flowvec_bulk"' in opened.read(100)
    return False


def _is_read(file: Path, folder: Path) -> bool:
    """Whether a file of a folder is an input."""
    is_visible = not (is_hidden(file.relative_to(folder).parts) or is_dead_letters(file.name))
    return is_visible and file.is_file()


def _remote_sources(
    url: str, file_format: str | None, is_own: Callable[[str], bool]
) -> list[Source]:
    files = remote_files(url)
    if not (files and files[0].url == url):
        files = [
            file for file in files
            if not (is_dead_letters(name_of(file.url)) or is_own(file.url))
        ]  # fmt: skip
    kinds = [file_format or format_of(name_of(file.url)) for file in files]
    if files and files[0].url == url and kinds[0] is None:
        raise InputValueError(
            f"cannot tell how to read {shown(url)}; give --format {'|'.join(FORMATS)}"
        )
    sources = [
        Source(file.url, kind, file.bytes, file.modified)
        for file, kind in zip(files, kinds, strict=True)
        if kind is not None
    ]
    if not sources:
        raise InputValueError(f"{shown(url)} has no files to read")
    return sources


def _source(path: str, file_format: str | None) -> Source:
    if path == STDIN:
        if file_format == "parquet":
            raise InputValueError("Parquet cannot be read from standard input")
        return Source(path, file_format or "txt")
    format_name = file_format or format_of(path)
    if format_name is None:
        raise InputValueError(
            f"cannot tell how to read {shown(path)}; give --format {'|'.join(FORMATS)}"
        )
    try:
        state = Path(path).stat()
    except (OSError, ValueError) as error:
        raise InputValueError(f"cannot read {shown(path)}: {_why(error)}") from None
    if not Path(path).is_file():
        raise InputValueError(f"cannot read {shown(path)}: it is not a regular file")
    return Source(path, format_name, state.st_size, state.st_mtime_ns)


def _why(error: BaseException) -> str:
    return getattr(error, "strerror", None) or str(error)


# --- opening ------------------------------------------------------------------------------------


@contextmanager
def open_binary(
    source: Source, offset: int = 0, seen: Callable[[memoryview], object] | None = None
) -> Iterator[Utf8File]:
    """A text file's decompressed bytes, from an offset, without a byte order mark.

    Args:
        source: the file.
        offset: where to start; 0 for a compressed file.
        seen: called with all raw bytes, in order.

    Raises:
        InputValueError: it cannot be read, is damaged, or is in UTF-16; also inside the block.
    """
    try:
        opened = source.open()
    except OSError as error:
        raise InputValueError(f"cannot read {source.name}: {_why(error)}") from None
    try:
        with opened as raw:
            if offset:
                raw.seek(offset)
            watched = raw if seen is None else cast(IO[bytes], _Watched(raw, seen))
            file = decompressed(name_of(source.path), watched)
            yield Utf8File(file, at_start=not offset)
            if seen is not None:  # bytes that the decompressor did not read
                while watched.read(_BLOCK):
                    pass
    except OtherEncodingError as error:
        raise InputValueError(f"{source.name} {error}") from None
    except DAMAGE as error:
        raise InputValueError(
            f"{source.name} is damaged or cannot be read: "
            f"{without_secrets(_why(error), source.path)}"
        ) from None


class _Watched(io.RawIOBase):
    """A raw file that also passes its bytes to a function."""

    def __init__(self, raw: IO[bytes], seen: Callable[[memoryview], object]) -> None:
        self._raw = raw
        self._seen = seen

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        count: int = self._raw.readinto(buffer)  # type: ignore[attr-defined]
        self._seen(memoryview(buffer)[:count])
        return count
