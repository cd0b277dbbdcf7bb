"""What Encoder and Reranker share: a bundle, loaded on an engine that is proved on this machine."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Self, cast, get_args

import numpy as np
import numpy.typing as npt

from flowvec.arguments import choice, explaining, flag
from flowvec.bundle.bundle import Bundle, require_kind
from flowvec.bundle.exported import open_bundle
from flowvec.bundle.manifest import RANGES, FileRecord, Kind
from flowvec.encoder.batching import Batch, check_batches
from flowvec.encoder.jobs import EncodeStatistics, no_row
from flowvec.encoder.loading import FOREIGN, EngineRequest
from flowvec.encoder.pipeline import Pipeline, refuse_non_finite
from flowvec.encoder.postprocess import non_finite_rows
from flowvec.encoder.proof import Proof, ProofMode
from flowvec.engine.providers import Compute, Device, Engine, default_max_batch_tokens
from flowvec.engine.selection import choose_engine
from flowvec.errors import BundleError, EngineNotProvedError, InputTypeError, InputValueError
from flowvec.progress import bar, hidden, shows_bars
from flowvec.tokenizer.pairs import PairTokenizer
from flowvec.tokenizer.token_ids import TokenIds
from flowvec.tokenizer.tokenizer import Tokenized, Tokenizer

__all__ = ["LoadedModel", "call_bar", "wants_bar"]

logger = logging.getLogger(__name__)

Floats = npt.NDArray[np.float32]

# A call of at most so many texts shows no bar, and no call does in its first seconds, unless it is
# asked to.
_FEW = 64
_MOMENT = 2.0


class LoadedModel:
    """A bundle loaded on an engine; `Encoder` and `Reranker` are its kinds.

    Any number of threads may share one. It can be pickled; the other process opens the bundle
    again. A forked child opens its own session at its first call. It must end as the children of
    multiprocessing do, by `os._exit`, because ONNX Runtime cannot be shut down in a child that was
    forked after its import. A stream that was started before a fork belongs to the parent.
    """

    _kind: ClassVar[Kind]

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
        """Open a verified bundle on a chosen engine; `load` does both by name.

        `request` is what the engine was chosen by, for `with_compute`.
        """
        choice("proof", proof, get_args(ProofMode))
        require_kind(bundle, self._kind)
        self._proof_mode: ProofMode = proof
        self._bundle = bundle
        self._fingerprint = bundle.fingerprint
        self._engine = engine
        self.max_batch_tokens = (
            self._default_max_batch_tokens() if max_batch_tokens is None else max_batch_tokens
        )
        self._tuned = tuned
        self._on_statistics = on_statistics
        self._request = request
        # Streams and threads that the caller named stay as they are.
        is_elastic = request is not None and request.streams is None and request.threads is None
        self._pipeline = Pipeline(
            bundle,
            engine,
            proof,
            tokenizer=self._open_tokenizer(),
            is_elastic=is_elastic,
            owner=type(self).__name__,
        )

    def _default_max_batch_tokens(self) -> int:
        """Most padded tokens in a batch, if the caller does not say."""
        return default_max_batch_tokens(self._engine, self._bundle.manifest.layers)

    def _open_tokenizer(self) -> Tokenizer | PairTokenizer:
        """The tokenizer of this kind of model."""
        raise NotImplementedError

    @classmethod
    @explaining(FOREIGN)
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
        revision: str | None = None,
        local_files_only: bool = False,
        trust_remote_code: bool = False,
        allow_pickle: bool = False,
        show_progress_bar: bool | None = None,
    ) -> Self:
        """Load a model on an engine that gives correct results on this machine.

        A checkpoint, on this machine or on the Hugging Face hub, is exported once, in a process of
        its own, and its bundle is kept in the user's cache. Later loads need neither torch nor the
        network. Each load asks the hub for the newest commit; another commit is another bundle.

        The first time that an engine is used on this machine, it is compared with the bundle's
        reference vectors (see `flowvec.encoder.proof`). If it is wrong, an engine that was asked
        for by name is refused; with `auto` another one is used, with a warning.

        Args:
            name_or_dir: a model that ships with flowvec (`mini`); a bundle's directory; a
                checkpoint's directory, as `flowvec export` takes it; or a model on the hub,
                `organization/name` or `organization/name@revision`. What begins with `.`, `/` or
                `~`, or with a folder that exists, is never looked up on the hub.
            device: `cpu`, `cuda`, or `auto`: a GPU if one can be used. Engines on a GPU are
                experimental, and log a warning when they are loaded.
            provider: `cpu`, `openvino`, `native`, `cuda`, `tensorrt` or a full name. None is the
                best that can run (see `flowvec.engine.selection.choose_engine`).
            compute: `float32`; `bfloat16` on OpenVINO; if the bundle has the variant, `float16` on
                a GPU and `int8` on the other providers. `auto` is int8 for layers on the native
                engine, bfloat16 if provider and processor support it, float16 on a GPU, else
                float32. Without a provider, the best one that supports the type is used.
            streams: batches that are computed at the same time. None is what `flowvec tune` found,
                else as many as the available cores allow.
            threads: cores that compute one batch. None is what `flowvec tune` found (if streams is
                None too), else 1. One stream with all cores has the lowest latency for one text at
                a time. Not on a GPU or in the native engine.
            max_batch_tokens: most padded tokens in a batch. None is what `flowvec tune` found, else
                512 on CPU (2,048 for a model without layers, such as mini) and 16,384 on a GPU. A
                larger one can be faster for many short texts; a smaller one limits memory. A call
                with few texts uses smaller batches, so that every stream has work.
            on_statistics: called with an `EncodeStatistics` after every call. It is not pickled.
            proof: `cached` compares an engine with the reference vectors once per machine, which
                takes a fraction of a second; `always` compares it at every load; `never` trusts
                the engine.
            revision: branch, tag or commit of a model on the hub; None is its main branch.
            local_files_only: make no request to the hub, as with HF_HUB_OFFLINE: use what is on
                this machine.
            trust_remote_code: let an export run Python files of the checkpoint. They can do
                anything: read them first.
            allow_pickle: let an export read weights that are stored as a pickle.
            show_progress_bar: False prints nothing while a checkpoint is exported; None and True
                print its steps to standard error.

        Raises:
            BundleError: there is no such model, or its bundle is damaged or of another kind.
            ExportError: the checkpoint cannot be exported, or needs `trust_remote_code` or
                `allow_pickle`.
            CacheError: the exported bundle cannot be kept.
            ProviderUnavailableError: the provider or compute type cannot run on this machine, or
                gives wrong vectors on it.
            InputTypeError, InputValueError: an argument is not valid, or of another library.
            MissingDependencyError: ONNX Runtime is not installed, or what the export needs.
        """
        choice("proof", proof, get_args(ProofMode))
        if on_statistics is not None and not callable(on_statistics):
            raise InputTypeError(
                f"on_statistics must be a function, not {type(on_statistics).__name__}"
            )
        request = EngineRequest(device, provider, compute, streams, threads, max_batch_tokens)
        if show_progress_bar is not None:
            flag("show_progress_bar", show_progress_bar)
        with hidden(show_progress_bar is False):
            bundle = open_bundle(
                name_or_dir,
                revision=revision,
                local_files_only=local_files_only,
                trust_remote_code=trust_remote_code,
                allow_pickle=allow_pickle,
            )
        return cls._chosen(bundle, request, on_statistics, proof)

    @classmethod
    def _chosen(
        cls,
        bundle: Bundle,
        request: EngineRequest,
        on_statistics: Callable[[EncodeStatistics], None] | None,
        proof: ProofMode,
    ) -> Self:
        """Open a bundle on the best engine that fits a request and gives correct results."""
        refused: list[EngineNotProvedError] = []
        while True:
            chosen = request.choose(bundle, refused)
            try:
                model = cls(
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
                "; ".join(error.found for error in refused),
            )
        return model

    @property
    def compute_is_open(self) -> bool:
        """Whether `load` chose the compute type, because the caller did not name one."""
        return self._request is not None and self._request.compute == "auto"

    def with_compute(self, compute: Compute) -> Self:
        """The same model in another compute type, as a second object.

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
        """Length of a vector; of a reranker, the number of its labels."""
        return self._bundle.manifest.dim

    @property
    def max_length(self) -> int:
        """Most tokens of a text or pair, special tokens included; longer ones are cut."""
        return self._bundle.manifest.max_length

    @property
    def fingerprint(self) -> str:
        """SHA-256 of everything that decides a float32 result.

        Equal fingerprints mean equal vectors or scores. Variants and 8-bit ranges are no part of
        it.
        """
        return self._fingerprint

    @property
    def bundle(self) -> Bundle:
        """The bundle that is loaded."""
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

    # --- building blocks ------------------------------------------------------------------------

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
            InputTypeError, InputValueError: ids are not whole numbers, the model's embedding table
                has no row for one, or the batches do not hold each text once, or one is too short
                for its texts.
            NonFiniteError: the model gave NaN or infinity.
        """
        ids = self._checked_ids(ids, batches)
        out = np.empty((len(ids), self.dim), dtype=np.float32)
        self._pipeline.run(ids, batches, out, alone=alone)
        refuse_non_finite(non_finite_rows(out).tolist())
        return out

    def _checked_ids(self, ids: object, batches: Sequence[Batch]) -> TokenIds:
        """The ids that a caller of `run` gives.

        Raises:
            InputTypeError, InputValueError: as `run`.
        """
        if isinstance(ids, Tokenized):
            ids = ids.token_ids
        elif not isinstance(ids, TokenIds):
            ids = TokenIds.from_rows(cast(Any, ids))
        check_batches(batches, ids.lengths)
        for item, token in self._without_row(ids).items():
            raise no_row(item, token)
        return ids

    @property
    def _token_rows(self) -> int:
        """How many token ids the model knows."""
        return self._pipeline.token_rows

    def _without_row(self, ids: TokenIds) -> dict[int, str]:
        """Items with a token that the model has no row for, and the token."""
        return self._pipeline.without_row(ids)

    def _run_batch(self, ids: TokenIds, batch: Batch, *, alone: bool) -> Floats:
        """The graph's output for a batch of all texts of `ids` in their order, on this thread.

        NaN and infinity are not refused.
        """
        kept = _Kept()
        self._pipeline.run_into(ids, [batch], kept, alone=alone)
        return kept.output

    def _report(self, statistics: EncodeStatistics) -> None:
        if self._on_statistics is not None:
            self._on_statistics(statistics)

    # --- life -----------------------------------------------------------------------------------

    def close(self) -> None:
        """Stop the worker threads and release the model; calling it twice is harmless."""
        self._pipeline.close()

    def __enter__(self) -> Self:
        self._pipeline.ready()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

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
            kind = type(self).__name__
            raise BundleError(f"{bundle.path} has changed since this {kind} was pickled")
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


class _Kept:
    """The output of a single batch, as it is (`flowvec.encoder.jobs.Rows`)."""

    output: Floats

    def store(self, items: Sequence[int], output: Floats) -> None:
        """Keep it."""
        self.output = output

    def non_finite(self) -> Sequence[int]:
        """Nobody asks here."""
        return ()

    def results(self) -> Floats:
        """The output."""
        return self.output


def wants_bar(show_progress_bar: bool | None, items: int) -> bool:
    """Whether a call shows a bar. None: on a terminal or in a notebook, if it is not short.

    Raises:
        InputTypeError: the argument is not a bool.
    """
    if show_progress_bar is None:
        return items > _FEW and shows_bars()
    return flag("show_progress_bar", show_progress_bar)


def call_bar(
    name: str, items: int, unit: str, show_progress_bar: bool | None
) -> AbstractContextManager[Any]:
    """The bar of a call, or of what shows none: as `flowvec.progress.bar`.

    Raises:
        InputTypeError: `show_progress_bar` is not a bool.
    """
    is_shown = wants_bar(show_progress_bar, items)
    return bar(name, items, unit, shown=is_shown, after=0 if show_progress_bar else _MOMENT)
