"""An object store through fsspec: any scheme, without conditions on writes."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from flowvec.object_store.retries import kind_of, retried

__all__ = ["ConflictError", "ObjectStore", "Upload"]


class ConflictError(Exception):
    """An object is not as a conditional write expects it: another process wrote it."""


@dataclass(frozen=True, slots=True)
class Upload:
    """A multipart upload that was not completed; the store keeps its parts, and bills them."""

    name: str
    key: str


class ObjectStore:
    """Objects directly below a URL, by name.

    Every call is tried again while the store or the network fails, see `retries`. An object appears
    whole: readers see the old one, or none, until its last byte is written.

    Attributes:
        url: the URL, without options.
        has_conditions: whether `create` and `replace` are atomic. If not, two processes that do
            the same at the same moment may both succeed.
    """

    has_conditions: ClassVar[bool] = False

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

    # --- reading ----------------------------------------------------------------------------------

    def sizes(self) -> dict[str, int]:
        """Names of all objects, with their sizes in bytes; -1 for names with objects below."""

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
        """
        try:
            self._call(lambda: self._system.get_file(self._path(name), str(path)), "read", name)
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
        self._call(lambda: self._system.put_file(str(path), self._path(name)), "write", name, check)

    def delete(self, names: Iterable[str]) -> None:
        """Delete objects; missing ones are ignored."""
        for name in names:
            with suppress(FileNotFoundError):
                self._call(lambda name=name: self._remove(name), "delete", name)

    def _remove(self, name: str) -> None:
        try:
            self._system.rm_file(self._path(name))
        except KeyError:  # of fsspec's file system in memory
            raise FileNotFoundError(name) from None

    def unfinished_uploads(self) -> Sequence[Upload]:
        """Multipart uploads that were not completed, also those that are still under way."""
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
        where = f"{self.url}/{name}" if name else self.url

        def attempt() -> Any:
            if check is not None:
                check()
            return call()

        return retried(attempt, f"{verb} {where}", self.renew_credentials)


def _tag(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
