"""Encoder: texts in, vectors out."""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import numpy.typing as npt
from tqdm import tqdm

from flowvec.batching import Batch, pad, padded_tokens, plan
from flowvec.bundle import Bundle
from flowvec.errors import (
    BundleError,
    ClosedError,
    InputTypeError,
    InputValueError,
    NonFiniteError,
)
from flowvec.postprocess import non_finite_rows, normalize
from flowvec.session import Compute, Engine, Session, choose_engine, runtime_version
from flowvec.tokenizer import Tokenized, Tokenizer, check_texts

__all__ = ["EncodeStatistics", "Encoder", "EncoderInfo"]

logger = logging.getLogger("flowvec.encoder")

Floats = npt.NDArray[np.float32]
Truncation = Literal["truncate", "error"]
OnEmpty = Literal["encode", "error"]

# Padded tokens a batch: on CPU small batches stay in the cache, and larger ones get slower.
DEFAULT_MAX_BATCH_TOKENS = 1024
# Texts tokenized, sorted and computed together: enough for tight batches, little to hold.
WINDOW = 4096
_DOCUMENT_PROMPTS = ("document", "passage", "corpus")


@dataclass(frozen=True, slots=True)
class EncodeStatistics:
    """What one call of `encode`, or one exhausted `stream`, did.

    Attributes:
        texts: texts encoded.
        tokens: their tokens after truncation, special tokens included.
        padding: share of the computed tokens that was padding, 0 to 1.
        truncated: texts cut at max_length.
        replaced: texts in which lone surrogates became U+FFFD.
        batches: runs of the graph.
        seconds: wall time of the call.
        tokenize_seconds: time spent tokenizing (it overlaps with the graph's).
        session_seconds: time spent inside the graph, added up over the streams.
    """

    texts: int
    tokens: int
    padding: float
    truncated: int
    replaced: int
    batches: int
    seconds: float
    tokenize_seconds: float
    session_seconds: float


@dataclass(frozen=True, slots=True)
class EncoderInfo:
    """What an Encoder is and what really runs it."""

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
    max_batch_tokens: int
    onnxruntime: str | None


@dataclass(slots=True)
class _Tally:
    """Counts of a running call, gathered on the caller's thread alone."""

    texts: int = 0
    tokens: int = 0
    padded: int = 0
    truncated: int = 0
    replaced: int = 0
    batches: int = 0
    tokenize_seconds: float = 0.0
    session_seconds: float = 0.0

    def finish(self, seconds: float) -> EncodeStatistics:
        padding = 1.0 - self.tokens / self.padded if self.padded else 0.0
        return EncodeStatistics(
            self.texts,
            self.tokens,
            padding,
            self.truncated,
            self.replaced,
            self.batches,
            seconds,
            self.tokenize_seconds,
            self.session_seconds,
        )


class Encoder:
    """A bundle loaded on an engine.

    Any number of threads may call one Encoder. It pickles, and opens its bundle again in the other
    process; a forked child opens its own session at its first call.

        >>> encoder = Encoder.load("mini")
        >>> encoder.encode(["A man is eating.", "Someone is having a meal."]).shape
        (2, 256)
    """

    def __init__(
        self,
        bundle: Bundle,
        engine: Engine,
        *,
        max_batch_tokens: int = DEFAULT_MAX_BATCH_TOKENS,
        on_statistics: Callable[[EncodeStatistics], None] | None = None,
    ) -> None:
        """Open a verified bundle on a chosen engine; `Encoder.load` does both by name."""
        if max_batch_tokens < 1:
            raise InputValueError(f"max_batch_tokens must be at least 1, but is {max_batch_tokens}")
        self._bundle = bundle
        self._engine = engine
        self._max_batch_tokens = max_batch_tokens
        self._on_statistics = on_statistics
        self._tokenizer = Tokenizer(bundle.tokenizer, bundle.manifest.max_length)
        self._closed = False
        self._open()

    @classmethod
    def load(
        cls,
        name_or_dir: str | Path,
        *,
        provider: str | None = None,
        compute: Compute = "auto",
        streams: int | None = None,
        max_batch_tokens: int = DEFAULT_MAX_BATCH_TOKENS,
        on_statistics: Callable[[EncodeStatistics], None] | None = None,
    ) -> Encoder:
        """Load a bundle.

        Args:
            name_or_dir: a model that ships with flowvec (`mini`) or a bundle's directory.
            provider: `cpu`, `openvino` or ONNX Runtime's full name of either; None takes the
                OpenVINO plugin where it can run, else the CPU provider. What is asked for is what
                runs.
            compute: `float32`, `bfloat16`, or `auto`: bfloat16 where provider and processor have
                it.
            streams: batches computed at the same time; None takes one for each core that this
                process may use.
            max_batch_tokens: the most padded tokens in a batch. Larger helps many short texts on
                large caches; smaller bounds memory.
            on_statistics: called with an `EncodeStatistics` after every call; it does not travel
                with a pickled Encoder.

        Raises:
            BundleError: there is no such bundle, or it is damaged.
            ProviderUnavailableError: the provider or compute type cannot run here.
            MissingDependencyError: ONNX Runtime is not installed.
        """
        return cls(
            Bundle.load(name_or_dir),
            choose_engine(provider, compute, streams),
            max_batch_tokens=max_batch_tokens,
            on_statistics=on_statistics,
        )

    # --- what it is -----------------------------------------------------------------------------

    @property
    def dim(self) -> int:
        """Length of a vector."""
        return self._bundle.manifest.dim

    @property
    def max_length(self) -> int:
        """The most tokens of a text, special tokens counted."""
        return self._bundle.manifest.max_length

    @property
    def fingerprint(self) -> str:
        """SHA-256 of all that decides a vector: equal fingerprints give equal vectors."""
        return self._bundle.fingerprint

    @property
    def bundle(self) -> Bundle:
        """The bundle that this Encoder serves."""
        return self._bundle

    @property
    def engine(self) -> Engine:
        """Provider, compute type and streams that run."""
        return self._session.engine

    def info(self) -> EncoderInfo:
        """The model's figures and what really runs it."""
        manifest = self._bundle.manifest
        engine = self._session.engine
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
            max_batch_tokens=self._max_batch_tokens,
            onnxruntime=runtime_version(),
        )

    # --- encoding -------------------------------------------------------------------------------

    def encode(
        self,
        texts: str | Iterable[str],
        *,
        prompt_name: str | None = None,
        normalize_embeddings: bool | None = None,
        max_batch_tokens: int | None = None,
        truncation: Truncation = "truncate",
        on_empty: OnEmpty = "encode",
        show_progress_bar: bool | None = None,
    ) -> Floats:
        """Embed texts.

        Args:
            texts: one text, or any iterable of texts.
            prompt_name: which of the bundle's prompts to put before each text; None takes the
                bundle's default, mostly none.
            normalize_embeddings: L2-normalise the vectors; None does as the bundle says.
            max_batch_tokens: overrides the Encoder's budget for this call.
            truncation: cut texts at max_length (and count them), or raise at the first.
            on_empty: encode empty texts as the model sees them, or raise.
            show_progress_bar: None shows one on a terminal for long work.

        Returns:
            float32 (dim,) for one text; (n, dim) in input order for several; (0, dim) for none.

        Raises:
            InputTypeError: an item is no str; the message names its index. Nothing was computed.
            InputValueError: an argument cannot be served, or a text is refused by the options.
            NonFiniteError: the model gave NaN or infinity; the message names the rows.
        """
        single = isinstance(texts, str)
        items = [cast(str, texts)] if single else _as_list(texts)
        check_texts(items, refuse_empty=_checked_choice("on_empty", on_empty, OnEmpty) == "error")
        out = np.empty((len(items), self.dim), dtype=np.float32)
        bar = tqdm(
            total=len(items),
            desc="encode",
            unit=" texts",
            disable=not _wants_bar(show_progress_bar, len(items)),
        )
        with bar:
            filled = 0
            for vectors in self._windows(
                iter(items),
                prompt_name,
                normalize_embeddings,
                max_batch_tokens,
                truncation,
                bar.update,
            ):
                out[filled : filled + len(vectors)] = vectors
                filled += len(vectors)
        return out[0] if single else out

    def stream(
        self,
        texts: Iterable[str],
        *,
        prompt_name: str | None = None,
        normalize_embeddings: bool | None = None,
        max_batch_tokens: int | None = None,
        truncation: Truncation = "truncate",
        on_empty: OnEmpty = "encode",
    ) -> Iterator[Floats]:
        """Embed an iterable of any length at constant memory.

        Texts are taken a window of a few thousand at a time and vectors yielded in input order,
        one float32 (dim,) for each. Arguments and errors are `encode`'s.
        """
        if isinstance(texts, str):
            raise InputTypeError("stream takes an iterable of texts; encode takes a single one")
        refuse_empty = _checked_choice("on_empty", on_empty, OnEmpty) == "error"
        windows = self._windows(
            _checked(texts, refuse_empty),
            prompt_name,
            normalize_embeddings,
            max_batch_tokens,
            truncation,
        )
        return (vector for vectors in windows for vector in vectors)

    def encode_query(self, texts: str | Iterable[str], **options: Any) -> Floats:
        """Embed queries: `encode` with the bundle's prompt `query`, where it has one."""
        options.setdefault("prompt_name", self._first_prompt(("query",)))
        return self.encode(texts, **options)

    def encode_document(self, texts: str | Iterable[str], **options: Any) -> Floats:
        """Embed documents: `encode` with the prompt `document`, `passage` or `corpus`."""
        options.setdefault("prompt_name", self._first_prompt(_DOCUMENT_PROMPTS))
        return self.encode(texts, **options)

    def similarity(self, a: npt.ArrayLike, b: npt.ArrayLike) -> Floats:
        """Similarity of every vector of a with every one of b, as the bundle says (cosine mostly).

        Args:
            a: float32 (n, dim) or (dim,).
            b: float32 (m, dim) or (dim,).

        Returns:
            float32 (n, m); distances are negated, so that higher is more alike.
        """
        left = np.atleast_2d(np.asarray(a, dtype=np.float32))
        right = np.atleast_2d(np.asarray(b, dtype=np.float32))
        if left.ndim != 2 or right.ndim != 2 or left.shape[1] != right.shape[1]:
            raise InputValueError(
                f"cannot compare vectors of shape {left.shape} and {right.shape}"
            )
        kind = self._bundle.manifest.similarity
        if kind == "cosine":
            left, right = normalize(left), normalize(right)
        if kind in ("cosine", "dot"):
            return cast(Floats, left @ right.T)
        order = 1 if kind == "manhattan" else 2
        return np.stack([-np.linalg.norm(right - row, ord=order, axis=1) for row in left])

    def warmup(self) -> Encoder:
        """Run batches of a few lengths, so that no later call pays for a first time."""
        words = ["warm"] * self.max_length
        lengths = {2, 8, 16, 32, 64, 128, self.max_length}
        self.encode([" ".join(words[:n]) for n in sorted(lengths) if n <= self.max_length])
        return self

    # --- building blocks ------------------------------------------------------------------------

    def tokenize(self, texts: Sequence[str]) -> Tokenized:
        """Token ids of each text, cut at max_length: the first step of `encode`."""
        check_texts(texts)
        return self._tokenizer(texts)

    def run(self, ids: Sequence[Sequence[int]], batches: Sequence[Batch]) -> Floats:
        """Run a plan: the last step of `encode`, for a benchmark that makes its own batches.

        Args:
            ids: token ids of each text.
            batches: batches whose rows together are each text once (`flowvec.batching`).

        Returns:
            The graph's output, float32 (len(ids), dim), in the order of `ids`.

        Raises:
            NonFiniteError: the model gave NaN or infinity.
        """
        out = np.empty((len(ids), self.dim), dtype=np.float32)
        self._run(ids, batches, out)
        return out

    def _run(
        self,
        ids: Sequence[Sequence[int]],
        batches: Sequence[Batch],
        out: Floats,
        first: int = 0,
        done: Callable[[int], object] | None = None,
    ) -> float:
        """Run batches into `out`; returns the seconds inside the graph, summed over streams."""
        session, workers = self._ready()
        pad_id = self._bundle.manifest.pad_id

        def compute(batch: Batch) -> float:
            feeds = pad(ids, batch, pad_id)
            begun = time.perf_counter()
            out[list(batch.rows)] = session.run(*feeds)
            return time.perf_counter() - begun

        if len(batches) == 1 or self._engine.streams == 1:
            # A single batch runs here: handing it to another thread would only cost time.
            seconds = 0.0
            for batch in batches:
                seconds += compute(batch)
                if done is not None:
                    done(len(batch.rows))
        else:
            futures = [workers.submit(compute, batch) for batch in batches]
            seconds = _collect(futures, batches, done)
        bad = non_finite_rows(out)
        if len(bad):
            rows = ", ".join(str(first + int(row)) for row in bad[:5])
            more = f" and {len(bad) - 5} more" if len(bad) > 5 else ""
            raise NonFiniteError(f"the model gave NaN or infinity for item {rows}{more}")
        return seconds

    def _windows(
        self,
        texts: Iterator[str],
        prompt_name: str | None,
        normalize_embeddings: bool | None,
        max_batch_tokens: int | None,
        truncation: Truncation,
        done: Callable[[int], object] | None = None,
    ) -> Iterator[Floats]:
        """Vectors of one window of texts after another, the next one tokenized meanwhile."""
        self._ready()
        prompt = self._prompt(prompt_name)
        must_normalize = self._must_normalize(normalize_embeddings)
        _checked_choice("truncation", truncation, Truncation)
        budget = self._max_batch_tokens if max_batch_tokens is None else max_batch_tokens
        if budget < 1:
            raise InputValueError(f"max_batch_tokens must be at least 1, but is {budget}")
        return self._generate(texts, prompt, must_normalize, budget, truncation, done)

    def _generate(
        self,
        texts: Iterator[str],
        prompt: str,
        must_normalize: bool,
        budget: int,
        truncation: Truncation,
        done: Callable[[int], object] | None,
    ) -> Iterator[Floats]:
        begun = time.perf_counter()
        tally = _Tally()

        def tokenize(window: list[str]) -> tuple[Tokenized, float]:
            start = time.perf_counter()
            tokenized = self._tokenizer([prompt + text for text in window] if prompt else window)
            return tokenized, time.perf_counter() - start

        # The first window is tokenized here; so a call of one window costs no thread.
        window = list(islice(texts, WINDOW))
        ready = tokenize(window) if window else None
        with ThreadPoolExecutor(1, thread_name_prefix="flowvec-tokenize") as ahead:
            while ready is not None:
                tokenized, seconds = ready
                following = list(islice(texts, WINDOW)) if len(window) == WINDOW else []
                future = ahead.submit(tokenize, following) if following else None
                if truncation == "error" and tokenized.truncated:
                    raise InputValueError(
                        f"item {tally.texts + tokenized.truncated[0]} has more than "
                        f"{self.max_length} tokens, and truncation is 'error'"
                    )
                vectors = self._compute_window(tokenized, budget, tally, done)
                tally.tokenize_seconds += seconds
                yield normalize(vectors) if must_normalize else vectors
                window, ready = following, future.result() if future else None
        statistics = tally.finish(time.perf_counter() - begun)
        logger.debug("%s", statistics)
        if self._on_statistics is not None:
            self._on_statistics(statistics)

    def _compute_window(
        self,
        tokenized: Tokenized,
        budget: int,
        tally: _Tally,
        done: Callable[[int], object] | None,
    ) -> Floats:
        lengths = tokenized.lengths
        batches = plan(lengths, budget, self.max_length)
        vectors = np.empty((len(lengths), self.dim), dtype=np.float32)
        tally.session_seconds += self._run(tokenized.ids, batches, vectors, tally.texts, done)
        tally.texts += len(lengths)
        tally.tokens += sum(lengths)
        tally.padded += padded_tokens(batches)
        tally.truncated += len(tokenized.truncated)
        tally.replaced += len(tokenized.replaced)
        tally.batches += len(batches)
        return vectors

    # --- options --------------------------------------------------------------------------------

    def _prompt(self, name: str | None) -> str:
        manifest = self._bundle.manifest
        name = manifest.default_prompt_name if name is None else name
        if name is None:
            return ""
        if name not in manifest.prompts:
            known = ", ".join(sorted(manifest.prompts)) or "none"
            raise InputValueError(f"the bundle has no prompt {name!r}; it has {known}")
        return manifest.prompts[name]

    def _first_prompt(self, names: Sequence[str]) -> str | None:
        return next((name for name in names if name in self._bundle.manifest.prompts), None)

    def _must_normalize(self, asked: bool | None) -> bool:
        normalised = self._bundle.manifest.normalised
        if asked is False and normalised:
            raise InputValueError(
                "this bundle normalises inside its graph, so normalize_embeddings=False cannot be "
                "served; export the model with --no-normalize"
            )
        return bool(asked) and not normalised

    # --- life -----------------------------------------------------------------------------------

    def _open(self) -> None:
        self._session = Session(self._bundle, self._engine)
        self._workers = ThreadPoolExecutor(
            self._engine.streams, thread_name_prefix="flowvec-stream"
        )
        self._process = os.getpid()

    def _ready(self) -> tuple[Session, ThreadPoolExecutor]:
        """The session and workers of this process: a forked child inherits neither's threads."""
        if self._closed:
            raise ClosedError("this Encoder is closed")
        if self._process != os.getpid():
            with _fork_lock:
                if self._process != os.getpid():
                    # Kept, never used: destroying a session whose threads were left behind in
                    # the parent could wait for them for ever.
                    self._inherited = (self._session, self._workers)
                    self._open()
        return self._session, self._workers

    def close(self) -> None:
        """Stop the worker threads and let go of the model; calling it twice is harmless."""
        if not self._closed:
            self._closed = True
            self._workers.shutdown(wait=self._process == os.getpid())

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
            "engine": self._engine,
            "max_batch_tokens": self._max_batch_tokens,
            "closed": self._closed,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        bundle = Bundle.load(state["path"])
        if bundle.fingerprint != state["fingerprint"]:
            raise BundleError(f"{bundle.path} has changed since this Encoder was pickled")
        engine: Engine = state["engine"]
        # The other machine must offer the same engine: vectors must not change on the way.
        choose_engine(engine.provider, cast(Compute, engine.compute), engine.streams)
        self.__init__(bundle, engine, max_batch_tokens=state["max_batch_tokens"])  # type: ignore[misc]
        if state["closed"]:
            self.close()


_fork_lock = threading.Lock()


def _renew_fork_lock() -> None:
    """A thread of the parent may have held the lock at the moment of the fork."""
    global _fork_lock
    _fork_lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_fork_lock)


def _collect(
    futures: Sequence[Future[float]],
    batches: Sequence[Batch],
    done: Callable[[int], object] | None,
) -> float:
    """Wait for all batches; on the first failure drop those not begun and raise it."""
    seconds = 0.0
    try:
        for future, batch in zip(futures, batches, strict=True):
            seconds += future.result()
            if done is not None:
                done(len(batch.rows))
    except BaseException:
        for future in futures:
            future.cancel()
        raise
    return seconds


def _as_list(texts: Iterable[str]) -> list[str]:
    if isinstance(texts, bytes | bytearray | dict) or not isinstance(texts, Iterable):
        raise InputTypeError(f"texts must be a str or an iterable of str, not {type(texts).__name__}")
    return list(texts)


def _checked(texts: Iterable[str], refuse_empty: bool) -> Iterator[str]:
    """Check each text of a stream as it is taken."""
    if isinstance(texts, bytes | bytearray | dict):
        raise InputTypeError(f"texts must be an iterable of str, not {type(texts).__name__}")
    for i, text in enumerate(texts):
        check_texts((text,), i, refuse_empty=refuse_empty)
        yield text


def _checked_choice(name: str, value: str, choices: Any) -> str:
    allowed = choices.__args__
    if value not in allowed:
        raise InputValueError(f"{name} must be one of {', '.join(allowed)}, but is {value!r}")
    return value


def _wants_bar(asked: bool | None, texts: int) -> bool:
    """Without being asked: a bar on a terminal, for work of more than a moment."""
    return sys.stderr.isatty() and texts > WINDOW if asked is None else asked
