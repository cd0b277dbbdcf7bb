"""Loads a checkpoint with transformers, after its size is checked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import safetensors
import torch
import transformers

from flowvec.errors import ExportError, first_line
from flowvec_export.sources.files import without_marks
from flowvec_export.sources.transformers_tokenizer import load_tokenizer, quiet_transformers
from flowvec_export.trust import Trust

__all__ = ["load_checkpoint"]

# transformers also builds heads that the checkpoint lacks; small models have few weights.
_MOST_MISSING = 1.5
_FEW_WEIGHTS = 1_000_000
# Fewest bytes of a tensor in a pickle.
_LEAST_PICKLED = 50


def load_checkpoint(
    folder: Path, origin: str, kind: str, files: list[Path], marks: dict[str, Any], trust: Trust
) -> tuple[Any, dict[str, Any], Any]:
    """transformers' model of a class, what it says about loading, and the tokenizer.

    Raises:
        ExportError: transformers cannot load it, or it is far larger than its files.
    """
    with quiet_transformers(), without_marks(folder) as readable:
        _check_size(readable, origin, kind, files, trust)
        try:
            model, loading = getattr(transformers, kind).from_pretrained(
                readable,
                dtype=torch.float32,
                attn_implementation="eager",
                output_loading_info=True,
                use_safetensors=files[0].suffix == ".safetensors",
                trust_remote_code=trust.remote_code,
                local_files_only=True,
            )
        except Exception as error:  # transformers raises many types
            reason = first_line(error)
            raise ExportError(f"transformers cannot load {origin}: {reason}") from error
    return model, loading, load_tokenizer(folder, origin, marks, trust)


def _check_size(folder: Path, origin: str, kind: str, files: list[Path], trust: Trust) -> None:
    """Refuse a configuration that is far larger than its files, before the model is built.

    The model is first built without memory. Its layers are at most the tensors in the files.
    """
    stored = sum(file.stat().st_size for file in files)
    tensors = sum(_count_tensors(file) for file in files)
    try:
        config = transformers.AutoConfig.from_pretrained(
            folder, trust_remote_code=trust.remote_code, local_files_only=True
        )
        layers = getattr(config, "num_hidden_layers", 0)
        if isinstance(layers, int) and layers > tensors:
            raise ExportError(
                f"{origin} asks for {layers} layers, but its files hold only {tensors} tensors"
            )
        if trust.remote_code:
            return  # such code may build anything
        with torch.device("meta"):
            build: Any = getattr(transformers, kind)
            model = (build.from_config if kind.startswith("AutoModel") else build)(config)
        weights = sum(weight.numel() for weight in model.parameters())
    except ExportError:
        raise
    except Exception as error:  # transformers raises many types
        raise ExportError(f"transformers cannot load {origin}: {first_line(error)}") from error
    # Each weight takes at least a byte.
    if weights > _MOST_MISSING * stored + _FEW_WEIGHTS:
        raise ExportError(
            f"{origin} asks for {weights:,} weights, but its files have only {stored:,} bytes"
        )


def _count_tensors(file: Path) -> int:
    """The number of tensors of a file, or an upper bound."""
    if file.suffix != ".safetensors":
        return file.stat().st_size // _LEAST_PICKLED
    try:
        with safetensors.safe_open(file, "pt") as tensors:
            return len(tensors.keys())
    except Exception:  # loading the file reports the error
        return _FEW_WEIGHTS
