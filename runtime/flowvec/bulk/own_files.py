"""The files that a bulk job writes, which are never its inputs.

An output may be in a folder that the job reads: what the job has written there before is left out,
so that it finds the same inputs again. Nothing else is left out: where an output would replace an
input, or contains one, the job is refused before it writes anything.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from flowvec.bulk.file_names import row_map_of
from flowvec.bulk.options import expanded
from flowvec.bulk.verify import FolderInfo, folder_info, is_bulk_folder
from flowvec.bundle.cached import origin_of
from flowvec.collection.creation import is_collection
from flowvec.encoder.encoder import Encoder
from flowvec.errors import InputValueError
from flowvec.sparse.encoder import SparseEncoder
from flowvec.texts.places import Place, check_apart
from flowvec.texts.sources import Source, find_sources, is_of_vectors
from flowvec.texts.urls import is_url
from flowvec.texts.window import DEAD_LETTERS

__all__ = ["OwnFiles"]

AnyEncoder = Encoder | SparseEncoder
_NPY = b"\x93NUMPY"


class OwnFiles:
    """The files and folders that a job writes."""

    def __init__(
        self,
        out: str | Path,
        *,
        is_file: bool = False,
        into_collection: bool = False,
        is_of_job: Callable[[str | Path], bool] = is_bulk_folder,
    ) -> None:
        """Name them, without touching them.

        Args:
            out: the job's output: a path or a URL.
            is_file: whether it is a single file, rather than a folder.
            into_collection: whether it is a collection.
            is_of_job: for any other folder: whether such a job has written it.

        Raises:
            InputValueError: a collection would be the root of the file system.
        """
        self._known: dict[str, list[Hashable]] = {}
        self._partial = f"_{Path(out).name}." if is_file else None
        if is_file:
            path = Path(out)
            self._written = [_Written(path, _is_vectors_file)]
            if path.suffix == ".npy":
                self._written.append(_Written(row_map_of(path), lambda _: _is_vectors_file(path)))
            self._written.append(_Written(path.with_name(path.stem + DEAD_LETTERS), _never))
        elif into_collection:
            path = Path(out)
            if not path.name:
                raise InputValueError(f"{path} cannot be a collection: name a folder in it")
            self._written = [
                _Written(path, lambda _: is_collection(path)),
                _Written(path.with_name(path.name + ".job"), is_bulk_folder),
                _Written(path.with_name(path.name + DEAD_LETTERS), _never),
            ]
        else:
            self._written = [_Written(out, is_of_job)]

    @classmethod
    def of(cls, out: str | Path) -> OwnFiles:
        """The files of a job, by what its output is named, or is already."""
        is_local = not is_url(str(out))
        path = expanded(Path(out)) if is_local else Path(out)
        return cls(
            path if is_local else out,
            is_file=is_local and path.suffix in (".npy", ".parquet"),
            into_collection=is_local and is_collection(path),
        )

    def job(self) -> FolderInfo | None:
        """What the job's folder records; None if there is no such folder.

        Raises:
            BulkError: a manifest cannot be read.
        """
        if self._partial is not None:
            return None
        jobs = (one.path for one in self._written if is_bulk_folder(one.path))
        return next((folder_info(path) for path in jobs), None)

    def has(self, path: str) -> bool:
        """Whether a file was written by this job, or an earlier one with the same output."""
        name = Path(path).name
        if self._partial and name.startswith(self._partial) and name.endswith(".partial"):
            return True
        place = Place.of(path, self._known)
        return any(one.place.contains(place) and one.is_own for one in self._written)

    def existing(self) -> str | Path | None:
        """A file that a job of one file would replace; None if there is none."""
        if self._partial is None:
            return None
        return next((one.path for one in self._written if Path(one.path).exists()), None)

    def sources(self, inputs: Sequence[str | Path], file_format: str | None) -> list[Source]:
        """The files that the job reads, as `find_sources` finds them, without its own.

        Raises:
            InputValueError: an input is, or is in, what the job writes; or as `find_sources`.
        """
        self._check_apart(inputs)
        sources = find_sources(inputs, file_format, self.has)
        self._check_apart([source.path for source in sources])
        return sources

    def _check_apart(self, read: Sequence[str | Path]) -> None:
        for one in self._written:
            check_apart(one.path, read, may_be_in=True)

    def check_apart_from(
        self, model: AnyEncoder | None = None, earlier: str | Path | None = None
    ) -> None:
        """Refuse an output that is or contains the model or an earlier job, or is in one.

        Args:
            model: an encoder, if any.
            earlier: the folder, URL or manifest of an earlier job; None if there is none.

        Raises:
            InputValueError: it does.
        """
        read = _files_of(model)
        if earlier is not None:
            read.append(str(earlier).removesuffix("_manifest.json"))
        for one in self._written:
            check_apart(one.path, read)


def _files_of(model: AnyEncoder | None) -> list[str | Path]:
    """Where a model's files are: its bundle, and the checkpoint that this was made from."""
    if model is None:
        return []
    bundle = model.bundle
    origin = origin_of(bundle.path)
    return [bundle.path, *([] if origin is None or origin.kind != "directory" else [origin.name])]


@dataclass(frozen=True)
class _Written:
    """A file or folder that a job writes, and what tells whether a job has written it before."""

    path: str | Path
    is_of_job: Callable[[str | Path], bool]

    @cached_property
    def place(self) -> Place:
        return Place.of(self.path)

    @cached_property
    def is_own(self) -> bool:
        return self.is_of_job(self.path)


def _never(path: str | Path) -> bool:
    return False  # dead letters are not found by their names


def _is_vectors_file(path: str | Path) -> bool:
    """Whether a single file is one of vectors, as a job writes it."""
    if Path(path).suffix == ".npy":
        with suppress(OSError), Path(path).open("rb") as file:
            return file.read(len(_NPY)) == _NPY
    return is_of_vectors(path)
