"""What is timed: English texts for embedders, and pairs of a query and a document for rerankers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Any

from flowvec.bundle.bundle import Bundle
from flowvec.demo import load_passages
from flowvec.encoder.encoder import Encoder
from flowvec.encoder.loaded_model import LoadedModel
from flowvec.engine.providers import Engine
from flowvec.multi_vector.encoder import MultiVectorEncoder
from flowvec.reranker.reranker import Reranker
from flowvec.sparse.encoder import SparseEncoder
from flowvec.texts.sentences import split_sentences
from flowvec.tokenizer.pairs import TextPair

__all__ = ["KINDS", "Workload", "kinds_of_pairs", "kinds_of_texts", "workload_of"]

KINDS = ("short", "natural", "long")

_SHORT_WORDS = 5
_TEXTS = {"short": 256, "natural": 256, "long": 32}
_PAIRS = {"short": 256, "natural": 64, "long": 32}
# A query has as many documents in a row, as in a search whose hits are reranked.
_DOCUMENTS = 32
# In tokens. Static embedders take longer texts, but few texts are, and timing them takes minutes.
_LONGEST = 8192


@dataclass(frozen=True, slots=True)
class Workload:
    """What a bundle is timed on, and how.

    Attributes:
        unit: what is counted: `texts` or `pairs`.
        items: texts or pairs by kind: `short`, `natural` and `long`.
        open: loads the bundle on an engine.
        run: computes all items of a kind.
    """

    unit: str
    items: Mapping[str, Sequence[Any]]
    open: Callable[[Bundle, Engine], LoadedModel]
    run: Callable[[Any, Sequence[Any]], object]


def workload_of(bundle: Bundle) -> Workload:
    """What a bundle of any kind is timed on."""
    if bundle.manifest.kind == "reranker":
        return Workload("pairs", kinds_of_pairs(bundle), Reranker, Reranker.predict)
    if bundle.manifest.kind == "sparse":
        return Workload("texts", kinds_of_texts(bundle), SparseEncoder, SparseEncoder.encode)
    if bundle.manifest.kind == "multi_vector":
        encode = MultiVectorEncoder.encode_document
        return Workload("texts", kinds_of_texts(bundle), MultiVectorEncoder, encode)
    return Workload("texts", kinds_of_texts(bundle), Encoder, Encoder.encode)


def kinds_of_texts(bundle: Bundle) -> dict[str, list[str]]:
    """English texts for timing: a few words, sentences, and passages up to max_length or 8,192
    tokens."""
    sentences = _sentences()
    pools = {
        "short": [_beginning(sentence) for sentence in sentences],
        "natural": sentences,
        "long": _long(bundle),
    }
    return {kind: list(islice(cycle(pool), _TEXTS[kind])) for kind, pool in pools.items()}


def kinds_of_pairs(bundle: Bundle) -> dict[str, list[TextPair]]:
    """Pairs for timing: a few words as query, with sentences, passages of about 57 words, and
    passages up to max_length or 8,192 tokens."""
    sentences = _sentences()
    pools = {
        "short": sentences,
        "natural": [passage.text for passage in load_passages()],
        "long": _long(bundle),
    }
    return {
        kind: list(zip(_queries(sentences), islice(cycle(pool), _PAIRS[kind]), strict=False))
        for kind, pool in pools.items()
    }


def _queries(sentences: Sequence[str]) -> Iterator[str]:
    return (_beginning(s) for s in cycle(sentences) for _ in range(_DOCUMENTS))


def _sentences() -> list[str]:
    return [s for passage in load_passages() for s in split_sentences(passage.text)]


def _beginning(sentence: str) -> str:
    return " ".join(sentence.split()[:_SHORT_WORDS])


def _long(bundle: Bundle) -> list[str]:
    words = " ".join(passage.text for passage in load_passages()).split()
    size = max(1, int(min(bundle.manifest.max_length, _LONGEST) * 0.7))
    return [" ".join(words[i : i + size]) for i in range(0, len(words), size)]
