"""flowvec: text to vectors to neighbours, without torch.

>>> import flowvec
>>> with flowvec.Encoder.load("mini") as encoder:
...     encoder.encode(["first text", "second text"]).shape
(2, 384)
>>> flowvec.__version__.partition(".")[0]
'0'
"""

from __future__ import annotations

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

# On import, so that it also applies to code that imports onnxruntime after flowvec.
silence_onnxruntime()
