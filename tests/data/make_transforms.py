"""Make the transform files of this folder; run it only for a new version of their format.

    python tests/data/make_transforms.py

`whitening-v1` keeps 3 of 8 directions. Its numbers are counted and not fitted, so that what it
gives can be worked out by hand, on any machine.
"""

from __future__ import annotations

from pathlib import Path

import torch

from flowvec_export.transforms import Whitening
from flowvec_export.transforms.file import FORMAT_VERSION, Recipe, save_transform

HERE = Path(__file__).resolve().parent / "transforms"

RECIPE = Recipe(
    method="whitening",
    source="a-checkpoint",
    source_sha256="0" * 64,
    pooling="mean",
    max_length=40,
    corpus="sentences.txt",
    rows=950,
    held_out_rows=50,
    seed=7,
    settings={"k": 3},
    results={"mean_cosine": [0.75, 0.0]},
    flowvec="0.1.0",
)


def main() -> None:
    whitening = Whitening(8, 3)
    whitening.mean.copy_(torch.arange(8) / 4)
    whitening.matrix.copy_((torch.arange(24).reshape(8, 3) - 12) / 8)
    HERE.mkdir(exist_ok=True)
    save_transform(whitening, RECIPE, HERE / f"whitening-v{FORMAT_VERSION}.safetensors")


if __name__ == "__main__":
    main()
