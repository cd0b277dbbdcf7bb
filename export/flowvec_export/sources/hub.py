"""Downloads what an export needs of a model on the Hugging Face hub."""

from __future__ import annotations

import importlib.util
import logging
from pathlib import Path

from flowvec.errors import ExportError, first_line
from flowvec.optional import require
from flowvec_export.sources.static import may_be_static
from flowvec_export.trust import Trust

__all__ = ["download", "has_torch"]

logger = logging.getLogger(__name__)

# Files to download: safetensors first, older and larger formats only if there is nothing else.
# pipeline.skops is never opened: it tells that a model2vec model has a trained head.
_DESCRIPTIONS = ["*.json", "*.txt", "*.model", "README.md", "pipeline.skops"]
_DATA = [*_DESCRIPTIONS, "*.safetensors"]
_GRAPHS = ["model.onnx*", "onnx/model.onnx*"]
_UNWANTED = ["onnx/*", "openvino/*", "*training_args.bin"]


def has_torch() -> bool:
    """Whether torch is installed; it is not imported."""
    return importlib.util.find_spec("torch") is not None


def download(name: str, trust: Trust, revision: str | None) -> Path:
    """Download what an export needs from the Hub: safetensors, else a graph, else a pickle.

    Without torch only a graph or a static embedder can be exported, so other weights are not
    downloaded.

    Raises:
        ExportError: it cannot be downloaded, or its only weights are a pickle, which is not
            allowed.
        MissingDependencyError: the hub's client is not installed.
    """
    require(f"downloading {name}", "cpu,export", "huggingface_hub")
    from huggingface_hub import snapshot_download

    code = ["*.py"] if trust.remote_code else []
    forms = [_DATA + code, _GRAPHS, ["*.bin"] if trust.pickle else []]
    root: Path | None = None
    try:
        if not has_torch():
            root = Path(snapshot_download(name, revision=revision, allow_patterns=_DESCRIPTIONS))
            forms = [_DATA] if may_be_static(root) else [_DESCRIPTIONS + _GRAPHS]
        for patterns in filter(None, forms):
            unwanted = None if _GRAPHS[0] in patterns else _UNWANTED
            root = Path(
                snapshot_download(
                    name, revision=revision, allow_patterns=patterns, ignore_patterns=unwanted
                )
            )
            if any(list(root.rglob(kind)) for kind in ("*.safetensors", "*.onnx", "*.bin")):
                break
    except ExportError:
        raise
    except Exception as error:  # the client's connection errors have changed with its versions
        raise ExportError(_why_not_downloaded(name, revision, error)) from None
    assert root is not None
    if not trust.pickle and not any(list(root.rglob(k)) for k in ("*.safetensors", "*.onnx")):
        _refuse_pickles(name, revision)
    return root


def _why_not_downloaded(name: str, revision: str | None, error: Exception) -> str:
    """One line about an error of the hub's client."""
    from huggingface_hub.errors import (
        GatedRepoError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    reason = first_line(error)
    if isinstance(error, GatedRepoError):
        reason = "access to it must be granted on its page; then log in with `hf auth login`"
    elif isinstance(error, RepositoryNotFoundError):
        reason = "the hub has no such model, or it is private (log in with `hf auth login`)"
    elif isinstance(error, RevisionNotFoundError):
        reason = f"it has no revision {revision!r}"
    elif isinstance(error, LocalEntryNotFoundError):
        reason = f"the hub cannot be reached, and it is not in the client's cache ({reason})"
    elif isinstance(error, OSError) and error.errno is not None:
        reason = f"{error.strerror}: {error.filename}" if error.filename else reason
    return f"{name} is not a directory and cannot be downloaded: {reason}"


def _refuse_pickles(name: str, revision: str | None) -> None:
    """Raise an error if a model's only weights on the Hub are a pickle."""
    from huggingface_hub import list_repo_files

    try:
        files = list_repo_files(name, revision=revision)
    except Exception as error:  # many types; reading the files reports what is missing
        logger.debug("%s: no list of files: %s", name, error)
        return
    if any(Path(file).name.startswith("pytorch_model") for file in files):
        raise ExportError(
            f"{name} holds its weights as a pickle (pytorch_model.bin), a format that can run "
            "code; export it with --allow-pickle (allow_pickle=True in Python)"
        )
