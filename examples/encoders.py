"""Loads and changes the model of a recipe: encoder, pooling, SimCSE's head, dropout."""

from __future__ import annotations

from pathlib import Path

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense, Pooling
from torch import nn

from flowvec.errors import InputValueError, first_line
from flowvec_export.sources.torch import quiet_transformers

POOLINGS = ("mean", "cls", "max")


def load_model(name: str, pooling: str | None) -> SentenceTransformer:
    """Load a sentence-transformers model as it is, or only its encoder with another pooling."""
    if name.startswith((".", "/")) and not Path(name).is_dir():
        raise InputValueError(f"{name} is not a directory")
    try:
        # Always in float32, because half precision cannot be trained this way.
        with quiet_transformers():
            model = SentenceTransformer(name, model_kwargs={"dtype": torch.float32})
    except (OSError, ValueError) as error:
        raise InputValueError(f"cannot load {name}: {first_line(error)}") from None
    if pooling is not None:
        width = model[0].get_embedding_dimension()
        model = SentenceTransformer(modules=[model[0], Pooling(width, pooling)])
    return model


def with_head(model: SentenceTransformer) -> SentenceTransformer:
    """Add SimCSE's head to the model: a linear layer as wide as the vector, and tanh."""
    width = model.get_embedding_dimension()
    head = Dense(width, width, activation_function=nn.Tanh())
    nn.init.normal_(head.linear.weight, std=0.02)  # initialized like BERT's layers
    nn.init.zeros_(head.linear.bias)
    return SentenceTransformer(modules=[*model, head])


def set_dropout(model: SentenceTransformer, share: float) -> None:
    """Set the dropout of every layer that has one.

    Raises:
        InputValueError: no layer has dropout, so two passes of a text would be equal.
    """
    layers = [module for module in model.modules() if isinstance(module, nn.Dropout)]
    if not layers or not 0 < share < 1:
        raise InputValueError("this objective needs an encoder with dropout, above 0 and below 1")
    for layer in layers:
        layer.p = share


def save_model(model: SentenceTransformer, folder: Path) -> None:
    """Write a sentence-transformers directory."""
    with quiet_transformers():
        model.save_pretrained(str(folder), create_model_card=False)
