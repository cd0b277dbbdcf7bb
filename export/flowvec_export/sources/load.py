"""Finds a source and reads it in its format."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from flowvec.bundle.bundle import shipped_bundles
from flowvec.bundle.checkpoint import root_of_graph
from flowvec.errors import (
    ExportError,
    FlowvecError,
    InputValueError,
    MissingDependencyError,
)
from flowvec_export.arguments import check_source
from flowvec_export.sources.base import Source, require_torch
from flowvec_export.sources.cross_encoder import PairSource, is_cross_encoder, read_about
from flowvec_export.sources.files import check_links, has_weights, read_json, require_weights
from flowvec_export.sources.hub import download, has_torch
from flowvec_export.sources.late_interaction import (
    MultiVectorSource,
    is_late_interaction,
    read_about_tokens,
)
from flowvec_export.sources.mistaken import check_folder, mistaken_file
from flowvec_export.sources.onnx import OnnxSource, find_graph, read_graph, read_pair_graph
from flowvec_export.sources.sentence_transformers import read_modules
from flowvec_export.sources.sparse import SparseSource, is_sparse, read_about_sparse
from flowvec_export.sources.static import StaticSource, is_static, may_be_static, read_static
from flowvec_export.trust import Trust

if TYPE_CHECKING:
    from flowvec_export.sources.torch import TorchSource

__all__ = ["AnySource", "read_any_source", "read_source", "read_torch_source"]

# Files of a sentence-transformers model that modules.json gives a meaning.
_SETTINGS = ("sentence_bert_config.json", "config_sentence_transformers.json")

AnySource: TypeAlias = Source | PairSource | SparseSource | MultiVectorSource


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a source's files are.

    Attributes:
        root: its directory.
        graph: the .onnx file, if the source is a single file.
        origin: the source as messages and manifests name it; of the hub, with its commit.
    """

    root: Path
    graph: Path | None
    origin: str


def read_any_source(
    source: str | Path,
    *,
    encoder_only: bool = False,
    trust: Trust | None = None,
    revision: str | None = None,
) -> AnySource:
    """`read_source`, but a cross-encoder, SPLADE or ColBERT-style model is read as one, unless only
    its encoder is wanted."""
    check_source(source, encoder_only=encoder_only, trust=trust)
    trust = Trust() if trust is None else trust
    place = _locate(source, trust, revision)
    if not encoder_only:
        modules = read_json(place.root / "modules.json", list, missing_ok=True)
        if is_cross_encoder(place.root, modules):
            return _read_pairs(place.root, place.graph, modules, place.origin, trust)
        if is_sparse(place.root, modules):
            return _read_splade(place, modules, trust)
        if is_late_interaction(place.root, modules):
            return _read_colbert(place, modules, trust)
    return _read(place, trust, encoder_only=encoder_only)


def _read_pairs(
    root: Path, graph: Path | None, modules: Any, origin: str, trust: Trust
) -> PairSource:
    """Read a cross-encoder, from its weights or its graph."""
    check_links(root)
    try:
        about, folder = read_about(root, modules, origin)
        if graph is None and not has_weights((root, folder), trust):
            graph = find_graph(root)
        if graph is not None:
            return read_pair_graph(graph, root, folder, about)
        require_weights((root, folder))
        _require_torch_for(root, origin)
        from flowvec_export.sources.torch import read_cross_encoder

        return read_cross_encoder(root, folder, about, trust)
    except FlowvecError:
        raise
    except (KeyError, TypeError, AttributeError, IndexError, ValueError, RuntimeError) as error:
        raise ExportError(f"{origin} has a file with unexpected content: {error!r}") from error


def _read_splade(place: _Place, modules: Any, trust: Trust) -> SparseSource:
    """Read a SPLADE model, from its weights."""
    with _unexpected_content(place.origin):
        check_links(place.root)
        about, folder = read_about_sparse(place.root, modules, place.origin)
        _require_weights(place, folder, trust)
        from flowvec_export.sources.torch import read_masked_lm

        return read_masked_lm(place.root, folder, about, trust)


def _read_colbert(place: _Place, modules: Any, trust: Trust) -> MultiVectorSource:
    """Read a ColBERT-style model, from its weights."""
    with _unexpected_content(place.origin):
        check_links(place.root)
        about = read_about_tokens(place.root, modules, place.origin)
        _require_weights(place, about.folder, trust)
        from flowvec_export.sources.torch import read_colbert

        return read_colbert(place.root, about, trust)


def _require_weights(place: _Place, folder: Path, trust: Trust) -> None:
    """Refuse a model of these kinds that has only an ONNX graph.

    Raises:
        ExportError: it has no weights that can be read.
        MissingDependencyError: torch is not installed.
    """
    if place.graph is None:
        require_weights((place.root, folder))
    if place.graph is not None or not has_weights((place.root, folder), trust):
        raise ExportError(
            f"{place.origin} has no weights that can be read; SPLADE and ColBERT-style models are "
            "exported from their weights (safetensors, or a pickle with allow_pickle), not from an "
            "ONNX graph"
        )
    require_torch(f"{place.origin}, a checkpoint,")


@contextmanager
def _unexpected_content(origin: str) -> Iterator[None]:
    """Name the source if one of its files holds something else.

    Raises:
        ExportError: it does.
    """
    try:
        yield
    except FlowvecError:
        raise
    except (KeyError, TypeError, AttributeError, IndexError, ValueError, RuntimeError) as error:
        raise ExportError(f"{origin} has a file with unexpected content: {error!r}") from error


def read_source(
    source: str | Path,
    *,
    encoder_only: bool = False,
    trust: Trust | None = None,
    revision: str | None = None,
) -> Source:
    """Read a local directory, a Hugging Face name, or one .onnx file of a directory.

        >>> read_source("my-checkpoint").layers
        1

    Args:
        source: what to read. In a directory, safetensors (or a pickle, if allowed) are preferred to
            an ONNX graph. Of a Hugging Face name, the graph is used where torch is not installed.
            model2vec's directories, and those of sentence-transformers' StaticEmbedding, need no
            torch.
        encoder_only: use only the encoder of a sentence-transformers model, without its pooling,
            Dense layers and normalization.
        trust: whether code and pickles of the checkpoint are allowed; None allows neither.
        revision: branch, tag or commit of a Hugging Face name; None is its main branch.

    Raises:
        InputTypeError: an argument is of another type.
        ExportError: it cannot be found or read, or is of a kind that is not supported.
    """
    check_source(source, encoder_only=encoder_only, trust=trust)
    trust = Trust() if trust is None else trust
    return _read(_locate(source, trust, revision), trust, encoder_only=encoder_only)


def _read(place: _Place, trust: Trust, *, encoder_only: bool) -> Source:
    """Read an encoder's files.

    Raises:
        ExportError: they cannot be read, or are of a kind that is not supported.
    """
    root, graph, origin = place.root, place.graph, place.origin
    check_links(root)
    listed = read_json(root / "modules.json", list, missing_ok=True)
    try:
        modules = None if listed is None else read_modules(root, listed, origin)
        folder = root if modules is None else modules.encoder
        settings = {} if modules is None else modules.settings
        if graph is None and is_static(root, modules):
            static = read_static(root, folder, origin, modules, trust, encoder_only=encoder_only)
            if encoder_only:
                static.keep_encoder_only()
            return static
        if graph is None and not has_weights((root, folder), trust):
            graph = find_graph(root)
        result: Source
        if graph is not None:
            result = read_graph(graph, root, folder, origin, settings)
        else:
            require_weights((root, folder))
            # Importing torch takes seconds, and an ONNX graph does not need it.
            _require_torch_for(root, origin)
            from flowvec_export.sources.torch import read_encoder

            result = read_encoder(root, folder, origin, settings, trust, encoder_only=encoder_only)
        if modules is not None:
            modules.complete(result, trust)
        elif not encoder_only:
            result.unread = _unread_parts(root)
        if encoder_only:
            result.keep_encoder_only()
        return result
    except FlowvecError:
        raise
    except (KeyError, TypeError, AttributeError, IndexError, ValueError, RuntimeError) as error:
        raise ExportError(f"{origin} has a file with unexpected content: {error!r}") from error


def _unread_parts(root: Path) -> tuple[str, ...]:
    """Folders and files of a sentence-transformers model, which mean nothing without modules.json.

    sentence-transformers does not read them either.
    """
    folders = [path.parent.name for path in sorted(root.glob("[0-9]_*/config.json"))]
    return (*folders, *(name for name in _SETTINGS if (root / name).is_file()))


def _require_torch_for(root: Path, origin: str) -> None:
    """Raise MissingDependencyError if torch is not installed; it names a graph if there is one."""
    try:
        require_torch(f"{origin}, a checkpoint,")
    except MissingDependencyError as error:
        if (graph := find_graph(root)) is None:
            raise
        raise MissingDependencyError(f"{error}; or give {graph}, which needs no torch") from None


def read_torch_source(
    source: str | Path, *, encoder_only: bool = False, trust: Trust | None = None
) -> TorchSource:
    """Read a source that torch can run and train.

    Raises:
        ExportError: see `read_source`; or it is an ONNX graph.
    """
    result = read_source(source, encoder_only=encoder_only, trust=trust)
    if isinstance(result, OnnxSource):
        raise ExportError(f"{source} is an ONNX graph, but this needs a checkpoint that torch runs")
    if isinstance(result, StaticSource):
        raise ExportError(
            f"{source} is a static embedder, a table without an encoder, but this needs a "
            "checkpoint that torch runs"
        )
    return result  # type: ignore[return-value]


def _locate(source: str | Path, trust: Trust, revision: str | None = None) -> _Place:
    """Find a source's directory, which is downloaded if the source is a Hugging Face name.

    Raises:
        ExportError: there is none, or it cannot be downloaded.
        InputValueError: a revision is given with a directory.
    """
    name = str(source)
    path = Path(source).expanduser()
    place: _Place | None = None
    if path.is_dir():
        check_folder(path, name)
        place = _Place(path, None, name)
    elif name in shipped_bundles():
        place = _Place(_checkpoint_of(name), None, name)
    elif path.is_file() and path.suffix == ".onnx":
        place = _Place(root_of_graph(path), path, name)
    if place is not None:
        if revision is not None:
            raise InputValueError(f"revision is for a Hugging Face name, and {name} is a path")
        return place
    if path.exists() or name.startswith((".", "/", "~")) or name.count("/") > 1:
        raise mistaken_file(path, name)
    root = download(name, trust, revision)
    # The client keeps each commit in a folder of that name.
    commit = root.name if root.parent.name == "snapshots" else revision
    # The client's folder may hold weights that another program has downloaded.
    graph = None if has_torch() or may_be_static(root) else find_graph(root)
    return _Place(root, graph, name if commit is None else f"{name}@{commit}")


def _checkpoint_of(name: str) -> Path:
    """The checkpoint that a shipped model was exported from.

    Raises:
        ExportError: it is missing; it is in the repository, not in the installed package.
    """
    checkpoint = Path(__file__).resolve().parents[3] / "models" / name / "checkpoint"
    if not checkpoint.is_dir():
        raise ExportError(
            f"{name} is a model that ships as a bundle, which has been exported already. Its "
            f"checkpoint is models/{name}/checkpoint in flowvec's repository; give that"
        )
    return checkpoint
