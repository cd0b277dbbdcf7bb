"""Variants of a graph: the same model in another compute type, kept only if it stays close."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import onnx

from flowvec import Bundle, Encoder
from flowvec.bundle import read_manifest, record_file
from flowvec.errors import ExportError
from flowvec.manifest import MANIFEST, VARIANTS
from flowvec.tokenizer import Tokenizer
from flowvec_export.graph import write_onnx
from flowvec_export.int8 import quantize_graph
from flowvec_export.parity import Parity

__all__ = ["MIN_COSINE_OF", "Variant", "add_variant"]

Variant = Literal["int8"]

# The smallest cosine to float32 on real text that a variant may have.
MIN_COSINE_OF = {"int8": 0.995}


def add_variant(
    folder: Path, proto: onnx.ModelProto, kind: Variant, texts: Sequence[str]
) -> dict[str, float]:
    """Write a variant into a bundle's folder, and compare it with the float32 graph.

    Args:
        folder: of a whole bundle; the file is entered into its manifest.
        proto: its float32 graph.
        kind: the compute type.
        texts: real ones, what the variant is made by and measured on.

    Returns:
        Figures for the manifest: `int8_min_cosine` and `int8_mean_cosine`.

    Raises:
        ExportError: there are no texts, or the variant is too far from float32.
    """
    if not texts:
        raise ExportError(f"an {kind} variant needs texts to be measured on")
    bundle = Bundle.load(folder)
    tokenizer = Tokenizer(bundle.tokenizer, bundle.manifest.max_length)
    # One half to measure channels on, the other to compare on.
    variant = quantize_graph(proto, tokenizer, bundle.manifest.pad_id, texts[::2])
    file = folder / VARIANTS[kind]
    write_onnx(variant, file)
    manifest = read_manifest(folder)
    staged = manifest.files | {file.name: record_file(file)}
    (folder / MANIFEST).write_text(replace(manifest, files=staged).to_json(), encoding="utf-8")
    compared = texts[1::2] or texts
    with Encoder.load(folder, provider="cpu", compute="float32") as encoder:
        exact = encoder.encode(compared)
    with Encoder.load(folder, provider="cpu", compute=kind) as encoder:
        rounded = encoder.encode(compared)
    parity = Parity.of(rounded, exact)
    least = MIN_COSINE_OF[kind]
    if not parity.min_cosine >= least:
        raise ExportError(
            f"{kind} costs too much: cosine {parity.min_cosine:.6f} to float32 (at least {least:g})"
        )
    dots = (exact.astype(np.float64) * rounded).sum(axis=1)
    mean = dots / np.linalg.norm(exact, axis=1) / np.linalg.norm(rounded, axis=1)
    return {
        f"{kind}_min_cosine": _down(parity.min_cosine),
        f"{kind}_mean_cosine": _down(float(mean.mean())),
    }


def _down(cosine: float) -> float:
    """Four digits, rounded down: what is written is kept."""
    return math.floor(cosine * 1e4) / 1e4
