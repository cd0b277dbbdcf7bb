"""flowvec: text to vectors to neighbours, without torch.

>>> import flowvec
>>> with flowvec.Encoder.load("mini") as encoder:
...     encoder.encode(["first text", "second text"]).shape
(2, 384)
>>> flowvec.__version__.partition(".")[0]
'0'
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from flowvec.engine.telemetry import silence_onnxruntime
from flowvec.errors import (
    BulkError,
    BundleError,
    CacheError,
    ClosedError,
    CollectionBusyError,
    CollectionError,
    ConvertError,
    CorruptCollectionError,
    DeadlineError,
    DivergedError,
    EngineError,
    EngineNotProvedError,
    ExportError,
    FingerprintMismatchError,
    FlowvecError,
    InputTypeError,
    InputValueError,
    MissingDependencyError,
    NonFiniteError,
    OutOfMemoryError,
    OverloadedError,
    ProviderUnavailableError,
)

if TYPE_CHECKING:
    from flowvec.bundle.bundle import Bundle
    from flowvec.bundle.manifest import Head, LateInteraction, Manifest
    from flowvec.collection.async_collection import AsyncCollection
    from flowvec.collection.call_queue import CallStatistics
    from flowvec.collection.collection import Collection
    from flowvec.collection.mining import Pair, most_similar_pairs, semantic_search
    from flowvec.collection.results import Added, CollectionInfo, Hit, Row, TokenVectorsSize
    from flowvec.collection.store.rows import Item
    from flowvec.encoder.async_encoder import AsyncEncoder
    from flowvec.encoder.encoder import Encoder, EncoderInfo
    from flowvec.encoder.jobs import Encoded, EncodeJob, EncodeStatistics
    from flowvec.encoder.options import EncodeOptions
    from flowvec.encoder.proof import Proof
    from flowvec.encoder.shared_encoder import SharedEncoder
    from flowvec.encoder.shared_model import QueueStatistics
    from flowvec.engine.providers import Engine
    from flowvec.multi_vector.encoder import MultiVectorEncoder, MultiVectorInfo
    from flowvec.multi_vector.scoring import maxsim
    from flowvec.reranker.async_reranker import AsyncReranker
    from flowvec.reranker.reranker import Reranker, RerankerInfo
    from flowvec.reranker.scores import Ranked, Ranking, ScoreJob, ScoreOptions
    from flowvec.reranker.shared_reranker import SharedReranker
    from flowvec.sparse.encoder import SparseEncoder, SparseEncoderInfo
    from flowvec.sparse.vectors import SparseVectors
    from flowvec.tokenizer.chunking import Chunk
    from flowvec.tokenizer.token_ids import TokenIds
    from flowvec.tokenizer.tokenizer import Tokenized
    from flowvec.version import __version__

__all__ = [
    "Added",
    "AsyncCollection",
    "AsyncEncoder",
    "AsyncReranker",
    "BulkError",
    "Bundle",
    "BundleError",
    "CacheError",
    "CallStatistics",
    "Chunk",
    "ClosedError",
    "Collection",
    "CollectionBusyError",
    "CollectionError",
    "CollectionInfo",
    "ConvertError",
    "CorruptCollectionError",
    "DeadlineError",
    "DivergedError",
    "EncodeJob",
    "EncodeOptions",
    "EncodeStatistics",
    "Encoded",
    "Encoder",
    "EncoderInfo",
    "Engine",
    "EngineError",
    "EngineNotProvedError",
    "ExportError",
    "FingerprintMismatchError",
    "FlowvecError",
    "Head",
    "Hit",
    "InputTypeError",
    "InputValueError",
    "Item",
    "LateInteraction",
    "Manifest",
    "MissingDependencyError",
    "MultiVectorEncoder",
    "MultiVectorInfo",
    "NonFiniteError",
    "OutOfMemoryError",
    "OverloadedError",
    "Pair",
    "Proof",
    "ProviderUnavailableError",
    "QueueStatistics",
    "Ranked",
    "Ranking",
    "Reranker",
    "RerankerInfo",
    "Row",
    "ScoreJob",
    "ScoreOptions",
    "SharedEncoder",
    "SharedReranker",
    "SparseEncoder",
    "SparseEncoderInfo",
    "SparseVectors",
    "TokenIds",
    "TokenVectorsSize",
    "Tokenized",
    "__version__",
    "maxsim",
    "most_similar_pairs",
    "semantic_search",
]

# The modules of the names that are imported when they are first used: a program that encodes need
# not wait for the code that stores.
_MODULES = {
    name: f"flowvec.{module}"
    for module, names in {
        "bundle.bundle": "Bundle",
        "bundle.manifest": "Head LateInteraction Manifest",
        "collection.async_collection": "AsyncCollection",
        "collection.call_queue": "CallStatistics",
        "collection.collection": "Collection",
        "collection.mining": "Pair most_similar_pairs semantic_search",
        "collection.results": "Added CollectionInfo Hit Row TokenVectorsSize",
        "collection.store.rows": "Item",
        "encoder.async_encoder": "AsyncEncoder",
        "encoder.encoder": "Encoder EncoderInfo",
        "encoder.jobs": "Encoded EncodeJob EncodeStatistics",
        "encoder.options": "EncodeOptions",
        "encoder.proof": "Proof",
        "encoder.shared_encoder": "SharedEncoder",
        "encoder.shared_model": "QueueStatistics",
        "engine.providers": "Engine",
        "multi_vector.encoder": "MultiVectorEncoder MultiVectorInfo",
        "multi_vector.scoring": "maxsim",
        "reranker.async_reranker": "AsyncReranker",
        "reranker.reranker": "Reranker RerankerInfo",
        "reranker.scores": "Ranked Ranking ScoreJob ScoreOptions",
        "reranker.shared_reranker": "SharedReranker",
        "sparse.encoder": "SparseEncoder SparseEncoderInfo",
        "sparse.vectors": "SparseVectors",
        "tokenizer.chunking": "Chunk",
        "tokenizer.token_ids": "TokenIds",
        "tokenizer.tokenizer": "Tokenized",
        "version": "__version__",
    }.items()
    for name in names.split()
}

if not TYPE_CHECKING:  # to a type checker, a name that does not exist is an error

    def __getattr__(name: str) -> object:
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(_MODULES[name]), name)
        return value

    def __dir__() -> list[str]:
        return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})


# On import, so that it also applies to code that imports onnxruntime after flowvec.
silence_onnxruntime()
