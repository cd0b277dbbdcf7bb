"""SparseEncoder: texts in, sparse vectors out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypedDict, Unpack, cast, get_args

import numpy as np
import numpy.typing as npt

from flowvec.arguments import choice, explaining, whole_number
from flowvec.compat import override
from flowvec.encoder.loaded_model import call_bar
from flowvec.encoder.options import OnEmpty, Truncation, prompt_text
from flowvec.encoder.pipeline import windows_of
from flowvec.encoder.text_model import TextModel, check_iterable, checked
from flowvec.engine.onnxruntime_session import runtime_version
from flowvec.errors import InputTypeError, InputValueError
from flowvec.sparse.rows import SparseJob, SparseRows
from flowvec.sparse.searching import dot_products
from flowvec.sparse.vectors import SparseVectors
from flowvec.tokenizer.tokenizer import Tokenizer

__all__ = ["SparseEncoder", "SparseEncoderInfo", "SparseOptions"]

# Most bytes of a batch's logits, (tokens, vocabulary), which every stream needs once.
_MOST_LOGITS = 1 << 27
_MOST_LOGITS_ON_GPU = 1 << 31

# What callers of sentence-transformers and fastembed write.
_FOREIGN = {
    "batch_size": "texts are batched by their tokens; leave it out, or give max_batch_tokens=",
    "convert_to_sparse_tensor": "vectors are SparseVectors; vectors.to_scipy() is a sparse matrix",
    "convert_to_tensor": "vectors are SparseVectors; vectors.to_dense() is an array of all numbers",
    "save_to_cpu": "vectors are numpy arrays; leave it out",
    "prompt": "put it before each text, or name a prompt of the bundle by prompt_name=",
    "device": "the engine is chosen by SparseEncoder.load(device=)",
    "chunk_size": "logits never leave the graph; max_batch_tokens= limits their memory",
    "parallel": "a SparseEncoder uses all cores; leave it out",
    "pool": "a SparseEncoder uses all cores; leave it out",
}


class SparseOptions(TypedDict, total=False):
    """Options of every call that encodes texts; `SparseEncoder.encode` says what they mean."""

    prompt_name: str | None
    max_active_dims: int | None
    truncation: Truncation
    on_empty: OnEmpty
    max_batch_tokens: int | None


class _CallOptions(SparseOptions, total=False):
    show_progress_bar: bool | None


@dataclass(frozen=True, slots=True)
class SparseEncoderInfo:
    """A SparseEncoder's model, and the engine that runs it.

        >>> info = SparseEncoder.load("my-sparse").info()
        >>> info.pooling, info.activation, info.max_active_dims
        ('max', 'log1p_relu', None)

    `dim` is the size of the vocabulary. `pooling` says how the weights of a text's tokens become
    one (`max` or `sum`), `activation` what is applied to a logit before (`log1p_relu`, or
    `log1p_log1p_relu` of OpenSearch's models). The other fields are those of `EncoderInfo`.
    """

    name: str
    path: str
    source: str
    dim: int
    max_length: int
    pooling: str
    activation: str
    max_active_dims: int | None
    prompts: dict[str, str]
    fingerprint: str
    provider: str
    compute: str
    streams: int
    threads: int
    threads_alone: int
    max_batch_tokens: int
    tuned: str | None
    proof: str
    onnxruntime: str | None


class SparseEncoder(TextModel):
    """A SPLADE model loaded on an engine: texts in, sparse vectors out.

    A sparse vector has a weight for each token of the vocabulary that the text is about, also for
    tokens that are not in the text. Two texts are compared by the dot product.

        >>> model = SparseEncoder.load("my-sparse")
        >>> vectors = model.encode(["A dog swims.", "Stocks fell."])
        >>> vectors.shape == (2, model.dim)
        True
        >>> tokens, others = vectors.decode(top_k=3)
        >>> len(tokens)
        3
    """

    _kind = "sparse"

    @override
    def _open_tokenizer(self) -> Tokenizer:
        self._vocabulary: list[str] | None = None  # read when it is first needed
        return super()._open_tokenizer()

    @override
    def _default_max_batch_tokens(self) -> int:
        most = _MOST_LOGITS_ON_GPU if self._engine.device == "cuda" else _MOST_LOGITS
        return max(1, min(super()._default_max_batch_tokens(), most // (4 * self.dim)))

    @property
    def vocabulary(self) -> list[str]:
        """The token of each id."""
        if self._vocabulary is None:
            self._vocabulary = self._tokenizer.vocabulary(self.dim)
        return self._vocabulary

    def info(self) -> SparseEncoderInfo:
        """The model's figures, and the engine that runs it."""
        manifest, engine = self._bundle.manifest, self._engine
        return SparseEncoderInfo(
            name=manifest.name,
            path=str(self._bundle.path),
            source=manifest.source,
            dim=manifest.dim,
            max_length=manifest.max_length,
            pooling=manifest.pooling,
            activation="_".join(reversed(manifest.transform)),
            max_active_dims=manifest.max_active_dims,
            prompts=dict(manifest.prompts),
            fingerprint=self.fingerprint,
            provider=engine.provider,
            compute=engine.compute,
            streams=engine.streams,
            threads=engine.threads,
            threads_alone=self._pipeline.threads_alone,
            max_batch_tokens=self._max_batch_tokens,
            tuned=self._tuned,
            proof=str(self.proof),
            onnxruntime=runtime_version(),
        )

    # --- encoding -------------------------------------------------------------------------------

    @explaining(_FOREIGN)
    def encode(
        self,
        texts: str | Iterable[str],
        *,
        prompt_name: str | None = None,
        max_active_dims: int | None = None,
        max_batch_tokens: int | None = None,
        truncation: Truncation = "truncate",
        on_empty: OnEmpty = "encode",
        show_progress_bar: bool | None = None,
    ) -> SparseVectors:
        """Encode texts.

        Args:
            texts: one text, or any iterable of texts.
            prompt_name: as for `Encoder.encode`.
            max_active_dims: keep this many of the largest weights of each vector; None is the
                checkpoint's own number (`info().max_active_dims`), which may be all.
            max_batch_tokens: replaces the SparseEncoder's for this call.
            truncation: `truncate` cuts texts at max_length and counts them; `error` raises.
            on_empty: `encode` encodes empty texts as the model sees them; `error` raises.
            show_progress_bar: None shows one on a terminal for long calls.

        Returns:
            One sparse vector for each text, in input order; a single text gives one vector.
            Weights below 0.000001 are left out: they are noise of float32.

        Raises:
            InputTypeError: an item is not a str. The message names its index; nothing was computed.
            InputValueError: an argument is not valid, or the options refuse a text.
            NonFiniteError: the model gave NaN or infinity. The message names the texts.
        """
        job = self._job(prompt_name, max_active_dims, max_batch_tokens, truncation, on_empty)
        items, _ = self.items(texts, on_empty)
        with call_bar("encode", len(items), "texts", show_progress_bar) as drawn:
            return self._encoded(items, job, drawn.update)

    def _encoded(
        self, items: list[str], job: SparseJob, done: Callable[[int], object] | None = None
    ) -> SparseVectors:
        windows = self._pipeline.windows(windows_of(items), job, self._report, done)
        parts: list[Any] = [window.vectors for window in windows]
        if not parts:
            parts = [SparseRows(0, self.dim, None, job.vocabulary).results()]
        return SparseVectors.joined(parts)

    def encode_query(
        self, texts: str | Iterable[str], **options: Unpack[_CallOptions]
    ) -> SparseVectors:
        """Encode queries: `encode` with the bundle's prompt `query`, if it has one."""
        options.setdefault("prompt_name", self.query_prompt)
        return self.encode(texts, **options)

    def encode_document(
        self, texts: str | Iterable[str], **options: Unpack[_CallOptions]
    ) -> SparseVectors:
        """Encode documents: `encode` with the prompt `document`, `passage` or `corpus`."""
        options.setdefault("prompt_name", self.document_prompt)
        return self.encode(texts, **options)

    def stream(
        self, texts: Iterable[str], **options: Unpack[SparseOptions]
    ) -> Iterator[SparseVectors]:
        """Encode an iterable of any length at constant memory.

        Reads a few thousand texts at a time and yields one vector per text, in order.

        Args:
            texts: any iterable of texts.
            **options: as for `encode`.

        Raises:
            As `encode`.
        """
        if isinstance(texts, str):
            raise InputTypeError("stream takes an iterable of texts; encode takes a single one")
        check_iterable(texts)
        job = self._job(**options)
        parts = windows_of(checked(texts, job.refuse_empty))
        windows = self._pipeline.windows(parts, job, self._report)
        return (vector for part in windows for vector in cast(Any, part.vectors))

    def similarity(self, a: SparseVectors, b: SparseVectors) -> npt.NDArray[np.float32]:
        """Dot product of every vector of a with every vector of b, float32 (a, b).

        For many vectors use `SparseVectors.search`, which keeps only the best of each query.

        Raises:
            InputTypeError, InputValueError: they are not sparse vectors of one vocabulary.
        """
        for name, vectors in (("a", a), ("b", b)):
            if not isinstance(vectors, SparseVectors):
                raise InputTypeError(f"{name} must be SparseVectors, not {type(vectors).__name__}")
        if a.dim != b.dim:
            raise InputValueError(f"cannot compare vectors of {a.dim} and {b.dim} dimensions")
        return dot_products(b.arrays, a.arrays, a.dim)

    def warmup(self) -> SparseEncoder:
        """Run batches of a few lengths, so that later calls do not pay for first-time work."""
        words = ["warm"] * self.max_length
        lengths = {2, 8, 16, 32, 64, 128, self.max_length}
        self.encode([" ".join(words[:n]) for n in sorted(lengths) if n <= self.max_length])
        return self

    @explaining(_FOREIGN)
    def _job(
        self,
        prompt_name: str | None = None,
        max_active_dims: int | None = None,
        max_batch_tokens: int | None = None,
        truncation: Truncation = "truncate",
        on_empty: OnEmpty = "encode",
    ) -> SparseJob:
        """Check a call's options, before any text is touched; arguments are those of `encode`.

        Raises:
            InputTypeError, InputValueError: an option is not valid.
            ClosedError: after `close`.
        """
        self._pipeline.ready()
        choice("truncation", truncation, get_args(Truncation))
        choice("on_empty", on_empty, get_args(OnEmpty))
        if max_active_dims is None:
            max_active_dims = self._bundle.manifest.max_active_dims
        else:
            whole_number("max_active_dims", max_active_dims)
        tokens = self._max_batch_tokens if max_batch_tokens is None else max_batch_tokens
        return SparseJob(
            prompt=prompt_text(self._bundle.manifest, prompt_name),
            max_active_dims=max_active_dims,
            vocabulary=self.vocabulary,
            max_batch_tokens=whole_number("max_batch_tokens", tokens),
            refuse_long=truncation == "error",
            refuse_empty=on_empty == "error",
            shared_out=max_batch_tokens is None,
        )

    def __repr__(self) -> str:
        name = self._bundle.manifest.name
        return f"SparseEncoder({name!r}, dim={self.dim}, {self._engine.provider})"
