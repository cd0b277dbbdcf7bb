"""Reads the layers beside an encoder: Dense and WordWeights. They need torch."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from flowvec.errors import ExportError, first_line
from flowvec_export.sources.base import Source, require_torch
from flowvec_export.sources.files import find_weights, read_json
from flowvec_export.trust import Trust

if TYPE_CHECKING:
    from torch import Tensor

    from flowvec_export.transforms import Dense

__all__ = ["check_names", "read_dense", "read_word_weights"]


def check_names(config: dict[str, Any], folder: Path, expected: str = "sentence_embedding") -> None:
    """Check that a module reads and writes what is expected: by default, the sentence vector.

    Raises:
        ExportError: it does not.
    """
    for key in ("module_input_name", "module_output_name"):
        if (config.get(key) or expected) != expected:
            raise ExportError(f"{folder} has the {key} {config[key]!r}, which is not supported")


def read_dense(folder: Path, trust: Trust, *, check: bool = True) -> Dense:
    """Read a Dense layer.

    Args:
        folder: of the layer.
        trust: whether pickles are allowed.
        check: check that it reads and writes the sentence vector.

    Raises:
        ExportError: it cannot be read, or its activation is not supported.
        MissingDependencyError: torch is not installed.
    """
    require_torch(f"{folder}, a Dense layer,")
    import torch

    from flowvec_export.transforms import ACTIVATIONS, Dense

    config = read_json(folder / "config.json")
    name = str(config.get("activation_function", "Tanh")).rsplit(".", 1)[-1].lower()
    if name not in ACTIVATIONS:
        raise ExportError(
            f"{folder} has the activation {name!r}; known are {', '.join(ACTIVATIONS)}"
        )
    if check:
        check_names(config, folder)
    state = _read_weights(folder, "linear.weight", trust)
    residual: Tensor | None = None
    if config.get("use_residual"):
        residual = state.get("residual.weight", torch.empty(0))
    try:
        return Dense(state["linear.weight"], state.get("linear.bias"), name, residual)
    except (ValueError, RuntimeError) as error:
        raise ExportError(f"{folder} is not a Dense layer: {first_line(error)}") from None


def read_word_weights(folder: Path, source: Source, trust: Trust) -> Tensor:
    """Weight of each token id in the mean, float32 (vocabulary,).

    Raises:
        ExportError: they cannot be read, or some tokens have none.
        MissingDependencyError: torch is not installed.
    """
    weights = _read_weights(folder, "emb_layer.weight", trust)["emb_layer.weight"]
    if weights.shape != (len(weights), 1) or len(weights) < source.tokenizer.get_vocab_size():
        raise ExportError(f"{folder} has no weight for some tokens of the vocabulary")
    return weights[:, 0].clone()


def _read_weights(folder: Path, needed: str, trust: Trust) -> dict[str, Tensor]:
    """Weights of a small module; if it is an allowed pickle, torch loads it without running
    code."""
    require_torch(str(folder))
    import safetensors.torch
    import torch

    state: dict[str, Tensor] = {}
    try:
        for file in find_weights(folder, str(folder), trust):
            if file.suffix == ".safetensors":
                state |= safetensors.torch.load_file(file)
            else:
                state |= torch.load(file, weights_only=True, map_location="cpu")
    except ExportError:
        raise
    except Exception as error:
        raise ExportError(f"cannot read the weights in {folder}: {error}") from None
    if needed not in state:
        raise ExportError(f"the weights in {folder} lack {needed}")
    return {name: tensor.float() for name, tensor in state.items()}
