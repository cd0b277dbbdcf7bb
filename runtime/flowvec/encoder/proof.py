"""Proof at load: an engine must agree with a bundle's reference vectors on this machine.

The same graph gives different vectors on another processor, and sometimes wrong ones: OpenVINO
2026.4.1 gave a cosine of .05 in int8 on processors with AMX. So an engine that is not proved on
this machine yet runs the bundle's reference texts, alone and in batches of odd and even shapes, on
each of its streams. The result is kept in the user's cache, so that later loads take no time.

The cache's key is everything that decides the result: bundle, provider, compute type, streams,
threads, library versions, processor and GPU, and the environment variables that limit an engine.
Streams are part of it because the fault above needs several of them.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import numpy as np

from flowvec.bundle.bundle import Bundle
from flowvec.bundle.manifest import INPUTS, REFERENCES, TOKEN_TYPES, Kind
from flowvec.bundle.onnx_file import rows_read_by
from flowvec.encoder.batching import Batch, pad
from flowvec.encoder.references import (
    Floats,
    References,
    make_references,
    max_bytes,
    reference_batches,
    reference_ids,
    reference_ids_per_token,
    reference_pairs,
)
from flowvec.engine.providers import Engine
from flowvec.engine.selection import GraphSession, open_session
from flowvec.errors import EngineError, EngineNotProvedError
from flowvec.machine import cpu_name, gpu_names, vector_instructions
from flowvec.tokenizer.pairs import PairTokenizer
from flowvec.tokenizer.tokenizer import Tokenizer
from flowvec.user_cache import cache_folder, installed_versions, write_cached
from flowvec.version import __version__

__all__ = [
    "MAX_LOGIT_ERROR_OF",
    "MIN_COSINE_OF",
    "Proof",
    "ProofMode",
    "compare",
    "limit_of",
    "make_bundle_references",
    "open_proved",
]

logger = logging.getLogger(__name__)

ProofMode = Literal["always", "cached", "never"]

# The smallest cosine to the reference vectors that is allowed, by compute type.
MIN_COSINE_OF = {"float32": 0.99999, "bfloat16": 0.999, "float16": 0.999, "int8": 0.995}
# Lengths matter if the bundle does not normalize.
_MOST_LENGTH_ERROR = {"float32": 1e-3, "bfloat16": 0.05, "float16": 0.05, "int8": 0.1}
# Other limits of some kinds. Rounding moves logits near zero across it, and these decide which
# sparse weights there are. No mean evens out the errors of single tokens. int8 variants of both are
# kept by the order in which they rank. Graphs with one wrong matrix are below .9: see
# tests/export/variants/test_retrieval.py.
_MIN_COSINE_OF_KIND: dict[Kind, dict[str, float]] = {
    "sparse": {"bfloat16": 0.995, "float16": 0.995, "int8": 0.95},
    "multi_vector": {"int8": 0.98},
}
_MOST_LENGTH_ERROR_OF_KIND: dict[Kind, dict[str, float]] = {"sparse": {"int8": 0.2}}
# A text with almost no weights has no direction that survives rounding. Shorter vectors than this
# share of the median length are measured by their difference, relative to that length.
_SHORT = 0.25

# Largest difference of a reranker's logit that is allowed, in standard deviations of the reference
# logits. Scores have no direction that a cosine could compare.
MAX_LOGIT_ERROR_OF = {"float32": 0.01, "bfloat16": 0.25, "float16": 0.25, "int8": 0.5}

_FORMAT = 1
_MOST_WAITING = 10.0  # seconds
# Environment variables that make OpenVINO, oneDNN and ONNX Runtime use other kernels.
_ENGINE_VARIABLES = ("ONEDNN_", "DNNL_", "OV_", "ORT_")
_HARMLESS = ("VERBOSE", "TELEMETRY")
# What a cache can raise: no home, no space, no permission, somebody else's file.
_CACHE_ERRORS = (OSError, RuntimeError, KeyError)


@dataclass(frozen=True, slots=True)
class Proof:
    """How far an engine's vectors are from a bundle's reference vectors on this machine.

        >>> proof = Encoder.load("mini").proof
        >>> proof.proved, proof.min_cosine >= proof.limit
        (True, True)

    Attributes:
        proved: all vectors are within the limits of the compute type.
        min_cosine: the smallest cosine over all texts and batches; None if nothing was compared, a
            vector held NaN, or the model is a reranker. For a sparse vector that is short beside
            the others, 1 - e * e / 2, where e is its error relative to a quarter of their median
            length.
        limit: the smallest cosine that is allowed; for a reranker, the largest error.
        texts: reference texts, or pairs, that were compared.
        measured: when, ISO 8601, UTC; None if nothing was compared.
        reason: why it is not proved; None if it is.
        max_error: of a reranker, the largest difference of a logit, in standard deviations of the
            reference logits.
    """

    proved: bool
    min_cosine: float | None
    limit: float
    texts: int
    measured: str | None
    reason: str | None
    max_error: float | None = None

    def __str__(self) -> str:
        if not self.proved:
            return f"not proved: {self.reason}"
        if self.max_error is not None:
            return f"proved: logits within {self.max_error:.1g} of their spread, {self.texts} pairs"
        return f"proved: cosine {_shown(self.min_cosine)} over {self.texts} texts"


def open_proved(
    bundle: Bundle,
    engine: Engine,
    mode: ProofMode = "cached",
    opened_by: Callable[[Bundle, Engine], GraphSession] | None = None,
) -> tuple[GraphSession, Proof]:
    """Load a bundle's graph on an engine, and compare it with the bundle's reference vectors.

    Args:
        bundle: what to load.
        engine: what to load it on.
        mode: `cached` compares once per machine; `always` compares at every load; `never` trusts
            the engine.
        opened_by: loads the graph; None is `open_session`.

    Raises:
        EngineNotProvedError: the engine's vectors are not the references.
        BundleError: the graph cannot be loaded, or the references cannot be read.
        ProviderUnavailableError: the provider does not really run.
    """
    kind = bundle.manifest.kind
    limit = limit_of(kind, engine.compute)
    opened = open_session if opened_by is None else opened_by
    if mode == "never":
        unseen = Proof(False, None, limit, 0, None, "the Encoder was loaded with proof='never'")
        return opened(bundle, engine), unseen
    known = None if mode == "always" else _recall(bundle, engine)
    if known is not None and not known.proved:
        raise _refusal(engine, known)
    session = opened(bundle, engine)
    if known is not None:
        return session, known
    begun = time.perf_counter()
    references = References.read(bundle.path / REFERENCES, bundle.manifest.dim, kind)
    try:
        proof = compare(session, references, bundle.manifest.pad_id, kind)
    except EngineError as error:
        # Not kept: another process may have used all the memory.
        failed = Proof(False, None, limit, 0, None, str(error))
        raise _refusal(engine, failed) from error
    _keep(bundle, engine, proof)
    seconds = time.perf_counter() - begun
    logger.debug("%s on %s, %.3f s", proof, engine, seconds)
    if not proof.proved:
        raise _refusal(engine, proof)
    return session, proof


def limit_of(kind: Kind, compute: str) -> float:
    """The smallest cosine that is allowed; of a reranker, the largest error of a logit.

    Args:
        kind: of the bundle.
        compute: the compute type.
    """
    if kind == "reranker":
        return MAX_LOGIT_ERROR_OF[compute]
    return _MIN_COSINE_OF_KIND.get(kind, {}).get(compute, MIN_COSINE_OF[compute])


def compare(
    session: GraphSession, references: References, pad_id: int, kind: Kind = "embedder"
) -> Proof:
    """Run references as texts are run: alone and in batches, on all streams at once.

    Args:
        session: what runs the graph.
        references: the token ids, and the vectors that it should give.
        pad_id: the padding token's id.
        kind: of the bundle. A reranker's logits are compared by their differences, and so are
            sparse vectors of texts with almost no weights.

    Raises:
        EngineError: the engine failed.
    """
    engine = session.engine
    jobs: queue.SimpleQueue[Batch] = queue.SimpleQueue()
    token_ids, spread = references.token_ids, _spread(references.vectors)
    shortest_compared = _SHORT * _median_length(references.vectors) if kind == "sparse" else 0.0
    for batch in reference_batches([len(row) for row in references.ids]):
        jobs.put(batch)
    # All threads wait for each other and then run this one, so that every stream runs.
    shortest = min(range(len(references.ids)), key=lambda i: len(references.ids[i]))
    first = Batch((shortest,), len(references.ids[shortest]))
    together = threading.Barrier(engine.in_flight)

    def work(_: int) -> tuple[float, float]:
        with suppress(threading.BrokenBarrierError):  # the system may have no more threads
            together.wait(_MOST_WAITING)
        batch = first
        cosine, error = math.inf, 0.0
        while True:
            output = session.run(*pad(token_ids, batch, pad_id))
            output = references.rows_of(output, batch.rows)
            expected = references.expected(batch.rows)
            if kind == "reranker":
                distances = 1.0, float(np.abs(output - expected).max(initial=0.0) / spread)
            else:
                distances = _distances(output, expected, shortest_compared)
            # NaN compares as neither smaller nor larger.
            cosine = float(np.minimum(cosine, distances[0]))
            error = float(np.maximum(error, distances[1]))
            try:
                batch = jobs.get_nowait()
            except queue.Empty:
                return cosine, error

    if engine.in_flight == 1:
        results = [work(0)]
    else:
        with ThreadPoolExecutor(engine.in_flight, "flowvec-proof") as threads:
            try:
                results = list(threads.map(work, range(engine.in_flight)))
            except BaseException:  # for example an interrupt: no thread starts another batch
                with suppress(queue.Empty):
                    while True:
                        jobs.get_nowait()
                raise
    cosine = float(np.min([cosine for cosine, _ in results]))
    error = float(np.max([error for _, error in results]))
    limit = limit_of(kind, engine.compute)
    if kind == "reranker":
        return _proof_of_logits(error, limit, len(references.ids))
    most = _MOST_LENGTH_ERROR_OF_KIND.get(kind, {}).get(
        engine.compute, _MOST_LENGTH_ERROR[engine.compute]
    )
    if math.isnan(cosine):
        reason = "its vectors hold NaN or infinity where the bundle's reference vectors do not"
    elif cosine < limit:
        reason = (
            f"its vectors have a cosine of {_shown(cosine)} to the bundle's reference vectors (at "
            f"least {limit:g})"
        )
    elif error > most:
        reason = (
            f"the lengths of its vectors are up to {100 * error:.1f} % off the bundle's reference "
            f"vectors (at most {100 * most:g} %)"
        )
    else:
        reason = None
    return Proof(
        proved=reason is None,
        min_cosine=None if math.isnan(cosine) else round(cosine, 7),
        limit=limit,
        texts=len(references.ids),
        measured=datetime.now(UTC).isoformat(timespec="seconds"),
        reason=reason,
    )


def _proof_of_logits(error: float, limit: float, pairs: int) -> Proof:
    reason = None
    if not error <= limit:  # NaN neither
        reason = (
            f"its logits are up to {error:.2g} standard deviations off the bundle's reference "
            f"logits (at most {limit:g})"
        )
    return Proof(
        proved=reason is None,
        min_cosine=None,
        limit=limit,
        texts=pairs,
        measured=datetime.now(UTC).isoformat(timespec="seconds"),
        reason=reason,
        max_error=float(f"{error:.2g}") if math.isfinite(error) else None,
    )


def _spread(logits: Floats) -> float:
    """Standard deviation of the label whose logits differ most; never zero."""
    exact = logits.astype(np.float64)
    return float(max(exact.std(axis=0).max(), 1e-6 * np.abs(exact).max(), 1e-30))


def _median_length(vectors: Floats) -> float:
    return float(np.median(np.linalg.norm(vectors.astype(np.float64), axis=1)))


def _distances(vectors: Floats, expected: Floats, shortest: float = 0.0) -> tuple[float, float]:
    """Smallest cosine, and largest relative error of a length; NaN if a vector is not finite.

    Of an expected vector below the shortest length, the difference takes the cosine's place: an
    error of a tenth of that length counts as the cosine .995, which is an angle of a tenth.
    """
    if not np.isfinite(vectors).all():
        return math.nan, math.nan
    # float64: squares of float32 may be too large or too small for float32.
    a, b = vectors.astype(np.float64), expected.astype(np.float64)
    lengths, wanted = np.linalg.norm(a, axis=1), np.linalg.norm(b, axis=1)
    is_short = wanted < shortest
    if not (lengths.all() or is_short[lengths == 0].all()):
        return 0.0, 1.0
    least = np.maximum(wanted, shortest)
    cosines = 1 - ((a - b) ** 2).sum(axis=1) / (2 * least**2)
    np.divide((a * b).sum(axis=1), lengths * wanted, where=~is_short, out=cosines)
    return float(cosines.min()), float((np.abs(lengths - wanted) / least).max())


def _shown(cosine: float | None) -> str:
    """Rounded down, so that a failure does not look like a success."""
    if cosine is None:
        return "NaN"
    return f"{math.floor(cosine * 1e5) / 1e5:.5f}"


def _refusal(engine: Engine, proof: Proof) -> EngineNotProvedError:
    versions = installed_versions()
    named = ", ".join(f"{package} {version}" for package, version in versions.items())
    others = "provider and compute" if engine.compute != "float32" else "provider"
    return EngineNotProvedError(
        f"{engine.provider} in {engine.compute} is not proved on this machine: {proof.reason}. It "
        f"ran {engine.streams} x {engine.threads} threads of {named} on {cpu_name()}",
        engine.provider,
        engine.compute,
        f"Leave {others} out to use an engine that is proved; `flowvec doctor BUNDLE` shows each",
    )


# --- references -----------------------------------------------------------------------------------


def make_bundle_references(bundle: Bundle, session: GraphSession) -> References:
    """Compute a bundle's reference vectors.

    Args:
        bundle: its tokenizer makes the token ids.
        session: its graph on ONNX Runtime's CPU provider in float32.

    Raises:
        BundleError: the model gives no valid vector for any reference text.
        EngineError: the engine failed.
    """
    manifest = bundle.manifest
    table = rows_read_by(bundle.model, INPUTS[0])

    def with_rows(ids: list[list[int]]) -> list[list[int]]:
        # In place of a token that the graph has no row for, any other one will do.
        return ids if table is None else [[id % table for id in row] for row in ids]

    if manifest.kind == "reranker":
        pairs = PairTokenizer(
            bundle.tokenizer, manifest.max_length, with_types=TOKEN_TYPES in manifest.inputs
        )
        rows, second = reference_pairs(pairs)
        return make_references(session.run, with_rows(rows), manifest.pad_id, second)
    tokenizer = Tokenizer(bundle.tokenizer, manifest.max_length, manifest.max_characters)

    def tokenize(texts: Sequence[str]) -> list[list[int]]:
        return with_rows(tokenizer(texts).ids)

    if manifest.kind == "multi_vector":
        ids = reference_ids_per_token(tokenize, manifest.max_length, manifest.dim)
        return make_references(session.run, ids, manifest.pad_id, per_token=True)
    most = max_bytes(manifest.kind)
    ids = reference_ids(tokenize, manifest.max_length, manifest.dim, most)
    return make_references(session.run, ids, manifest.pad_id)


# --- what is kept ---------------------------------------------------------------------------------


def _file(bundle: Bundle, engine: Engine) -> Path:
    """The cache file of a result."""
    files = bundle.manifest.files
    graph = files.get(bundle.graph(engine.variant).name)
    variables = {
        name: value
        for name, value in os.environ.items()
        if name.startswith(_ENGINE_VARIABLES) and not name.endswith(_HARMLESS)
    }
    material = [
        _FORMAT,
        __version__,
        bundle.fingerprint,
        graph and graph.sha256,
        files[REFERENCES].sha256,
        asdict(engine),
        installed_versions(),
        cpu_name(),
        vector_instructions(),
        gpu_names() if engine.device == "cuda" else [],
        variables,
    ]
    key = hashlib.sha256(json.dumps(material, sort_keys=True).encode()).hexdigest()[:32]
    return cache_folder() / "proofs" / f"{key}.json"


def _recall(bundle: Bundle, engine: Engine) -> Proof | None:
    """The cached result, or None; content of the cache never makes it raise."""
    try:
        raw = json.loads(_file(bundle, engine).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (*_CACHE_ERRORS, ValueError, RecursionError) as error:
        logger.debug("a cached proof is ignored: %s", error)
        return None
    if not isinstance(raw, Mapping) or not _is_proof(raw):
        logger.debug("a cached proof is ignored: the file has another form")
        return None
    kept: dict[str, Any] = {field.name: raw.get(field.name) for field in fields(Proof)}
    return Proof(**kept)


def _is_proof(raw: Mapping[str, Any]) -> bool:
    reason, cosine, limit = raw.get("reason"), raw.get("min_cosine"), raw.get("limit")
    proved = raw.get("proved")
    fits = (
        isinstance(proved, bool)
        and isinstance(raw.get("texts"), int)
        and isinstance(raw.get("measured"), str)
    )
    if not (fits and isinstance(limit, float)):
        return False
    error = raw.get("max_error")
    if proved and error is not None:
        return reason is None and isinstance(error, float) and error <= limit
    if proved:
        return reason is None and isinstance(cosine, float) and cosine >= limit
    return isinstance(reason, str) and (cosine is None or isinstance(cosine, float))


def _keep(bundle: Bundle, engine: Engine, proof: Proof) -> None:
    """Cache a result; without a cache the next load compares again."""
    content = {"bundle": bundle.manifest.name, **asdict(engine), **asdict(proof)}
    try:
        write_cached(_file(bundle, engine), (json.dumps(content, indent=2) + "\n").encode())
    except _CACHE_ERRORS as error:
        logger.debug("the proof cannot be cached, so the next load repeats it: %s", error)
