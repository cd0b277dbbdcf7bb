"""Turns a SPLADE model into a bundle, and compares the two before the bundle is written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from flowvec import Bundle, Manifest, SparseEncoder
from flowvec.bundle.bundle import record_file
from flowvec.bundle.manifest import INPUTS, MANIFEST, MODEL, TOKENIZER
from flowvec.engine.providers import CPU
from flowvec.engine.selection import choose_engine
from flowvec.errors import BundleError, EngineError, ExportError, NonFiniteError
from flowvec_export.assembly.draft import TOKEN_WEIGHTS, Draft, Weights
from flowvec_export.assembly.parity import MIN_COSINE_OF_FLOAT16, measure
from flowvec_export.assembly.token_parity import require_own_tokens
from flowvec_export.graph.proto import write_onnx
from flowvec_export.sources.sparse import SparseSource
from flowvec_export.staged_bundle import computable, opset_of, with_references
from flowvec_export.staging import staged_directory
from flowvec_export.variants.ranges import calibration_texts
from flowvec_export.variants.retrieval import add_retrieval_variant
from flowvec_export.variants.variants import Variant, with_variants

__all__ = ["build_sparse"]


def build_sparse(
    source: SparseSource,
    target: Path,
    *,
    name: str,
    origin: str,
    max_length: int | None,
    weights: Weights,
    variants: Sequence[Variant] | None,
    calibration: Sequence[str] | None,
    overwrite: bool,
    is_ours: Callable[[Path], bool],
    say: Callable[[str], object],
) -> Bundle:
    """Export a SPLADE model as a bundle: one ONNX graph from token ids to a weight for each token.

    Args:
        source: the SPLADE model.
        target: the directory to create.
        name: the model's name.
        origin: the source's name for the manifest.
        max_length: most tokens of a text; None is the source's own.
        weights: storage of the weight matrices.
        variants: `int8-native`, `int8-openvino` or `int8`; None is those that are made by default.
        calibration: texts from which queries and documents are made to compare variants; None is
            the English texts of the demo.
        overwrite: replace an existing bundle.
        is_ours: whether a directory may be replaced.
        say: called with a line of text before each step.

    Raises:
        ExportError: the graph or a variant exceeds a limit. Nothing is left behind.
    """
    length = source.checked_length(max_length)
    say("making the graph")
    draft = source.draft(weights)
    with staged_directory(target, overwrite, is_ours) as staged:
        write_onnx(draft.proto, staged / MODEL)
        (staged / TOKENIZER).write_text(source.tokenizer.to_str(), encoding="utf-8")
        bundle = Bundle(staged, _manifest(source, draft, staged, name, origin, length, weights))
        require_own_tokens(bundle, source.own_tokens, source.origin)
        say("computing the reference vectors")
        bundle = with_references(bundle)
        say(f"comparing with {draft.computed_by}")
        figures = _compare(bundle, draft, source.vocabulary)

        def add(bundle: Bundle, kind: Variant) -> dict[str, float]:
            texts = computable(bundle, calibration_texts() if calibration is None else calibration)
            return add_retrieval_variant(bundle, draft.proto, kind, texts, draft.attention)

        bundle, measured = with_variants(bundle, draft.proto, variants, draft.attention, add, say)
        manifest = replace(bundle.manifest, parity=figures | measured)
        (staged / MANIFEST).write_text(manifest.to_json(), encoding="utf-8")
    return Bundle.load(target)


def _manifest(
    source: SparseSource,
    draft: Draft,
    staged: Path,
    name: str,
    origin: str,
    length: int,
    weights: Weights,
) -> Manifest:
    return Manifest(
        name=name,
        dim=draft.dim,
        max_length=length,
        pooling=draft.pooling,
        transform=draft.transform,
        normalised=False,
        prompts=source.prompts,
        default_prompt_name=source.default_prompt_name,
        similarity="dot",
        pad_id=source.pad_id,
        inputs=INPUTS,
        output=TOKEN_WEIGHTS,
        opset=opset_of(draft.proto),
        weights=weights,
        source=origin,
        licence=source.licence,
        parity={},
        files={file: record_file(staged / file) for file in (MODEL, TOKENIZER)},
        layers=source.layers,
        kind="sparse",
        max_active_dims=source.about.max_active_dims,
    )


def _compare(bundle: Bundle, draft: Draft, vocabulary: int) -> dict[str, float]:
    """Parity figures of the staged bundle; raises ExportError if they exceed the limits."""
    try:
        engine = choose_engine(CPU, "float32", 1, layers=bundle.manifest.layers)
        with SparseEncoder(bundle, engine, proof="never") as encoder:
            parity, alone = measure(encoder, draft.reference, vocabulary)
            parity.require(f"the graph does not compute what {draft.computed_by} does")
            alone.require("a text's weights depend on what it is batched with")
            figures = {
                "texts": parity.texts,
                "max_relative_error": float(f"{parity.max_relative_error:.1e}"),
                "min_cosine": round(parity.min_cosine, 7),
            }
            if draft.original is not None:
                rounded, _ = measure(encoder, draft.original, vocabulary)
                rounded.require_cosine(MIN_COSINE_OF_FLOAT16)
                figures["min_cosine_to_float32_weights"] = round(rounded.min_cosine, 5)
    except (BundleError, NonFiniteError, EngineError) as error:
        raise ExportError(f"the graph does not run: {error}") from error
    return figures
