"""`shards.json`: how many shards a collection has, and the model of their vectors."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

from flowvec.collection.store.absence import SHARDS_FILE
from flowvec.encoder.encoder import Encoder
from flowvec.errors import CollectionError, FingerprintMismatchError, InputValueError
from flowvec.files import write_file
from flowvec.object_store import open_store
from flowvec.texts.remote import is_url, name_of

__all__ = [
    "LEASE",
    "ShardsManifest",
    "claim_manifest",
    "is_sharded",
    "place_of",
    "read_manifest",
    "shard_name",
    "shards_model",
]

# While a job writes below a URL, see `flowvec.object_store.lease`.
LEASE = "_lease.json"
_VERSION = 1
_OF_SHARD = re.compile(r"shard-\d{3,}")


@dataclass(frozen=True, slots=True)
class ShardsManifest:
    """What `shards.json` says.

    Attributes:
        shards: number of shards.
        model: name or directory of the bundle that made the vectors.
        fingerprint: its fingerprint.
    """

    shards: int
    model: str
    fingerprint: str

    def check_model(self, encoder: Encoder, where: str) -> None:
        """Refuse an encoder of another model.

        Args:
            encoder: the encoder.
            where: the collection's name in messages.

        Raises:
            FingerprintMismatchError: the vectors of the shards were made by another model.
        """
        if self.fingerprint != encoder.fingerprint:
            raise FingerprintMismatchError(f"{where} was made with another model")


def place_of(path: str | Path) -> str:
    """A collection's absolute path, or its URL, as workers on other machines need it."""
    text = str(path)
    return text if is_url(text) else str(Path(text).expanduser().absolute())


def shard_name(number: int) -> str:
    """The name of a shard, by which results name it."""
    return f"shard-{number:03}"


def is_sharded(path: str | Path) -> bool:
    """Whether a folder, or what is below a URL, is a collection in shards.

    Raises:
        InputValueError, MissingDependencyError, BulkError: as `open_store`, for a URL.
    """
    if is_url(str(path)):
        return open_store(str(path)).read(SHARDS_FILE) is not None
    return (Path(path) / SHARDS_FILE).is_file()


def shards_model(path: str | Path) -> str:
    """Name or directory of the bundle that made the vectors of the shards.

    Raises:
        CollectionError: the folder or URL is not a collection in shards.
        InputValueError, MissingDependencyError, BulkError: as `open_store`, for a URL.
    """
    return read_manifest(path).model


def read_manifest(path: str | Path) -> ShardsManifest:
    """Read `shards.json`; raises as `shards_model`."""
    text = str(path)
    if not is_url(text):
        try:
            content = (Path(path) / SHARDS_FILE).read_bytes()
        except OSError as error:
            raise CollectionError(
                f"{path} is not a collection in shards: {error.strerror or error}"
            ) from None
        return _parsed(content, text)
    stored = open_store(text).read(SHARDS_FILE)
    if stored is None:
        raise CollectionError(
            f"{name_of(text)} is not a collection in shards: it has no {SHARDS_FILE}"
        )
    return _parsed(stored, name_of(text))


def claim_manifest(path: str | Path, shards: int, encoder: Encoder) -> None:
    """Write `shards.json`, or check that the one that is there is the same.

    Below a URL, the caller has the lease.

    Args:
        path: the folder, or the URL.
        shards: number of shards.
        encoder: the model.

    Raises:
        InputValueError: there are shards of another number, or something else is there.
        FingerprintMismatchError: there are shards of another model.
        CollectionError: the file cannot be written, or is damaged.
    """
    text, where = str(path), name_of(str(path))
    about = {"flowvec_shards": _VERSION, "shards": shards, "model": encoder.bundle.handle,
             "fingerprint": encoder.fingerprint}  # fmt: skip
    content = (json.dumps(about, indent=1) + "\n").encode()
    names = _names(path)
    if SHARDS_FILE in names and any(map(_OF_SHARD.match, names)):
        there = read_manifest(path)
        if there.shards != shards:
            raise InputValueError(f"{where} has {there.shards} shards, not {shards}")
        there.check_model(encoder, where)
        return
    # A job that failed before its first shard decides nothing.
    if foreign := sorted(name for name in names if name not in (SHARDS_FILE, LEASE)):
        raise InputValueError(f"{where} is not empty: it holds {foreign[0]}; name a new place")
    if is_url(text):
        open_store(text).write(SHARDS_FILE, content)
        return
    try:
        Path(path).mkdir(parents=True, exist_ok=True)
        write_file(Path(path) / SHARDS_FILE, content)
    except OSError as error:
        raise CollectionError(f"cannot write {path}: {error.strerror or error}") from error


def _names(path: str | Path) -> set[str]:
    """Names of what is in a folder, or directly below a URL."""
    if is_url(str(path)):
        return set(open_store(str(path)).sizes())
    folder = Path(path)
    return {one.name for one in folder.iterdir()} if folder.is_dir() else set()


def _parsed(content: bytes, where: str) -> ShardsManifest:
    try:
        about = json.loads(content)
    except ValueError as error:
        raise CollectionError(f"{where} is not a collection in shards: {error}") from None
    if not isinstance(about, dict) or about.get("flowvec_shards") != _VERSION:
        raise CollectionError(f"{where}/{SHARDS_FILE} was written by another version of flowvec")
    try:
        return ShardsManifest(int(about["shards"]), str(about["model"]), str(about["fingerprint"]))
    except (KeyError, TypeError, ValueError):
        raise CollectionError(f"{where}/{SHARDS_FILE} does not describe its shards") from None
