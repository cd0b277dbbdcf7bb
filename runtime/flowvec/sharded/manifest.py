"""`shards.json`: how many shards a collection has, the models of their vectors, their indexes."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from flowvec.collection.store.absence import SHARDS_FILE
from flowvec.collection.store.full_text import TextTokenizer
from flowvec.encoder.encoder import Encoder
from flowvec.errors import CollectionError, FingerprintMismatchError, InputValueError
from flowvec.files import write_file
from flowvec.object_store import open_store
from flowvec.sparse.encoder import SparseEncoder
from flowvec.texts.urls import is_url, shown

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
        sparse_model: name or directory of the bundle that makes their sparse vectors; None without.
        sparse_fingerprint: its fingerprint.
        full_text: tokenizer of their full-text indexes; None if they are made when they are needed.
    """

    shards: int
    model: str
    fingerprint: str
    sparse_model: str | None = None
    sparse_fingerprint: str | None = None
    full_text: TextTokenizer | None = None

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

    def check_sparse_model(self, encoder: SparseEncoder | None, where: str) -> None:
        """Refuse a SparseEncoder of another model than that of the shards.

        Args:
            encoder: the encoder; None is never refused.
            where: the collection's name in messages.

        Raises:
            FingerprintMismatchError: the sparse vectors of the shards are made by another model.
        """
        expected = self.sparse_fingerprint
        if encoder is not None and expected not in (None, encoder.fingerprint):
            raise FingerprintMismatchError(
                f"{where} has sparse vectors of {self.sparse_model}, and "
                f"{encoder.bundle.manifest.name} is another model"
            )

    @property
    def made(self) -> dict[str, str]:
        """What a shard has besides rows, as its record says it."""
        both = {"sparse_fingerprint": self.sparse_fingerprint, "full_text": self.full_text}
        return {name: value for name, value in both.items() if value is not None}


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
            f"{shown(text)} is not a collection in shards: it has no {SHARDS_FILE}"
        )
    return _parsed(stored, shown(text))


def claim_manifest(
    path: str | Path,
    shards: int,
    encoder: Encoder,
    sparse_encoder: SparseEncoder | None = None,
    full_text: TextTokenizer | None = None,
    *,
    resume: bool = True,
) -> ShardsManifest:
    """Write `shards.json`, or check that the one that is there is of the same shards.

    Below a URL, the caller has the lease.

    Args:
        path: the folder, or the URL.
        shards: number of shards.
        encoder: the model.
        sparse_encoder: makes sparse vectors; None without. Shards that have none get theirs.
        full_text: tokenizer of their full-text indexes; None is that of the shards that are there.
        resume: whether shards that are there stay, with their sparse vectors.

    Returns:
        What the shards are to be.

    Raises:
        InputValueError: there are shards of another number, or something else is there; or there
            are sparse vectors, and no encoder for those of new rows.
        FingerprintMismatchError: there are shards of another model.
        CollectionError: the file cannot be written, or is damaged.
    """
    where = shown(str(path))
    wanted = ShardsManifest(shards, encoder.bundle.handle, encoder.fingerprint, full_text=full_text)
    if sparse_encoder is not None:
        wanted = replace(
            wanted,
            sparse_model=sparse_encoder.bundle.handle,
            sparse_fingerprint=sparse_encoder.fingerprint,
        )
    names = _names(path)
    if SHARDS_FILE in names and any(map(_OF_SHARD.match, names)):
        there = read_manifest(path)
        if there.shards != shards:
            raise InputValueError(f"{where} has {there.shards} shards, not {shards}")
        there.check_model(encoder, where)
        if resume:
            there.check_sparse_model(sparse_encoder, where)
            if sparse_encoder is None and there.sparse_fingerprint is not None:
                raise InputValueError(
                    f"{where} has sparse vectors of {there.sparse_model}: give it as "
                    "--sparse-model (sparse_encoder=)"
                )
            wanted = replace(wanted, full_text=full_text or there.full_text)
        if there.made != wanted.made:
            _write(path, wanted)
        return wanted
    # A job that failed before its first shard decides nothing.
    if foreign := sorted(name for name in names if name not in (SHARDS_FILE, LEASE)):
        raise InputValueError(f"{where} is not empty: it holds {foreign[0]}; name a new place")
    _write(path, wanted)
    return wanted


def _write(path: str | Path, manifest: ShardsManifest) -> None:
    given = {name: value for name, value in asdict(manifest).items() if value is not None}
    content = (json.dumps({"flowvec_shards": _VERSION, **given}, indent=1) + "\n").encode()
    if is_url(str(path)):
        open_store(str(path)).write(SHARDS_FILE, content)
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
        return ShardsManifest(
            int(about["shards"]),
            str(about["model"]),
            str(about["fingerprint"]),
            about.get("sparse_model"),
            about.get("sparse_fingerprint"),
            about.get("full_text"),
        )
    except (KeyError, TypeError, ValueError):
        raise CollectionError(f"{where}/{SHARDS_FILE} does not describe its shards") from None
