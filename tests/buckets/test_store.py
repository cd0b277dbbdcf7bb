"""The laws of an object store: S3 by s3fs, and any scheme of fsspec."""

from __future__ import annotations

import base64
import hashlib
import os
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("s3fs", reason="needs the extra [s3]")
pytest.importorskip("moto", reason="needs the extra [test-buckets]")

from botocore.exceptions import ClientError

from flowvec.errors import BulkError, InputValueError, MissingDependencyError
from flowvec.object_store import ConflictError, ObjectStore, open_store, s3
from tests.buckets.conftest import on_both_servers
from tests.faults.bucket_server import Bucket, bucket_server, url_of
from tests.inside import file_system_of


@pytest.fixture(params=["s3", "memory"])
def store(request: pytest.FixtureRequest, server: str, prefix: str) -> ObjectStore:
    return open_store(url_of(server, prefix) if request.param == "s3" else f"memory://{prefix}")


@on_both_servers
def test_what_is_written_is_read(store: ObjectStore, tmp_path: Path) -> None:
    assert store.sizes() == store.all_sizes() == {}
    assert store.read("a") is None
    with pytest.raises(FileNotFoundError):
        store.download("a", tmp_path / "a")
    store.write("a", b"one")
    store.write("a", b"other")
    (tmp_path / "b").write_bytes(b"")
    store.upload(tmp_path / "b", "b b.npy")
    store.write("below/c", b"c")
    store.write("below/d/e", b"de")
    assert store.sizes() == {"a": 5, "b b.npy": 0, "below": -1}
    assert store.all_sizes() == {"a": 5, "b b.npy": 0, "below/c": 1, "below/d/e": 2}
    names = ("a", "b b.npy", "below", "below/c", "below/d", "bel", "below/c/d")
    assert [store.size_of(name) for name in names] == [5, 0, -1, 1, -1, None, None]
    assert (store.read("a"), store.read("b b.npy")) == (b"other", b"")
    store.download("a", tmp_path / "a")
    assert (tmp_path / "a").read_bytes() == b"other"
    store.delete(["a", "not there", "b b.npy"])
    assert store.sizes() == {"below": -1}


@on_both_servers
def test_a_write_with_a_condition_is_done_once(store: ObjectStore) -> None:
    tag = store.create("a", b"one")
    assert store.create("a", b"one") == tag  # the answer to the first call may have been lost
    with pytest.raises(ConflictError):
        store.create("a", b"two")
    second = store.replace("a", b"two", tag)
    assert store.replace("a", b"two", tag) == second
    for content, known in ((b"three", tag), (b"one", tag)):
        with pytest.raises(ConflictError):
            store.replace("a", content, known)
    assert store.read_tagged("a") == (b"two", second)
    store.delete(["a"])
    with pytest.raises(ConflictError):
        store.replace("a", b"three", second)


def test_listings_of_several_pages_are_whole(
    server: str, bucket: Bucket, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(url_of(server, prefix))
    for i in range(10):
        bucket.put(f"{prefix}/{i}", b"x")
        bucket.begin_upload(f"{prefix}/{i}")
    bucket.put(f"{prefix}/", b"")  # the marker of a folder
    call = file_system_of(store).call_s3

    def small_pages(method: str, **given: object) -> object:
        most = {"list_objects_v2": "MaxKeys", "list_multipart_uploads": "MaxUploads"}[method]
        return call(method, **given, **{most: 3})

    monkeypatch.setattr(file_system_of(store), "call_s3", small_pages)
    assert store.sizes() == {str(i): 1 for i in range(10)}
    names = sorted(upload.name for upload in store.unfinished_uploads())
    assert names == [str(i) for i in range(10)]


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3, "PART_BYTES", 100)


@on_both_servers
@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("size", [0, 99, 100, 101, 1000])
def test_a_large_file_is_uploaded_in_parts(
    server: str, bucket: Bucket, prefix: str, tmp_path: Path, size: int
) -> None:
    (tmp_path / "a").write_bytes(content := os.urandom(size))
    open_store(url_of(server, prefix)).upload(tmp_path / "a", "a")
    assert bucket.objects(prefix) == {"a": content}
    assert bucket.uploads(prefix) == []


@on_both_servers
@pytest.mark.usefixtures("small_parts")
def test_a_huge_file_has_larger_parts_rather_than_too_many(
    server: str, bucket: Bucket, prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3, "MOST_PARTS", 3)
    (tmp_path / "a").write_bytes(content := os.urandom(1000))
    sent: list[int] = []
    store = open_store(url_of(server, prefix))
    call, digests = file_system_of(store).call_s3, []

    def watched(method: str, **given: Any) -> Any:
        if method == "upload_part":
            digest = base64.b64encode(hashlib.md5(given["Body"]).digest()).decode()
            digests.append(given["ContentMD5"] == digest)
        return call(method, **given)

    monkeypatch.setattr(file_system_of(store), "call_s3", watched)
    staged = store.stage(tmp_path / "a", "a", on_bytes=sent.append)
    assert digests == [True] * 3  # the store compares them
    assert (bucket.objects(prefix), len(bucket.uploads(prefix))) == ({}, 1)
    assert [upload.name for upload in store.unfinished_uploads("a")] == ["a"]
    assert store.unfinished_uploads("b") == []
    staged.complete()
    assert sent == [334, 334, 332]
    assert bucket.objects(prefix) == {"a": content}


@on_both_servers
@pytest.mark.usefixtures("small_parts")
def test_an_upload_that_fails_leaves_nothing(
    server: str, bucket: Bucket, prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(url_of(server, prefix))
    (tmp_path / "a").write_bytes(b"x" * 1000)

    def stopped(*_: object):
        yield b"x" * 100
        assert bucket.uploads(prefix)
        raise KeyboardInterrupt

    monkeypatch.setattr(s3, "_parts", stopped)
    with pytest.raises(KeyboardInterrupt):
        store.upload(tmp_path / "a", "a")
    assert (bucket.objects(prefix), bucket.uploads(prefix)) == ({}, [])


@on_both_servers
@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("passes", [0, 1])
def test_nothing_appears_once_the_right_to_write_is_lost(
    server: str, bucket: Bucket, prefix: str, tmp_path: Path, passes: int
) -> None:
    store = open_store(url_of(server, prefix))
    left = passes

    def check() -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise BulkError("the lease is lost")

    (tmp_path / "a").write_bytes(b"x" * 1000)
    with pytest.raises(BulkError, match="the lease is lost"):
        store.upload(tmp_path / "a", "a", check)
    if passes == 0:
        with pytest.raises(BulkError, match="the lease is lost"):
            store.write("b", b"x", check)
    assert (bucket.objects(prefix), bucket.uploads(prefix)) == ({}, [])


@pytest.mark.usefixtures("small_parts")
def test_the_laws_hold_behind_a_connection_that_fails(tmp_path: Path) -> None:
    """Half of all requests fail: before the store sees them, in the middle, or afterwards."""
    with bucket_server(faults=0.5, seed=int(os.environ.get("FLOWVEC_SEED", "1"))) as address:
        store, bucket = open_store(url_of(address, "flaky")), Bucket(address)
        contents = {f"{i}": os.urandom(50 * i) for i in range(12)}
        for name, content in contents.items():
            (tmp_path / name).write_bytes(content)
            store.upload(tmp_path / name, name)
        assert store.sizes() == {name: len(content) for name, content in contents.items()}
        assert bucket.objects("flaky") == contents
        tag = store.create("lease", b"0")
        for i in range(1, 20):
            tag = store.replace("lease", b"%d" % i, tag)
        assert store.read_tagged("lease") == (b"19", tag)
        for name, content in contents.items():
            store.download(name, tmp_path / "copy")
            assert (tmp_path / "copy").read_bytes() == content
        store.delete([*contents, "lease"])
        for upload in store.unfinished_uploads():  # begun, and the answer was lost
            store.abort(upload)
        assert (bucket.objects("flaky"), bucket.uploads("flaky")) == ({}, [])


@on_both_servers
def test_a_store_without_conditional_writes_is_found_out(
    server: str, bucket: Bucket, prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Rclone's server ignores the conditions; moto's keeps them."""
    store = open_store(url_of(server, prefix))
    assert not store.has_conditions  # not known yet
    tag = store.create("a", b"one")
    bucket.put(f"{prefix}/b", b"other")
    with pytest.raises(ConflictError):
        store.create("b", b"one")
    store.replace("a", b"two", tag)
    assert bucket.objects(prefix) == {"a": b"two", "b": b"other"}
    assert store.has_conditions != ("has no conditional writes" in caplog.text)


def test_a_store_that_refuses_conditions_gets_none(
    server: str, bucket: Bucket, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some stores answer 501 to a header that they do not know."""
    store = open_store(url_of(server, prefix))
    call = file_system_of(store).call_s3

    def refused(method: str, **given: Any) -> Any:
        if given.keys() & {"IfMatch", "IfNoneMatch"}:
            answer = {"Error": {"Code": "NotImplemented", "Message": "a header is not implemented"}}
            raise OSError("not implemented") from ClientError(answer, method)
        return call(method, **given)

    monkeypatch.setattr(file_system_of(store), "call_s3", refused)
    tag = store.create("a", b"one")
    with pytest.raises(ConflictError):
        store.create("a", b"two")
    tag = store.replace("a", b"two", tag)
    with pytest.raises(ConflictError):
        store.replace("a", b"three", f"{tag} of another")
    assert (bucket.objects(prefix), store.has_conditions) == ({"a": b"two"}, False)


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("server", ["rclone"], indirect=True)  # moto answers 500
@pytest.mark.parametrize("is_sent", [False, True])
def test_an_upload_that_the_store_has_lost_is_sent_again(
    server: str, bucket: Bucket, prefix: str, tmp_path: Path, is_sent: bool
) -> None:
    """A rule of the bucket's lifecycle aborts it, before or after its last part; the object of an
    earlier file of the same size does not count.
    """
    store = open_store(url_of(server, prefix))
    store.write("a", b"x" * 1000)
    (tmp_path / "a").write_bytes(content := os.urandom(1000))
    sent: list[int] = []

    def aborted(size: int) -> None:
        sent.append(size)
        if len(sent) == 2 and not is_sent:
            store.abort(*store.unfinished_uploads())

    staged = store.stage(tmp_path / "a", "a", on_bytes=aborted)
    if is_sent:
        store.abort(*store.unfinished_uploads())
    staged.complete()
    assert sum(sent) == 1000
    assert (bucket.objects(prefix), bucket.uploads(prefix)) == ({"a": content}, [])


@pytest.mark.parametrize(
    ("url", "error", "message"),
    [
        ("s3://", InputValueError, "does not name a place"),
        ("s3://b/x?endpoint=y", InputValueError, "endpoint_override, region, scheme, not endpoint"),
        ("s3://key:secret@b/x", InputValueError, "^(?!.*secret).*has no keys"),
        ("nowhere://b/x", InputValueError, "fsspec does not know nowhere://"),
        ("gs://b/x", MissingDependencyError, "cannot open gs://b/x: .*gcsfs"),
    ],
)
def test_a_url_that_cannot_be_opened_is_named(url: str, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        open_store(url)


def test_a_bucket_that_is_not_there_is_named(server: str) -> None:
    with pytest.raises(BulkError, match=r"s3://nobody/x/a: .*bucket"):
        open_store(url_of(server, "x").replace("s3://bucket/", "s3://nobody/")).write("a", b"")


def test_no_credentials_are_named(
    server: str, prefix: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with pytest.raises(BulkError, match=r"refused .*credentials"):
        open_store(url_of(server, prefix)).read("a")
