"""The int8 variants of a reranker, kept only if they rank as the float32 graph does.

A cosine says nothing about scores: what counts is the order of the documents of a query. So float32
and int8 rank the same documents for each of some queries, and are compared by Kendall's tau and by
how often the first document is the same. `retrieval.py` does so for the kinds of encoders.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx

from flowvec import Bundle, Reranker
from flowvec.bundle.manifest import TOKEN_TYPES
from flowvec.engine.providers import CPU, Engine
from flowvec.errors import BundleError, EngineError, ExportError, NonFiniteError
from flowvec.machine import available_cores
from flowvec.tokenizer.pairs import PairTokenizer, TextPair
from flowvec_export.assembly.draft import Attention
from flowvec_export.variants.variants import (
    Variant,
    VariantError,
    measured_on,
    require_references,
    rounded,
    with_variant,
)

__all__ = [
    "FEWEST_TEXTS",
    "MIN_TAU",
    "MIN_TOP_1",
    "Agreement",
    "Rankings",
    "add_reranker_variant",
    "calibration_rankings",
    "rank_agreement",
    "require_agreement",
]

Floats = npt.NDArray[np.float32]

# Smallest mean of Kendall's tau over the queries, and share of queries with the same first
# document, that are allowed.
MIN_TAU = 0.9
MIN_TOP_1 = 0.9
# Fewest texts from which rankings are made.
FEWEST_TEXTS = 24
# Documents that are ranked for a query.
_DOCUMENTS = 12
_MOST_QUERIES = 60


@dataclass(frozen=True, slots=True)
class Rankings:
    """Queries, each with the documents that are ranked for it.

    Attributes:
        pairs: query and document, all documents of a query after each other.
        documents: how many documents a query has.
    """

    pairs: list[TextPair]
    documents: int


@dataclass(frozen=True, slots=True)
class Agreement:
    """How far two rankings of the same documents agree; 1 is equal.

    Attributes:
        kendall_tau: mean of Kendall's tau over the queries, from -1 to 1.
        top_1: share of queries with the same first document.
    """

    kendall_tau: float
    top_1: float


def rank_agreement(exact: Sequence[Floats], other: Sequence[Floats]) -> Agreement:
    """Compare the scores of each query's documents, float32 (documents,) per query.

    A query whose scores are all equal has no ranking. If the other has none either, they agree. If
    only one of the two has none, the tau is 0.
    """
    taus = [_kendall_tau(a, b) for a, b in zip(exact, other, strict=True)]
    # Equal scores: each of the best documents may be the first.
    same = [a[b.argmax()] == a.max() for a, b in zip(exact, other, strict=True)]
    return Agreement(float(np.mean(taus)), float(np.mean(same)))


def _kendall_tau(exact: Floats, other: Floats) -> float:
    ranks = [np.ptp(scores) != 0 for scores in (exact, other)]  # NaN has a difference
    if not all(ranks):
        return float(not any(ranks))
    from scipy.stats import kendalltau  # as in `flowvec_export.sts`

    return float(kendalltau(exact, other).statistic)


def calibration_rankings(texts: Sequence[str]) -> Rankings:
    """Queries and documents from texts.

    A query is the first half of a text. Its documents are the other half, the texts that follow it,
    which are close to it in a document, and texts from elsewhere.

    Raises:
        ExportError: there are too few texts.
    """
    if len(texts) < FEWEST_TEXTS:
        raise ExportError(
            f"a reranker's variants need at least {FEWEST_TEXTS} texts to be compared on, and "
            f"there are {len(texts)}"
        )
    pairs: list[TextPair] = []
    step = max(1, len(texts) // _MOST_QUERIES)
    for i in range(0, len(texts), step):
        words = texts[i].split()
        query = " ".join(words[: max(1, len(words) // 2)])
        near = [texts[(i + j) % len(texts)] for j in range(1, _DOCUMENTS // 2)]
        far = [
            texts[(i + (len(texts) * j) // _DOCUMENTS + 7) % len(texts)]
            for j in range(1, _DOCUMENTS - len(near))
        ]
        documents = [" ".join(words[len(words) // 2 :]), *near, *far]
        pairs += [(query, document) for document in documents]
    return Rankings(pairs, _DOCUMENTS)


def add_reranker_variant(
    bundle: Bundle,
    proto: onnx.ModelProto,
    kind: Variant,
    rankings: Rankings,
    attention: Attention | None,
) -> dict[str, float]:
    """Add an int8 variant to a reranker's folder, and compare its rankings with float32's.

    Args:
        bundle: a bundle whose folder may have no manifest yet; the variant is written to it.
        proto: its float32 graph.
        kind: the variant.
        rankings: one half is used for rounding the weights, the other for the comparison.
        attention: attention of the encoder; None if it is transformers' own module.

    Returns:
        Figures for the manifest, such as `int8_kendall_tau` and `int8_top_1`.

    Raises:
        ExportError: the provider for the comparison is not installed, or the variant ranks
            differently.
    """
    if kind == "float16":
        raise ExportError(
            "a reranker has no float16 variant; its variants are int8-native, int8-openvino and "
            "int8"
        )
    provider, compute = measured_on(kind)
    manifest = bundle.manifest
    tokenizer = PairTokenizer(
        bundle.tokenizer, manifest.max_length, with_types=TOKEN_TYPES in manifest.inputs
    )
    size = rankings.documents
    # Whole queries go to one half or the other.
    halves: list[list[TextPair]] = [[], []]
    for i in range(0, len(rankings.pairs), size):
        halves[i // size % 2] += rankings.pairs[i : i + size]
    ids = tokenizer(halves[0]).token_ids
    bundle = with_variant(bundle, kind, rounded(bundle, proto, kind, ids, attention))
    engines = (
        Engine(CPU, "float32", available_cores()),
        Engine(provider, compute, available_cores()),
    )
    exact, other = (_logits(bundle, engine, halves[1], size) for engine in engines)
    require_references(kind, bundle, engines[1])
    agreement = rank_agreement(list(exact), list(other))
    require_agreement(kind, agreement)
    return {
        f"{kind}_kendall_tau": round(agreement.kendall_tau, 3),
        f"{kind}_top_1": round(agreement.top_1, 3),
    }


def _logits(bundle: Bundle, engine: Engine, pairs: list[TextPair], size: int) -> Floats:
    """The first label's logits, float32 (queries, documents)."""
    try:
        with Reranker(bundle, engine, proof="never") as reranker:
            logits = reranker.predict(pairs, activation="identity")
    except (BundleError, EngineError, NonFiniteError) as error:
        kind = engine.variant or "float32"
        raise VariantError(f"{kind} does not run on this processor: {error}", kind) from error
    first: Floats = logits.reshape(len(pairs), -1)[:, 0].reshape(-1, size)
    return first


def require_agreement(kind: Variant, agreement: Agreement) -> None:
    """Raise a VariantError if a variant ranks differently."""
    tau, top_1 = agreement.kendall_tau, agreement.top_1
    if not (tau >= MIN_TAU and top_1 >= MIN_TOP_1):
        raise VariantError(
            f"{kind} ranks differently: Kendall's tau {tau:.3f} to float32 (at least {MIN_TAU:g}), "
            f"and the same first document for {100 * top_1:.0f} % of the queries (at least "
            f"{100 * MIN_TOP_1:g} %)",
            kind,
        )
