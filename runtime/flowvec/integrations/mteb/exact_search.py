"""A SparseEncoder or a MultiVectorEncoder that MTEB evaluates as what finds the documents."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from mteb.models.model_meta import ModelMeta

from flowvec.compat import override
from flowvec.errors import CollectionError
from flowvec.integrations.late import LateModel, load_kind
from flowvec.integrations.mteb.meta import meta_of
from flowvec.integrations.mteb.search import Row, text_of_document, text_of_query
from flowvec.multi_vector.encoder import MultiVectorEncoder
from flowvec.multi_vector.scoring import maxsim
from flowvec.sparse.encoder import SparseEncoder
from flowvec.sparse.vectors import SparseVectors

__all__ = ["FlowvecExactSearch"]

Floats = npt.NDArray[np.float32]
TokenModel = SparseEncoder | MultiVectorEncoder

# Multi-vector queries and documents that are compared at once.
_QUERIES = 64
_DOCUMENTS = 1024


class FlowvecExactSearch:
    """Finds documents by sparse or by multiple vectors, comparing each query with every document.

    A corpus is held in memory. Token vectors are large: 100 tokens with 128 numbers take 51 kB. For
    a large corpus, rerank the hits of another search: `FlowvecSearch(rerank=)`.
    """

    def __init__(
        self,
        model: str | Path | TokenModel,
        *,
        load_options: Mapping[str, Any] | None = None,
    ) -> None:
        """Load a model.

        Args:
            model: what `SparseEncoder.load` or `MultiVectorEncoder.load` takes, or a loaded model,
                which `close` leaves open. The bundle says which of the two it is.
            load_options: options of their `load`.

        Raises:
            FlowvecError: as their `load`.
        """
        kinds = (SparseEncoder, MultiVectorEncoder)
        self._late = _LateTokenModel(*kinds, model=model, options=load_options)
        self._late.get()
        self._ids: list[str] = []
        self._corpus: SparseVectors | list[Floats] | None = None

    @property
    def encoder(self) -> TokenModel:
        """The SparseEncoder or MultiVectorEncoder."""
        return self._late.get()

    @property
    def mteb_model_meta(self) -> ModelMeta:
        """Name, fingerprint and figures of the model, which MTEB keeps with the results."""
        is_sparse = isinstance(self.encoder, SparseEncoder)
        kind = "sparse" if is_sparse else "late-interaction"
        return meta_of(self.encoder, kind, {"search": "exact"})

    def index(
        self,
        corpus: Iterable[Row],
        *,
        task_metadata: Any,
        hf_split: str,
        hf_subset: str,
        encode_kwargs: Any,
        num_proc: int | None = None,
        **ignored: Any,
    ) -> None:
        """Encode a corpus, which replaces the one before.

        Args:
            corpus: documents with `id`, `text` and perhaps `title`, which comes before the text.
            task_metadata: not used.
            hf_split: not used.
            hf_subset: not used.
            encode_kwargs: not used: texts are batched by their tokens.
            num_proc: not used.
            **ignored: what later versions of MTEB may add.
        """
        rows = list(corpus)
        self._ids = [row["id"] for row in rows]
        self._corpus = self.encoder.encode_document([text_of_document(row) for row in rows])

    def search(
        self,
        queries: Iterable[Row],
        *,
        task_metadata: Any,
        hf_split: str,
        hf_subset: str,
        top_k: int,
        encode_kwargs: Any,
        top_ranked: Mapping[str, Sequence[str]] | None = None,
        num_proc: int | None = None,
        **ignored: Any,
    ) -> dict[str, dict[str, float]]:
        """Search the corpus.

        Args:
            queries: queries with `id`, `text` and perhaps `instruction`, which follows the text.
            task_metadata: not used.
            hf_split: not used.
            hf_subset: not used.
            top_k: most documents of a query.
            encode_kwargs: not used.
            top_ranked: the only documents that are eligible for each query.
            num_proc: not used.
            **ignored: what later versions of MTEB may add.

        Returns:
            For each query the scores of its documents, by their ids: dot products or MaxSim. A
            sparse query without a token in common with a document does not find it; an eligible
            document then has the score 0.

        Raises:
            CollectionError: nothing was indexed.
        """
        if self._corpus is None:
            raise CollectionError("nothing was indexed: call index first")
        rows = list(queries)
        keys, texts = [row["id"] for row in rows], [text_of_query(row) for row in rows]
        if top_ranked is None:
            lines = self._best(self._corpus, texts, top_k)
            return {
                key: {self._ids[row]: score for row, score in line}
                for key, line in zip(keys, lines, strict=True)
            }
        found: dict[str, dict[str, float]] = {}
        places = {key: place for place, key in enumerate(self._ids)}
        for key, text in zip(keys, texts, strict=True):
            eligible = [name for name in top_ranked.get(key, ()) if name in places]
            scores = dict.fromkeys(eligible, 0.0)
            if eligible:
                few = _chosen(self._corpus, [places[name] for name in eligible])
                (line,) = self._best(few, [text], len(eligible))
                scores |= {eligible[row]: score for row, score in line}
            best = sorted(scores, key=scores.__getitem__, reverse=True)[:top_k]
            found[key] = {name: scores[name] for name in best}
        return found

    def _best(
        self, corpus: SparseVectors | list[Floats], texts: list[str], top_k: int
    ) -> Iterator[list[tuple[int, float]]]:
        """The best documents of each query, best first: their places and scores."""
        encoder = self.encoder
        if isinstance(encoder, SparseEncoder):
            assert isinstance(corpus, SparseVectors)
            for hits in corpus.search(encoder.encode_query(texts), top_k):
                yield [(hit["corpus_id"], hit["score"]) for hit in hits]
            return
        assert isinstance(corpus, list)
        for start in range(0, len(texts), _QUERIES):
            queries = encoder.encode_query(texts[start : start + _QUERIES])
            blocks = [
                maxsim(queries, corpus[first : first + _DOCUMENTS])
                for first in range(0, len(corpus), _DOCUMENTS)
            ]
            nothing = np.empty((len(queries), 0), np.float32)
            for scores in np.hstack([nothing, *blocks]):
                rows = np.argsort(-scores, kind="stable")[:top_k]
                yield list(zip(rows.tolist(), scores[rows].tolist(), strict=True))

    def close(self) -> None:
        """Forget the corpus, and close the model if it was loaded here; twice is harmless."""
        self._corpus = None
        self._late.close()


class _LateTokenModel(LateModel[TokenModel]):
    """A SparseEncoder or a MultiVectorEncoder, whichever a bundle is."""

    @override
    def _load(self) -> TokenModel:
        kinds: dict[str, type[TokenModel]] = {"multi_vector": MultiVectorEncoder}
        return load_kind(self.name, self.options, kinds, SparseEncoder)


def _chosen(
    corpus: SparseVectors | list[Floats], places: list[int]
) -> SparseVectors | list[Floats]:
    if isinstance(corpus, SparseVectors):
        return SparseVectors.joined([corpus[place] for place in places])
    return [corpus[place] for place in places]
