"""What the routes answer, for the OpenAPI document. A test compares answers with these."""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypedDict

__all__ = [
    "ERRORS",
    "Added",
    "CohereEmbedded",
    "CohereReranked",
    "CollectionAbout",
    "Collections",
    "Counted",
    "Decoded",
    "Deleted",
    "Found",
    "FoundBatch",
    "JinaReranked",
    "Listed",
    "ModelAbout",
    "Models",
    "OllamaEmbedded",
    "OllamaEmbedding",
    "OllamaVersion",
    "OpenAiEmbedded",
    "RowsById",
    "Status",
    "TeiEmbedded",
    "TeiInfo",
    "TeiLabelled",
    "TeiReranked",
    "TeiSimilarities",
    "TeiSparse",
    "TeiTokenVectors",
    "TeiTokens",
    "Updated",
]  # fmt: skip

# --- OpenAI -------------------------------------------------------------------------------------


class OpenAiUsage(TypedDict):
    """Tokens that were computed; `truncated` counts texts that were cut."""

    prompt_tokens: int
    total_tokens: int
    truncated: NotRequired[int]


class OpenAiVector(TypedDict):
    """A vector: numbers, or base64 of little-endian float32."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class OpenAiEmbedded(TypedDict):
    """Vectors in the order of the texts."""

    object: Literal["list"]
    data: list[OpenAiVector]
    model: str
    usage: OpenAiUsage


class ModelAbout(TypedDict):
    """A model that is served."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    kind: Literal["embedding", "reranker", "sparse", "multi_vector"]
    max_length: int
    fingerprint: str
    dim: NotRequired[int]
    prompts: NotRequired[list[str]]
    labels: NotRequired[list[str]]


class Models(TypedDict):
    """All models."""

    object: Literal["list"]
    data: list[ModelAbout]


class Status(TypedDict):
    """What a probe says."""

    status: str


# --- Text Embeddings Inference ------------------------------------------------------------------


class TeiRanked(TypedDict):
    """A text and its score."""

    index: int
    score: float
    text: NotRequired[str]


class TeiLabelled(TypedDict):
    """A label and its score."""

    score: float
    label: str


class TeiToken(TypedDict):
    """A token and its place in the text."""

    id: int
    text: str
    special: bool
    start: int | None
    stop: int | None


class TeiInfo(TypedDict):
    """What is served, and its limits."""

    model_id: str
    served_model_name: str
    model_type: dict[str, Any]
    max_input_length: int
    version: str
    fingerprint: str
    models: list[str]


class TeiWeight(TypedDict):
    """The weight of a token of the vocabulary."""

    index: int
    value: float


TeiEmbedded = list[list[float]]
TeiSparse = list[list[TeiWeight]]
TeiTokenVectors = list[list[list[float]]]
TeiReranked = list[TeiRanked]
TeiSimilarities = list[float]
TeiTokens = list[list[TeiToken]]
Decoded = list[str]

# --- Jina, Cohere and Ollama --------------------------------------------------------------------


class Text(TypedDict):
    """A document."""

    text: str


class Relevance(TypedDict):
    """A document's index and score."""

    index: int
    relevance_score: float
    document: NotRequired[Text]


class JinaReranked(TypedDict):
    """Documents, best first."""

    id: str
    object: Literal["rerank"]
    model: str
    usage: OpenAiUsage
    results: list[Relevance]


class CohereReranked(TypedDict):
    """Documents, best first."""

    id: str
    results: list[Relevance]
    meta: dict[str, Any]


# "float" is no name of an attribute.
class CohereVectors(TypedDict):
    float: NotRequired[list[list[float]]]
    int8: NotRequired[list[list[int]]]
    uint8: NotRequired[list[list[int]]]
    binary: NotRequired[list[list[int]]]
    ubinary: NotRequired[list[list[int]]]
    base64: NotRequired[list[str]]


class CohereEmbedded(TypedDict):
    """Vectors by their type."""

    id: str
    response_type: Literal["embeddings_by_type"]
    embeddings: CohereVectors
    texts: list[str]
    meta: dict[str, Any]


class OllamaEmbedded(TypedDict):
    """Vectors, and nanoseconds."""

    model: str
    embeddings: list[list[float]]
    total_duration: int
    load_duration: int
    prompt_eval_count: int


class OllamaEmbedding(TypedDict):
    """A vector."""

    embedding: list[float]


class OllamaVersion(TypedDict):
    """The version."""

    version: str


# --- collections --------------------------------------------------------------------------------


class CollectionListed(TypedDict):
    """A collection."""

    id: str
    object: Literal["collection"]
    dim: int
    model: str | None
    sparse_model: str | None
    token_model: str | None


class Collections(TypedDict):
    """All collections."""

    object: Literal["list"]
    data: list[CollectionListed]


class CollectionAbout(CollectionListed):
    """A collection's settings and figures.

    `sparse_rows` rows have a sparse vector. `sparse_memory_bytes` is 0 before the first search by
    sparse vectors. `token_rows` rows have token vectors, which take `token_bytes` on disk. A model
    is null if it is not served.
    """

    rows: int
    metric: str
    fingerprint: str | None
    search: str
    memory_bytes: int
    sparse_dim: int | None
    sparse_rows: int
    sparse_memory_bytes: int
    token_dtype: str | None
    token_rows: int
    token_bytes: int


class SparseRow(TypedDict):
    """A sparse vector; its indices ascend."""

    indices: list[int]
    values: list[float]


class FoundRow(TypedDict):
    """A hit."""

    id: int | str
    score: float
    text: str | None
    metadata: dict[str, Any] | None
    search_score: NotRequired[float]
    search_rank: NotRequired[int]
    word_score: NotRequired[float]
    sparse_score: NotRequired[float]
    is_cut: NotRequired[bool]
    vector: NotRequired[list[float]]


class Found(TypedDict):
    """Hits, best first."""

    hits: list[FoundRow]


class FoundBatch(TypedDict):
    """Hits of each query, best first."""

    hits: list[list[FoundRow]]


class Added(TypedDict):
    """What was written."""

    rows: int
    replaced: int
    truncated: int


class StoredRow(TypedDict):
    """A row."""

    id: int | str
    label: int
    text: str | None
    metadata: dict[str, Any] | None
    is_cut: NotRequired[bool]
    vector: NotRequired[list[float]]
    sparse: NotRequired[SparseRow | None]


class RowsById(TypedDict):
    """Rows in the order of the ids; null for an unknown one."""

    rows: list[StoredRow | None]


class Listed(TypedDict):
    """A page of rows; `after` is null at the end."""

    rows: list[StoredRow]
    after: int | None


class Counted(TypedDict):
    """How many rows."""

    count: int


class Deleted(TypedDict):
    """How many rows were deleted."""

    deleted: int


class Updated(TypedDict):
    """How many rows were named."""

    updated: int


# --- errors -------------------------------------------------------------------------------------


class OpenAiReason(TypedDict):
    """What was wrong."""

    message: str
    type: str
    param: str | None
    code: str | None


class OpenAiError(TypedDict):
    """An error."""

    error: OpenAiReason


class TeiError(TypedDict):
    """An error."""

    error: str
    error_type: str


class CohereError(TypedDict):
    """An error."""

    message: str


class JinaError(TypedDict):
    """An error."""

    detail: str


class OllamaError(TypedDict):
    """An error."""

    error: str


# By dialect.
ERRORS: dict[str, Any] = {
    "openai": OpenAiError,
    "tei": TeiError,
    "cohere": CohereError,
    "jina": JinaError,
    "ollama": OllamaError,
}
