"""Options of the commands that race encoders, and the head of their results."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flowvec_bench.cli.options import about_machine

if TYPE_CHECKING:
    from flowvec_bench.peers.registry import Forms

__all__ = [
    "NEEDS",
    "NEEDS_FOR_PEERS",
    "MaxLength",
    "Model",
    "Name",
    "Only",
    "Tokenizer",
    "about_race",
    "options_of",
]

NEEDS = ("psutil", "matplotlib")
NEEDS_FOR_PEERS = ("torch", "transformers", "onnx", "onnxscript", "safetensors", "scipy")

Model = Annotated[
    str,
    typer.Argument(
        help="minilm-l6, bert-base or bert-large (random weights), or the directory of a "
        "sentence-transformers model."
    ),
]
Tokenizer = Annotated[
    Path | None, typer.Option(help="A tokenizer's directory, for a model of random weights.")
]
Only = Annotated[
    str | None,
    typer.Option(
        help="Peers, for example st-default,st-bfloat16,fastembed. Default: all that suit."
    ),
]
MaxLength = Annotated[
    int | None,
    typer.Option(
        min=8,
        help="Most tokens of a text for all peers. Default: 256, or the model's own if less.",
    ),
]
Name = Annotated[
    str | None,
    typer.Option(help="The model's name in reports. Default: its directory's."),
]


def options_of(forms: Forms) -> dict[str, Any]:
    """Facts about a model that engines need."""
    from flowvec.machine import available_cores

    return {"max_length": forms.max_length, "dim": forms.dim, "threads": available_cores()}


def about_race(
    benchmark: str, model: str, forms: Forms, corpus: Path | None, seed: int
) -> dict[str, Any]:
    """The head of a result: benchmark, machine, model and texts."""
    return about_machine(
        benchmark,
        model=model,
        max_length=forms.max_length,
        corpus="the demonstration's passages" if corpus is None else corpus.name,
        seed=seed,
    )
