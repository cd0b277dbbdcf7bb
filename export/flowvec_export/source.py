"""Finding a source, and reading it in the form that it has."""

from __future__ import annotations

from pathlib import Path

from flowvec.errors import ExportError, first_line
from flowvec_export.checkpoint import Source, read_encoder, read_json
from flowvec_export.modules import read_modules

__all__ = ["Source", "read_source"]


def read_source(source: str | Path, *, encoder_only: bool = False) -> Source:
    """Read a local directory or a Hugging Face name.

    No code of a checkpoint is ever run.

    Args:
        source: what to read.
        encoder_only: of a sentence-transformers model take the encoder and its limits, as if it
            had no pooling, Dense layers and normalisation of its own.

    Raises:
        ExportError: it cannot be found or read, or is of a kind that is not supported.
    """
    root = _locate(source)
    modules = read_json(root / "modules.json", list, missing_ok=True)
    try:
        if modules is None:
            return read_encoder(root, root, str(source), {})
        found = read_modules(root, modules, str(source))
        found.tuned = True
        if encoder_only:
            found.pooling, found.word_weights = None, None
            found.transforms, found.normalise = [], None
        return found
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        # A JSON file of the right kind with something else in it than it should have.
        raise ExportError(f"{source} has a file that cannot be followed: {error!r}") from error


def _locate(source: str | Path) -> Path:
    path = Path(source).expanduser()
    if path.is_dir():
        return path
    if path.exists() or str(source).startswith((".", "/", "~")) or str(source).count("/") > 1:
        raise ExportError(f"{source} is no directory")
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    patterns = ["*.json", "*.txt", "*.model", "*.safetensors", "README.md"]
    unwanted = ["onnx/*", "openvino/*", "*training_args.bin"]
    try:
        root = Path(
            snapshot_download(str(source), allow_patterns=patterns, ignore_patterns=unwanted)
        )
        if not list(root.rglob("*.safetensors")):
            # Many repositories hold the weights twice; only the older ones need this.
            snapshot_download(str(source), allow_patterns=["*.bin"], ignore_patterns=unwanted)
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        reason = first_line(error)
        raise ExportError(f"{source} is no directory, and no download: {reason}") from None
    return root
