"""Turns a ColBERT-style model into a bundle, and compares the two before it is written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from flowvec import Bundle, Manifest, MultiVectorEncoder
from flowvec.bundle.bundle import record_file
from flowvec.bundle.manifest import INPUTS, MANIFEST, MODEL, TOKENIZER, LateInteraction
from flowvec.engine.providers import CPU
from flowvec.engine.selection import choose_engine
from flowvec.errors import BundleError, EngineError, ExportError, NonFiniteError
from flowvec_export.assembly.draft import TOKEN_VECTORS, Draft, Weights
from flowvec_export.assembly.parity import MIN_COSINE_OF_FLOAT16, measure_tokens
from flowvec_export.assembly.token_parity import require_own_tokens
from flowvec_export.graph.proto import write_onnx
from flowvec_export.sources.late_interaction import MultiVectorSource
from flowvec_export.staged_bundle import computable, opset_of, with_references
from flowvec_export.staging import staged_directory
from flowvec_export.variants.ranges import calibration_texts
from flowvec_export.variants.retrieval import add_retrieval_variant
from flowvec_export.variants.variants import Variant, with_variants

__all__ = ["build_multi_vector"]


def build_multi_vector(
    source: MultiVectorSource,
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
    """Export a ColBERT-style model as a bundle: one ONNX graph from token ids to token vectors.

    Args:
        source: the ColBERT-style model.
        target: the directory to create.
        name: the model's name.
        origin: the source's name for the manifest.
        max_length: most tokens of a document; None is the source's own.
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
    head = source.late_interaction(max_length)
    say("making the graph")
    draft = source.draft(weights)
    with staged_directory(target, overwrite, is_ours) as staged:
        write_onnx(draft.proto, staged / MODEL)
        (staged / TOKENIZER).write_text(source.encoder.tokenizer.to_str(), encoding="utf-8")
        bundle = Bundle(staged, _manifest(source, draft, staged, name, origin, head, weights))
        require_own_tokens(bundle, source.own_tokens, source.origin, source.about.markers)
        say("computing the reference vectors")
        bundle = with_references(bundle)
        say(f"comparing with {draft.computed_by}")
        figures = _compare(bundle, draft, source.encoder.vocabulary)

        def add(bundle: Bundle, kind: Variant) -> dict[str, float]:
            texts = computable(bundle, calibration_texts() if calibration is None else calibration)
            return add_retrieval_variant(bundle, draft.proto, kind, texts, draft.attention)

        bundle, measured = with_variants(bundle, draft.proto, variants, draft.attention, add, say)
        manifest = replace(bundle.manifest, parity=figures | measured)
        (staged / MANIFEST).write_text(manifest.to_json(), encoding="utf-8")
    return Bundle.load(target)


def _manifest(
    source: MultiVectorSource,
    draft: Draft,
    staged: Path,
    name: str,
    origin: str,
    head: LateInteraction,
    weights: Weights,
) -> Manifest:
    return Manifest(
        name=name,
        dim=draft.dim,
        max_length=max(head.query_length, head.document_length),
        pooling=draft.pooling,
        transform=draft.transform,
        normalised=draft.normalized,
        prompts=source.about.prompts,
        default_prompt_name=None,
        similarity="dot",
        pad_id=source.encoder.pad_id,
        inputs=INPUTS,
        output=TOKEN_VECTORS,
        opset=opset_of(draft.proto),
        weights=weights,
        source=origin,
        licence=source.encoder.licence,
        parity={},
        files={file: record_file(staged / file) for file in (MODEL, TOKENIZER)},
        layers=source.encoder.layers,
        kind="multi_vector",
        late_interaction=head,
    )


def _compare(bundle: Bundle, draft: Draft, vocabulary: int) -> dict[str, float]:
    """Parity figures of the staged bundle; raises ExportError if they exceed the limits."""
    try:
        engine = choose_engine(CPU, "float32", 1, layers=bundle.manifest.layers)
        with MultiVectorEncoder(bundle, engine, proof="never") as encoder:
            parity, alone = measure_tokens(encoder, draft.reference, vocabulary)
            parity.require(f"the graph does not compute what {draft.computed_by} does")
            alone.require("a token's vector depends on what it is batched with")
            figures = {
                "tokens": parity.texts,
                "max_relative_error": float(f"{parity.max_relative_error:.1e}"),
                "min_cosine": round(parity.min_cosine, 7),
            }
            if draft.original is not None:
                rounded, _ = measure_tokens(encoder, draft.original, vocabulary)
                rounded.require_cosine(MIN_COSINE_OF_FLOAT16)
                figures["min_cosine_to_float32_weights"] = round(rounded.min_cosine, 5)
    except (BundleError, NonFiniteError, EngineError) as error:
        raise ExportError(f"the graph does not run: {error}") from error
    return figures
