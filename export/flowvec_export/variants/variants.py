"""Adds variants: the same model in another compute type, kept only if it is close enough."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt
import onnx

from flowvec import Bundle, Encoder
from flowvec.bundle.bundle import record_file
from flowvec.bundle.manifest import REFERENCES, VARIANTS
from flowvec.encoder import proof
from flowvec.encoder.references import References
from flowvec.engine.native_session import native_status
from flowvec.engine.providers import CPU, NATIVE, OPENVINO, Engine, why_not
from flowvec.engine.selection import open_session, provider_status
from flowvec.errors import BundleError, EngineError, ExportError, NonFiniteError
from flowvec.machine import available_cores, cpu_features, cpu_name
from flowvec.native import TableWeights, Weights
from flowvec.tokenizer.token_ids import TokenIds
from flowvec.tokenizer.tokenizer import Tokenizer
from flowvec_export.assembly.draft import Attention
from flowvec_export.assembly.parity import Parity
from flowvec_export.graph.proto import write_onnx
from flowvec_export.staged_bundle import with_file
from flowvec_export.sts import StsTask, score_vectors, sentence_rows
from flowvec_export.variants.float16 import half_precision_graph
from flowvec_export.variants.int8 import quantize_graph
from flowvec_export.variants.native import check_supported, native_weights
from flowvec_export.variants.native_table import check_table, table_weights

__all__ = [
    "KINDS",
    "MAX_STS_LOSS",
    "MIN_COSINE_OF",
    "Variant",
    "VariantError",
    "add_variant",
    "default_variants",
    "describe_processor",
    "measured_on",
    "require_references",
    "rounded",
    "with_variant",
    "with_variants",
]

Variant = Literal["float16", "int8", "int8-openvino", "int8-native", "float32-native"]

KINDS: tuple[Variant, ...] = get_args(Variant)

# The provider that each variant is compared on. The CPU provider has no products in float16 and
# computes them in float32, so for `float16` it shows the rounding between operators.
_MEASURED_ON = {
    "float16": (CPU, "float16"),
    "int8": (CPU, "int8"),
    "int8-openvino": (OPENVINO, "int8"),
    "int8-native": (NATIVE, "int8"),
    "float32-native": (NATIVE, "float32"),
}
# Smallest cosine to float32 that is allowed on real text: the limit of proof at load, so that a
# variant which was exported is not refused there.
MIN_COSINE_OF = {kind: proof.MIN_COSINE_OF[compute] for kind, (_, compute) in _MEASURED_ON.items()}
# Most points of Spearman x 100 that a variant may lose on any set.
MAX_STS_LOSS = {
    "float16": 0.2,
    "int8": 0.5,
    "int8-openvino": 0.5,
    "int8-native": 0.2,
    "float32-native": 0.01,
}

# Weights of the layers up to which a variant is made by default. MiniLM-L6 has 11 million and takes
# half a minute; BERT-base has 85 million and takes five.
_MOST_BY_DEFAULT = 25e6

Floats = npt.NDArray[np.float32]


class VariantError(ExportError):
    """A variant is too far from float32, or wrong on this processor; `kind` is the variant."""

    def __init__(self, message: str, kind: str) -> None:
        """An error about one variant."""
        super().__init__(message, kind)
        self.kind = kind

    def __str__(self) -> str:
        return str(self.args[0])


def with_variants(
    bundle: Bundle,
    proto: onnx.ModelProto,
    asked: Sequence[Variant] | None,
    attention: Attention | None,
    add: Callable[[Bundle, Variant], dict[str, float]],
    say: Callable[[str], object],
) -> tuple[Bundle, dict[str, float]]:
    """Add variants, each only if it is close enough to float32.

    Args:
        bundle: a bundle whose folder has no manifest yet.
        proto: its float32 graph.
        asked: the variants; None is `default_variants`, of which one that is not close enough is
            left out.
        attention: attention of the encoder; None for a given ONNX graph.
        add: adds one of them to the folder, and returns its figures.
        say: called with a line of text before each step.

    Returns:
        The bundle with their files and `proved_on` in its manifest, and the figures.

    Raises:
        ExportError: a variant that was asked for is too far from float32, or cannot be made.
    """
    figures: dict[str, float] = {}
    for kind in default_variants(bundle, proto, attention) if asked is None else asked:
        say(f"making the {kind} variant")
        try:
            figures |= add(bundle, kind)
        except ExportError as error:
            if asked is not None:
                raise
            say(f"leaving it out: {error}")
            (bundle.path / VARIANTS[kind]).unlink(missing_ok=True)
            continue
        bundle = with_file(bundle, VARIANTS[kind])
        proved_on = bundle.manifest.proved_on | {kind: describe_processor()}
        bundle = Bundle(bundle.path, replace(bundle.manifest, proved_on=proved_on))
    return bundle, figures


def default_variants(
    bundle: Bundle, proto: onnx.ModelProto, attention: Attention | None
) -> list[Variant]:
    """The variants that a model gets if its user asks for none.

    It is `int8-native`, or `float32-native` of a static embedder, where flowvec's engine computes
    the model and runs on this machine, and making it does not take long.
    """
    kind: Variant = "float32-native" if bundle.manifest.layers == 0 else "int8-native"
    weights = sum(
        math.prod(tensor.dims)
        for tensor in proto.graph.initializer
        if tensor.name.startswith("backbone.layers.")
    )
    if weights > _MOST_BY_DEFAULT or native_status():
        return []
    try:
        if kind == "int8-native":
            check_supported(proto, bundle.manifest, attention)
        else:
            check_table(proto, bundle.manifest)
    except ExportError:
        return []
    return [kind]


def add_variant(
    bundle: Bundle,
    proto: onnx.ModelProto,
    kind: Variant,
    texts: Sequence[str],
    attention: Attention | None,
    sts: Sequence[StsTask] = (),
) -> dict[str, float]:
    """Add a variant to a bundle's folder, and compare it with the float32 graph.

    Args:
        bundle: a bundle whose folder may have no manifest yet; the variant is written to it.
        proto: its float32 graph.
        kind: the variant.
        texts: real texts, to create and to compare the variant.
        attention: attention of the encoder; None for a given ONNX graph.
        sts: sentence pairs with human scores, for another comparison.

    Returns:
        Figures for the manifest, such as `int8_min_cosine`, `int8_mean_cosine` and, for the set
        that loses the most, `int8_sts_loss` in points of Spearman x 100.

    Raises:
        ExportError: there are no texts, the provider for the comparison is not installed, or the
            variant is too far from float32.
    """
    if not texts:
        raise ExportError(f"the {kind} variant needs texts to be measured on")
    provider, compute = measured_on(kind)
    variant: onnx.ModelProto | Weights | TableWeights
    if kind == "float16":
        if attention is None and bundle.manifest.layers == 0:
            raise ExportError(
                "a static embedder has no float16 variant; float16 weights halve its file"
            )
        if attention is None:
            raise ExportError(
                "the float16 variant is made from a checkpoint, not from a given graph"
            )
        variant = half_precision_graph(proto, attention.heads, scale_folded=attention.scale_folded)
    else:
        manifest = bundle.manifest
        tokenizer = Tokenizer(bundle.tokenizer, manifest.max_length, manifest.max_characters)
        # One half for rounding the weights, the other for the comparison.
        ids = tokenizer(texts[::2]).token_ids
        variant = rounded(bundle, proto, kind, ids, attention)
    bundle = with_variant(bundle, kind, variant)
    engines = (
        Engine(CPU, "float32", available_cores()),
        Engine(provider, compute, available_cores()),
    )
    compared = texts[1::2] or texts
    exact, other = (_embed(bundle, engine, compared) for engine in engines)
    figures = _cosines(kind, exact, other)
    require_references(kind, bundle, engines[1])
    if sts:
        rows = sentence_rows(sts)
        figures |= _sts_loss(kind, sts, *(_embed(bundle, e, list(rows)) for e in engines))
    return figures


def rounded(
    bundle: Bundle,
    proto: onnx.ModelProto,
    kind: Variant,
    ids: TokenIds,
    attention: Attention | None,
) -> onnx.ModelProto | Weights | TableWeights:
    """A variant in 8 bits, or one of the native engine.

    Args:
        bundle: whose it will be; its graph is in its folder.
        proto: its float32 graph.
        kind: the variant.
        ids: token ids of the texts that rounding is optimized for.
        attention: attention of the encoder.

    Raises:
        VariantError: the native engine does not compute this model.
    """
    manifest = bundle.manifest
    try:
        if kind == "int8-native":
            return native_weights(proto, ids, manifest, attention)
        if kind == "float32-native":
            return table_weights(proto, manifest, bundle.model)
    except ExportError as error:
        raise VariantError(str(error), kind) from error
    return quantize_graph(proto, ids, manifest.max_length, manifest.pad_id, kind)


def with_variant(
    bundle: Bundle, kind: Variant, variant: onnx.ModelProto | Weights | TableWeights
) -> Bundle:
    """Write a variant to a bundle's folder; a manifest with it is in the result only."""
    file = bundle.path / VARIANTS[kind]
    if isinstance(variant, Weights | TableWeights):
        variant.write(file)
    else:
        write_onnx(variant, file)
    files = bundle.manifest.files | {file.name: record_file(file)}
    return Bundle(bundle.path, replace(bundle.manifest, files=files))


def measured_on(kind: Variant) -> tuple[str, str]:
    """The provider and compute type that a variant is compared on.

    Raises:
        VariantError: they cannot run on this machine.
    """
    provider, compute = _MEASURED_ON[kind]
    reason = provider_status()[provider]
    if reason is None and compute == "int8":
        reason = why_not(provider, cpu_features(), (kind,), compute)
    if reason:
        raise VariantError(f"{kind} is measured on {provider}, but {reason}", kind)
    return provider, compute


def _embed(bundle: Bundle, engine: Engine, texts: Sequence[str]) -> Floats:
    try:
        with Encoder(bundle, engine, proof="never") as encoder:
            return encoder.encode(texts)
    except (BundleError, EngineError, NonFiniteError) as error:
        kind = engine.variant or "float32"
        raise VariantError(f"{kind} does not run on this processor: {error}", kind) from error


def require_references(kind: Variant, bundle: Bundle, engine: Engine) -> None:
    """Raise VariantError if a load on this processor would refuse the variant."""
    manifest = bundle.manifest
    references = References.read(bundle.path / REFERENCES, manifest.dim, manifest.kind)
    try:
        result = proof.compare(
            open_session(bundle, engine),
            references,
            manifest.pad_id,
            manifest.kind,
        )
    except EngineError as error:
        raise VariantError(f"{kind} does not run on this processor: {error}", kind) from error
    if not result.proved:
        raise VariantError(
            f"{kind} is wrong on this processor ({describe_processor()}): {result.reason}", kind
        )


def describe_processor() -> str:
    """Name and vector instructions of this machine's processor."""
    return f"{cpu_name()}; {', '.join(cpu_features()) or 'vector instructions unknown'}"


def _cosines(kind: Variant, exact: Floats, rounded: Floats) -> dict[str, float]:
    parity = Parity.of(rounded, exact)
    least = MIN_COSINE_OF[kind]
    if not parity.min_cosine >= least:
        raise VariantError(
            f"{kind} costs too much: cosine {parity.min_cosine:.6f} to float32 (at least "
            f"{least:g})",
            kind,
        )
    dots = (exact.astype(np.float64) * rounded).sum(axis=1)
    lengths = np.linalg.norm(exact, axis=1) * np.linalg.norm(rounded, axis=1)
    # A static embedder gives zeros for a text without known words; then the other has zeros too.
    cosines = np.divide(dots, lengths, out=np.ones_like(dots), where=lengths > 0)
    return {
        f"{kind}_min_cosine": _round_down(parity.min_cosine),
        f"{kind}_mean_cosine": _round_down(float(cosines.mean())),
    }


def _sts_loss(
    kind: Variant, tasks: Sequence[StsTask], exact: Floats, rounded: Floats
) -> dict[str, float]:
    rows = sentence_rows(tasks)
    scores = [score_vectors(tasks, rows, vectors) for vectors in (exact, rounded)]
    losses = {before.task: before.all - after.all for before, after in zip(*scores, strict=True)}
    worst = max(losses, key=lambda task: losses[task])
    if not losses[worst] <= MAX_STS_LOSS[kind]:
        raise VariantError(
            f"{kind} costs too much: {losses[worst]:.2f} points on {worst} (at most "
            f"{MAX_STS_LOSS[kind]:g})",
            kind,
        )
    return {f"{kind}_sts_loss": math.ceil(losses[worst] * 100) / 100 + 0.0}


def _round_down(cosine: float) -> float:
    """Round down to four digits."""
    return math.floor(cosine * 1e4) / 1e4
