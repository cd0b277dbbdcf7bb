"""The bundle: a directory with one ONNX graph, its tokenizer and a manifest.

    manifest.json     what the bundle is, and the SHA-256 and size of every other file
    model.onnx        tokens in, vectors out; standard operators only, no external data
    tokenizer.json    a Hugging Face `tokenizers` file, without truncation or padding

The manifest is a closed list: a file that it does not name, a missing file, a link, another size
or another hash is refused before any native code sees the bytes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from flowvec.errors import BundleError

__all__ = [
    "FORMAT_VERSION",
    "Bundle",
    "FileRecord",
    "Manifest",
    "record_file",
    "shipped_bundles",
]

FORMAT_VERSION = 1
MANIFEST = "manifest.json"
MODEL = "model.onnx"
TOKENIZER = "tokenizer.json"

# Bounds on what a manifest may claim: an untrusted bundle must not make the loader read the disk
# full. A BERT-large in float32 has 1.3 GB.
_MAX_MANIFEST_BYTES = 1 << 20
_MAX_FILES = 16

Similarity = Literal["cosine", "dot", "euclidean", "manhattan"]
_SIMILARITIES = ("cosine", "dot", "euclidean", "manhattan")


@dataclass(frozen=True, slots=True)
class FileRecord:
    """Size in bytes and SHA-256 (hex) of one file of a bundle."""

    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a bundle says of itself; `manifest.json` holds exactly these fields.

    Attributes:
        name: the model's name.
        dim: length of a vector.
        max_length: the most tokens of a text, special tokens counted; longer texts are cut.
        pooling: how token vectors become one, e.g. `mean` or `cls+max`.
        transform: the steps between pooling and normalisation, e.g. `("dense(256->256)",)`.
        normalised: the graph ends in L2 normalisation.
        prompts: prefixes by name, e.g. `{"query": "query: "}`.
        default_prompt_name: the prompt that is used when none is asked for.
        similarity: what `Encoder.similarity` computes.
        pad_id: the token that fills up a batch.
        inputs: names of the graph's inputs, int64 (batch_size, sequence_length).
        output: name of the graph's output, float32 (batch_size, dim).
        opset: version of the standard operator set.
        weights: storage of the weight matrices, `float32`, or `float16` cast to float32 on load.
        source: where the checkpoint came from.
        licence: licence of the weights, if known.
        parity: figures of the comparison with the source model in torch.
        files: every other file of the bundle.
        format_version: version of this format.
    """

    name: str
    dim: int
    max_length: int
    pooling: str
    transform: tuple[str, ...]
    normalised: bool
    prompts: dict[str, str]
    default_prompt_name: str | None
    similarity: Similarity
    pad_id: int
    inputs: tuple[str, ...]
    output: str
    opset: int
    weights: Literal["float32", "float16"]
    source: str
    licence: str | None
    parity: dict[str, float]
    files: dict[str, FileRecord]
    format_version: int = field(default=FORMAT_VERSION)

    def to_json(self) -> str:
        """The text of `manifest.json`: sorted keys, so that equal manifests are equal bytes."""
        return json.dumps(asdict(self), indent=2, sort_keys=True, ensure_ascii=False) + "\n"

    @classmethod
    def from_json(cls, text: str, where: str) -> Manifest:
        """Read a manifest and check every field.

        Raises:
            BundleError: not JSON, another format version, a field missing or out of range.
        """
        try:
            raw = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise BundleError(f"{where} is not JSON: {error}") from None
        if not isinstance(raw, dict):
            raise BundleError(f"{where} must hold a JSON object")
        version = raw.get("format_version")
        if version != FORMAT_VERSION:
            raise BundleError(
                f"{where} has format_version {version!r}; this flowvec reads {FORMAT_VERSION}"
            )
        names = {f.name for f in fields(cls)}
        if missing := sorted(names - raw.keys()):
            raise BundleError(f"{where} lacks {', '.join(missing)}")
        if unknown := sorted(raw.keys() - names):
            raise BundleError(f"{where} has unknown fields {', '.join(map(str, unknown))}")
        return cls(**_checked(raw, where))

    @property
    def fingerprint(self) -> str:
        """SHA-256 over all that decides a vector: two models with one fingerprint agree.

        It covers the hashes of the graph and the tokenizer, max_length, prompts and output
        options; names, parity figures and further variants of the graph do not change it.
        """
        material = {
            "model": self.files[MODEL].sha256,
            "tokenizer": self.files[TOKENIZER].sha256,
            "max_length": self.max_length,
            "prompts": self.prompts,
            "default_prompt_name": self.default_prompt_name,
            "normalised": self.normalised,
            "dim": self.dim,
        }
        return hashlib.sha256(json.dumps(material, sort_keys=True).encode()).hexdigest()


def _checked(raw: dict[str, Any], where: str) -> dict[str, Any]:
    """Validate a manifest's fields and turn lists and records into their types."""

    def need(condition: bool, what: str) -> None:
        if not condition:
            raise BundleError(f"{where}: {what}")

    def is_count(value: object, most: int) -> bool:
        return isinstance(value, int) and not isinstance(value, bool) and 0 < value <= most

    def is_texts(value: object) -> bool:
        return isinstance(value, list) and all(isinstance(item, str) for item in value)

    for key in ("name", "pooling", "output", "source"):
        need(isinstance(raw[key], str), f"{key} must be a text")
    for key, most in (("dim", 1 << 20), ("max_length", 1 << 20), ("opset", 1 << 10)):
        need(is_count(raw[key], most), f"{key} must be a whole number from 1 to {most}")
    need(raw["pad_id"] == 0 or is_count(raw["pad_id"], 1 << 31), "pad_id must be a token id")
    need(isinstance(raw["normalised"], bool), "normalised must be true or false")
    need(raw["similarity"] in _SIMILARITIES, f"similarity must be one of {_SIMILARITIES}")
    need(raw["weights"] in ("float32", "float16"), "weights must be float32 or float16")
    for key in ("transform", "inputs"):
        need(is_texts(raw[key]), f"{key} must be a list of texts")
    prompts = raw["prompts"]
    need(
        isinstance(prompts, dict) and all(isinstance(p, str) for p in prompts.values()),
        "prompts must map names to texts",
    )
    default = raw["default_prompt_name"]
    need(default is None or default in prompts, "default_prompt_name must name a prompt")
    need(raw["licence"] is None or isinstance(raw["licence"], str), "licence must be a text")
    need(isinstance(raw["parity"], dict), "parity must map names to figures")
    files = raw["files"]
    need(isinstance(files, dict) and len(files) <= _MAX_FILES, "files must map names to records")
    records = {}
    for name, record in files.items():
        plain = name not in ("", ".", "..") and not set(name) & set("/\\\0:")
        need(plain and name != MANIFEST, f"{name!r} is no plain file name")
        need(
            isinstance(record, dict)
            and record.keys() == {"bytes", "sha256"}
            and (record["bytes"] == 0 or is_count(record["bytes"], 1 << 40))
            and isinstance(record["sha256"], str)
            and len(record["sha256"]) == 64,
            f"the record of {name} must hold bytes and sha256",
        )
        records[name] = FileRecord(**record)
    for name in (MODEL, TOKENIZER):
        need(name in records, f"files must list {name}")
    checked = dict(raw)
    checked |= {"transform": tuple(raw["transform"]), "inputs": tuple(raw["inputs"])}
    checked["files"] = records
    return checked


def record_file(path: Path) -> FileRecord:
    """Size and SHA-256 of a file, read in blocks."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256")
        return FileRecord(bytes=file.tell(), sha256=digest.hexdigest())


@dataclass(frozen=True, slots=True)
class Bundle:
    """A verified bundle on disk."""

    path: Path
    manifest: Manifest

    @property
    def model(self) -> Path:
        """Path of the graph."""
        return self.path / MODEL

    @property
    def tokenizer(self) -> Path:
        """Path of the tokenizer."""
        return self.path / TOKENIZER

    @property
    def handle(self) -> str:
        """What to load this bundle by later: its name if it ships with flowvec, else its path."""
        for name, path in shipped_bundles().items():
            if path == self.path:
                return name
        return str(self.path)

    @property
    def fingerprint(self) -> str:
        """See `Manifest.fingerprint`."""
        return self.manifest.fingerprint

    @classmethod
    def load(cls, name_or_dir: str | Path) -> Bundle:
        """Open a bundle by the name of a shipped one or by its directory, and verify each file.

        A directory that exists wins over a shipped name only if it is written as a path: `mini`
        is the shipped model, `./mini` a directory.

        Raises:
            BundleError: there is no such bundle, or its files are not what its manifest says.
        """
        path = _locate(name_or_dir)
        manifest = read_manifest(path)
        verify_files(path, manifest.files)
        return cls(path, manifest)


def _locate(name_or_dir: str | Path) -> Path:
    shipped = shipped_bundles()
    if isinstance(name_or_dir, str) and name_or_dir in shipped:
        return shipped[name_or_dir]
    path = Path(name_or_dir).expanduser().absolute()
    if not path.is_dir():
        names = ", ".join(sorted(shipped)) or "none"
        raise BundleError(
            f"there is no bundle {str(name_or_dir)!r}: it is neither a directory nor a model that "
            f"ships with flowvec ({names}); make one with `flowvec export`"
        )
    return path


def shipped_bundles() -> Mapping[str, Path]:
    """The bundles inside the package, by name."""
    folder = Path(str(resources.files("flowvec"))) / "models"
    if not folder.is_dir():
        return {}
    return {path.parent.name: path.parent for path in sorted(folder.glob(f"*/{MANIFEST}"))}


def read_manifest(path: Path) -> Manifest:
    """Read a bundle directory's manifest without touching its other files.

    Raises:
        BundleError: there is none, it is a link or too large, or `Manifest.from_json` refuses it.
    """
    file = path / MANIFEST
    if file.is_symlink() or not file.is_file():
        raise BundleError(f"{path} is no bundle: it has no file {MANIFEST}")
    if file.stat().st_size > _MAX_MANIFEST_BYTES:
        raise BundleError(f"{file} is larger than {_MAX_MANIFEST_BYTES} bytes")
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BundleError(f"cannot read {file}: {error}") from None
    return Manifest.from_json(text, str(file))


# Files that may lie in a bundle without being listed: notes for people, never read by flowvec.
_UNLISTED = {MANIFEST, "README.md", "NOTICE.md", "LICENSE"}


def verify_files(path: Path, records: Mapping[str, FileRecord]) -> None:
    """Check that a bundle's directory holds exactly the recorded files, unchanged.

    Raises:
        BundleError: a file is missing, extra, a link, or differs in size or SHA-256.
    """
    present = {entry.name for entry in path.iterdir()}
    if extra := sorted(present - records.keys() - _UNLISTED):
        raise BundleError(f"{path} holds files that its manifest does not list: {', '.join(extra)}")
    for name, record in records.items():
        file = path / name
        if file.is_symlink():
            raise BundleError(f"{file} is a link; a bundle's files must be plain files")
        if not file.is_file():
            raise BundleError(f"{file} is missing")
        if file.stat().st_size != record.bytes:
            raise BundleError(
                f"{file} has {file.stat().st_size} bytes, but its manifest says {record.bytes}"
            )
        if record_file(file).sha256 != record.sha256:
            raise BundleError(f"{file} is damaged: its SHA-256 is not the manifest's")
