"""Reranker: pairs of texts in, scores out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Unpack, cast

import numpy as np
import numpy.typing as npt

from flowvec.arguments import explaining, flag, whole_number
from flowvec.bundle.manifest import TOKEN_TYPES, Activation, Head
from flowvec.compat import override
from flowvec.encoder.loaded_model import LoadedModel, call_bar
from flowvec.encoder.pipeline import windows_of
from flowvec.engine.onnxruntime_session import runtime_version
from flowvec.errors import InputTypeError, InputValueError
from flowvec.reranker.scores import (
    FOREIGN,
    PairTruncation,
    Ranked,
    Ranking,
    ScoreJob,
    ScoreOptions,
    check_job,
)
from flowvec.sequences import as_list, refuse_lookalike
from flowvec.spelled import argument
from flowvec.tokenizer.pairs import PairTokenizer, TextPair, check_pairs
from flowvec.tokenizer.tokenizer import Tokenized

__all__ = ["Reranker", "RerankerInfo"]

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class RerankerInfo:
    """A Reranker's model, and the engine that runs it.

        >>> info = Reranker.load("my-reranker").info()
        >>> info.labels, info.activation, info.max_length
        (('LABEL_0',), 'sigmoid', 64)

    `labels` names the logits of a pair, and `activation` says how they become scores. The other
    fields are those of `EncoderInfo`.
    """

    name: str
    path: str
    source: str
    labels: tuple[str, ...]
    activation: Activation
    max_length: int
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


class Reranker(LoadedModel):
    """A cross-encoder loaded on an engine: pairs of texts in, scores out.

    It reads a query and a document together, which is slower than comparing their vectors, and more
    accurate: use it to sort the best hits of a search.

        >>> reranker = Reranker.load("my-reranker")
        >>> scores = reranker.predict([("who swims?", "A dog swims."), ("who swims?", "Stocks.")])
        >>> scores.shape
        (2,)
        >>> ranked = reranker.rank("who swims?", ["Stocks fell.", "A dog swims."], top_k=1)
        >>> sorted(ranked[0])
        ['corpus_id', 'score']
    """

    _kind = "reranker"

    @override
    def _open_tokenizer(self) -> PairTokenizer:
        manifest = self._bundle.manifest
        self._tokenizer = PairTokenizer(
            self._bundle.tokenizer, manifest.max_length, with_types=TOKEN_TYPES in manifest.inputs
        )
        return self._tokenizer

    @property
    def head(self) -> Head:
        """Labels, and the activation that turns logits into scores."""
        head = self._bundle.manifest.head
        assert head is not None, "`require_kind` has checked it"
        return head

    def info(self) -> RerankerInfo:
        """The model's figures, and the engine that runs it."""
        manifest, engine, head = self._bundle.manifest, self._engine, self.head
        return RerankerInfo(
            name=manifest.name,
            path=str(self._bundle.path),
            source=self._bundle.manifest.source,
            labels=head.labels,
            activation=head.activation,
            max_length=manifest.max_length,
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

    # --- scoring --------------------------------------------------------------------------------

    @explaining(FOREIGN)
    def predict(
        self,
        pairs: Iterable[Sequence[str]],
        *,
        activation: Activation | None = None,
        truncation: PairTruncation = "longest_first",
        max_batch_tokens: int | None = None,
        show_progress_bar: bool | None = None,
    ) -> npt.NDArray[np.float32]:
        """Score pairs of texts.

        Args:
            pairs: pairs (query, document), or a single pair.
            activation: how logits become scores: `identity`, `sigmoid`, `softmax` or `tanh`. None
                is the checkpoint's own (`info().activation`).
            truncation: what happens to a pair above max_length. `longest_first` cuts the longer
                text, as sentence-transformers does; `only_second` cuts the document alone; `error`
                raises. `on_statistics` gets how many pairs were cut.
            max_batch_tokens: most padded tokens in a batch. None is the Reranker's.
            show_progress_bar: None shows one on a terminal for long calls.

        Returns:
            float32 (pairs,) in input order; (pairs, labels) for a model of several labels; without
            the first axis for a single pair. Higher is better.

        Raises:
            InputTypeError: an item is not a pair of str. The message names its index.
            InputValueError: an argument is not valid, or the options refuse a pair.
            NonFiniteError: the model gave NaN or infinity. The message names the pairs.
        """
        job = self.job(activation, truncation, max_batch_tokens)
        items, single = self.items(pairs)
        with call_bar("score", len(items), "pairs", show_progress_bar) as drawn:
            scores = self._scores(items, job, drawn.update)
        return cast(Floats, scores[0]) if single else scores

    def rank(
        self,
        query: str,
        documents: Sequence[str],
        *,
        top_k: int | None = None,
        return_documents: bool = False,
        label: str | None = None,
        **options: Unpack[ScoreOptions],
    ) -> list[Ranked]:
        """Sort documents by how well they answer a query.

        Args:
            query: a text.
            documents: texts.
            top_k: how many to return; None returns all.
            return_documents: put each document into its row.
            label: the label whose score counts, for a model of several labels.
            **options: as for `predict`.

        Returns:
            Rows `{"corpus_id", "score"}` and, if asked for, `"text"`, best first. `corpus_id` is
            the document's index. Equal scores are ordered by their logits, then by index.

        Raises:
            InputTypeError: the query or a document is not a str.
            InputValueError: an argument is not valid, or the model has several labels and none is
                named.
        """
        ranking = self.ranking(
            query,
            documents,
            top_k=top_k,
            return_documents=return_documents,
            label=label,
            **options,
        )
        return ranking.of(self._scores(ranking.pairs, self.job(**ranking.options)))

    def score_pairs(
        self, pairs: Iterable[Sequence[str]], **options: Unpack[ScoreOptions]
    ) -> Iterator[npt.NDArray[np.float32]]:
        """Score an iterable of pairs of any length at constant memory.

        Reads a few thousand pairs at a time and yields one score per pair, in order.

        Args:
            pairs: any iterable of pairs of texts.
            **options: as for `predict`.

        Raises:
            As `predict`.
        """
        refuse_lookalike("pairs", pairs)
        if isinstance(pairs, str | bytes) or not isinstance(pairs, Iterable):
            raise InputTypeError(f"pairs must be pairs of texts, not {type(pairs).__name__}")
        job = self.job(**options)
        windows = self._pipeline.windows(windows_of(_checked(pairs)), job, self._report)
        return (score for window in windows for score in window.vectors)

    def ranking(
        self,
        query: str,
        documents: Sequence[str],
        *,
        top_k: int | None = None,
        return_documents: bool = False,
        label: str | None = None,
        **options: Unpack[ScoreOptions],
    ) -> Ranking:
        """The pairs that `rank` scores, and what it makes of their logits.

        Raises:
            InputTypeError, InputValueError: as `rank`.
        """
        if not isinstance(query, str):
            raise InputTypeError(f"query must be a str, not {type(query).__name__}")
        if top_k is not None:
            whole_number("top_k", top_k)
        return Ranking(
            pairs=check_pairs([(query, text) for text in as_list("documents", documents)]),
            options={**options, "activation": "identity"},
            finish=self.job(**options).postprocess,
            column=self._column(label),
            top_k=top_k,
            return_documents=flag("return_documents", return_documents),
        )

    def _column(self, label: str | None) -> int:
        labels = self.head.labels
        if label is None:
            if len(labels) > 1:
                raise InputValueError(
                    f"the model has the labels {', '.join(labels)}: say with ",
                    argument("label"),
                    " whose score counts",
                )
            return 0
        if label not in labels:
            raise InputValueError(f"the model has no label {label!r}; it has {', '.join(labels)}")
        return labels.index(label)

    def _scores(
        self,
        items: list[TextPair],
        job: ScoreJob,
        done: Callable[[int], object] | None = None,
    ) -> Floats:
        """Scores of checked pairs, float32 (pairs,) or (pairs, labels)."""
        windows = self._pipeline.windows(windows_of(items), job, self._report, done)
        parts = [window.vectors for window in windows]
        if not parts:
            parts = [job.postprocess(np.empty((0, self.dim), dtype=np.float32))]
        return np.concatenate(parts)

    def warmup(self) -> Reranker:
        """Run batches of a few lengths, so that later calls do not pay for first-time work."""
        words = ["warm"] * self.max_length
        lengths = {2, 8, 16, 32, 64, 128, self.max_length}
        kept = [n for n in sorted(lengths) if n <= self.max_length]
        self.predict([("warm", " ".join(words[:n])) for n in kept])
        return self

    # --- building blocks ------------------------------------------------------------------------

    def tokenize(
        self, pairs: Iterable[Sequence[str]], truncation: PairTruncation = "longest_first"
    ) -> Tokenized:
        """Token ids of each pair, cut at max_length: the first step of `predict`."""
        items, _ = self.items(pairs)
        return self.job(truncation=truncation).tokenize(self._tokenizer, items)

    @explaining(FOREIGN)
    def job(
        self,
        activation: Activation | None = None,
        truncation: PairTruncation = "longest_first",
        max_batch_tokens: int | None = None,
    ) -> ScoreJob:
        """Check a call's options, before any text is touched; arguments are those of `predict`.

        Raises:
            InputTypeError, InputValueError: an option is not valid.
            ClosedError: after `close`.
        """
        self._pipeline.ready()
        tokens = self._max_batch_tokens if max_batch_tokens is None else max_batch_tokens
        return check_job(
            self.head, activation, truncation, tokens, fills_streams=max_batch_tokens is None
        )

    def items(self, pairs: Iterable[Sequence[str]]) -> tuple[list[TextPair], bool]:
        """A call's pairs as a checked list, and whether it was a single pair.

        Raises:
            InputTypeError: an item is not a pair of str.
        """
        refuse_lookalike("pairs", pairs)
        if isinstance(pairs, str | bytes) or not isinstance(pairs, Iterable):
            raise InputTypeError(f"pairs must be pairs of texts, not {type(pairs).__name__}")
        given = list(pairs)
        single = len(given) == 2 and all(isinstance(text, str) for text in given)
        return check_pairs([given] if single else given), single

    def __repr__(self) -> str:
        name, labels = self._bundle.manifest.name, len(self.head.labels)
        return f"Reranker({name!r}, labels={labels}, {self._engine.provider})"


def _checked(pairs: Iterable[Any]) -> Iterator[TextPair]:
    """Check each pair of a stream as it is taken."""
    for i, pair in enumerate(pairs):
        yield check_pairs((pair,), i)[0]
