"""Turns a cross-encoder into a bundle, and compares the two before the bundle is written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from flowvec import Bundle, Manifest, Reranker
from flowvec.bundle.bundle import record_file
from flowvec.bundle.manifest import MANIFEST, MODEL, TOKENIZER
from flowvec.engine.providers import CPU
from flowvec.engine.selection import choose_engine
from flowvec.errors import BundleError, EngineError, ExportError, NonFiniteError
from flowvec_export.assembly.draft import LOGITS, PairDraft, Weights
from flowvec_export.assembly.parity import measure_pairs
from flowvec_export.assembly.token_parity import require_own_tokens
from flowvec_export.graph.proto import write_onnx
from flowvec_export.sources.cross_encoder import PairSource
from flowvec_export.staged_bundle import computable, opset_of, with_references
from flowvec_export.staging import staged_directory
from flowvec_export.variants.ranges import calibration_texts
from flowvec_export.variants.ranking import add_reranker_variant, calibration_rankings
from flowvec_export.variants.variants import Variant, with_variants

__all__ = ["MAX_ERROR_OF_FLOAT16", "build_reranker"]

# Largest difference of a logit to that of the unrounded weights, relative to the largest logit.
MAX_ERROR_OF_FLOAT16 = 0.02


def build_reranker(
    source: PairSource,
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
    """Export a cross-encoder as a bundle: one ONNX graph from token ids of pairs to logits.

    Args:
        source: the cross-encoder.
        target: the directory to create.
        name: the model's name.
        origin: the source's name for the manifest.
        max_length: most tokens of a pair; None is the source's own.
        weights: storage of the weight matrices.
        variants: `int8-native`, `int8-openvino` or `int8`; None is those that are made by default.
        calibration: texts from which queries and documents are made to compare variants.
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
        say("computing the reference scores")
        bundle = with_references(bundle)
        say(f"comparing with {draft.computed_by}")
        figures = _compare(bundle, draft, source.vocabulary)

        def add(bundle: Bundle, kind: Variant) -> dict[str, float]:
            texts = calibration_texts() if calibration is None else calibration
            rankings = calibration_rankings(computable(bundle, texts))
            return add_reranker_variant(bundle, draft.proto, kind, rankings, draft.attention)

        bundle, measured = with_variants(bundle, draft.proto, variants, draft.attention, add, say)
        manifest = replace(bundle.manifest, parity=figures | measured)
        (staged / MANIFEST).write_text(manifest.to_json(), encoding="utf-8")
    return Bundle.load(target)


def _manifest(
    source: PairSource,
    draft: PairDraft,
    staged: Path,
    name: str,
    origin: str,
    length: int,
    weights: Weights,
) -> Manifest:
    head = source.about.head
    return Manifest(
        name=name,
        dim=len(head.labels),
        max_length=length,
        pooling="head",
        transform=(),
        normalised=False,
        prompts={},
        default_prompt_name=None,
        similarity="dot",
        pad_id=source.pad_id,
        inputs=draft.inputs,
        output=LOGITS,
        opset=opset_of(draft.proto),
        weights=weights,
        source=origin,
        licence=source.licence,
        parity={},
        files={file: record_file(staged / file) for file in (MODEL, TOKENIZER)},
        layers=source.layers,
        kind="reranker",
        head=head,
    )


def _compare(bundle: Bundle, draft: PairDraft, vocabulary: int) -> dict[str, float]:
    """Parity figures of the staged bundle; raises ExportError if they exceed the limits."""
    try:
        engine = choose_engine(CPU, "float32", 1, layers=bundle.manifest.layers)
        with Reranker(bundle, engine, proof="never") as reranker:
            parity, alone = measure_pairs(reranker, draft.reference, vocabulary)
            parity.require(f"the graph does not compute what {draft.computed_by} does")
            alone.require("a pair's logits depend on what it is batched with")
            figures = {
                "pairs": parity.pairs,
                "max_relative_error": float(f"{parity.max_relative_error:.1e}"),
            }
            if draft.original is not None:
                rounded, _ = measure_pairs(reranker, draft.original, vocabulary)
                rounded.require(
                    "rounding the weights to float16 costs too much", MAX_ERROR_OF_FLOAT16
                )
                figures["max_relative_error_to_float32_weights"] = float(
                    f"{rounded.max_relative_error:.1e}"
                )
    except (BundleError, NonFiniteError, EngineError) as error:
        raise ExportError(f"the graph does not run: {error}") from error
    return figures
