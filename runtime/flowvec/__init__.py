"""flowvec: text to vectors to neighbours, without torch.

from flowvec import Collection, Encoder

with Encoder.load("mini") as encoder:
    vectors = encoder.encode(["first text", "second text"])
"""

from __future__ import annotations

from flowvec.async_encoder import AsyncEncoder
from flowvec.bundle import Bundle
from flowvec.collection import Collection
from flowvec.encoder import Encoder, EncoderInfo
from flowvec.errors import (
    BulkError,
    BundleError,
    ClosedError,
    CollectionError,
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
    OverloadedError,
    ProviderUnavailableError,
)
from flowvec.hits import Added, CollectionInfo, Hit
from flowvec.manifest import Manifest
from flowvec.microbatch import QueueStatistics, SharedEncoder
from flowvec.mining import Pair, most_similar_pairs, semantic_search
from flowvec.pipeline import Encoded, EncodeJob, EncodeStatistics
from flowvec.proof import Proof
from flowvec.providers import Engine
from flowvec.rows import Item
from flowvec.telemetry import silence_onnxruntime
from flowvec.tokenizer import Tokenized
from flowvec.version import __version__

__all__ = [
    "Added",
    "AsyncEncoder",
    "BulkError",
    "Bundle",
    "BundleError",
    "ClosedError",
    "Collection",
    "CollectionError",
    "CollectionInfo",
    "CorruptCollectionError",
    "DeadlineError",
    "DivergedError",
    "EncodeJob",
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
    "Hit",
    "InputTypeError",
    "InputValueError",
    "Item",
    "Manifest",
    "MissingDependencyError",
    "NonFiniteError",
    "OverloadedError",
    "Pair",
    "Proof",
    "ProviderUnavailableError",
    "QueueStatistics",
    "SharedEncoder",
    "Tokenized",
    "__version__",
    "most_similar_pairs",
    "semantic_search",
]

# Here, so that whatever imports onnxruntime after flowvec finds it done.
silence_onnxruntime()
