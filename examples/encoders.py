"""The model that a recipe trains: an encoder and its pooling; SimCSE's head, and dropout."""

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
    """A sentence-transformers model as it is, or its encoder with another pooling alone."""
    if name.startswith((".", "/")) and not Path(name).is_dir():
        raise InputValueError(f"{name} is not a directory")
    try:
        # In float32 whatever it is stored in: half precision cannot be trained so.
        with quiet_transformers():
            model = SentenceTransformer(name, model_kwargs={"dtype": torch.float32})
    except (OSError, ValueError) as error:
        raise InputValueError(f"cannot load {name}: {first_line(error)}") from None
    if pooling is not None:
        width = model[0].get_embedding_dimension()
        model = SentenceTransformer(modules=[model[0], Pooling(width, pooling)])
    return model


def with_head(model: SentenceTransformer) -> SentenceTransformer:
    """The model with SimCSE's head behind it: a linear layer as wide as the vector, and tanh."""
    width = model.get_embedding_dimension()
    head = Dense(width, width, activation_function=nn.Tanh())
    nn.init.normal_(head.linear.weight, std=0.02)  # as BERT's own layers begin
    nn.init.zeros_(head.linear.bias)
    return SentenceTransformer(modules=[*model, head])


def set_dropout(model: SentenceTransformer, share: float) -> None:
    """Dropout of every layer that has one.

    Raises:
        InputValueError: none has, so that a text's two passes would be the same.
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
