"""S3 and its like through s3fs: conditional writes, and uploads in parts that leave nothing."""

from __future__ import annotations

import base64
import hashlib
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from flowvec.compat import override
from flowvec.errors import BulkError
from flowvec.object_store.retries import PATIENCE, is_unsupported, kind_of
from flowvec.object_store.store import ConflictError, ObjectStore, StagedUpload, Upload

__all__ = ["S3Store"]

# Larger files are uploaded in parts of at least this size; S3 takes from 5 MiB, and at most 10,000
# parts.
PART_BYTES = 16 << 20
MOST_PARTS = 10_000
_MOST_DELETED = 1000  # of one request
_BLOCK_BYTES = 1 << 20  # of an object that is compared with a file
# A tag that no object has: the MD5 of other bytes than any that are written under a condition.
_OTHER_TAG = f'"{hashlib.md5(b"no object", usedforsecurity=False).hexdigest()}"'

_logger = logging.getLogger(__name__)


class S3Store(ObjectStore):
    """Objects of a bucket below a prefix.

    The SHA-256 of each object is sent with it, and compared with what the store says it received.
    The parts of large objects are sent with their MD5, which the store compares.

    Some servers ignore the conditions of a write, or refuse such a write. The first conditional
    write finds out; from then on `create` and `replace` read before they write, as they do for
    other schemes.
    """

    def __init__(self, url: str, system: Any, root: str) -> None:
        """Open a store; the arguments are those of `ObjectStore`."""
        super().__init__(url, system, root)
        self._bucket, _, self._prefix = self._root.partition("/")
        self._conditions: bool | None = None  # unknown before the first conditional write

    @property
    @override
    def has_conditions(self) -> bool:
        """Whether the store has refused a write whose condition did not hold."""
        return bool(self._conditions)

    # --- reading ----------------------------------------------------------------------------------

    @override
    def sizes(self) -> dict[str, int]:
        names: dict[str, int] = {}
        below = f"{self._prefix}/" if self._prefix else ""
        for page in self._pages(
            "list_objects_v2", ("ContinuationToken",), Prefix=below, Delimiter="/"
        ):
            for one in page.get("CommonPrefixes", ()):
                names[one["Prefix"].removeprefix(below).rstrip("/")] = -1
            for one in page.get("Contents", ()):
                names[one["Key"].removeprefix(below)] = int(one["Size"])
        names.pop("", None)  # the marker of a folder, which some tools create
        return names

    @override
    def all_sizes(self) -> dict[str, int]:
        below = f"{self._prefix}/" if self._prefix else ""
        pages = self._pages("list_objects_v2", ("ContinuationToken",), Prefix=below)
        names = {
            one["Key"].removeprefix(below): int(one["Size"])
            for page in pages
            for one in page.get("Contents", ())
        }
        names.pop("", None)
        return names

    @override
    def size_of(self, name: str) -> int | None:
        def described() -> int:
            answer = self._system.call_s3("head_object", Bucket=self._bucket, Key=self._key(name))
            return int(answer["ContentLength"])

        try:
            size: int = self._call(described, "read", name)
        except Exception as error:
            if kind_of(error) != "missing":
                raise
        else:
            return size
        page = self._call(
            lambda: self._system.call_s3(
                "list_objects_v2", Bucket=self._bucket, Prefix=f"{self._key(name)}/", MaxKeys=1
            ),
            "list", name,
        )  # fmt: skip
        return -1 if page.get("Contents") else None

    @override
    def read_tagged(self, name: str) -> tuple[bytes, str] | None:
        def got() -> tuple[bytes, str]:
            answer = self._system.call_s3("get_object", Bucket=self._bucket, Key=self._key(name))
            content: bytes = self._body(answer)
            if len(content) != answer["ContentLength"]:
                raise ConnectionError(f"{len(content)} of {answer['ContentLength']} bytes came")
            return content, answer["ETag"]

        try:
            tagged: tuple[bytes, str] = self._call(got, "read", name)
        except Exception as error:
            if kind_of(error) == "missing":
                return None
            raise
        return tagged

    def _body(self, answer: Any) -> bytes:
        import fsspec.asyn

        content: bytes = fsspec.asyn.sync(self._system.loop, answer["Body"].read)
        return content

    # --- writing ----------------------------------------------------------------------------------

    @override
    def write(self, name: str, content: bytes, check: Callable[[], object] | None = None) -> None:
        self._call(lambda: self._put(name, content), "write", name, check)

    @override
    def create(self, name: str, content: bytes) -> str:
        if not self._conditions and (there := self.read_tagged(name)) is not None:
            if there[0] != content:
                raise ConflictError(name)
            return there[1]
        return self._put_if(name, content, IfNoneMatch="*")

    @override
    def replace(self, name: str, content: bytes, tag: str) -> str:
        if not self._conditions:
            there = self.read_tagged(name)
            if there is None or (there[1] != tag and there[0] != content):
                raise ConflictError(name)
            if there[1] != tag:
                return there[1]
        return self._put_if(name, content, IfMatch=tag)

    def _put_if(self, name: str, content: bytes, **condition: str) -> str:
        """Write under a condition, if the store has them; the caller has read where it has not."""
        if self._conditions is False:
            condition = {}
        try:
            tag: str = self._call(lambda: self._put(name, content, **condition), "write", name)
            if self._conditions is None:
                self._learn(self._refuses(name, content))
        except Exception as error:
            if condition and is_unsupported(error):
                self._learn(False)
                return self._put_if(name, content)
            if kind_of(error) not in ("conflict", "missing"):
                raise
        else:
            return tag
        there = self.read_tagged(name)
        if there is not None and there[0] == content:  # the answer to an earlier attempt was lost
            return there[1]
        raise ConflictError(name)

    def _learn(self, has_conditions: bool) -> None:
        self._conditions = has_conditions
        if not has_conditions:
            _logger.warning(
                "%s: the store has no conditional writes, so jobs that start there at the same "
                "moment may not notice each other", self.url,
            )  # fmt: skip

    def _refuses(self, name: str, content: bytes) -> bool:
        """Write an object's own bytes again under conditions that do not hold.

        Returns:
            Whether the store refuses that. If not, the object is as it was.
        """
        for condition in ({"IfNoneMatch": "*"}, {"IfMatch": _OTHER_TAG}):
            try:
                self._call(
                    lambda condition=condition: self._put(name, content, **condition), "write", name
                )
            except Exception as error:
                if kind_of(error) not in ("conflict", "missing"):
                    raise
            else:
                return False
        return True

    def _put(self, name: str, content: bytes, **condition: str) -> str:
        digest = _digest(content)
        answer = self._system.call_s3(
            "put_object", Bucket=self._bucket, Key=self._key(name), Body=content,
            ChecksumSHA256=digest, **condition,
        )  # fmt: skip
        _check_received(answer, digest)
        tag: str = answer["ETag"]
        return tag

    @override
    def put_file(self, path: Path, name: str, check: Callable[[], object] | None = None) -> None:
        self.write(name, path.read_bytes(), check)

    @override
    def stage(
        self,
        path: Path,
        name: str,
        check: Callable[[], object] | None = None,
        on_bytes: Callable[[int], object] = lambda size: None,
    ) -> StagedUpload:
        if path.stat().st_size <= PART_BYTES:
            return StagedUpload(self, path, name)
        staged = _StagedParts(self, path, name)
        try:
            staged.send(check, on_bytes)
        except BaseException:
            with suppress(Exception):  # `unfinished_uploads` finds it, if it is still there
                staged.abort()
            raise
        return staged

    def begin(self, name: str, check: Callable[[], object] | None) -> Upload:
        """Begin an upload in parts."""
        key: str = self._call(
            lambda: self._system.call_s3(
                "create_multipart_upload", Bucket=self._bucket, Key=self._key(name)
            )["UploadId"],
            "write", name, check,
        )  # fmt: skip
        return Upload(name, key)

    def put_part(self, upload: Upload, number: int, body: bytes) -> str:
        """Send a part of an upload; return its tag.

        Raises:
            Exception: of the kind `missing`: the store does not know the upload.
        """
        tag: str = self._call(
            lambda: self._put_part(upload.name, upload.key, number, body), "write", upload.name
        )
        return tag

    def _put_part(self, name: str, key: str, number: int, body: bytes) -> str:
        answer = self._system.call_s3(
            "upload_part", Bucket=self._bucket, Key=self._key(name), UploadId=key,
            PartNumber=number, Body=body, ContentMD5=_md5(body),
        )  # fmt: skip
        tag: str = answer["ETag"]
        return tag

    def complete(
        self,
        upload: Upload,
        parts: list[dict[str, Any]],
        path: Path,
        check: Callable[[], object] | None,
    ) -> bool:
        """Make an object of the parts of an upload.

        Args:
            upload: the upload.
            parts: numbers and tags of its parts.
            path: the file whose bytes the parts are.
            check: as for `write`.

        Returns:
            Whether the object is there; False if the store does not know the upload.

        Raises:
            BulkError: the object has another size.
        """
        name, size = upload.name, path.stat().st_size
        try:
            self._call(
                lambda: self._system.call_s3(
                    "complete_multipart_upload", Bucket=self._bucket, Key=self._key(name),
                    UploadId=upload.key, MultipartUpload={"Parts": parts},
                ),
                "write", name, check,
            )  # fmt: skip
        except Exception as error:
            if kind_of(error) != "missing":
                raise
            # It was completed before and the answer was lost, or it was aborted.
            return self.size_of(name) == size and self._has_bytes_of(path, name)
        if (written := self.size_of(name)) != size:
            raise BulkError(
                f"{self.url}/{name} has {written} bytes, and should have {size}; {self.again}"
            )
        return True

    def _has_bytes_of(self, path: Path, name: str) -> bool:
        """Whether an object of a file's size has its bytes."""

        def compared() -> bool:
            import fsspec.asyn

            read = self._system.call_s3("get_object", Bucket=self._bucket, Key=self._key(name))[
                "Body"
            ].read
            with path.open("rb") as file:
                while block := file.read(_BLOCK_BYTES):
                    there = b""
                    while len(there) < len(block):
                        left = len(block) - len(there)
                        more: bytes = fsspec.asyn.sync(self._system.loop, read, left)
                        if not more:
                            raise ConnectionError("the answer ended too early")
                        there += more
                    if there != block:
                        return False
            return True

        return bool(self._call(compared, "read", name))

    @override
    def delete(self, names: Iterable[str], check: Callable[[], object] | None = None) -> None:
        keys = [self._key(name) for name in names]
        for at in range(0, len(keys), _MOST_DELETED):
            for key in keys[at : at + _MOST_DELETED]:
                self._call(
                    lambda key=key: self._system.call_s3(
                        "delete_object", Bucket=self._bucket, Key=key
                    ),
                    "delete", key, check,
                )  # fmt: skip

    # --- uploads that were not completed ----------------------------------------------------------

    @override
    def unfinished_uploads(self, start: str = "") -> Sequence[Upload]:
        below = f"{self._prefix}/" if self._prefix else ""
        markers = ("KeyMarker", "UploadIdMarker")
        try:
            return [
                Upload(one["Key"].removeprefix(below), one["UploadId"])
                for page in self._pages("list_multipart_uploads", markers, Prefix=below + start)
                for one in page.get("Uploads", ())
                if one["Key"].startswith(below + start)  # some servers ignore the prefix
            ]
        except Exception as error:
            if kind_of(error) != "missing":  # rclone's answer where there were no uploads yet
                raise
            return []

    @override
    def abort(self, upload: Upload) -> None:
        try:
            self._call(
                lambda: self._system.call_s3(
                    "abort_multipart_upload", Bucket=self._bucket, Key=self._key(upload.name),
                    UploadId=upload.key,
                ),
                "abort an upload of", upload.name,
            )  # fmt: skip
        except Exception as error:
            if kind_of(error) != "missing":
                raise

    # --- calling ----------------------------------------------------------------------------------

    def _pages(
        self, method: str, markers: tuple[str, ...], **options: str
    ) -> Iterator[dict[str, Any]]:
        """The pages of a listing; each but the last says where the next begins."""
        place: dict[str, str] = {}
        while True:
            page: dict[str, Any] = self._call(
                lambda place=place: self._system.call_s3(
                    method, Bucket=self._bucket, **options, **place
                ),
                "list", "",
            )  # fmt: skip
            yield page
            if not page.get("IsTruncated"):
                return
            place = {name: page[f"Next{name}"] for name in markers if page.get(f"Next{name}")}

    @override
    def renew_credentials(self) -> None:
        self._system.connect(refresh=True)

    def _key(self, name: str) -> str:
        return f"{self._prefix}/{name}" if self._prefix else name


class _StagedParts(StagedUpload):
    """An upload of which S3 has all parts, once `send` has returned.

    A store may lose an upload: somebody aborts it, a rule of the bucket's lifecycle does, or the
    server itself after a part that did not arrive whole. It is begun again then.
    """

    _store: S3Store

    def __init__(self, store: S3Store, path: Path, name: str) -> None:
        super().__init__(store, path, name)
        self._upload: Upload | None = None
        self._parts: list[dict[str, Any]] = []
        self._until = time.monotonic() + PATIENCE

    def send(
        self,
        check: Callable[[], object] | None,
        on_bytes: Callable[[int], object] = lambda size: None,
    ) -> None:
        """Send all parts; arguments as for `ObjectStore.stage`."""
        reported = 0
        while True:
            upload = self._upload = self._store.begin(self._name, check)
            self._parts, sent = [], 0
            for number, body in enumerate(_parts(self._path, self._path.stat().st_size), 1):
                try:
                    tag = self._store.put_part(upload, number, body)
                except Exception as error:
                    self._lost(error)
                    break
                self._parts.append({"PartNumber": number, "ETag": tag})
                sent += len(body)
                if sent > reported:
                    on_bytes(sent - reported)
                    reported = sent
            else:
                return

    @override
    def complete(self, check: Callable[[], object] | None = None) -> None:
        self._until = time.monotonic() + PATIENCE
        while self._upload is not None and not self._store.complete(
            self._upload, self._parts, self._path, check
        ):
            self._lost(None)
            self.send(check)

    def _lost(self, error: Exception | None) -> None:
        """Return if the store has lost the upload, and there is time to begin again."""
        if error is not None and kind_of(error) != "missing":
            raise error
        if time.monotonic() > self._until:
            raise BulkError(
                f"cannot write {self._store.url}/{self._name}: the store loses the upload before "
                f"it is complete; {self._store.again}"
            ) from error

    @override
    def abort(self) -> None:
        if self._upload is not None:
            self._store.abort(self._upload)


def _parts(path: Path, size: int) -> Iterator[bytes]:
    step = max(PART_BYTES, -(-size // MOST_PARTS))
    with path.open("rb") as file:
        while body := file.read(step):
            yield body


def _digest(content: bytes) -> str:
    return base64.b64encode(hashlib.sha256(content).digest()).decode()


def _md5(content: bytes) -> str:
    # Unlike SHA-256, every store that is like S3 takes it for parts.
    return base64.b64encode(hashlib.md5(content, usedforsecurity=False).digest()).decode()


def _check_received(answer: dict[str, Any], digest: str) -> None:
    """Compare what the store says it received with what was sent.

    Raises:
        ConnectionError: it differs, so the call is repeated.
    """
    received = answer.get("ChecksumSHA256", digest)  # some stores do not say
    if received != digest:
        raise ConnectionError("the store received other bytes than were sent")
