"""A target below a URL: built in a temporary folder of this machine, and then uploaded.

While a conversion runs, one object is its lease (see `flowvec.object_store.lease`):
`_converting.json` in the folder that is written, or `.NAME.converting` beside the file. A killed
conversion leaves this object, and perhaps multipart uploads and, of a folder, some files. The next
one to the same name takes the lease over and deletes the rest.
"""

from __future__ import annotations

import re
import tempfile
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from flowvec.bulk.scratch import scratch_folder
from flowvec.compat import override
from flowvec.convert.description import NAME as DESCRIPTION
from flowvec.convert.description import is_description
from flowvec.convert.file_target import KEEP_DTYPE, WRITERS, reason_of
from flowvec.convert.options import ConvertFormat
from flowvec.convert.room import free_bytes, in_words, vector_bytes
from flowvec.convert.rows import Rows
from flowvec.convert.target import Target, Written
from flowvec.errors import ConvertError, InputValueError
from flowvec.object_store import Lease, ObjectStore, StagedUpload, Upload, open_store
from flowvec.texts.urls import name_of

__all__ = ["BucketTarget", "bucket_target"]

# Schemes of fsspec under which a file does not appear whole, or which only read.
_NOT_STORES = ("file", "local", "http", "https", "data")
_LEASE = "_converting.json"
_AGAIN = "the same command starts again"
_SET_TMPDIR = "set TMPDIR to a folder with space for them"
_MANIFEST = re.compile(r"_versions/.*\.manifest")
# Names in folders that `convert` writes; and folders of Lance datasets, also of those that others
# have changed since.
_FILES = frozenset(
    (DESCRIPTION, "index.faiss", "index.bin", "rows.parquet", "rows.copy", "load.sql", _LEASE)
)
_FOLDERS = frozenset(
    ("data", "tree", "_versions", "_transactions", "_indices", "_deletions", "_refs")
)


def bucket_target(url: str, to: ConvertFormat, *, overwrite: bool) -> BucketTarget:
    """The target of a URL: an object for Parquet, and a folder of objects for all other formats.

    Args:
        url: its URL, with options of the store.
        to: its format.
        overwrite: replace what is there.

    Raises:
        InputValueError: the URL does not name an object of a store, or has options that it does
            not take.
        ConvertError: something is there that may not be replaced.
        BulkError: the store cannot be reached, or refuses access.
        MissingDependencyError: the scheme's library is not installed.
    """
    base = name_of(url).rstrip("/")
    scheme, _, path = base.partition("://")
    if scheme.lower() in _NOT_STORES:
        raise InputValueError(f"{scheme}:// is not an object store that `convert` can write to")
    parent, _, name = base.rpartition("/")
    if not path.partition("/")[2] or not name:
        raise InputValueError(f"the target {scheme}://... needs a name: {scheme}://BUCKET/NAME")
    kind = _FileInBucket if to == "parquet" else _FolderInBucket
    return kind(open_store(parent + url[len(name_of(url)) :]), open_store(url), name, to, overwrite)


class BucketTarget(Target):
    """A target below a URL."""

    path = None
    _lease: Lease

    def __init__(
        self, parent: ObjectStore, below: ObjectStore, name: str, to: ConvertFormat, overwrite: bool
    ) -> None:
        """Look whether it may be written.

        Args:
            parent: the objects beside the target.
            below: the objects below it.
            name: its name in `parent`.
            to: its format.
            overwrite: replace what is there.

        Raises:
            ConvertError: something is there that may not be replaced.
            BulkError: the store cannot be reached, or refuses access.
        """
        parent.again = below.again = _AGAIN
        self.name = name
        self.url = below.url
        self._parent = parent
        self._below = below
        self._to = to
        self._overwrite = overwrite
        self._check()

    @override
    def write(self, rows_with: Callable[[Path], Rows]) -> Written:
        with self._scratch() as folder:
            self._lease.acquire()
            try:
                self._check()
                self._abort_unfinished()
                rows, out = rows_with(folder / "scratch"), folder / "new"
                with self._naming_scratch():
                    self._check_room(rows)
                    notes = WRITERS[self._to](out, rows)
                files = _files(out)
                size = sum(path.stat().st_size for path in files.values())
                try:
                    self._upload(files, rows.uploading(size))
                except OSError as error:
                    raise ConvertError(f"cannot write {self.url}: {reason_of(error)}") from error
                self._abort_unfinished()  # begun, and the answer was lost
            finally:
                self._lease.release()
        return Written(size, self._to in KEEP_DTYPE, tuple(map(self._note, notes)))

    @contextmanager
    def _scratch(self) -> Iterator[Path]:
        with ExitStack() as stack:
            with self._naming_scratch():
                folder = stack.enter_context(scratch_folder())
                (folder / "scratch").mkdir()
            yield folder

    @property
    @override
    def work(self) -> Path:
        return Path(tempfile.gettempdir())

    def _check_room(self, rows: Rows) -> None:
        """Refuse a temporary folder that cannot hold the vectors alone, before hours of work.

        Raises:
            ConvertError: it cannot.
        """
        least, free = vector_bytes(rows.info, self._to), free_bytes(self.work)
        if free < least:
            raise ConvertError(
                f"the files of {self.url} take at least {in_words(least)}, and the temporary "
                f"folder {self.work} has {in_words(free)} free; {_SET_TMPDIR}"
            )

    def _abort_unfinished(self) -> None:
        """Delete uploads to this target that were not completed; needs the lease."""
        for store, upload in self._unfinished():
            store.abort(upload)

    @contextmanager
    def _naming_scratch(self) -> Iterator[None]:
        """Name the temporary folder in errors of the system, such as a full disk."""
        try:
            yield
        except OSError as error:
            raise ConvertError(
                f"cannot write the files of {self.url} to the temporary folder "
                f"{self.work}: {reason_of(error)}; {_SET_TMPDIR}"
            ) from error

    def _note(self, note: str) -> str:
        return note.replace("{target}", self.url)

    def _refuse(self, what: str) -> None:
        raise ConvertError(f"{self.url} {what}")

    def _refuse_existing(self) -> None:
        if not self._overwrite:
            self._refuse(
                "exists: name another target, or give --overwrite (overwrite=True) to replace it"
            )

    @abstractmethod
    def _check(self) -> None:
        """Refuse a target that must not be written.

        Raises:
            ConvertError: something is there that may not be replaced.
        """

    @abstractmethod
    def _unfinished(self) -> Iterable[tuple[ObjectStore, Upload]]:
        """Uploads to this target that were not completed."""

    @abstractmethod
    def _upload(self, files: dict[str, Path], on_bytes: Callable[[int], object]) -> None:
        """Make objects of files; all of them appear, or none."""


class _FileInBucket(BucketTarget):
    """One object. It appears, or replaces another, when its upload is completed."""

    def __init__(
        self, parent: ObjectStore, below: ObjectStore, name: str, to: ConvertFormat, overwrite: bool
    ) -> None:
        self._lease = Lease(parent, f".{name}.converting", below.url)
        super().__init__(parent, below, name, to, overwrite)

    @override
    def _check(self) -> None:
        size = self._parent.size_of(self.name)
        if size is None:
            return
        self._refuse_existing()
        if size < 0:
            self._refuse("is a folder that `flowvec convert` did not write, so it is not replaced")

    @override
    def _unfinished(self) -> Iterable[tuple[ObjectStore, Upload]]:
        uploads = self._parent.unfinished_uploads(self.name)
        return ((self._parent, upload) for upload in uploads if upload.name == self.name)

    @override
    def _upload(self, files: dict[str, Path], on_bytes: Callable[[int], object]) -> None:
        path = files[""]
        size = path.stat().st_size
        staged = self._parent.stage(path, self.name, self._lease.check, on_bytes)

        def check() -> None:
            self._lease.check()
            # It may have appeared meanwhile. One of this size may be of an attempt whose answer
            # was lost.
            if not self._overwrite and self._parent.size_of(self.name) not in (None, size):
                self._refuse_existing()

        with _aborted_on_failure([staged]):
            self._check()
            staged.complete(check)


class _FolderInBucket(BucketTarget):
    """Objects below a prefix. The one that names the others is written last, and deleted first."""

    def __init__(
        self, parent: ObjectStore, below: ObjectStore, name: str, to: ConvertFormat, overwrite: bool
    ) -> None:
        self._lease = Lease(below, _LEASE, below.url)
        self._is_left = False  # whether a killed conversion left the lease
        super().__init__(parent, below, name, to, overwrite)

    @override
    def _note(self, note: str) -> str:
        if self._to == "lance":
            return super()._note(note)
        return f"download {self.url}, then: " + note.replace("{target}", self.name)

    @override
    def _check(self) -> None:
        size = self._parent.size_of(self.name)
        if size is not None and size >= 0:
            self._refuse("is an object, and the target is a folder: name another target")
        names = self._below.sizes()
        is_leased = names.pop(_LEASE, None) is not None
        is_complete = self._is_complete(names)
        self._is_left |= is_leased and not is_complete and not self._lease.is_held
        if not names or (not is_complete and self._has_no_object(names)):
            return
        if is_complete or not self._is_left:
            self._refuse_existing()
        if not (self._is_left or is_complete):
            self._refuse("is a folder that `flowvec convert` did not write, so it is not replaced")
        if foreign := [name for name, size in names.items() if not _is_known(name, size)]:
            self._refuse(
                f"also holds what `flowvec convert` did not write ({', '.join(foreign[:3])}), so "
                "it is not replaced"
            )

    def _has_no_object(self, names: Mapping[str, int]) -> bool:
        """Whether there are only empty folders; rclone lists one for each upload in parts."""
        are_folders = all(size < 0 for size in names.values())
        return are_folders and not self._below.all_sizes().keys() - {_LEASE}

    def _is_complete(self, names: Iterable[str]) -> bool:
        """Whether the folder is one that a conversion has finished."""
        if DESCRIPTION in names:
            return is_description(self._below.read(DESCRIPTION) or b"{}")
        return "_versions" in names and any(map(_MANIFEST.match, self._below.all_sizes()))

    @override
    def _unfinished(self) -> Iterable[tuple[ObjectStore, Upload]]:
        return ((self._below, upload) for upload in self._below.unfinished_uploads())

    @override
    def _upload(self, files: dict[str, Path], on_bytes: Callable[[int], object]) -> None:
        store, check = self._below, self._lease.check
        staged: dict[str, StagedUpload] = {}
        with _aborted_on_failure(staged.values()):
            for name in sorted(files, key=_naming_last):
                staged[name] = store.stage(files[name], name, check, on_bytes)
            self._check()
            before = store.all_sizes().keys() - {_LEASE}
            naming = sorted(filter(_names_others, before))
            is_old = bool(naming)
            try:
                check()
                store.delete(naming, check)
                is_old = False
                for name, upload in staged.items():
                    if not _names_others(name):
                        upload.complete(check)
                store.delete(sorted(before - files.keys()), check)
                for name, upload in staged.items():
                    if _names_others(name):
                        upload.complete(check)
            except BaseException:
                if is_old:  # it may still be whole; if not, the next conversion deletes it
                    self._lease.abandon()
                else:
                    self._delete_all({*before, *files})
                raise

    def _delete_all(self, names: Iterable[str]) -> None:
        """Delete a folder that is neither the old one nor the new one."""
        try:
            # What names others first, since some of them are gone.
            self._below.delete(sorted(names, key=_naming_last, reverse=True), self._lease.check)
        except Exception:
            self._lease.abandon()  # so that the next conversion deletes it


@contextmanager
def _aborted_on_failure(uploads: Iterable[StagedUpload]) -> Iterator[None]:
    try:
        yield
    except BaseException:
        for upload in uploads:
            with suppress(Exception):  # the next conversion aborts it
                upload.abort()
        raise


def _names_others(name: str) -> bool:
    """Whether a folder is one of a conversion only as long as it has this object."""
    return name == DESCRIPTION or name.startswith("_versions/")


def _naming_last(name: str) -> tuple[bool, bool, str]:
    return _names_others(name), _MANIFEST.match(name) is not None, name


def _is_known(name: str, size: int) -> bool:
    return name in (_FOLDERS if size < 0 else _FILES)


def _files(out: Path) -> dict[str, Path]:
    """Files of an output by their names below it; the name of an output that is a file is empty."""
    if out.is_file():
        return {"": out}
    paths = (path for path in out.rglob("*") if path.is_file())
    return {path.relative_to(out).as_posix(): path for path in paths}
