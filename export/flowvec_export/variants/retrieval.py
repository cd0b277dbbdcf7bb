"""The int8 variants of sparse and multi-vector encoders, kept only if they find the same documents.

These encoders are used to find documents and to sort them. So float32 and int8 compare the same
queries with the same documents, as `ranking.py` does for rerankers, and each query also with the
documents of all queries. Cosines of vectors would say less: the weights of a sparse vector that
decide least, those near zero, are rounded most.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx

from flowvec import Bundle, MultiVectorEncoder, SparseEncoder, maxsim
from flowvec.encoder.options import document_prompt, prompt_text, query_prompt
from flowvec.engine.providers import CPU, Engine
from flowvec.errors import BundleError, EngineError, ExportError, NonFiniteError
from flowvec.machine import available_cores
from flowvec.multi_vector.rows import TokenJob
from flowvec.tokenizer.token_ids import TokenIds
from flowvec.tokenizer.tokenizer import Tokenizer
from flowvec_export.assembly.draft import Attention
from flowvec_export.variants.ranking import (
    FEWEST_TEXTS,
    MIN_TAU,
    MIN_TOP_1,
    Agreement,
    Rankings,
    calibration_rankings,
    rank_agreement,
)
from flowvec_export.variants.variants import (
    Variant,
    VariantError,
    measured_on,
    require_references,
    rounded,
    with_variant,
)

__all__ = ["MIN_TOP_10", "add_retrieval_variant", "top_agreement"]

Floats = npt.NDArray[np.float32]

# Smallest mean share of float32's ten best documents that int8 must have among its ten best.
MIN_TOP_10 = 0.9
_TOP = 10
# A query of fewer words ranks documents by chance.
_FEWEST_WORDS = 8
_NAMES = {"sparse": "a sparse encoder", "multi_vector": "a multi-vector encoder"}


@dataclass(frozen=True, slots=True)
class _Comparison:
    """Queries and documents, each once, and which of them `rankings` compares.

    Attributes:
        queries: texts.
        documents: texts.
        pairs: numbers of query and document, int64 (queries, documents of each, 2).
    """

    queries: list[str]
    documents: list[str]
    pairs: npt.NDArray[np.int64]

    @classmethod
    def of(cls, rankings: Rankings) -> _Comparison:
        queries = {text: i for i, text in enumerate(dict.fromkeys(q for q, _ in rankings.pairs))}
        documents = {text: i for i, text in enumerate(dict.fromkeys(d for _, d in rankings.pairs))}
        numbers = [(queries[query], documents[document]) for query, document in rankings.pairs]
        pairs = np.array(numbers, dtype=np.int64).reshape(-1, rankings.documents, 2)
        return cls(list(queries), list(documents), pairs)


def add_retrieval_variant(
    bundle: Bundle,
    proto: onnx.ModelProto,
    kind: Variant,
    texts: Sequence[str],
    attention: Attention | None,
) -> dict[str, float]:
    """Add an int8 variant to the folder of a sparse or multi-vector encoder, if it agrees.

    Args:
        bundle: a bundle whose folder may have no manifest yet; the variant is written to it.
        proto: its float32 graph.
        kind: the variant.
        texts: real texts: one half is used for rounding the weights, the other for the comparison.
        attention: attention of the encoder.

    Returns:
        Figures for the manifest: `int8_kendall_tau`, `int8_top_1` and `int8_top_10`.

    Raises:
        ExportError: there are too few texts, the provider for the comparison is not installed, or
            the variant ranks differently.
    """
    name = _NAMES[bundle.manifest.kind]
    if kind == "float16":
        raise ExportError(
            f"{name} has no float16 variant; its variants are int8-native, int8-openvino and int8"
        )
    provider, compute = measured_on(kind)
    if len(texts) < 2 * FEWEST_TEXTS:
        raise ExportError(
            f"the variants of {name} need at least {2 * FEWEST_TEXTS} texts to be made and "
            f"compared on, and there are {len(texts)}"
        )
    comparison = _comparison(texts[1::2])
    ids = _token_ids(bundle, texts[::2])
    bundle = with_variant(bundle, kind, rounded(bundle, proto, kind, ids, attention))
    engines = (
        Engine(CPU, "float32", available_cores()),
        Engine(provider, compute, available_cores()),
    )
    exact, other = (_scores(bundle, engine, comparison) for engine in engines)
    rows, columns = comparison.pairs[..., 0], comparison.pairs[..., 1]
    agreement = rank_agreement(list(exact[rows, columns]), list(other[rows, columns]))
    top_10 = top_agreement(exact, other, _TOP)
    _require(kind, agreement, top_10)
    require_references(kind, bundle, engines[1])
    return {
        f"{kind}_kendall_tau": round(agreement.kendall_tau, 3),
        f"{kind}_top_1": round(agreement.top_1, 3),
        f"{kind}_top_10": round(top_10, 3),
    }


def top_agreement(exact: Floats, other: Floats, count: int) -> float:
    """Mean share of the best documents of a query that are among the other's best too.

    Args:
        exact: scores, float32 (queries, documents).
        other: as many.
        count: how many documents are the best ones. Documents that score as much as the last of
            them count as well.

    Returns:
        From 0 to 1; NaN in `other` counts as a disagreement.
    """
    count = min(count, exact.shape[1])
    best = np.argsort(-other, axis=1, kind="stable")[:, :count]
    least = -np.sort(-exact, axis=1)[:, count - 1 : count]
    is_shared = np.take_along_axis(exact, best, axis=1) >= least
    is_shared &= ~np.isnan(other).any(axis=1, keepdims=True)
    return float(is_shared.mean())


def _comparison(texts: Sequence[str]) -> _Comparison:
    """Queries and documents from longer texts, or from all if few are longer."""
    longer = [text for text in texts if len(text.split()) >= _FEWEST_WORDS]
    enough = longer if len(longer) >= FEWEST_TEXTS else texts
    return _Comparison.of(calibration_rankings(enough))


def _token_ids(bundle: Bundle, texts: Sequence[str]) -> TokenIds:
    """Token ids of texts as documents, and of half of them as queries too."""
    manifest = bundle.manifest
    tokenizer = Tokenizer(bundle.tokenizer, manifest.max_length, manifest.max_characters)
    parts = []
    for is_query, chosen in ((False, texts), (True, texts[::2])):
        name = (query_prompt if is_query else document_prompt)(manifest)
        prompt = prompt_text(manifest, name)
        if manifest.late_interaction is None:
            parts.append(tokenizer([prompt + text for text in chosen]).token_ids)
        else:
            # A budget and refusals are not what tokenizing needs.
            job = TokenJob(manifest.late_interaction, is_query, prompt, 1, refuse_long=False)
            parts.append(job.tokenize(tokenizer, chosen).token_ids)
    return TokenIds.joined(parts)


def _scores(bundle: Bundle, engine: Engine, comparison: _Comparison) -> Floats:
    """The score of each query with each document, float32 (queries, documents)."""
    queries, documents = comparison.queries, comparison.documents
    try:
        if bundle.manifest.kind == "sparse":
            with SparseEncoder(bundle, engine, proof="never") as sparse:
                return sparse.similarity(
                    sparse.encode_query(queries), sparse.encode_document(documents)
                )
        with MultiVectorEncoder(bundle, engine, proof="never") as encoder:
            return maxsim(encoder.encode_query(queries), encoder.encode_document(documents))
    except (BundleError, EngineError, NonFiniteError) as error:
        kind = engine.variant or "float32"
        raise VariantError(f"{kind} does not run on this processor: {error}", kind) from error


def _require(kind: Variant, agreement: Agreement, top_10: float) -> None:
    tau, top_1 = agreement.kendall_tau, agreement.top_1
    # NaN fails this comparison too.
    if not (tau >= MIN_TAU and top_1 >= MIN_TOP_1 and top_10 >= MIN_TOP_10):
        raise VariantError(
            f"{kind} ranks differently: Kendall's tau {tau:.3f} to float32 (at least {MIN_TAU:g}), "
            f"the same first document for {100 * top_1:.0f} % of the queries (at least "
            f"{100 * MIN_TOP_1:g} %), and {100 * top_10:.0f} % of float32's ten best documents "
            f"among its ten best (at least {100 * MIN_TOP_10:g} %)",
            kind,
        )
