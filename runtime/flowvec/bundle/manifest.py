"""The manifest: what a bundle says about itself, checked field by field."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal, get_args

from flowvec.errors import BundleError

__all__ = [
    "ACTIVATIONS",
    "FORMAT_VERSION",
    "INPUTS",
    "KINDS",
    "MANIFEST",
    "MODEL",
    "RANGES",
    "REFERENCES",
    "SIMILARITIES",
    "TOKENIZER",
    "TOKEN_TYPES",
    "VARIANTS",
    "WEIGHTS",
    "Activation",
    "FileRecord",
    "Head",
    "Kind",
    "LateInteraction",
    "Manifest",
    "Similarity",
    "Weights",
]

FORMAT_VERSION = 1
MANIFEST = "manifest.json"
MODEL = "model.onnx"
TOKENIZER = "tokenizer.json"
# Reference texts with their vectors: see `flowvec.encoder.references`.
REFERENCES = "references.npz"
# Each dimension's range, for vectors in 8 bits: a .npy file, float32 (2, dim).
RANGES = "int8_ranges.npy"
INPUTS = ("input_ids", "attention_mask")
# A third input of rerankers whose encoder tells a pair's texts apart by it.
TOKEN_TYPES = "token_type_ids"  # noqa: S105
# Variants of the graph. int8 has three: OpenVINO cannot read the one that is fast in ONNX Runtime,
# the other is slow there, and flowvec's own engine reads weights (`flowvec.native.weights`).
VARIANTS = {
    "float16": "model.fp16.onnx",
    "int8": "model.int8.onnx",
    "int8-openvino": "model.int8.openvino.onnx",
    "int8-native": "model.native",
    "float32-native": "table.native",
}

_MAX_FILES = 16
_MOST_ID = (1 << 31) - 1

Similarity = Literal["cosine", "dot", "euclidean", "manhattan"]
SIMILARITIES: tuple[Similarity, ...] = get_args(Similarity)
# What a bundle turns text into, and so which class opens it.
Kind = Literal["embedder", "reranker", "sparse", "multi_vector"]
KINDS: tuple[Kind, ...] = get_args(Kind)
# How a reranker's logits become scores.
Activation = Literal["identity", "sigmoid", "softmax", "tanh"]
ACTIVATIONS: tuple[Activation, ...] = get_args(Activation)
# Storage of the weight matrices.
Weights = Literal["float32", "float16"]
WEIGHTS: tuple[Weights, ...] = get_args(Weights)


@dataclass(frozen=True, slots=True)
class FileRecord:
    """Size in bytes and SHA-256 (hex) of one file of a bundle."""

    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Head:
    """What a reranker's logits mean.

        >>> Reranker.load("my-reranker").head
        Head(labels=('LABEL_0',), activation='sigmoid')

    Attributes:
        labels: name of each logit; a reranker of one label scores how relevant a text is.
        activation: how logits become scores. It is not part of the graph: `Reranker` applies it.
    """

    labels: tuple[str, ...]
    activation: Activation


@dataclass(frozen=True, slots=True)
class LateInteraction:
    """How a multi-vector encoder reads queries and documents.

        >>> head = MultiVectorEncoder.load("my-colbert").late_interaction
        >>> head.query_length, head.expansion_is_attended
        (24, False)

    Attributes:
        query_length: most tokens of a query, special tokens included.
        document_length: most tokens of a document, special tokens included.
        expansion_length: queries with fewer tokens are filled up to as many; None does not.
        expansion_token: id of the token that they are filled with.
        expansion_is_attended: whether a query's own tokens see the added ones.
        skipped_tokens: ids of tokens that get no vector in documents, ascending.
        skips_in_queries: whether they get none in queries either.
    """

    query_length: int
    document_length: int
    expansion_length: int | None
    expansion_token: int | None
    expansion_is_attended: bool
    skipped_tokens: tuple[int, ...]
    skips_in_queries: bool


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a bundle says about itself; `manifest.json` holds exactly these fields.

        >>> manifest = Encoder.load("mini").bundle.manifest
        >>> manifest.dim, manifest.max_length, manifest.similarity
        (384, 256, 'cosine')

    Attributes:
        name: the model's name.
        dim: length of a vector; of a reranker, the number of its labels; of a sparse encoder, the
            size of its vocabulary.
        max_length: most tokens of a text, or of a reranker's pair of texts, special tokens
            included; what is longer is cut.
        pooling: how token vectors become one vector, for example `mean` or `cls+max`.
        transform: the steps between pooling and normalization, for example `("dense(256->256)",)`.
        normalised: whether the graph ends in L2 normalization.
        prompts: prefixes by name, for example `{"query": "query: "}`.
        default_prompt_name: the prompt that is used by default.
        similarity: what `Encoder.similarity` computes.
        pad_id: the padding token.
        inputs: names of the graph's inputs, int64 (batch_size, sequence_length).
        output: name of the graph's output, float32 (batch_size, dim): vectors, or logits; of a
            multi-vector encoder, (batch_size, sequence_length, dim).
        opset: version of the standard operator set.
        weights: storage of the weight matrices, `float32`, or `float16` cast to float32 on load.
        source: where the checkpoint came from.
        licence: licence of the weights, if known.
        parity: figures of the comparison with the source model in torch.
        files: every other file of the bundle.
        layers: transformer layers of the graph; 0 for a sum over embeddings; None if not known.
        proved_on: by variant, the processor on which the exporter compared it with float32. A load
            compares again: see `flowvec.encoder.proof`.
        kind: `embedder`, `reranker`, `sparse` or `multi_vector`.
        head: what the logits of a reranker mean; None for every other kind.
        max_characters: a text is cut to this many characters before it is tokenized, as model2vec
            does; None if only max_length cuts it.
        max_active_dims: most weights of a sparse vector: the largest are kept; None keeps all.
        late_interaction: how a multi-vector encoder reads texts; None for every other kind.
        format_version: version of this format.
    """

    name: str
    dim: int
    max_length: int
    pooling: str
    transform: tuple[str, ...]
    normalised: bool
    prompts: dict[str, str]
    default_prompt_name: str | None
    similarity: Similarity
    pad_id: int
    inputs: tuple[str, ...]
    output: str
    opset: int
    weights: Weights
    source: str
    licence: str | None
    parity: dict[str, float]
    files: dict[str, FileRecord]
    layers: int | None = None
    proved_on: dict[str, str] = field(default_factory=dict)
    kind: Kind = "embedder"
    head: Head | None = None
    max_characters: int | None = None
    max_active_dims: int | None = None
    late_interaction: LateInteraction | None = None
    format_version: int = FORMAT_VERSION

    def to_json(self) -> str:
        """The text of `manifest.json`, with sorted keys: equal manifests give equal bytes."""
        return json.dumps(asdict(self), indent=2, sort_keys=True, ensure_ascii=False) + "\n"

    @classmethod
    def from_json(cls, text: str, where: str) -> Manifest:
        """Read a manifest and check every field.

        Raises:
            BundleError: not JSON, another format version, a field missing or out of range.
        """
        try:
            raw = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise BundleError(f"{where} is not JSON: {error}") from None
        if not isinstance(raw, dict):
            raise BundleError(f"{where} must hold a JSON object")
        version = raw.get("format_version")
        if type(version) is not int or version != FORMAT_VERSION:
            raise BundleError(
                f"{where} has format_version {version!r}; this flowvec reads {FORMAT_VERSION}"
            )
        names = {f.name for f in fields(cls)}
        if missing := sorted(names - raw.keys()):
            raise BundleError(f"{where} lacks {', '.join(missing)}")
        if unknown := sorted(raw.keys() - names):
            raise BundleError(f"{where} has unknown fields {', '.join(map(str, unknown))}")
        return cls(**_checked(raw, where))

    @property
    def fingerprint(self) -> str:
        """SHA-256 over everything that decides a vector: models with equal fingerprints agree.

        It covers the hashes of the graph and the tokenizer, the lengths, prompts and output
        options; names, parity figures and variants of the graph do not change it.
        """
        material = {
            "model": self.files[MODEL].sha256,
            "tokenizer": self.files[TOKENIZER].sha256,
            "max_length": self.max_length,
            "max_characters": self.max_characters,
            "prompts": self.prompts,
            "default_prompt_name": self.default_prompt_name,
            "normalised": self.normalised,
            "dim": self.dim,
            "head": self.head and asdict(self.head),
            "max_active_dims": self.max_active_dims,
            "late_interaction": self.late_interaction and asdict(self.late_interaction),
        }
        return hashlib.sha256(json.dumps(material, sort_keys=True).encode()).hexdigest()


def _checked(raw: dict[str, Any], where: str) -> dict[str, Any]:
    """Validate a manifest's fields and turn lists and records into their types."""

    def need(condition: bool, what: str) -> None:
        if not condition:
            raise BundleError(f"{where}: {what}")

    def is_count(value: object, most: int) -> bool:
        return isinstance(value, int) and not isinstance(value, bool) and 0 < value <= most

    def is_texts(value: object) -> bool:
        return isinstance(value, list) and all(isinstance(item, str) for item in value)

    for key in ("name", "pooling", "output", "source"):
        need(isinstance(raw[key], str), f"{key} must be a text")
    for key, most in (("dim", 1 << 20), ("max_length", 1 << 20), ("opset", 1 << 10)):
        need(is_count(raw[key], most), f"{key} must be a whole number from 1 to {most}")
    layers = raw["layers"]
    no_layers = layers is None or (layers == 0 and not isinstance(layers, bool))
    need(no_layers or is_count(layers, 1 << 10), "layers must be a whole number up to 1024")
    characters = raw["max_characters"]
    need(
        characters is None or is_count(characters, 1 << 31),
        f"max_characters must be a whole number from 1 to {1 << 31}",
    )
    need(raw["pad_id"] == 0 or is_count(raw["pad_id"], 1 << 31), "pad_id must be a token id")
    need(isinstance(raw["normalised"], bool), "normalised must be true or false")
    need(raw["similarity"] in SIMILARITIES, f"similarity must be one of {SIMILARITIES}")
    need(raw["weights"] in WEIGHTS, f"weights must be {' or '.join(WEIGHTS)}")
    for key in ("transform", "inputs"):
        need(is_texts(raw[key]), f"{key} must be a list of texts")
    need(raw["kind"] in KINDS, f"kind must be one of {KINDS}")
    is_reranker = raw["kind"] == "reranker"
    inputs = [INPUTS, (*INPUTS, TOKEN_TYPES)] if is_reranker else [INPUTS]
    need(tuple(raw["inputs"]) in inputs, f"inputs must be {', '.join(inputs[-1])}")
    prompts = raw["prompts"]
    need(
        isinstance(prompts, dict) and all(isinstance(p, str) for p in prompts.values()),
        "prompts must map names to texts",
    )
    default = raw["default_prompt_name"]
    need(
        default is None or (isinstance(default, str) and default in prompts),
        "default_prompt_name must name a prompt",
    )
    need(raw["licence"] is None or isinstance(raw["licence"], str), "licence must be a text")
    need(isinstance(raw["parity"], dict), "parity must map names to figures")
    proved_on = raw["proved_on"]
    need(
        isinstance(proved_on, dict) and all(isinstance(v, str) for v in proved_on.values()),
        "proved_on must map variants to texts",
    )
    files = raw["files"]
    need(isinstance(files, dict) and len(files) <= _MAX_FILES, "files must map names to records")
    records = {}
    for name, record in files.items():
        plain = name not in ("", ".", "..") and not set(name) & set("/\\\0:")
        need(plain and name != MANIFEST, f"{name!r} is not a plain file name")
        need(
            isinstance(record, dict)
            and record.keys() == {"bytes", "sha256"}
            and (record["bytes"] == 0 or is_count(record["bytes"], 1 << 40))
            and isinstance(record["sha256"], str)
            and len(record["sha256"]) == 64,
            f"the record of {name} must hold bytes and sha256",
        )
        records[name] = FileRecord(**record)
    for name in (MODEL, TOKENIZER, REFERENCES):
        need(name in records, f"files must list {name}")
    checked = dict(raw)
    head = raw["head"]
    need(is_reranker == (head is not None), "a head is what a reranker has, and no other kind")
    active = raw["max_active_dims"]
    need(
        active is None or (raw["kind"] == "sparse" and is_count(active, raw["dim"])),
        f"max_active_dims must be a whole number from 1 to {raw['dim']}, of a sparse encoder",
    )
    if is_reranker:
        need(
            isinstance(head, dict)
            and head.keys() == {"labels", "activation"}
            and is_texts(head["labels"])
            and len(head["labels"]) == raw["dim"]
            and head["activation"] in ACTIVATIONS,
            f"head must hold {raw['dim']} labels, and an activation of {ACTIVATIONS}",
        )
        checked["head"] = Head(tuple(head["labels"]), head["activation"])
    late = raw["late_interaction"]
    need(
        (raw["kind"] == "multi_vector") == (late is not None),
        "late_interaction is what a multi-vector encoder has, and no other kind",
    )
    if late is not None:
        need(_is_late_interaction(late, raw["max_length"]), "late_interaction is not complete")
        checked["late_interaction"] = LateInteraction(
            **{**late, "skipped_tokens": tuple(late["skipped_tokens"])}
        )
    checked |= {"transform": tuple(raw["transform"]), "inputs": tuple(raw["inputs"])}
    checked["files"] = records
    return checked


def _is_late_interaction(raw: Any, most: int) -> bool:
    """Whether a value holds the fields of `LateInteraction`, with lengths up to `most`."""

    def is_number(value: object, least: int, most: int) -> bool:
        return type(value) is int and least <= value <= most

    names = {f.name for f in fields(LateInteraction)}
    if not isinstance(raw, dict) or raw.keys() != names:
        return False
    length, token, skipped = (
        raw[name] for name in ("expansion_length", "expansion_token", "skipped_tokens")
    )
    return (
        is_number(raw["query_length"], 1, most)
        and is_number(raw["document_length"], 1, most)
        and (length is None or is_number(length, 1, most))
        and (token is None or is_number(token, 0, _MOST_ID))
        and (length is None) == (token is None)
        and isinstance(raw["expansion_is_attended"], bool)
        and isinstance(raw["skips_in_queries"], bool)
        and isinstance(skipped, list)
        and all(is_number(i, 0, _MOST_ID) for i in skipped)
    )
