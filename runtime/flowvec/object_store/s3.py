"""S3 and its like through s3fs: conditional writes, and uploads in parts that leave nothing."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

from flowvec.compat import override
from flowvec.object_store.retries import kind_of
from flowvec.object_store.store import ConflictError, ObjectStore, StagedUpload, Upload

__all__ = ["S3Store"]

# Larger files are uploaded in parts of at least this size; S3 takes from 5 MiB, and at most 10,000
# parts.
PART_BYTES = 16 << 20
MOST_PARTS = 10_000
_MOST_DELETED = 1000  # of one request


class S3Store(ObjectStore):
    """Objects of a bucket below a prefix.

    The SHA-256 of each object is sent with it, and compared with what the store says it received.
    The parts of large objects are sent with their MD5, which the store compares.
    """

    has_conditions: ClassVar[bool] = True

    def __init__(self, url: str, system: Any, root: str) -> None:
        """Open a store; the arguments are those of `ObjectStore`."""
        super().__init__(url, system, root)
        self._bucket, _, self._prefix = self._root.partition("/")

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
        return self._put_if(name, content, IfNoneMatch="*")

    @override
    def replace(self, name: str, content: bytes, tag: str) -> str:
        return self._put_if(name, content, IfMatch=tag)

    def _put_if(self, name: str, content: bytes, **condition: str) -> str:
        try:
            tag: str = self._call(lambda: self._put(name, content, **condition), "write", name)
        except Exception as error:
            if kind_of(error) not in ("conflict", "missing"):
                raise
        else:
            return tag
        there = self.read_tagged(name)
        if there is not None and there[0] == content:  # the answer to an earlier attempt was lost
            return there[1]
        raise ConflictError(name)

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
        size = path.stat().st_size
        if size <= PART_BYTES:
            return StagedUpload(self, path, name)
        place = {"Bucket": self._bucket, "Key": self._key(name)}
        key: str = self._call(
            lambda: self._system.call_s3("create_multipart_upload", **place)["UploadId"],
            "write", name, check,
        )  # fmt: skip
        parts: list[dict[str, Any]] = []
        staged = _StagedParts(self, path, name, key, parts, size)
        try:
            for n, body in enumerate(_parts(path, size), 1):
                tag = self._call(
                    lambda n=n, body=body: self._put_part(name, key, n, body), "write", name
                )
                parts.append({"PartNumber": n, "ETag": tag})
                on_bytes(len(body))
        except BaseException:
            with suppress(Exception):  # `unfinished_uploads` finds it, if it is still there
                staged.abort()
            raise
        return staged

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
        size: int,
        check: Callable[[], object] | None,
    ) -> None:
        """Make an object of the parts of an upload.

        Args:
            upload: the upload.
            parts: numbers and tags of its parts.
            size: size of all parts in bytes.
            check: as for `write`.

        Raises:
            ConnectionError: the object has another size.
        """
        name = upload.name
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
            # It was completed before, and the answer was lost.
        if (written := self.size_of(name)) != size:
            raise ConnectionError(f"{self.url}/{name} has {written} bytes, and should have {size}")

    @override
    def delete(self, names: Iterable[str]) -> None:
        keys = [self._key(name) for name in names]
        for at in range(0, len(keys), _MOST_DELETED):
            for key in keys[at : at + _MOST_DELETED]:
                self._call(
                    lambda key=key: self._system.call_s3(
                        "delete_object", Bucket=self._bucket, Key=key
                    ),
                    "delete", key,
                )  # fmt: skip

    # --- uploads that were not completed ----------------------------------------------------------

    @override
    def unfinished_uploads(self, start: str = "") -> Sequence[Upload]:
        below = f"{self._prefix}/" if self._prefix else ""
        markers = ("KeyMarker", "UploadIdMarker")
        return [
            Upload(one["Key"].removeprefix(below), one["UploadId"])
            for page in self._pages("list_multipart_uploads", markers, Prefix=below + start)
            for one in page.get("Uploads", ())
        ]

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
    """An upload of which S3 has all parts."""

    _store: S3Store

    def __init__(
        self,
        store: S3Store,
        path: Path,
        name: str,
        key: str,
        parts: list[dict[str, Any]],
        size: int,
    ) -> None:
        super().__init__(store, path, name)
        self._upload = Upload(name, key)
        self._parts = parts
        self._size = size

    @override
    def complete(self, check: Callable[[], object] | None = None) -> None:
        self._store.complete(self._upload, self._parts, self._size, check)

    @override
    def abort(self) -> None:
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
