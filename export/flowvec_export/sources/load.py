"""Finds a source and reads it in its format."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from flowvec.bundle.bundle import shipped_bundles
from flowvec.bundle.manifest import MANIFEST
from flowvec.errors import ExportError, FlowvecError, first_line
from flowvec_export.arguments import check_source
from flowvec_export.sources.base import Source, require_torch
from flowvec_export.sources.files import check_links, has_weights, read_json
from flowvec_export.sources.onnx import OnnxSource, find_graph, read_graph
from flowvec_export.sources.sentence_transformers import read_modules
from flowvec_export.trust import Trust

if TYPE_CHECKING:
    from flowvec_export.sources.torch import TorchSource

__all__ = ["read_source", "read_torch_source"]

logger = logging.getLogger(__name__)

# Files to download: safetensors first, older and larger formats only if there is nothing else.
_DATA = ["*.json", "*.txt", "*.model", "*.safetensors", "README.md"]
_UNWANTED = ["onnx/*", "openvino/*", "*training_args.bin"]


def read_source(
    source: str | Path, *, encoder_only: bool = False, trust: Trust | None = None
) -> Source:
    """Read a local directory, a Hugging Face name, or one .onnx file of a directory.

        >>> read_source("my-checkpoint").layers
        1

    Args:
        source: what to read. In a directory, safetensors (or a pickle, if allowed) are preferred to
            an ONNX graph.
        encoder_only: use only the encoder of a sentence-transformers model, without its pooling,
            Dense layers and normalization.
        trust: whether code and pickles of the checkpoint are allowed; None allows neither.

    Raises:
        InputTypeError: an argument is of another type.
        ExportError: it cannot be found or read, or is of a kind that is not supported.
    """
    check_source(source, encoder_only=encoder_only, trust=trust)
    trust = Trust() if trust is None else trust
    root, graph = _locate(source, trust)
    if (root / MANIFEST).is_file() and not (root / "config.json").is_file():
        raise ExportError(
            f"{source} is a bundle, which has been exported already; give its checkpoint"
        )
    check_links(root)
    origin = str(source)
    listed = read_json(root / "modules.json", list, missing_ok=True)
    try:
        modules = None if listed is None else read_modules(root, listed, origin)
        folder = root if modules is None else modules.encoder
        settings = {} if modules is None else modules.settings
        if graph is None and not has_weights((root, folder), trust):
            graph = find_graph(root)
        result: Source
        if graph is not None:
            result = read_graph(graph, root, folder, origin, settings)
        else:
            # Importing torch takes seconds, and an ONNX graph does not need it.
            require_torch(f"{source}, a checkpoint,")
            from flowvec_export.sources.torch import read_encoder

            result = read_encoder(root, folder, origin, settings, trust, encoder_only=encoder_only)
        if modules is not None:
            modules.complete(result, trust)
        if encoder_only:
            result.keep_encoder_only()
        return result
    except FlowvecError:
        raise
    except (KeyError, TypeError, AttributeError, IndexError, ValueError, RuntimeError) as error:
        raise ExportError(f"{source} has a file with unexpected content: {error!r}") from error


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
    return result  # type: ignore[return-value]


def _locate(source: str | Path, trust: Trust) -> tuple[Path, Path | None]:
    """The source's directory and, if the source is a single file, that graph."""
    path = Path(source).expanduser()
    if path.is_dir():
        return path, None
    if str(source) in shipped_bundles():
        return _checkpoint_of(str(source)), None
    if path.is_file() and path.suffix == ".onnx":
        # sentence-transformers and others keep graphs in a subfolder.
        above = path.parent.parent if path.parent.name == "onnx" else path.parent
        return (above if (above / "config.json").is_file() else path.parent), path
    if path.exists() or str(source).startswith((".", "/", "~")) or str(source).count("/") > 1:
        raise ExportError(f"{source} is not a directory")
    return _download(str(source), trust), None


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


def _download(name: str, trust: Trust) -> Path:
    """Download what an export needs from the Hub: safetensors, else a graph, else a pickle."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    code = ["*.py"] if trust.remote_code else []
    forms = [_DATA + code, ["model.onnx*", "onnx/model.onnx*"], ["*.bin"] if trust.pickle else []]
    root: Path | None = None
    try:
        for number, patterns in enumerate(filter(None, forms)):
            unwanted = _UNWANTED if number != 1 else None
            root = Path(snapshot_download(name, allow_patterns=patterns, ignore_patterns=unwanted))
            if any(list(root.rglob(kind)) for kind in ("*.safetensors", "*.onnx", "*.bin")):
                break
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        reason = first_line(error)
        raise ExportError(f"{name} is not a directory and cannot be downloaded: {reason}") from None
    assert root is not None
    if not trust.pickle and not any(list(root.rglob(k)) for k in ("*.safetensors", "*.onnx")):
        _refuse_pickles(name)
    return root


def _refuse_pickles(name: str) -> None:
    """Raise an error if a model's only weights on the Hub are a pickle."""
    from huggingface_hub import list_repo_files

    try:
        files = list_repo_files(name)
    except Exception as error:  # many types; reading the files reports what is missing
        logger.debug("%s: no list of files: %s", name, error)
        return
    if any(Path(file).name.startswith("pytorch_model") for file in files):
        raise ExportError(
            f"{name} holds its weights as a pickle (pytorch_model.bin), a format that can run "
            "code; export it with --allow-pickle"
        )
