"""Encoder: texts in, vectors out."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, cast, get_args

import numpy as np
import numpy.typing as npt
from tqdm import tqdm

from flowvec.arguments import choice, flag, text_or_none, whole_number
from flowvec.bundle.bundle import Bundle
from flowvec.bundle.manifest import RANGES, FileRecord
from flowvec.encoder.batching import Batch
from flowvec.encoder.pipeline import (
    Encoded,
    EncodeJob,
    EncodeStatistics,
    Pipeline,
    refuse_non_finite,
    windows_of,
)
from flowvec.encoder.postprocess import (
    PRECISIONS,
    Postprocess,
    Precision,
    non_finite_rows,
    normalize,
)
from flowvec.encoder.proof import Proof, ProofMode
from flowvec.encoder.tokenizer import Tokenized, check_texts
from flowvec.engine.onnxruntime_session import runtime_version
from flowvec.engine.providers import Compute, Device, Engine, default_max_batch_tokens
from flowvec.engine.selection import choose_engine, tuned_engine
from flowvec.engine.tuned import Tuned, load_tuned
from flowvec.errors import (
    BundleError,
    EngineNotProvedError,
    InputTypeError,
    InputValueError,
    ProviderUnavailableError,
    first_line,
)
from flowvec.sequences import refuse_lookalike
from flowvec.texts.window import WINDOW

__all__ = ["Encoder", "EncoderInfo", "OnEmpty", "Truncation"]

logger = logging.getLogger(__name__)

# More than any machine has cores, and fewer than would exhaust one.
_MOST_THREADS = 4096

Floats = npt.NDArray[np.float32]
Truncation = Literal["truncate", "error"]
OnEmpty = Literal["encode", "error"]

_DOCUMENT_PROMPTS = ("document", "passage", "corpus")


@dataclass(frozen=True, slots=True)
class EncoderInfo:
    """An Encoder's model, and the engine that runs it.

        >>> info = Encoder.load("mini", provider="cpu", compute="float32").info()
        >>> info.provider, info.dim, info.proof
        ('CPUExecutionProvider', 384, 'proved: cosine 1.00000 over 24 texts')

    `tuned` says when `flowvec tune` measured the settings in use; None if they are the defaults or
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
    ) -> None:
        """Open a verified bundle on a chosen engine; `Encoder.load` does both by name."""
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
        self._ranges: Floats | None = None  # read when they are first needed
        self._pipeline = Pipeline(bundle, engine, proof)

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
        """Load a bundle on an engine that is right on this machine.

        The first time that an engine is used here, it is compared with the bundle's reference
        vectors (see `flowvec.encoder.proof`). An engine that is wrong is refused where it was asked
        for by name, and passed over with a warning where it was not.

        Args:
            name_or_dir: a model that ships with flowvec (`mini`) or a bundle's directory.
            device: `cpu`, `cuda`, or `auto`: a GPU where one can be used.
            provider: `cpu`, `openvino`, `cuda`, `tensorrt` or a full name; None takes the best of
                the device's that can run (see `flowvec.engine.selection.choose_engine`). What is
                asked for is what runs.
            compute: `float32`; `bfloat16` on OpenVINO; `float16` on a GPU, and `int8` on ONNX
                Runtime's CPU provider and on OpenVINO itself, where the bundle holds that
                variant; or `auto`: bfloat16 where provider and processor have it, float16 on a
                GPU, else float32. Asked for without a provider, it chooses the best that has it.
            streams: batches computed at the same time; None takes what `flowvec tune` found, else
                as many as the cores that this process may use have room for.
            threads: cores that compute one batch; None takes what `flowvec tune` found, if streams
                is None too, else one. A caller with one text at a time is answered soonest by one
                stream of all cores. Not on a GPU.
            max_batch_tokens: the most padded tokens in a batch; None takes what `flowvec tune`
                found, else 512 on CPU (2,048 for a model without layers, as mini) and 16,384 on a
                GPU. Larger helps many short texts on large
                caches; smaller bounds memory. A call with few texts takes smaller batches, so that
                every stream has work.
            on_statistics: called with an `EncodeStatistics` after every call; it does not travel
                with a pickled Encoder.
            proof: `cached` compares the engine with the bundle's reference vectors where this
                machine has not done so yet, which takes a fraction of a second; `always` does it
                each time; `never` trusts the engine.

        Raises:
            BundleError: there is no such bundle, or it is damaged.
            ProviderUnavailableError: the provider or compute type cannot run here, or gives wrong
                vectors here.
            InputValueError: an argument is none of the choices.
            MissingDependencyError: ONNX Runtime is not installed.
        """
        choice("proof", proof, get_args(ProofMode))
        choice("device", device, get_args(Device))
        choice("compute", compute, get_args(Compute))
        text_or_none("provider", provider)
        for name, value in (("streams", streams), ("threads", threads)):
            if value is not None:
                whole_number(name, value, 1, _MOST_THREADS)
        if max_batch_tokens is not None:
            whole_number("max_batch_tokens", max_batch_tokens)
        bundle = Bundle.load(name_or_dir)
        found = load_tuned(bundle.fingerprint)
        refused: list[EngineNotProvedError] = []
        asked = (provider, compute, streams, threads)
        while True:
            wrong = [(error.provider, error.compute) for error in refused]
            choose = partial(
                choose_engine,
                device=device,
                variants=bundle.variants,
                layers=bundle.manifest.layers,
                refused=wrong,
            )
            try:
                engine = choose(*asked)
            except ProviderUnavailableError:
                if refused:  # it says more
                    raise refused[0] from None
                raise
            tuned = found
            if tuned is not None:
                better = tuned_engine(tuned, engine, *asked, choose, wrong)
                engine = better or engine
                tuned = tuned if better else None
            budget = max_batch_tokens
            if budget is None and tuned is not None:
                budget = tuned.max_batch_tokens
            try:
                encoder = cls(
                    bundle,
                    engine,
                    max_batch_tokens=budget,
                    tuned=_measured(tuned, *asked, max_batch_tokens),
                    on_statistics=on_statistics,
                    proof=proof,
                )
            except EngineNotProvedError as error:
                refused.append(error)
            else:
                break
        if refused:
            logger.warning(
                "%s in %s is taken instead: %s",
                engine.provider,
                engine.compute,
                "; ".join(map(str, refused)),
            )
        return encoder

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
        """SHA-256 of all that decides a float32 vector: equal fingerprints give equal vectors.

        Variants and the ranges of 8 bits are not part of it.
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
        """The most padded tokens in a batch; calls that begin after it was set go by it.

        Raises:
            InputValueError: on setting less than 1.
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
        """The model's figures and what really runs it."""
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
            prompt_name: which of the bundle's prompts to put before each text; None takes the
                bundle's default, mostly none; "" takes none.
            normalize_embeddings: L2-normalise the vectors; None does as the bundle says.
            precision: `float32`; `int8` or `uint8`, each dimension's range in 255 steps, the ranges
                being the bundle's, so that a text gives the same bytes alone as in a corpus; or
                `binary` or `ubinary`, the signs, eight dimensions a byte.
            truncate_dim: keep the first so many dimensions. Vectors of length one are normalised
                again, save in 8 bits, where their ranges are those of whole vectors.
            max_batch_tokens: overrides the Encoder's budget for this call, and is then kept to even
                where a stream stays without work.
            truncation: cut texts at max_length (and count them), or raise at the first.
            on_empty: encode empty texts as the model sees them, or raise.
            show_progress_bar: None shows one on a terminal for long work.

        Returns:
            float32 (dim,) for one text; (n, dim) in input order for several; (0, dim) for none.
            With another precision int8 or uint8, and (dim / 8 rounded up) for signs.

        Raises:
            InputTypeError: an item is no str; the message names its index. Nothing was computed.
            InputValueError: an argument cannot be served, or a text is refused by the options.
            NonFiniteError: the model gave NaN or infinity; the message names the rows.
        """
        job = self.job(
            prompt_name, normalize_embeddings, max_batch_tokens, truncation, precision, truncate_dim
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
        for part in self._pipeline.windows(windows_of(items), job, self._finished, done):
            out[filled : filled + len(part.vectors)] = part.vectors
            filled += len(part.vectors)

    def stream(
        self,
        texts: Iterable[str],
        *,
        prompt_name: str | None = None,
        normalize_embeddings: bool | None = None,
        precision: Precision = "float32",
        truncate_dim: int | None = None,
        max_batch_tokens: int | None = None,
        truncation: Truncation = "truncate",
        on_empty: OnEmpty = "encode",
    ) -> Iterator[npt.NDArray[Any]]:
        """Embed an iterable of any length at constant memory.

        Texts are taken a window of a few thousand at a time and vectors yielded in input order,
        one for each. Arguments and errors are `encode`'s.
        """
        if isinstance(texts, str):
            raise InputTypeError("stream takes an iterable of texts; encode takes a single one")
        _check_iterable(texts)
        refuse_empty = choice("on_empty", on_empty, get_args(OnEmpty)) == "error"
        job = self.job(
            prompt_name, normalize_embeddings, max_batch_tokens, truncation, precision, truncate_dim
        )
        parts = windows_of(_checked(texts, refuse_empty))
        windows = self._pipeline.windows(parts, job, self._finished)
        return (vector for part in windows for vector in part.vectors)

    def encode_query(self, texts: str | Iterable[str], **options: Any) -> npt.NDArray[Any]:
        """Embed queries: `encode` with the bundle's prompt `query`, where it has one."""
        options.setdefault("prompt_name", self._first_prompt(("query",)))
        return self.encode(texts, **options)

    def encode_document(self, texts: str | Iterable[str], **options: Any) -> npt.NDArray[Any]:
        """Embed documents: `encode` with the prompt `document`, `passage` or `corpus`."""
        options.setdefault("prompt_name", self.document_prompt)
        return self.encode(texts, **options)

    @property
    def document_prompt(self) -> str | None:
        """The name of the prompt that `encode_document` uses; None where the bundle has none."""
        return self._first_prompt(_DOCUMENT_PROMPTS)

    def similarity(self, a: npt.ArrayLike, b: npt.ArrayLike) -> Floats:
        """Similarity of every vector of a with every one of b, as the bundle says (cosine mostly).

        Args:
            a: float32 (n, dim) or (dim,).
            b: float32 (m, dim) or (dim,).

        Returns:
            float32 (n, m); distances are negated, so that higher is more alike.
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
        """Run batches of a few lengths, so that no later call pays for a first time."""
        words = ["warm"] * self.max_length
        lengths = {2, 8, 16, 32, 64, 128, self.max_length}
        self.encode([" ".join(words[:n]) for n in sorted(lengths) if n <= self.max_length])
        return self

    # --- building blocks ------------------------------------------------------------------------

    def tokenize(self, texts: Sequence[str]) -> Tokenized:
        """Token ids of each text, cut at max_length: the first step of `encode`."""
        items = _as_list(texts)
        check_texts(items)
        return self._pipeline.tokenizer(items)

    def run(self, ids: Sequence[Sequence[int]], batches: Sequence[Batch]) -> Floats:
        """Run a plan: the last step of `encode`, for a benchmark that makes its own batches.

        Args:
            ids: token ids of each text.
            batches: batches whose rows together are each text once (`flowvec.encoder.batching`).

        Returns:
            The graph's output, float32 (len(ids), dim), in the order of `ids`.

        Raises:
            NonFiniteError: the model gave NaN or infinity.
        """
        out = np.empty((len(ids), self.dim), dtype=np.float32)
        self._pipeline.run(ids, batches, out)
        refuse_non_finite(non_finite_rows(out).tolist())
        return out

    def windows(
        self,
        parts: Iterable[Sequence[str]],
        job: EncodeJob,
        stop: threading.Event | None = None,
    ) -> Generator[Encoded, None, None]:
        """What becomes of one window of texts after another, at constant memory.

        Each window is sorted and batched by itself, so that its vectors depend on nothing else;
        the next one is tokenized meanwhile. A window may be empty.

        Args:
            parts: windows of texts.
            job: as `job` gives.
            stop: once it is set the windows end, as soon as the batches that run are done.

        Raises:
            InputTypeError: an item is no str; what came before it has been yielded.
            InputValueError, NonFiniteError: what the job refuses.
        """
        return self._pipeline.windows(_checked_windows(parts), job, self._finished, stop=stop)

    def job(
        self,
        prompt_name: str | None = None,
        normalize_embeddings: bool | None = None,
        max_batch_tokens: int | None = None,
        truncation: Truncation = "truncate",
        precision: Precision = "float32",
        truncate_dim: int | None = None,
    ) -> EncodeJob:
        """Check a call's options, before any text is touched; arguments are `encode`'s.

        Raises:
            InputValueError: an option cannot be served.
            ClosedError: after `close`.
        """
        self._pipeline.ready()
        choice("truncation", truncation, get_args(Truncation))
        budget = self._max_batch_tokens if max_batch_tokens is None else max_batch_tokens
        budget = whole_number("max_batch_tokens", budget)
        return EncodeJob(
            prompt=self._prompt(prompt_name),
            postprocess=self._postprocess(normalize_embeddings, precision, truncate_dim),
            max_batch_tokens=budget,
            refuse_long=truncation == "error",
            shared_out=max_batch_tokens is None,
        )

    def items(
        self, texts: str | Iterable[str], on_empty: OnEmpty = "encode"
    ) -> tuple[list[str], bool]:
        """A call's texts as a list, each checked, and whether it was a single one.

        Raises:
            InputTypeError: an item is no str.
            InputValueError: an item is empty and `on_empty` is `error`.
        """
        refuse_empty = choice("on_empty", on_empty, get_args(OnEmpty)) == "error"
        single = isinstance(texts, str)
        items = [cast(str, texts)] if single else _as_list(texts)
        check_texts(items, refuse_empty=refuse_empty)
        return items, single

    # --- options --------------------------------------------------------------------------------

    def _finished(self, statistics: EncodeStatistics) -> None:
        if self._on_statistics is not None:
            self._on_statistics(statistics)

    def _prompt(self, name: str | None) -> str:
        manifest = self._bundle.manifest
        name = manifest.default_prompt_name if text_or_none("prompt_name", name) is None else name
        if not name:
            return ""
        if name not in manifest.prompts:
            known = ", ".join(sorted(manifest.prompts)) or "none"
            raise InputValueError(f"the bundle has no prompt {name!r}; it has {known}")
        return manifest.prompts[name]

    def _first_prompt(self, names: Sequence[str]) -> str:
        """The first of the names that has a prompt; else none at all, not even the default."""
        return next((name for name in names if self._bundle.manifest.prompts.get(name)), "")

    def _postprocess(
        self, normalize_embeddings: bool | None, precision: Precision, truncate_dim: int | None
    ) -> Postprocess:
        must_normalize = self._must_normalize(normalize_embeddings)
        choice("precision", precision, PRECISIONS)
        if truncate_dim is not None:
            truncate_dim = whole_number("truncate_dim", truncate_dim, 1, self.dim)
        ranges = None
        if precision in ("int8", "uint8"):
            if must_normalize:
                raise InputValueError(
                    "the bundle's ranges are those of its own vectors, which it does not normalise:"
                    f" precision {precision!r} cannot follow normalize_embeddings=True"
                )
            if self._ranges is None:
                self._ranges = self._bundle.ranges()
            ranges = self._ranges
        return Postprocess(
            dim=self.dim,
            normalize=must_normalize,
            truncate_dim=truncate_dim,
            renormalize=must_normalize or self._bundle.manifest.normalised,
            precision=precision,
            ranges=ranges,
        )

    def _must_normalize(self, asked: bool | None) -> bool:
        normalised = self._bundle.manifest.normalised
        if asked is not None:
            asked = flag("normalize_embeddings", asked)
        if asked is False and normalised:
            raise InputValueError(
                "this bundle normalises inside its graph, so normalize_embeddings=False cannot be "
                "served; export the model with --no-normalize"
            )
        return bool(asked) and not normalised

    # --- life -----------------------------------------------------------------------------------

    def close(self) -> None:
        """Stop the worker threads and let go of the model; calling it twice is harmless."""
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
            "closed": self._pipeline.closed,
        }

    @staticmethod
    def _files(bundle: Bundle, engine: Engine) -> list[FileRecord | None]:
        """What decides a vector beyond the fingerprint: the variant's graph, and the ranges."""
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
        )
        if state["closed"]:
            self.close()


def _measured(tuned: Tuned | None, *asked: object) -> str | None:
    """When the settings were measured; None where none of them is used.

    Args:
        tuned: what was found, where it is what runs.
        asked: provider, compute type, streams, threads and budget as the caller gave them.
    """
    provider, compute, streams, threads, max_batch_tokens = asked
    used = (
        None in (provider, max_batch_tokens)
        or compute == "auto"
        or (streams is None and threads is None)
    )
    return tuned.measured if tuned is not None and used else None


def _as_list(texts: object) -> list[Any]:
    return list(_check_iterable(texts))


def _check_iterable(texts: object) -> Iterable[Any]:
    """Refuse what gives other things than texts in their order."""
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


def _wants_bar(asked: bool | None, texts: int) -> bool:
    """Without being asked: a bar on a terminal, for work of more than a moment."""
    return sys.stderr.isatty() and texts > WINDOW if asked is None else asked
