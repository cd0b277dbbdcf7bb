"""Encoder: texts in, vectors out."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self, Unpack, cast

import numpy as np
import numpy.typing as npt

from flowvec.arguments import explaining
from flowvec.compat import override
from flowvec.encoder.jobs import Encoded, EncodeJob
from flowvec.encoder.loaded_model import call_bar
from flowvec.encoder.options import (
    FOREIGN,
    CallOptions,
    EncodeOptions,
    OnEmpty,
    Truncation,
    check_options,
)
from flowvec.encoder.pipeline import windows_of
from flowvec.encoder.postprocess import Precision, normalize
from flowvec.encoder.text_model import TextModel, check_iterable, checked
from flowvec.engine.onnxruntime_session import runtime_version
from flowvec.errors import (
    InputTypeError,
    InputValueError,
    first_line,
)
from flowvec.tokenizer.chunking import Chunk, SplitBy, split_texts
from flowvec.tokenizer.tokenizer import Tokenizer, check_texts

__all__ = ["Encoder", "EncoderInfo"]

logger = logging.getLogger(__name__)

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class EncoderInfo:
    """An Encoder's model, and the engine that runs it.

        >>> info = Encoder.load("mini", provider="cpu", compute="float32").info()
        >>> info.provider, info.dim, info.proof
        ('CPUExecutionProvider', 384, 'proved: cosine 1.00000 over 24 texts')

    `source` says what the bundle was exported from: a model on the hub as
    `organization/name@commit`, or a directory's name. `threads_alone` is how many cores compute a
    batch while nothing else runs. `tuned` says when `flowvec tune` measured the settings in use;
    None if they are the defaults or were all given. `proof` says how far the engine's vectors are
    from the bundle's reference vectors on this machine.
    """

    name: str
    path: str
    source: str
    dim: int
    max_length: int
    pooling: str
    transform: tuple[str, ...]
    normalised: bool
    similarity: str
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


class Encoder(TextModel):
    """A bundle loaded on an engine: texts in, vectors out.

    Any number of threads may share one Encoder. It can be pickled; the other process opens the
    bundle again. A forked child opens its own session at its first call. It must end as the
    children of multiprocessing do, by `os._exit`, because ONNX Runtime cannot be shut down in a
    child that was forked after its import. A stream that was started before a fork belongs to the
    parent.

        >>> encoder = Encoder.load("mini")
        >>> encoder.encode(["A man is eating.", "Someone is having a meal."]).shape
        (2, 384)
    """

    _kind = "embedder"

    @override
    def _open_tokenizer(self) -> Tokenizer:
        self._ranges: Floats | None = None  # read when they are first needed
        return super()._open_tokenizer()

    def info(self) -> EncoderInfo:
        """The model's figures, and the engine that runs it."""
        manifest = self._bundle.manifest
        engine = self._engine
        return EncoderInfo(
            name=manifest.name,
            path=str(self._bundle.path),
            source=self._bundle.manifest.source,
            dim=manifest.dim,
            max_length=manifest.max_length,
            pooling=manifest.pooling,
            transform=manifest.transform,
            normalised=manifest.normalised,
            similarity=manifest.similarity,
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

    @explaining(FOREIGN)
    def encode(
        self,
        texts: str | Iterable[str],
        *,
        prompt_name: str | None = None,
        normalize_embeddings: bool | None = None,
        precision: Precision = "float32",
        truncate_dim: int | None = None,
        max_batch_tokens: int | None = None,
        truncation: Truncation = "truncate",
        on_empty: OnEmpty = "encode",
        show_progress_bar: bool | None = None,
    ) -> npt.NDArray[Any]:
        """Embed texts.

        Args:
            texts: one text, or any iterable of texts.
            prompt_name: the bundle's prompt to put before each text. None is the bundle's default,
                usually no prompt; "" means no prompt.
            normalize_embeddings: L2-normalize the vectors; None does what the bundle says.
            precision: `float32`; `int8` or `uint8`, with 255 steps over each dimension's range. The
                ranges are the bundle's, so a text gives the same bytes alone and in a corpus. Or
                `binary` or `ubinary`: the signs, eight dimensions per byte.
            truncate_dim: keep the first dimensions only. Normalized vectors are normalized again,
                except in 8 bits, where the ranges are those of whole vectors.
            max_batch_tokens: replaces the Encoder's for this call, even if a stream then has no
                work.
            truncation: `truncate` cuts texts at max_length and counts them; `error` raises.
            on_empty: `encode` encodes empty texts as the model sees them; `error` raises.
            show_progress_bar: None shows one on a terminal for long calls.

        Returns:
            float32 (dim,) for one text; (n, dim) in input order for several; (0, dim) for none.
            int8 or uint8 with another precision; dim / 8, rounded up, for signs.

        Raises:
            InputTypeError: an item is not a str. The message names its index; nothing was computed.
            InputValueError: an argument is not valid, or the options refuse a text.
            NonFiniteError: the model gave NaN or infinity. The message names the rows.
        """
        job = self.job(
            prompt_name=prompt_name,
            normalize_embeddings=normalize_embeddings,
            max_batch_tokens=max_batch_tokens,
            truncation=truncation,
            precision=precision,
            truncate_dim=truncate_dim,
            on_empty=on_empty,
        )
        items, single = self.items(texts, on_empty)
        out = np.empty((len(items), job.postprocess.out_dim), dtype=job.postprocess.dtype)
        with call_bar("encode", len(items), "texts", show_progress_bar) as drawn:
            self._encode_into(out, items, job, drawn.update)
        return out[0] if single else out

    def _encode_into(
        self,
        out: npt.NDArray[Any],
        items: list[str],
        job: EncodeJob,
        done: Callable[[int], object] | None = None,
    ) -> None:
        filled = 0
        for part in self._pipeline.windows(windows_of(items), job, self._report, done):
            out[filled : filled + len(part.vectors)] = part.vectors
            filled += len(part.vectors)

    def stream(
        self,
        texts: Iterable[str],
        *,
        max_batch_tokens: int | None = None,
        **options: Unpack[EncodeOptions],
    ) -> Iterator[npt.NDArray[Any]]:
        """Embed an iterable of any length at constant memory.

        Reads a few thousand texts at a time and yields one vector per text, in order.

        Args:
            texts: any iterable of texts.
            max_batch_tokens: as for `encode`.
            **options: as for `encode`.

        Raises:
            As `encode`.
        """
        if isinstance(texts, str):
            raise InputTypeError("stream takes an iterable of texts; encode takes a single one")
        check_iterable(texts)
        job = self.job(max_batch_tokens=max_batch_tokens, **options)
        parts = windows_of(checked(texts, job.refuse_empty))
        windows = self._pipeline.windows(parts, job, self._report)
        return (vector for part in windows for vector in part.vectors)

    def encode_query(
        self, texts: str | Iterable[str], **options: Unpack[CallOptions]
    ) -> npt.NDArray[Any]:
        """Embed queries: `encode` with the bundle's prompt `query`, if it has one."""
        options.setdefault("prompt_name", self.query_prompt)
        return self.encode(texts, **options)

    def encode_document(
        self, texts: str | Iterable[str], **options: Unpack[CallOptions]
    ) -> npt.NDArray[Any]:
        """Embed documents: `encode` with the prompt `document`, `passage` or `corpus`."""
        options.setdefault("prompt_name", self.document_prompt)
        return self.encode(texts, **options)

    def similarity(self, a: npt.ArrayLike, b: npt.ArrayLike) -> Floats:
        """Similarity of every vector of a with every vector of b, by the bundle's measure.

        Args:
            a: float32 (n, dim) or (dim,).
            b: float32 (m, dim) or (dim,).

        Returns:
            float32 (n, m). Distances are negated, so that higher is more similar.
        """
        left, right = _numbers("a", a), _numbers("b", b)
        if left.ndim != 2 or right.ndim != 2 or left.shape[1] != right.shape[1]:
            raise InputValueError(f"cannot compare vectors of shape {left.shape} and {right.shape}")
        kind = self._bundle.manifest.similarity
        if kind == "cosine":
            left, right = normalize(left), normalize(right)
        if kind in ("cosine", "dot"):
            return cast(Floats, left @ right.T)
        order = 1 if kind == "manhattan" else 2
        out = np.empty((len(left), len(right)), dtype=np.float32)
        for i, row in enumerate(left):
            out[i] = -np.linalg.norm(right - row, ord=order, axis=1)
        return out

    def warmup(self) -> Self:
        """Run batches of a few lengths, so that later calls do not pay for first-time work."""
        words = ["warm"] * self.max_length
        lengths = {2, 8, 16, 32, 64, 128, self.max_length}
        self.encode([" ".join(words[:n]) for n in sorted(lengths) if n <= self.max_length])
        return self

    # --- building blocks ------------------------------------------------------------------------

    def split_texts(
        self,
        texts: str | Iterable[str],
        *,
        max_tokens: int | None = None,
        overlap: int = 0,
        by: SplitBy = "sentence",
    ) -> list[Chunk]:
        """Split texts into chunks that `encode_document` reads whole.

        Every character that is not white space is in a chunk; a text of white space has none. A
        sentence that does not fit into a chunk is divided between words, and a word that does not
        fit between tokens.

            >>> encoder = Encoder.load("mini")
            >>> chunks = encoder.split_texts(["One. Two. Three. Four.", "Five."], max_tokens=6)
            >>> [(chunk.parent, chunk.text) for chunk in chunks]
            [(0, 'One. Two.'), (0, 'Three. Four.'), (1, 'Five.')]

        Args:
            texts: one text, or any iterable of texts.
            max_tokens: most tokens of a chunk, special tokens and the document prompt included;
                None is `max_length`. Smaller chunks find passages more exactly, and say less each.
            overlap: a chunk repeats up to this many tokens of the one before: whole sentences, or
                words. 0 repeats nothing.
            by: what chunks are made of: `sentence`, or `word`, which fills them better.

        Returns:
            The chunks of all texts, in order.

        Raises:
            InputTypeError, InputValueError: an argument is not valid.
        """
        items, _ = self.items(texts)
        prompt = self.job(self.document_prompt).prompt
        return split_texts(
            items, self._tokenizer, prompt, max_tokens=max_tokens, overlap=overlap, by=by
        )

    def windows(
        self,
        parts: Iterable[Sequence[str]],
        job: EncodeJob,
        stop: threading.Event | None = None,
        *,
        done: Callable[[int], object] | None = None,
    ) -> Generator[Encoded, None, None]:
        """Encode one window of texts after another, at constant memory.

        Each window is sorted and batched by itself, so its vectors depend on nothing else. The next
        window is tokenized meanwhile. A window may be empty.

        Args:
            parts: windows of texts.
            job: options, as `job` returns them.
            stop: set it to end the windows as soon as the running batches are done.
            done: called with the number of texts after each batch.

        Raises:
            InputTypeError: an item is not a str; earlier windows have been yielded.
            InputValueError, NonFiniteError: the job refuses a text.
        """
        return self._pipeline.windows(_checked_windows(parts), job, self._report, done, stop)

    @explaining(FOREIGN)
    def job(
        self,
        prompt_name: str | None = None,
        normalize_embeddings: bool | None = None,
        max_batch_tokens: int | None = None,
        truncation: Truncation = "truncate",
        precision: Precision = "float32",
        truncate_dim: int | None = None,
        on_empty: OnEmpty = "encode",
    ) -> EncodeJob:
        """Check a call's options, before any text is touched; arguments are those of `encode`.

        Raises:
            InputTypeError, InputValueError: an option is not valid, or the bundle does not support
                it.
            ClosedError: after `close`.
        """
        self._pipeline.ready()
        tokens = self._max_batch_tokens if max_batch_tokens is None else max_batch_tokens
        return check_options(
            self._bundle.manifest,
            self._read_ranges,
            prompt_name=prompt_name,
            normalize_embeddings=normalize_embeddings,
            precision=precision,
            truncate_dim=truncate_dim,
            truncation=truncation,
            on_empty=on_empty,
            max_batch_tokens=tokens,
            fills_streams=max_batch_tokens is None,
        )

    def _read_ranges(self) -> Floats:
        if self._ranges is None:
            self._ranges = self._bundle.ranges()
        return self._ranges

    def __repr__(self) -> str:
        manifest = self._bundle.manifest
        return f"Encoder({manifest.name!r}, dim={manifest.dim}, {self._engine.provider})"


def _checked_windows(parts: Iterable[Sequence[str]]) -> Iterator[Sequence[str]]:
    first = 0
    for part in parts:
        check_texts(part, first)
        first += len(part)
        yield part


def _numbers(name: str, vectors: npt.ArrayLike) -> Floats:
    """Vectors float32 (rows, dim)."""
    try:
        rows = np.asarray(vectors)
        if rows.dtype.kind != "U":  # numpy would turn the text "1" into a number
            return np.atleast_2d(rows.astype(np.float32, copy=False))
    except (TypeError, ValueError, OverflowError) as error:
        raise InputTypeError(f"{name} must be vectors of numbers: {first_line(error)}") from None
    raise InputTypeError(f"{name} must be vectors, not texts: encode them first")
