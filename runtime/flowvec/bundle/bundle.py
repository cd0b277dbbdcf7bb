"""The bundle: a directory with one ONNX graph, its tokenizer and a manifest.

    manifest.json     what the bundle is, and the SHA-256 and size of every other file
    model.onnx        tokens in, vectors out, in one file
    tokenizer.json    a Hugging Face `tokenizers` file, without truncation or padding
    references.npz    token ids with their vectors, which an engine must reproduce

The manifest lists all files. A file that it does not name, a missing file, a link, another size or
another hash is refused before any native code reads the bytes.
"""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import numpy as np
import numpy.typing as npt

from flowvec.arguments import path_of
from flowvec.bundle.cached import origin_of
from flowvec.bundle.manifest import (
    MANIFEST,
    MODEL,
    RANGES,
    TOKENIZER,
    VARIANTS,
    FileRecord,
    Kind,
    Manifest,
)
from flowvec.errors import BundleError, InputValueError
from flowvec.files import lfs_advice

__all__ = [
    "Bundle",
    "absolute_path",
    "class_of",
    "kind_of",
    "read_manifest",
    "record_file",
    "require_kind",
    "shipped_bundles",
    "verify_files",
]

# An untrusted bundle must not make the loader read a huge file.
_MAX_MANIFEST_BYTES = 1 << 20
_HASHED_AT_ONCE = 4


def record_file(path: Path) -> FileRecord:
    """Size and SHA-256 of a file, read in blocks."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256")
        return FileRecord(bytes=file.tell(), sha256=digest.hexdigest())


@dataclass(frozen=True, slots=True)
class Bundle:
    """A verified bundle on disk.

        >>> bundle = Encoder.load("mini").bundle
        >>> bundle.manifest.name, (bundle.path / "model.onnx").exists()
        ('mini', True)

    Attributes:
        path: its directory.
        manifest: what `manifest.json` says.
    """

    path: Path
    manifest: Manifest

    @property
    def model(self) -> Path:
        """Path of the graph."""
        return self.path / MODEL

    @property
    def variants(self) -> tuple[str, ...]:
        """The other graphs of the bundle, by their names in `manifest.VARIANTS`."""
        return tuple(kind for kind, file in VARIANTS.items() if file in self.manifest.files)

    def graph(self, variant: str | None) -> Path:
        """Path of a variant's graph; None is the float32 graph."""
        return self.path / (MODEL if variant is None else VARIANTS[variant])

    @property
    def tokenizer(self) -> Path:
        """Path of the tokenizer."""
        return self.path / TOKENIZER

    def ranges(self) -> npt.NDArray[np.float32]:
        """Lower and upper end of each dimension over calibration texts, float32 (2, dim).

        Raises:
            InputValueError: the bundle has none.
            BundleError: they are damaged.
        """
        if RANGES not in self.manifest.files:
            raise InputValueError(
                f"{self.manifest.name} has no {RANGES}, which vectors in 8 bits need; export it "
                "again"
            )
        try:
            loaded = np.load(self.path / RANGES)  # it unpickles nothing
        except (OSError, ValueError, zipfile.BadZipFile) as error:
            raise BundleError(f"cannot read {self.path / RANGES}: {error}") from None
        # For a zip file numpy returns another type.
        fits = (
            isinstance(loaded, np.ndarray)
            and loaded.dtype == np.float32
            and loaded.shape == (2, self.manifest.dim)
        )
        if not (fits and np.isfinite(loaded).all() and (loaded[0] < loaded[1]).all()):
            raise BundleError(
                f"{self.path / RANGES} does not hold ranges of {self.manifest.dim} dimensions"
            )
        ranges: npt.NDArray[np.float32] = loaded
        return ranges

    @property
    def handle(self) -> str:
        """Loads this bundle later, on this machine.

        It is the name of a bundle that ships with flowvec, `organization/name@commit` or the
        checkpoint's directory for one that was exported into the cache, and else its path.
        """
        for name, path in shipped_bundles().items():
            if path == self.path:
                return name
        origin = origin_of(self.path)
        # Only a caller can allow code and pickles, so what needed them is loaded by its path.
        if origin is None or origin.trust_remote_code or origin.allow_pickle:
            return str(self.path)
        if origin.kind == "directory" and not Path(origin.name).exists():
            return str(self.path)
        return str(origin)

    @property
    def fingerprint(self) -> str:
        """The model's identity: `Manifest.fingerprint`."""
        return self.manifest.fingerprint

    @classmethod
    def load(cls, name_or_dir: str | Path) -> Bundle:
        """Open a shipped bundle by name, or a bundle's directory, and verify each file.

        `mini` is always the shipped model, and `./mini` a directory.

        Raises:
            BundleError: there is no such bundle, or its files do not match its manifest.
        """
        path = _locate(name_or_dir)
        manifest = read_manifest(path)
        verify_files(path, manifest.files)
        return cls(path, manifest)


def _locate(name_or_dir: str | Path) -> Path:
    shipped = shipped_bundles()
    if isinstance(name_or_dir, str) and name_or_dir in shipped:
        return shipped[name_or_dir]
    path = absolute_path(name_or_dir)
    try:
        is_there = path.is_dir()
    except OSError:  # the name is too long
        is_there = False
    if not is_there and isinstance(name_or_dir, Path) and str(name_or_dir) in shipped:
        name = str(name_or_dir)
        raise BundleError(
            f"there is no directory {name!r}; the shipped model is the text {name!r}, not a Path"
        )
    if not is_there:
        names = ", ".join(sorted(shipped)) or "none"
        raise BundleError(
            f"there is no bundle {str(name_or_dir)!r}: it is neither a directory nor a model that "
            f"ships with flowvec ({names}); make one with `flowvec export`"
        )
    return path


def absolute_path(path: str | Path) -> Path:
    """A path with `~` expanded and `..` followed; the `~name` of an unknown user stays as it is.

    Raises:
        InputTypeError, InputValueError: it is not a path.
    """
    given = path_of("the path", path)
    try:
        path = given.expanduser().absolute()
    except RuntimeError:
        path = given.absolute()
    if ".." in path.parts:  # a directory has one name, so that it is exported once
        with suppress(OSError, RuntimeError):
            return path.resolve()
    return path


_CLASSES: dict[Kind, str] = {
    "embedder": "Encoder",
    "reranker": "Reranker",
    "sparse": "SparseEncoder",
    "multi_vector": "MultiVectorEncoder",
}
_COMMANDS: dict[Kind, str] = {"embedder": "flowvec encode", "reranker": "flowvec rerank"}
_IN_WORDS: dict[Kind, str] = {
    "sparse": "sparse encoder",
    "multi_vector": "multi-vector encoder",
}


def require_kind(bundle: Bundle, kind: Kind) -> None:
    """Check that a bundle is of the kind that a class opens.

    Raises:
        BundleError: it is of another kind. The message names both kinds, and the class and the
            command that open it.
    """
    if bundle.manifest.kind != kind:
        command = _COMMANDS.get(bundle.manifest.kind)
        raise BundleError(
            f"{_with_article(_IN_WORDS.get(kind, kind))} is needed, and {bundle.handle} is "
            f"{_with_article(kind_of(bundle))}; open it with "
            f"flowvec.{class_of(bundle)}.load({bundle.handle!r})"
            + ("" if command is None else f", or use it with `{command}`")
        )


def _with_article(kind: str) -> str:
    return f"{'an' if kind.startswith('e') else 'a'} {kind}"


def kind_of(bundle: Bundle) -> str:
    """What a bundle is, in words: `embedder`, `static embedder`, `reranker`, `sparse encoder` or
    `multi-vector encoder`."""
    manifest = bundle.manifest
    if (manifest.kind, manifest.layers) == ("embedder", 0):
        return "static embedder"
    return _IN_WORDS.get(manifest.kind, manifest.kind)


def class_of(bundle: Bundle) -> str:
    """Name of the class that opens a bundle."""
    return _CLASSES[bundle.manifest.kind]


def shipped_bundles() -> Mapping[str, Path]:
    """Names of the bundles in the package."""
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
        raise BundleError(
            f"{path} is not a bundle: it has no file {MANIFEST}; `flowvec export` makes a bundle "
            "from a checkpoint"
        )
    if file.stat().st_size > _MAX_MANIFEST_BYTES:
        raise BundleError(f"{file} is larger than {_MAX_MANIFEST_BYTES} bytes")
    if advice := lfs_advice(file):
        raise BundleError(advice)
    try:
        text = file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise BundleError(f"cannot read {file}: {error}") from None
    return Manifest.from_json(text, str(file))


def verify_files(path: Path, records: Mapping[str, FileRecord]) -> None:
    """Check that a bundle's directory holds exactly the recorded files, unchanged.

    Raises:
        BundleError: a file is missing, extra, a link, or differs in size or SHA-256.
    """
    present = {entry.name for entry in path.iterdir()}
    if extra := sorted(present - records.keys() - {MANIFEST}):
        raise BundleError(f"{path} holds files that its manifest does not list: {', '.join(extra)}")
    for name, record in records.items():
        file = path / name
        if file.is_symlink():
            raise BundleError(f"{file} is a link; a bundle's files must be plain files")
        if not file.is_file():
            raise BundleError(f"{file} is missing")
        if advice := lfs_advice(file):
            raise BundleError(advice)
        if file.stat().st_size != record.bytes:
            raise BundleError(
                f"{file} has {file.stat().st_size} bytes, but its manifest says {record.bytes}"
            )
    # At the same time: a load waits for little else.
    with ThreadPoolExecutor(_HASHED_AT_ONCE) as pool:
        found = pool.map(lambda name: record_file(path / name).sha256, records)
        for (name, record), sha256 in zip(records.items(), found, strict=True):
            if sha256 != record.sha256:
                raise BundleError(f"{path / name} is damaged: its SHA-256 is not the manifest's")
