"""An object store through fsspec: any scheme, without conditions on writes."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flowvec.errors import BulkError
from flowvec.object_store.retries import SAME_COMMAND_CONTINUES, kind_of, retried

__all__ = ["ConflictError", "ObjectStore", "StagedUpload", "Upload"]


# Errors of a file system that has no space left for a file.
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class ConflictError(Exception):
    """An object is not as a conditional write expects it: another process wrote it."""


@dataclass(frozen=True, slots=True)
class Upload:
    """A multipart upload that was not completed; the store keeps its parts, and bills them."""

    name: str
    key: str


class StagedUpload:
    """A file that is about to become an object: `complete` makes it one, in as short as it can.

    S3 has received all parts of a large file by then. Other stores receive the file in `complete`.
    """

    def __init__(self, store: ObjectStore, path: Path, name: str) -> None:
        """Name the file and the object."""
        self._store = store
        self._path = path
        self._name = name

    def complete(self, check: Callable[[], object] | None = None) -> None:
        """Make it an object, whatever is there.

        Args:
            check: called before each attempt; raises a FlowvecError to give up.
        """
        self._store.put_file(self._path, self._name, check)

    def abort(self) -> None:
        """Delete what the store has received, unless it is an object already."""


class ObjectStore:
    """Objects below a URL, by name. A name may have slashes.

    Every call is tried again while the store or the network fails, see `retries`. An object appears
    whole: readers see the old one, or none, until its last byte is written.

    Attributes:
        url: the URL, without options.
        again: what a message says of running the same command again.
        called: what messages call some objects, by their names; others by their URLs.
    """

    def __init__(self, url: str, system: Any, root: str) -> None:
        """Open a store.

        Args:
            url: the URL, for messages.
            system: fsspec's file system.
            root: the path in it.
        """
        self.url = url.rstrip("/")
        self._system = system
        self._root = root.rstrip("/")
        self.again = SAME_COMMAND_CONTINUES
        self.called: dict[str, str] = {}

    @property
    def has_conditions(self) -> bool:
        """Whether `create` and `replace` are atomic; known once one of them has written.

        If not, two processes that do the same at the same moment may both succeed.
        """
        return False

    # --- reading ----------------------------------------------------------------------------------

    def sizes(self) -> dict[str, int]:
        """Names directly below the URL, with their sizes in bytes; -1 for names with objects below.

        See `all_sizes` for objects at any depth.
        """

        def listed() -> list[dict[str, Any]]:
            self._system.invalidate_cache()
            entries: list[dict[str, Any]] = self._system.ls(self._root, detail=True)
            return entries

        try:
            entries = self._call(listed, "list", "")
        except Exception as error:
            if kind_of(error) == "missing":
                return {}
            raise
        names = {}
        for entry in entries:
            name = str(entry["name"]).rstrip("/").rpartition("/")[2]
            names[name] = -1 if entry["type"] == "directory" else int(entry["size"] or 0)
        return names

    def all_sizes(self) -> dict[str, int]:
        """Names of all objects below the URL, at any depth, with their sizes in bytes."""

        def listed() -> dict[str, dict[str, Any]]:
            self._system.invalidate_cache()
            entries: dict[str, dict[str, Any]] = self._system.find(self._root, detail=True)
            return entries

        try:
            entries = self._call(listed, "list", "")
        except Exception as error:
            if kind_of(error) == "missing":
                return {}
            raise
        below = self._root.strip("/") + "/"
        return {
            path.strip("/").removeprefix(below): int(entry["size"] or 0)
            for path, entry in entries.items()
        }

    def size_of(self, name: str) -> int | None:
        """The size of an object in bytes; -1 for a name with objects below; None if neither."""

        def described() -> dict[str, Any]:
            self._system.invalidate_cache()
            entry: dict[str, Any] = self._system.info(self._path(name))
            return entry

        try:
            entry = self._call(described, "read", name)
        except Exception as error:
            if kind_of(error) == "missing":
                return None
            raise
        return -1 if entry["type"] == "directory" else int(entry["size"] or 0)

    def read(self, name: str) -> bytes | None:
        """An object's content; None if there is none."""
        tagged = self.read_tagged(name)
        return None if tagged is None else tagged[0]

    def read_tagged(self, name: str) -> tuple[bytes, str] | None:
        """An object's content, and the tag of this content for `replace`; None if there is none."""
        try:
            content: bytes = self._call(
                lambda: self._system.cat_file(self._path(name)), "read", name
            )
        except Exception as error:
            if kind_of(error) == "missing":
                return None
            raise
        return content, _tag(content)

    def download(self, name: str, path: Path) -> None:
        """Copy an object into a file.

        Raises:
            FileNotFoundError: there is no such object.
            BulkError: it cannot be read, or the file system of `path` is full.
        """

        def copied() -> None:
            try:
                self._system.get_file(self._path(name), str(path))
            except OSError as error:
                if error.errno not in _FULL:
                    raise
                raise BulkError(
                    f"cannot copy {self.url}/{name} into {path.parent}: "
                    f"{os.strerror(error.errno)}; set TMPDIR to a folder with space for it"
                ) from error

        try:
            self._call(copied, "read", name)
        except Exception as error:
            if kind_of(error) == "missing":
                raise FileNotFoundError(name) from None
            raise

    # --- writing ----------------------------------------------------------------------------------

    def write(self, name: str, content: bytes, check: Callable[[], object] | None = None) -> None:
        """Write an object, whatever is there.

        Args:
            name: its name.
            content: its content.
            check: called before each attempt; raises a FlowvecError to give up.
        """
        self._call(lambda: self._system.pipe_file(self._path(name), content), "write", name, check)

    def create(self, name: str, content: bytes) -> str:
        """Write an object that must not be there; return its tag.

        Content that is there already counts as written, because the answer to an earlier attempt
        may have been lost.

        Raises:
            ConflictError: another object is there.
        """
        there = self.read(name)
        if there is not None and there != content:
            raise ConflictError(name)
        self.write(name, content)
        return _tag(content)

    def replace(self, name: str, content: bytes, tag: str) -> str:
        """Write an object if it still has a tag; return its new tag.

        Raises:
            ConflictError: it is another one, or gone.
        """
        there = self.read_tagged(name)
        if there is None or there[1] not in (tag, _tag(content)):
            raise ConflictError(name)
        self.write(name, content)
        return _tag(content)

    def upload(self, path: Path, name: str, check: Callable[[], object] | None = None) -> None:
        """Copy a file into an object.

        Args:
            path: the file.
            name: the object's name.
            check: as for `write`.
        """
        staged = self.stage(path, name, check)
        try:
            staged.complete(check)
        except BaseException:
            with suppress(Exception):  # `unfinished_uploads` finds it, if it is still there
                staged.abort()
            raise

    def stage(
        self,
        path: Path,
        name: str,
        check: Callable[[], object] | None = None,
        on_bytes: Callable[[int], object] = lambda size: None,
    ) -> StagedUpload:
        """Send as much of a file as can be sent before it becomes an object.

        Args:
            path: the file, which must stay as it is until the upload is completed.
            name: the object's name.
            check: as for `write`.
            on_bytes: called with the number of bytes of each part that was sent.
        """
        return StagedUpload(self, path, name)

    def put_file(self, path: Path, name: str, check: Callable[[], object] | None = None) -> None:
        """Copy a file into an object in one call; see `upload`."""
        self._call(lambda: self._system.put_file(str(path), self._path(name)), "write", name, check)

    def delete(self, names: Iterable[str], check: Callable[[], object] | None = None) -> None:
        """Delete objects; missing ones are ignored.

        Args:
            names: their names.
            check: called before each attempt; raises a FlowvecError to give up.
        """
        for name in names:
            with suppress(FileNotFoundError):
                self._call(lambda name=name: self._remove(name), "delete", name, check)

    def _remove(self, name: str) -> None:
        try:
            self._system.rm_file(self._path(name))
        except KeyError:  # of fsspec's file system in memory
            raise FileNotFoundError(name) from None

    def unfinished_uploads(self, start: str = "") -> Sequence[Upload]:
        """Multipart uploads that were not completed, also those that are still under way.

        Args:
            start: only those of names that start with it.
        """
        return ()

    def abort(self, upload: Upload) -> None:
        """Delete the parts of an upload; one that has ended is ignored."""
        raise NotImplementedError

    # --- calling ----------------------------------------------------------------------------------

    def renew_credentials(self) -> None:
        """Read the credentials again, from wherever the library finds them."""

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}" if name else self._root

    def _call(
        self, call: Any, verb: str, name: str, check: Callable[[], object] | None = None
    ) -> Any:
        where = self.called.get(name, f"{self.url}/{name}" if name else self.url)

        def attempt() -> Any:
            if check is not None:
                check()
            return call()

        return retried(attempt, f"{verb} {where}", self.renew_credentials, again=self.again)


def _tag(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
