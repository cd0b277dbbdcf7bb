"""Encoder: texts in, vectors out."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Unpack, cast, get_args

import numpy as np
import numpy.typing as npt
from tqdm import tqdm

from flowvec.arguments import choice, flag
from flowvec.bundle.bundle import Bundle
from flowvec.bundle.manifest import RANGES, FileRecord
from flowvec.encoder.batching import Batch, check_batches
from flowvec.encoder.jobs import Encoded, EncodeJob, EncodeStatistics
from flowvec.encoder.loading import EngineRequest
from flowvec.encoder.options import (
    CallOptions,
    EncodeOptions,
    OnEmpty,
    Truncation,
    check_options,
    document_prompt,
    query_prompt,
)
from flowvec.encoder.pipeline import Pipeline, refuse_non_finite, windows_of
from flowvec.encoder.postprocess import Precision, non_finite_rows, normalize
from flowvec.encoder.proof import Proof, ProofMode
from flowvec.engine.onnxruntime_session import runtime_version
from flowvec.engine.providers import Compute, Device, Engine, default_max_batch_tokens
from flowvec.engine.selection import choose_engine
from flowvec.errors import (
    BundleError,
    EngineNotProvedError,
    InputTypeError,
    InputValueError,
    first_line,
)
from flowvec.sequences import refuse_lookalike
from flowvec.texts.window import WINDOW
from flowvec.tokenizer.token_ids import TokenIds
from flowvec.tokenizer.tokenizer import Tokenized, check_texts

__all__ = ["Encoder", "EncoderInfo"]

logger = logging.getLogger(__name__)

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class EncoderInfo:
    """An Encoder's model, and the engine that runs it.

        >>> info = Encoder.load("mini", provider="cpu", compute="float32").info()
        >>> info.provider, info.dim, info.proof
        ('CPUExecutionProvider', 384, 'proved: cosine 1.00000 over 24 texts')

    `threads_alone` is how many cores compute a batch while nothing else runs. `tuned` says when
    `flowvec tune` measured the settings in use; None if they are the defaults or
    were all given. `proof` says how far the engine's vectors are from the bundle's reference
    vectors on this machine.
    """

    name: str
    path: str
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


class Encoder:
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

    def __init__(
        self,
        bundle: Bundle,
        engine: Engine,
        *,
        max_batch_tokens: int | None = None,
        tuned: str | None = None,
        on_statistics: Callable[[EncodeStatistics], None] | None = None,
        proof: ProofMode = "cached",
        request: EngineRequest | None = None,
    ) -> None:
        """Open a verified bundle on a chosen engine; `Encoder.load` does both by name.

        `request` is what the engine was chosen by, for `with_compute`.
        """
        choice("proof", proof, get_args(ProofMode))
        self._proof_mode: ProofMode = proof
        self._bundle = bundle
        self._engine = engine
        self.max_batch_tokens = (
            default_max_batch_tokens(engine, bundle.manifest.layers)
            if max_batch_tokens is None
            else max_batch_tokens
        )
        self._tuned = tuned
        self._on_statistics = on_statistics
        self._request = request
        self._ranges: Floats | None = None  # read when they are first needed
        # Streams and threads that the caller named stay as they are.
        is_elastic = request is not None and request.streams is None and request.threads is None
        self._pipeline = Pipeline(bundle, engine, proof, is_elastic=is_elastic)

    @classmethod
    def load(
        cls,
        name_or_dir: str | Path,
        *,
        device: Device = "auto",
        provider: str | None = None,
        compute: Compute = "auto",
        streams: int | None = None,
        threads: int | None = None,
        max_batch_tokens: int | None = None,
        on_statistics: Callable[[EncodeStatistics], None] | None = None,
        proof: ProofMode = "cached",
    ) -> Encoder:
        """Load a bundle on an engine that gives correct vectors on this machine.

        The first time that an engine is used on this machine, it is compared with the bundle's
        reference vectors (see `flowvec.encoder.proof`). If it is wrong, an engine that was asked
        for by name is refused; with `auto` another one is used, with a warning.

        Args:
            name_or_dir: a model that ships with flowvec (`mini`), or a bundle's directory.
            device: `cpu`, `cuda`, or `auto`: a GPU if one can be used.
            provider: `cpu`, `openvino`, `cuda`, `tensorrt` or a full name. None is the best that
                can run (see `flowvec.engine.selection.choose_engine`).
            compute: `float32`; `bfloat16` on OpenVINO; `float16` on a GPU and `int8` on ONNX
                Runtime's CPU provider and on OpenVINO itself, if the bundle has that variant.
                `auto` is bfloat16 if provider and processor support it, float16 on a GPU, else
                float32. Without a provider, the best one that supports the compute type is
                used.
            streams: batches that are computed at the same time. None is what `flowvec tune` found,
                else as many as the available cores allow.
            threads: cores that compute one batch. None is what `flowvec tune` found (if streams is
                None too), else 1. One stream with all cores has the lowest latency for one text at
                a time. Not on a GPU.
            max_batch_tokens: most padded tokens in a batch. None is what `flowvec tune` found, else
                512 on CPU (2,048 for a model without layers, such as mini) and 16,384 on a GPU. A
                larger one can be faster for many short texts; a smaller one limits memory. A call
                with few texts uses smaller batches, so that every stream has work.
            on_statistics: called with an `EncodeStatistics` after every call. It is not pickled.
            proof: `cached` compares an engine with the reference vectors once per machine, which
                takes a fraction of a second; `always` compares it at every load; `never` trusts
                the engine.

        Raises:
            BundleError: there is no such bundle, or it is damaged.
            ProviderUnavailableError: the provider or compute type cannot run on this machine, or
                gives wrong vectors on it.
            InputValueError: an argument is not valid.
            MissingDependencyError: ONNX Runtime is not installed.
        """
        choice("proof", proof, get_args(ProofMode))
        if on_statistics is not None and not callable(on_statistics):
            raise InputTypeError(
                f"on_statistics must be a function, not {type(on_statistics).__name__}"
            )
        request = EngineRequest(device, provider, compute, streams, threads, max_batch_tokens)
        return cls._chosen(Bundle.load(name_or_dir), request, on_statistics, proof)

    @classmethod
    def _chosen(
        cls,
        bundle: Bundle,
        request: EngineRequest,
        on_statistics: Callable[[EncodeStatistics], None] | None,
        proof: ProofMode,
    ) -> Encoder:
        """Open a bundle on the best engine that fits a request and gives correct vectors."""
        refused: list[EngineNotProvedError] = []
        while True:
            chosen = request.choose(bundle, refused)
            try:
                encoder = cls(
                    bundle,
                    chosen.engine,
                    max_batch_tokens=chosen.max_batch_tokens,
                    tuned=chosen.tuned,
                    on_statistics=on_statistics,
                    proof=proof,
                    request=request,
                )
            except EngineNotProvedError as error:
                refused.append(error)
            else:
                break
        if refused:
            logger.warning(
                "%s in %s is used instead: %s",
                chosen.engine.provider,
                chosen.engine.compute,
                "; ".join(map(str, refused)),
            )
        return encoder

    @property
    def compute_is_open(self) -> bool:
        """Whether `load` chose the compute type, because the caller did not name one."""
        return self._request is not None and self._request.compute == "auto"

    def with_compute(self, compute: Compute) -> Encoder:
        """The same model in another compute type, as a second Encoder.

        The other settings of `load` are kept. Close both.

            >>> exact = Encoder.load("mini").with_compute("float32")
            >>> exact.engine.compute
            'float32'

        Raises:
            As `load`.
        """
        request = self._request
        if request is None:
            engine = self._engine
            request = EngineRequest(
                provider=engine.provider, streams=engine.streams, threads=engine.threads
            )
        return self._chosen(
            self._bundle,
            replace(request, compute=compute),
            self._on_statistics,
            self._proof_mode,
        )

    # --- what it is -----------------------------------------------------------------------------

    @property
    def dim(self) -> int:
        """Length of a vector."""
        return self._bundle.manifest.dim

    @property
    def max_length(self) -> int:
        """Most tokens in a text, special tokens included; longer texts are cut."""
        return self._bundle.manifest.max_length

    @property
    def fingerprint(self) -> str:
        """SHA-256 of everything that decides a float32 vector.

        Equal fingerprints mean equal vectors. Variants and 8-bit ranges are not part of it.
        """
        return self._bundle.fingerprint

    @property
    def bundle(self) -> Bundle:
        """The bundle that this Encoder serves."""
        return self._bundle

    @property
    def engine(self) -> Engine:
        """Provider, compute type and streams that run."""
        return self._engine

    @property
    def max_batch_tokens(self) -> int:
        """Most padded tokens in a batch. It can be set, and applies to later calls.

        Raises:
            InputValueError: it is set to less than 1.
        """
        return self._max_batch_tokens

    @max_batch_tokens.setter
    def max_batch_tokens(self, budget: int) -> None:
        if budget < 1:
            raise InputValueError(f"max_batch_tokens must be at least 1, but is {budget}")
        self._max_batch_tokens = budget

    @property
    def proof(self) -> Proof:
        """How far the engine is from the bundle's reference vectors on this machine."""
        return self._pipeline.proof

    def info(self) -> EncoderInfo:
        """The model's figures, and the engine that runs it."""
        manifest = self._bundle.manifest
        engine = self._engine
        return EncoderInfo(
            name=manifest.name,
            path=str(self._bundle.path),
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
        if show_progress_bar is not None:
            flag("show_progress_bar", show_progress_bar)
        if not _wants_bar(show_progress_bar, len(items)):
            self._encode_into(out, items, job)
        else:
            with tqdm(total=len(items), desc="encode", unit=" texts") as bar:
                self._encode_into(out, items, job, bar.update)
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
        _check_iterable(texts)
        job = self.job(max_batch_tokens=max_batch_tokens, **options)
        parts = windows_of(_checked(texts, job.refuse_empty))
        windows = self._pipeline.windows(parts, job, self._report)
        return (vector for part in windows for vector in part.vectors)

    def encode_query(
        self, texts: str | Iterable[str], **options: Unpack[CallOptions]
    ) -> npt.NDArray[Any]:
        """Embed queries: `encode` with the bundle's prompt `query`, if it has one."""
        options.setdefault("prompt_name", query_prompt(self._bundle.manifest))
        return self.encode(texts, **options)

    def encode_document(
        self, texts: str | Iterable[str], **options: Unpack[CallOptions]
    ) -> npt.NDArray[Any]:
        """Embed documents: `encode` with the prompt `document`, `passage` or `corpus`."""
        options.setdefault("prompt_name", self.document_prompt)
        return self.encode(texts, **options)

    @property
    def document_prompt(self) -> str | None:
        """Name of the prompt that `encode_document` uses; "" if the bundle has none."""
        return document_prompt(self._bundle.manifest)

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

    def warmup(self) -> Encoder:
        """Run batches of a few lengths, so that later calls do not pay for first-time work."""
        words = ["warm"] * self.max_length
        lengths = {2, 8, 16, 32, 64, 128, self.max_length}
        self.encode([" ".join(words[:n]) for n in sorted(lengths) if n <= self.max_length])
        return self

    # --- building blocks ------------------------------------------------------------------------

    def tokenize(self, texts: str | Iterable[str]) -> Tokenized:
        """Token ids of each text, cut at max_length: the first step of `encode`."""
        items, _ = self.items(texts)
        return self._pipeline.tokenizer(items)

    def run(
        self,
        ids: Tokenized | TokenIds | Sequence[Sequence[int] | npt.NDArray[np.int32]],
        batches: Sequence[Batch],
        *,
        alone: bool = True,
    ) -> Floats:
        """Run given batches: the last step of `encode`, for benchmarks that plan their own batches.

        Args:
            ids: token ids of each text, as `tokenize` returns them, or a sequence for each text.
            batches: batches that hold each text once (`flowvec.encoder.batching`).
            alone: whether nothing else waits, so that a single batch may take all cores.

        Returns:
            The graph's output, float32 (len(ids), dim), in the order of `ids`.

        Raises:
            InputTypeError, InputValueError: ids are not whole numbers from 0 to 2**31 - 1, or the
                batches do not hold each text once, or one is too short for its texts.
            NonFiniteError: the model gave NaN or infinity.
        """
        if isinstance(ids, Tokenized):
            ids = ids.token_ids
        elif not isinstance(ids, TokenIds):
            ids = TokenIds.from_rows(ids)
        check_batches(batches, ids.lengths)
        out = np.empty((len(ids), self.dim), dtype=np.float32)
        self._pipeline.run(ids, batches, out, alone=alone)
        refuse_non_finite(non_finite_rows(out).tolist())
        return out

    def windows(
        self,
        parts: Iterable[Sequence[str]],
        job: EncodeJob,
        stop: threading.Event | None = None,
    ) -> Generator[Encoded, None, None]:
        """Encode one window of texts after another, at constant memory.

        Each window is sorted and batched by itself, so its vectors depend on nothing else. The next
        window is tokenized meanwhile. A window may be empty.

        Args:
            parts: windows of texts.
            job: options, as `job` returns them.
            stop: set it to end the windows as soon as the running batches are done.

        Raises:
            InputTypeError: an item is not a str; earlier windows have been yielded.
            InputValueError, NonFiniteError: the job refuses a text.
        """
        return self._pipeline.windows(_checked_windows(parts), job, self._report, stop=stop)

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

    def items(
        self, texts: str | Iterable[str], on_empty: OnEmpty = "encode"
    ) -> tuple[list[str], bool]:
        """A call's texts as a checked list, and whether it was a single text.

        Raises:
            InputTypeError: an item is not a str.
            InputValueError: an item is empty, and `on_empty` is `error`.
        """
        refuse_empty = choice("on_empty", on_empty, get_args(OnEmpty)) == "error"
        single = isinstance(texts, str)
        items = [cast(str, texts)] if single else _as_list(texts)
        check_texts(items, refuse_empty=refuse_empty)
        return items, single

    def _report(self, statistics: EncodeStatistics) -> None:
        if self._on_statistics is not None:
            self._on_statistics(statistics)

    # --- life -----------------------------------------------------------------------------------

    def close(self) -> None:
        """Stop the worker threads and release the model; calling it twice is harmless."""
        self._pipeline.close()

    def __enter__(self) -> Encoder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        manifest = self._bundle.manifest
        return f"Encoder({manifest.name!r}, dim={manifest.dim}, {self._engine.provider})"

    def __getstate__(self) -> dict[str, Any]:
        return {
            "path": self._bundle.path,
            "fingerprint": self.fingerprint,
            "files": self._files(self._bundle, self._engine),
            "engine": self._engine,
            "max_batch_tokens": self._max_batch_tokens,
            "tuned": self._tuned,
            "proof": self._proof_mode,
            "request": self._request,
            "closed": self._pipeline.closed,
        }

    @staticmethod
    def _files(bundle: Bundle, engine: Engine) -> list[FileRecord | None]:
        """Files that decide a vector besides the fingerprint: graph of the variant, ranges."""
        names = (bundle.graph(engine.variant).name, RANGES)
        return [bundle.manifest.files.get(name) for name in names]

    def __setstate__(self, state: dict[str, Any]) -> None:
        bundle = Bundle.load(state["path"])
        engine: Engine = state["engine"]
        same = bundle.fingerprint == state["fingerprint"]
        if not (same and self._files(bundle, engine) == state["files"]):
            raise BundleError(f"{bundle.path} has changed since this Encoder was pickled")
        # The other machine must offer the same engine: vectors must not change on the way.
        choose_engine(
            engine.provider,
            cast(Compute, engine.compute),
            engine.streams,
            engine.threads,
            variants=bundle.variants,
        )
        self.__init__(  # type: ignore[misc]
            bundle,
            engine,
            max_batch_tokens=state["max_batch_tokens"],
            tuned=state["tuned"],
            proof=state["proof"],
            request=state["request"],
        )
        if state["closed"]:
            self.close()


def _as_list(texts: object) -> list[Any]:
    return list(_check_iterable(texts))


def _check_iterable(texts: object) -> Iterable[Any]:
    """Refuse what is not an iterable of texts in order."""
    refuse_lookalike("texts", texts)
    if isinstance(texts, bytes | bytearray) or not isinstance(texts, Iterable):
        raise InputTypeError(
            f"texts must be a str or an iterable of str, not {type(texts).__name__}"
        )
    return texts


def _checked(texts: Iterable[str], refuse_empty: bool) -> Iterator[str]:
    """Check each text of a stream as it is taken."""
    for i, text in enumerate(texts):
        check_texts((text,), i, refuse_empty=refuse_empty)
        yield text


def _checked_windows(parts: Iterable[Sequence[str]]) -> Iterator[Sequence[str]]:
    first = 0
    for part in parts:
        check_texts(part, first)
        first += len(part)
        yield part


def _numbers(name: str, vectors: npt.ArrayLike) -> Floats:
    """Vectors float32 (rows, dim)."""
    try:
        return np.atleast_2d(np.asarray(vectors, dtype=np.float32))
    except (TypeError, ValueError, OverflowError) as error:
        raise InputTypeError(f"{name} must be vectors of numbers: {first_line(error)}") from None


def _wants_bar(setting: bool | None, texts: int) -> bool:
    """Without being asked: a bar on a terminal, for work of more than a moment."""
    return sys.stderr.isatty() and texts > WINDOW if setting is None else setting
