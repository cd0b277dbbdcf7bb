"""`export`: turns a source into a bundle, and compares the two before the bundle is written."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from flowvec import Bundle, Encoder, Manifest
from flowvec.arguments import choice, flag, path_of
from flowvec.bundle.bundle import absolute_path, record_file
from flowvec.bundle.manifest import (
    INPUTS,
    MANIFEST,
    MODEL,
    RANGES,
    TOKENIZER,
)
from flowvec.engine.providers import CPU
from flowvec.engine.selection import choose_engine
from flowvec.errors import (
    BundleError,
    EngineError,
    ExportError,
    InputTypeError,
    InputValueError,
    NonFiniteError,
)
from flowvec.progress import say
from flowvec.sequences import as_list
from flowvec.texts.places import check_apart
from flowvec_export.arguments import (
    check_callback,
    check_source,
    encodable_text,
    prompts_of,
    sequence_of,
    texts_of,
)
from flowvec_export.assembly.draft import WEIGHTS, Draft, Weights
from flowvec_export.assembly.parity import MIN_COSINE_OF_FLOAT16, measure
from flowvec_export.assembly.token_parity import require_own_tokens
from flowvec_export.build_multi_vector import build_multi_vector
from flowvec_export.build_reranker import build_reranker
from flowvec_export.build_sparse import build_sparse
from flowvec_export.graph.proto import OUTPUT, write_onnx
from flowvec_export.layers.names import parse_pooling
from flowvec_export.sources.base import AS_EXPORTED, Source, require_torch
from flowvec_export.sources.cross_encoder import PairSource
from flowvec_export.sources.late_interaction import MultiVectorSource
from flowvec_export.sources.load import AnySource, read_any_source
from flowvec_export.sources.sparse import SparseSource
from flowvec_export.staged_bundle import computable, opset_of, with_file, with_references
from flowvec_export.staging import check_target, staged_directory
from flowvec_export.sts import StsTask
from flowvec_export.trust import Trust
from flowvec_export.variants.ranges import calibration_texts, measure_ranges
from flowvec_export.variants.variants import KINDS, Variant, add_variant, with_variants

if TYPE_CHECKING:
    from flowvec_export.transforms import Transform
    from flowvec_export.transforms.file import Recipe

__all__ = ["Variant", "Weights", "export"]

logger = logging.getLogger(__name__)


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
    prompts: Mapping[str, str] | None = None,
    default_prompt_name: str | None = None,
    weights: Weights = "float32",
    variants: Sequence[Variant] | None = None,
    calibration: Sequence[str] | None = None,
    sts: Sequence[StsTask] = (),
    overwrite: bool = False,
    trust_remote_code: bool = False,
    allow_pickle: bool = False,
    revision: str | None = None,
    on_step: Callable[[str], object] | None = say,
) -> Bundle:
    """Export a checkpoint as a bundle: one ONNX graph from token ids to vectors, or to scores.

    A cross-encoder (a model for sequence classification) becomes a reranker, which
    `flowvec.Reranker` opens; a SPLADE model a sparse encoder, which `flowvec.SparseEncoder` opens;
    a ColBERT-style model a multi-vector encoder, which `flowvec.MultiVectorEncoder` opens;
    everything else an embedder, which `flowvec.Encoder` opens.

        >>> bundle = export("my-checkpoint", "exported", pooling="mean", normalize=True)
        >>> flowvec.Encoder.load("exported").encode("a text").shape
        (256,)

    The graph is run on ONNX Runtime's CPU provider and compared with its source: transformers' own
    module in float32, the given ONNX graph, or the mean of a static embedder by its definition. A
    text's vector must also be the same alone and in a padded batch. The bundle is written
    atomically.

    The limits of this comparison: max |a - b| / ||b|| is at most 1e-4 and the cosine at least
    .99999; with float16 weights, the cosine to the unrounded weights is at least .999. An
    embedder's variant keeps a cosine of .995 to float32 on the calibration texts (`float16`: .999),
    and loses at most .5 points on `sts` (`float16` and `int8-native`: .2). Those of other kinds
    rank documents as float32 does: Kendall's tau, the share of queries with the same first
    document, and of encoders the share of the ten best documents are at least .9.

    Args:
        source: a Hugging Face name; a local directory of an encoder that transformers loads, of a
            sentence-transformers model, of a model2vec model, or of an ONNX graph as Optimum
            exports it; or such a directory's .onnx file. An ONNX graph and a static embedder need
            no torch, unless a transform or a Dense layer follows.
        out: the directory to create.
        pooling: one of `POOLINGS`, or several joined by `+`; None is the source's own, or `mean`
            for a plain encoder.
        transform: a step between the source's own Dense layers and normalization, or a file that
            `fit` wrote. The file's pooling and `encoder_only` are used; a file that was fitted for
            another pooling or checkpoint is refused. Its max_length is not used: a bundle truncates
            texts where the source does. The transform is folded, and stays float32 for all
            `weights`.
        normalize: end in L2 normalization; None does what the source does. A plain encoder is
            normalized by default.
        max_length: most tokens of a text; None is the source's own.
        encoder_only: leave out a sentence-transformers model's own pooling, Dense layers and
            normalization.
        name: the model's name; None is the source's.
        prompts: prefixes by name, added to those of the source: for checkpoints that were trained
            with prefixes but do not name them.
        default_prompt_name: the prompt that is used by default; None is the source's own.
        weights: storage of the weight matrices. `float16` halves the file; the graph still
            computes in float32.
        variants: other forms of the model: `int8-native` for flowvec's own engine (the fastest on
            processors without AMX), `int8-openvino`, `int8` for ONNX Runtime, `float16` for GPUs.
            None is `int8-native` if this engine computes the model, of up to MiniLM-L12's size,
            and the variant is close enough to float32; `float32-native` for static embedders.
        calibration: texts like those that will be encoded. They are used to measure each
            dimension's range for 8-bit vectors, and to compare variants. None is the English
            sentences of the demo; an empty list leaves the ranges out.
        sts: sentence pairs with human scores, as `flowvec_export.sts.read_sts` returns them. What a
            variant loses on them is written to the manifest.
        overwrite: replace an existing bundle.
        trust_remote_code: run Python files of the checkpoint, which can do anything.
        allow_pickle: read weights from a pickle, with torch's restricted unpickler.
        revision: branch, tag or commit of a Hugging Face name; None is its main branch.
        on_step: called with a line of text before each step; by default it goes to standard
            error. None is silent.

    Returns:
        The finished, verified bundle.

    Raises:
        InputTypeError: an argument has the wrong type.
        InputValueError: an argument is not valid.
        ExportError: the source cannot be read or exported, refers to files outside its directory,
            or needs `trust_remote_code` or `allow_pickle`; or the graph or a variant exceeds a
            limit. Nothing is left behind.
    """
    check_source(source, pooling=pooling, max_length=max_length, encoder_only=encoder_only)
    target = absolute_path(path_of("out", out))
    check_apart(target, [source, transform if isinstance(transform, str | Path) else None])
    check_target(target, flag("overwrite", overwrite), _is_bundle)
    choice("weights", weights, WEIGHTS)
    if variants is not None:
        for kind in as_list("variants", variants):
            choice("each of variants", kind, KINDS)
    if pooling is not None:
        parse_pooling(pooling)
    if normalize is not None:
        flag("normalize", normalize)
    encodable_text("name", name)
    encodable_text("default_prompt_name", default_prompt_name)
    encodable_text("revision", revision)
    prompts = prompts_of(prompts)
    calibration = None if calibration is None else texts_of("calibration", calibration)
    sts = sequence_of("sts", sts, StsTask)
    check_callback("on_step", on_step)
    trust = Trust(
        remote_code=flag("trust_remote_code", trust_remote_code),
        pickle=flag("allow_pickle", allow_pickle),
    )
    tell = on_step or logger.info
    recipe: Recipe | None = None
    if isinstance(transform, str | os.PathLike):
        # Imports torch, which is not needed for an ONNX source otherwise.
        require_torch(f"the transform {transform}")
        from flowvec_export.transforms.file import load_transform

        transform, recipe = load_transform(transform)
        encoder_only = encoder_only or (recipe is not None and recipe.encoder_only)
    elif transform is not None and not _is_transform(transform):
        raise InputTypeError(
            f"transform must be a Transform or a file of one, not {type(transform).__name__}"
        )
    tell(f"reading {source}")
    origin = read_any_source(source, encoder_only=encoder_only, trust=trust, revision=revision)
    if isinstance(origin, PairSource):
        _refuse(
            f"{origin.origin} is a cross-encoder, which gives scores and no vectors, so",
            pooling=pooling,
            transform=transform,
            normalize=normalize,
            prompts=prompts,
            default_prompt_name=default_prompt_name,
            sts=sts,
        )
        return build_reranker(
            origin,
            target,
            name=name or origin.name,
            origin=_origin(origin),
            max_length=max_length,
            weights=weights,
            variants=variants,
            calibration=calibration,
            overwrite=overwrite,
            is_ours=_is_bundle,
            say=tell,
        )
    if isinstance(origin, SparseSource):
        _refuse(
            f"{origin.origin} is a SPLADE model, whose pooling is its own, so",
            pooling=pooling,
            transform=transform,
            normalize=normalize,
            sts=sts,
        )
        origin.prompts |= dict(prompts)
        if default_prompt_name is not None:
            _require_prompt(origin.prompts, default_prompt_name)
            origin.default_prompt_name = default_prompt_name
        return build_sparse(
            origin,
            target,
            name=name or origin.name,
            origin=_origin(origin),
            max_length=max_length,
            weights=weights,
            variants=variants,
            calibration=calibration,
            overwrite=overwrite,
            is_ours=_is_bundle,
            say=tell,
        )
    if isinstance(origin, MultiVectorSource):
        _refuse(
            f"{origin.origin} is a multi-vector encoder, which pools nothing, so",
            pooling=pooling,
            transform=transform,
            normalize=normalize,
            prompts=prompts,
            default_prompt_name=default_prompt_name,
            sts=sts,
        )
        return build_multi_vector(
            origin,
            target,
            name=name or origin.name,
            origin=_origin(origin),
            max_length=max_length,
            weights=weights,
            variants=variants,
            calibration=calibration,
            overwrite=overwrite,
            is_ours=_is_bundle,
            say=tell,
        )
    if origin.unused:
        tell(f"leaving out what is above the encoder: {', '.join(origin.unused)}")
    length = origin.checked_length(max_length)
    _add_prompts(origin, prompts, default_prompt_name)
    if recipe is not None:
        pooling = _checked_pooling(recipe, origin, pooling)
    if origin.unread:
        logger.warning(
            "%s: %s %s not read, because there is no modules.json, which says what they are for; "
            "the pooling is %s. If the model was saved by sentence-transformers, copy modules.json "
            "too",
            origin.origin,
            ", ".join(origin.unread),
            "is" if len(origin.unread) == 1 else "are",
            origin.pooling_name(pooling),
        )

    tell("making the graph")
    added = [] if transform is None else [transform]
    draft = origin.draft(length, pooling, added, normalize, weights)
    with staged_directory(target, overwrite, _is_bundle) as staged:
        write_onnx(draft.proto, staged / MODEL)
        (staged / TOKENIZER).write_text(origin.tokenizer.to_str(), encoding="utf-8")
        manifest = _manifest(origin, draft, staged, name or origin.name, length, weights)
        bundle = Bundle(staged, manifest)
        require_own_tokens(bundle, origin.own_tokens, origin.origin)
        tell("computing the reference vectors")
        bundle = with_references(bundle)
        tell(f"comparing with {draft.computed_by}")
        figures = _compare(bundle, draft, origin.vocabulary)
        texts = computable(bundle, calibration_texts() if calibration is None else calibration)
        if texts:
            tell("measuring the range of each dimension")
            bundle = _with_ranges(bundle, texts)
        bundle, measured = with_variants(
            bundle,
            draft.proto,
            variants,
            draft.attention,
            lambda at, kind: add_variant(at, draft.proto, kind, texts, draft.attention, sts),
            tell,
        )
        manifest = replace(bundle.manifest, parity=figures | measured)
        (staged / MANIFEST).write_text(manifest.to_json(), encoding="utf-8")
    return Bundle.load(target)


def _is_transform(value: object) -> bool:
    """Whether a value is a Transform. Imports no torch: if the class is not loaded, it is not."""
    base = sys.modules.get("flowvec_export.transforms.base")
    return base is not None and isinstance(value, base.Transform)


def _is_bundle(folder: Path) -> bool:
    """Whether a directory is a bundle of any format version, intact or not."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8-sig"))
    except (OSError, ValueError):
        return False
    # Bulk jobs also have a manifest.json.
    return isinstance(manifest, dict) and manifest.keys() >= {"format_version", "pooling", "files"}


def _add_prompts(
    source: Source, prompts: Mapping[str, str], default_prompt_name: str | None
) -> None:
    """Add a user's prompts to the source's own; the user's have precedence."""
    source.prompts |= dict(prompts)
    if any(source.prompts.values()) and not source.prompts_are_pooled:
        raise ExportError(
            f"{source.origin} leaves its prompts out of pooling, which is not supported"
        )
    if default_prompt_name is not None:
        _require_prompt(source.prompts, default_prompt_name)
        source.default_prompt_name = default_prompt_name


def _require_prompt(prompts: Mapping[str, str], name: str) -> None:
    """Raise ExportError if there is no such prompt."""
    if name not in prompts:
        names = ", ".join(prompts) or "none"
        raise ExportError(f"there is no prompt {name!r}; there are: {names}")


def _checked_pooling(recipe: Recipe, source: Source, requested: str | None) -> str | None:
    """The pooling that a transform was fitted on; raises ExportError if it does not fit the
    source."""
    if requested is not None and requested.split("+") != recipe.pooling.split("+"):
        raise ExportError(
            f"the transform was fitted on {recipe.pooling} pooling and cannot follow {requested}"
        )
    if recipe.source_sha256 != source.sha256():
        raise ExportError(
            f"the transform was fitted on {recipe.source} with other weights or Dense layers than "
            f"{source.origin} has; fit it again"
        )
    return None if recipe.pooling == AS_EXPORTED else recipe.pooling


def _manifest(
    source: Source, draft: Draft, staged: Path, name: str, length: int, weights: Weights
) -> Manifest:
    return Manifest(
        name=name,
        dim=draft.dim,
        max_length=length,
        pooling=draft.pooling,
        transform=draft.transform,
        normalised=draft.normalized,
        prompts=source.prompts,
        default_prompt_name=source.default_prompt_name,
        similarity=source.similarity,  # type: ignore[arg-type]
        pad_id=source.pad_id,
        inputs=INPUTS,
        output=OUTPUT,
        opset=opset_of(draft.proto),
        weights=weights,
        source=_origin(source),
        licence=source.licence,
        parity={},
        files={file: record_file(staged / file) for file in (MODEL, TOKENIZER)},
        layers=source.layers,
        max_characters=source.max_characters(length),
    )


def _encoder_of(bundle: Bundle, streams: int | None = None) -> Encoder:
    """Load a staged bundle, whose manifest is not on disk yet: CPU provider, float32."""
    engine = choose_engine(CPU, "float32", streams, layers=bundle.manifest.layers)
    return Encoder(bundle, engine, proof="never")


def _refuse(reason: str, **arguments: object) -> None:
    """Refuse arguments that mean nothing for a source.

    Raises:
        InputValueError: one is given.
    """
    if given := [name for name, value in arguments.items() if value not in (None, {}, (), [])]:
        raise InputValueError(
            f"{reason} {', '.join(given)} cannot be used; encoder_only exports its encoder alone"
        )


def _origin(source: AnySource) -> str:
    """The source's name in a manifest: of the hub with its commit, or the last part of a path."""
    return source.name if Path(source.origin).expanduser().exists() else source.origin


def _compare(bundle: Bundle, draft: Draft, vocabulary: int) -> dict[str, float]:
    """Parity figures of the staged bundle; raises ExportError if they exceed the limits."""
    try:
        with _encoder_of(bundle, streams=1) as encoder:
            parity, alone = measure(encoder, draft.reference, vocabulary)
            parity.require(f"the graph does not compute what {draft.computed_by} does")
            alone.require("a text's vector depends on what it is batched with")
            figures = {
                "texts": parity.texts,
                "max_relative_error": _round(parity.max_relative_error),
                "min_cosine": round(parity.min_cosine, 7),
            }
            if draft.original is not None:
                rounded, _ = measure(encoder, draft.original, vocabulary)
                rounded.require_cosine(MIN_COSINE_OF_FLOAT16)
                figures["min_cosine_to_float32_weights"] = round(rounded.min_cosine, 5)
    except (BundleError, NonFiniteError, EngineError) as error:
        raise ExportError(f"the graph does not run: {error}") from error
    return figures


def _with_ranges(bundle: Bundle, texts: Sequence[str]) -> Bundle:
    """Measure and write the range of each dimension over texts."""
    with _encoder_of(bundle) as encoder:
        ranges = measure_ranges(encoder.encode(texts))
    np.save(bundle.path / RANGES, ranges, allow_pickle=False)
    return with_file(bundle, RANGES)


def _round(value: float) -> float:
    """Round to two digits; further digits depend on the machine that exports."""
    return float(f"{value:.1e}")
