"""From a reranker's logits to scores, and from scores to a ranking."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypedDict, get_args

import numpy as np
import numpy.typing as npt

from flowvec.arguments import choice, whole_number
from flowvec.bundle.manifest import ACTIVATIONS, Activation, Head
from flowvec.encoder.jobs import DenseRows
from flowvec.errors import InputValueError
from flowvec.tokenizer.pairs import Cut, PairTokenizer, TextPair
from flowvec.tokenizer.token_ids import TokenIds
from flowvec.tokenizer.tokenizer import Tokenized

__all__ = [
    "FOREIGN",
    "PairTruncation",
    "Ranked",
    "Ranking",
    "ScoreJob",
    "ScoreOptions",
    "Scores",
    "check_job",
]

Floats = npt.NDArray[np.float32]

# What callers of sentence-transformers' CrossEncoder write.
FOREIGN = {
    "batch_size": "pairs are batched by their tokens; leave it out, or give max_batch_tokens=",
    "activation_fn": 'write activation="identity", "sigmoid" or "softmax"',
    "activation_fct": 'write activation="identity", "sigmoid" or "softmax"',
    "apply_softmax": 'write activation="softmax"',
    "convert_to_numpy": "scores are numpy arrays; leave it out",
    "convert_to_tensor": "scores are numpy arrays; torch.from_numpy(scores) is a tensor",
    "num_workers": "a Reranker uses all cores; leave it out",
}

PairTruncation = Literal["longest_first", "only_second", "error"]


class ScoreOptions(TypedDict, total=False):
    """Options of every call that scores pairs; `Reranker.predict` says what they mean.

    >>> options: ScoreOptions = {"activation": "identity", "truncation": "only_second"}
    >>> Reranker.load("my-reranker").predict([("who swims?", "A dog swims.")], **options).shape
    (1,)
    """

    activation: Activation | None
    truncation: PairTruncation


class Ranked(TypedDict, total=False):
    """One document of a ranking.

    >>> reranker = Reranker.load("my-reranker")
    >>> ranked: list[Ranked] = reranker.rank("a", ["b"], return_documents=True)
    >>> ranked[0]["corpus_id"], ranked[0]["text"]
    (0, 'b')

    Keys:
        corpus_id: the document's index in the list that was ranked.
        score: its score; higher is better.
        text: the document, if it was asked for.
    """

    corpus_id: int
    score: float
    text: str


def _softmax(logits: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    out: npt.NDArray[np.float64] = powers / powers.sum(axis=1, keepdims=True)
    return out


def _sigmoid(logits: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    # The form for negative logits never overflows, nor does the one for others.
    powers = np.exp(-np.abs(logits))
    out: npt.NDArray[np.float64] = np.where(logits < 0, powers, 1.0) / (1.0 + powers)
    return out


_APPLY: dict[Activation, Callable[[npt.NDArray[np.float64]], npt.NDArray[np.float64]]] = {
    "identity": lambda logits: logits,
    "sigmoid": _sigmoid,
    "softmax": _softmax,
    "tanh": np.tanh,
}


@dataclass(frozen=True, slots=True)
class Scores:
    """Turns logits into scores.

    Computed in float64 from float32 logits: in half precision, a sigmoid gives the best documents
    the same score.

    Attributes:
        activation: what is applied to the logits.
    """

    activation: Activation

    def __call__(self, output: Floats) -> Floats:
        """Scores of logits, float32 (pairs, labels): float32 (pairs,) for one label, else alike."""
        scores = _APPLY[self.activation](output.astype(np.float64)).astype(np.float32)
        return scores[:, 0] if scores.shape[1] == 1 else scores


@dataclass(frozen=True, slots=True)
class ScoreJob:
    """The checked options of one call, as `Reranker.job` returns them.

    >>> Reranker.load("my-reranker").job(truncation="only_second").cut
    'only_second'

    Attributes:
        postprocess: from logits to scores.
        max_batch_tokens: most padded tokens in a batch.
        cut: which text of a pair that is too long is cut.
        refuse_long: raise for a pair above max_length instead of cutting it.
        shared_out: use a smaller batch if that keeps all streams busy.
        refuse_non_finite: as for `flowvec.encoder.jobs.Job`.
        refuse_empty: raise for an empty text; never, since an empty document has a score.
        most_tokens: most tokens of a pair, if it is not the model's.
    """

    postprocess: Scores
    max_batch_tokens: int
    cut: Cut
    refuse_long: bool
    shared_out: bool = True
    refuse_non_finite: bool = True
    refuse_empty: bool = False
    most_tokens: int | None = None

    def tokenize(self, tokenizer: PairTokenizer, items: Sequence[TextPair]) -> Tokenized:
        """Token ids of pairs."""
        return tokenizer(items, self.cut)

    def _rows(self, token_ids: TokenIds, dim: int) -> DenseRows:
        """Where the logits go."""
        return DenseRows(np.empty((len(token_ids), dim), dtype=np.float32), self.postprocess)


def check_job(
    head: Head,
    activation: Activation | None,
    truncation: PairTruncation,
    max_batch_tokens: int,
    *,
    fills_streams: bool,
) -> ScoreJob:
    """Check a call's options before any text is touched.

    Raises:
        InputTypeError, InputValueError: an option is not valid.
    """
    choice("truncation", truncation, get_args(PairTruncation))
    if activation is not None:
        choice("activation", activation, ACTIVATIONS)
        if activation == "softmax" and len(head.labels) == 1:
            raise InputValueError("softmax gives 1 for every pair, because the model has one label")
    return ScoreJob(
        postprocess=Scores(head.activation if activation is None else activation),
        max_batch_tokens=whole_number("max_batch_tokens", max_batch_tokens),
        cut="only_second" if truncation == "only_second" else "longest_first",
        refuse_long=truncation == "error",
        shared_out=fills_streams,
    )


@dataclass(frozen=True, slots=True)
class Ranking:
    """A ranking of documents that are not scored yet.

    >>> reranker = Reranker.load("my-reranker")
    >>> ranking = reranker.ranking("a", ["b", "c"], top_k=1)
    >>> logits = reranker.predict(ranking.pairs, **ranking.options)
    >>> ranking.of(logits) == reranker.rank("a", ["b", "c"], top_k=1)
    True

    Attributes:
        pairs: the query with each document.
        options: how to score them: without an activation.
        finish: from logits to scores.
        column: the label whose score counts.
        top_k: how many documents to return; None returns all.
        return_documents: whether rows hold their documents.
    """

    pairs: list[TextPair]
    options: ScoreOptions
    finish: Scores
    column: int
    top_k: int | None
    return_documents: bool

    def of(self, output: npt.NDArray[Any]) -> list[Ranked]:
        """The documents by their scores, best first, from the logits of the pairs.

        Equal scores are ordered by their logits, which still differ where a sigmoid has reached 1,
        and then by the order in which they came.
        """
        if not self.pairs:
            return []
        logits = output.reshape(len(self.pairs), -1)
        scores = self.finish(logits).reshape(len(self.pairs), -1)[:, self.column]
        order = np.lexsort((np.arange(len(scores)), -logits[:, self.column], -scores))[: self.top_k]
        ranked: list[Ranked] = []
        for i in order.tolist():
            row: Ranked = {"corpus_id": i, "score": float(scores[i])}
            if self.return_documents:
                row["text"] = self.pairs[i][1]
            ranked.append(row)
        return ranked
