"""`export`: from a source to a bundle, checked against torch before it appears."""

from __future__ import annotations

import contextlib
import copy
import logging
import math
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from flowvec import Bundle, Encoder, Manifest
from flowvec.bundle import absolute_path, record_file
from flowvec.errors import BundleError, EngineError, ExportError, NonFiniteError
from flowvec.manifest import INPUTS, MANIFEST, MODEL, RANGES, TOKENIZER, VARIANTS
from flowvec_export.backbone import TransformersBackbone, from_transformers
from flowvec_export.calibration import calibration_texts, measure_ranges
from flowvec_export.graph import (
    OPSET,
    OUTPUT,
    SentenceEncoder,
    to_onnx,
    write_onnx,
)
from flowvec_export.parity import MIN_COSINE_OF_FLOAT16, measure
from flowvec_export.pooling import parse_pooling
from flowvec_export.source import Source, read_source
from flowvec_export.sts import StsTask
from flowvec_export.transform_file import Recipe, load_transform
from flowvec_export.transforms import Compose, Identity, Transform
from flowvec_export.variants import KINDS, Attention, Variant, add_variant

__all__ = ["Variant", "Weights", "export"]

logger = logging.getLogger("flowvec.export")

Weights = Literal["float32", "float16"]


def export(
    source: str | Path,
    out: str | Path,
    *,
    pooling: str | None = None,
    transform: Transform | str | Path | None = None,
    normalize: bool | None = None,
    max_length: int | None = None,
    encoder_only: bool = False,
    name: str | None = None,
    weights: Weights = "float32",
    variants: Sequence[Variant] = (),
    calibration: Sequence[str] | None = None,
    sts: Sequence[StsTask] = (),
    overwrite: bool = False,
    on_step: Callable[[str], object] | None = None,
) -> Bundle:
    """Export a checkpoint as a bundle: one ONNX graph from token ids to vectors.

    The graph is run in ONNX Runtime's CPU provider and compared with transformers' own module in
    float32. The bundle is written beside `out` and renamed, so it is there whole or not at all.

    Args:
        source: a Hugging Face name, or a local directory of a BERT, RoBERTa, XLM-R, DistilBERT or
            MPNet encoder or of a sentence-transformers model of one.
        out: the directory to make.
        pooling: one of `POOLINGS`, or several joined by `+`; None takes the source's own, `mean`
            for a plain encoder.
        transform: a further step between the source's own Dense layers and normalisation, or the
            file of one that `fit` wrote. A file says which pooling it was fitted on, and whether
            on the encoder alone; both are taken from it, and it is refused for another pooling or
            another checkpoint. Its max_length is not taken over: a bundle cuts texts where the
            source does. It goes into the graph in its folded form, in float32 whatever `weights`
            says.
        normalize: end in L2 normalisation; None does as the source does, and normalises for a plain
            encoder.
        max_length: the most tokens of a text; None takes the source's own.
        encoder_only: leave out a sentence-transformers model's own pooling, Dense layers and
            normalisation.
        name: the model's name; None takes the source's.
        weights: storage of the weight matrices. `float16` halves the file; the graph still
            computes in float32.
        variants: further graphs: `float16` for GPUs; `int8` for ONNX Runtime's CPU provider and
            `int8-openvino` for OpenVINO, fastest where there is no AMX.
        calibration: texts like those to be served, over which each dimension's range is measured,
            for vectors in 8 bits, and on which variants are measured; None takes the sentences of
            the demonstration, in English; an empty list leaves the ranges out.
        sts: sentence pairs with people's scores, see `flowvec_export.sts.read_sts`: what a variant
            loses on them goes into the manifest.
        overwrite: replace an existing bundle.
        on_step: called with a line of text before each step.

    Returns:
        The finished, verified bundle.

    Raises:
        ExportError: the source cannot be read or exported, or the graph misses parity
            (max |a - b| / ||b|| above 1e-4 or cosine below 0.99999; for float16 weights also a
            cosine below 0.999 to the weights before they were rounded), or a variant its own
            (on the calibration texts a cosine below 0.995 to float32, for float16 0.999; on `sts`
            more than .5 points lost, for float16 .2). Nothing is left behind.
    """
    say = on_step or logger.info
    target = absolute_path(out)
    _check_target(target, overwrite)
    if weights not in ("float32", "float16"):
        raise ExportError(f"weights must be float32 or float16, not {weights!r}")
    if unknown := set(variants) - set(KINDS):
        raise ExportError(f"variants must be of {', '.join(KINDS)}, not {min(unknown)!r}")
    if pooling is not None:
        parse_pooling(pooling)
    recipe: Recipe | None = None
    if isinstance(transform, str | Path):
        transform, recipe = load_transform(transform)
        encoder_only = encoder_only or (recipe is not None and recipe.encoder_only)
    say(f"reading {source}")
    found = read_source(source, encoder_only=encoder_only)
    length = _checked_length(found, max_length)
    if recipe is not None:
        pooling = _checked_pooling(recipe, found, pooling)
    steps = _checked_steps(found, pooling, transform)
    heads = found.model.config.num_attention_heads
    # A factor that is no power of two would round the stored query weights a second time.
    exact = math.frexp(math.sqrt(found.model.config.hidden_size // heads))[0] == 0.5
    attention = Attention(heads, scale_folded=weights == "float32" or exact)
    model, reference, original = _assemble(
        found, pooling, steps, normalize, weights, attention.scale_folded
    )

    say("tracing the graph")
    fitted = range(len(found.transforms), len(steps))
    proto = to_onnx(model, found.pad_id, weights, [f"transforms.{i}." for i in fitted])

    staged = target.with_name(f".{target.name}.{os.getpid()}.partial")
    made = _make_folders(staged)
    try:
        write_onnx(proto, staged / MODEL)
        (staged / TOKENIZER).write_text(found.tokenizer.to_str(), encoding="utf-8")
        manifest = Manifest(
            name=name or found.name,
            dim=steps[-1].out_dim if steps else found.width(pooling),
            max_length=length,
            pooling="+".join(model.pooling.modes),
            transform=tuple(step.describe() for step in _flat(steps)),
            normalised=model.normalise,
            prompts=found.prompts,
            default_prompt_name=found.default_prompt_name,
            similarity=found.similarity,  # type: ignore[arg-type]
            pad_id=found.pad_id,
            inputs=INPUTS,
            output=OUTPUT,
            opset=OPSET,
            weights=weights,
            source=_origin(found),
            licence=found.licence,
            parity={},
            files={file: record_file(staged / file) for file in (MODEL, TOKENIZER)},
            layers=found.model.config.num_hidden_layers,
        )
        _write_manifest(staged, manifest)
        say("comparing with torch")
        figures = _compare(staged, reference, original, found)
        files = dict(manifest.files)
        texts = calibration_texts() if calibration is None else calibration
        if texts:
            say("measuring the range of each dimension")
            _write_ranges(staged, texts)
            files[RANGES] = record_file(staged / RANGES)
            _write_manifest(staged, replace(manifest, files=files))
        for kind in variants:
            say(f"making the {kind} variant")
            figures |= add_variant(staged, proto, kind, texts, attention, sts)
            files[VARIANTS[kind]] = record_file(staged / VARIANTS[kind])
        _write_manifest(staged, replace(manifest, parity=figures, files=files))
        _put_in_place(staged, target)
    except BaseException:
        shutil.rmtree(staged, ignore_errors=True)
        for folder in made:
            with contextlib.suppress(OSError):
                folder.rmdir()
        raise
    return Bundle.load(target)


def _checked_pooling(recipe: Recipe, source: Source, asked: str | None) -> str:
    """The pooling that a transform was fitted on; raises ExportError where it does not belong."""
    if asked is not None and parse_pooling(asked) != parse_pooling(recipe.pooling):
        raise ExportError(
            f"the transform was fitted on {recipe.pooling} pooling and cannot follow {asked}"
        )
    if recipe.source_sha256 != source.sha256():
        raise ExportError(
            f"the transform was fitted on {recipe.source} with other weights or Dense layers than "
            f"{source.origin} has; fit it again"
        )
    return recipe.pooling


def _checked_steps(
    source: Source, pooling: str | None, transform: Transform | None
) -> list[Transform]:
    """The source's own transforms and the further one; raises ExportError if they do not fit."""
    steps = [*source.transforms, *([transform] if transform is not None else [])]
    width = source.pool(pooling).out_dim(source.model.config.hidden_size)
    for step in steps:
        if step.in_dim != width:
            raise ExportError(
                f"{step.describe()} takes {step.in_dim} dimensions, but is given {width}; was it "
                "made for another pooling?"
            )
        width = step.out_dim
    return steps


def _assemble(
    source: Source,
    pooling: str | None,
    steps: Sequence[Transform],
    normalize: bool | None,
    weights: Weights,
    fold_scale: bool,
) -> tuple[SentenceEncoder, SentenceEncoder, SentenceEncoder | None]:
    """The module to export, transformers' own as the reference for it, and, where weights are
    rounded, a reference with the weights before that.
    """
    pool = source.pool(pooling)
    if normalize is None:
        normalize = True if source.normalise is None else source.normalise
    reference = SentenceEncoder(TransformersBackbone(source.model), pool, steps, normalize).eval()
    original = None
    if weights == "float16":
        original = copy.deepcopy(reference)
        _round_matrices(source.model, [pool, *source.transforms])
    backbone = from_transformers(source.model, fold_scale=fold_scale)
    folded = [step.fold() for step in steps]
    model = SentenceEncoder(backbone, pool, folded, normalize).eval()
    return model, reference, original


def _round_matrices(model: torch.nn.Module, parts: Sequence[torch.nn.Module]) -> None:
    """Round weight matrices to float16 values, so that storing them loses nothing more.

    The token-type embedding of a single text goes into the positions first, as in the backbone.
    """
    with torch.no_grad():
        embeddings = getattr(model, "embeddings", None)
        types = getattr(embeddings, "token_type_embeddings", None)
        if embeddings is not None and types is not None:
            embeddings.position_embeddings.weight += types.weight[0]
            types.weight -= types.weight[0].clone()
        for module in (model, *parts):
            for parameter in module.parameters():
                if parameter.ndim >= 2:
                    parameter.copy_(parameter.half().float())


def _checked_length(source: Source, asked: int | None) -> int:
    special = source.tokenizer.num_special_tokens_to_add(False)
    length = source.max_length if asked is None else asked
    if not special < length <= source.max_length:
        raise ExportError(
            f"max_length must be from {special + 1} to {source.max_length} for {source.origin}, "
            f"but is {length}"
        )
    return length


def _flat(steps: Sequence[Transform]) -> list[Transform]:
    """The transforms that do something, compositions taken apart."""
    flat: list[Transform] = []
    for step in steps:
        if isinstance(step, Compose):
            flat += _flat(step.transforms())
        elif not isinstance(step, Identity):
            flat.append(step)
    return flat


def _origin(source: Source) -> str:
    """What a manifest says of the source: a hub name, but of a local directory only its name."""
    return source.name if Path(source.origin).expanduser().is_dir() else source.origin


def _compare(
    staged: Path, reference: SentenceEncoder, original: SentenceEncoder | None, source: Source
) -> dict[str, float]:
    """Parity figures of the staged bundle; raises ExportError if they do not suffice."""
    vocabulary = source.model.config.vocab_size
    try:
        with Encoder.load(staged, provider="cpu", streams=1) as encoder:
            parity = measure(encoder, reference, vocabulary)
            parity.require()
            figures = {
                "texts": parity.texts,
                "max_relative_error": _round(parity.max_relative_error),
                "min_cosine": round(parity.min_cosine, 7),
            }
            if original is not None:
                rounded = measure(encoder, original, vocabulary)
                rounded.require_cosine(MIN_COSINE_OF_FLOAT16)
                figures["min_cosine_to_float32_weights"] = round(rounded.min_cosine, 5)
    except (BundleError, NonFiniteError, EngineError) as error:
        raise ExportError(f"the graph does not run: {error}") from error
    return figures


def _write_ranges(staged: Path, texts: Sequence[str]) -> None:
    with Encoder.load(staged, provider="cpu", compute="float32") as encoder:
        ranges = measure_ranges(encoder.encode(texts))
    np.save(staged / RANGES, ranges, allow_pickle=False)


def _round(value: float) -> float:
    """Two digits: what the last ones are depends on the machine that exports."""
    return float(f"{value:.1e}")


def _write_manifest(folder: Path, manifest: Manifest) -> None:
    (folder / MANIFEST).write_text(manifest.to_json(), encoding="utf-8")


def _check_target(target: Path, overwrite: bool) -> None:
    if not (target.exists() or target.is_symlink()):
        return
    if not overwrite:
        raise ExportError(f"{target} exists; ask to overwrite it, or choose another name")
    if target.is_symlink() or not target.is_dir():
        raise ExportError(f"{target} is no directory, so it is not overwritten")
    if not (target / MANIFEST).is_file() and any(target.iterdir()):
        raise ExportError(f"{target} is no bundle, so it is not overwritten")


def _make_folders(staged: Path) -> list[Path]:
    """Make a directory and those above it; returns the new ones above it, the deepest first."""
    missing = [folder for folder in staged.parents if not folder.exists()]
    try:
        staged.mkdir(parents=True)
    except OSError as error:
        raise ExportError(f"cannot write to {staged.parent}: {error.strerror}") from None
    return missing


def _put_in_place(staged: Path, target: Path) -> None:
    """Rename the finished bundle to its name, keeping an old one until then."""
    for file in staged.iterdir():
        with file.open("rb+") as handle:
            os.fsync(handle.fileno())
    if not target.exists():
        staged.rename(target)
        return
    old = target.with_name(f".{target.name}.{os.getpid()}.old")
    target.rename(old)
    try:
        staged.rename(target)
    except OSError:
        old.rename(target)
        raise
    shutil.rmtree(old)
