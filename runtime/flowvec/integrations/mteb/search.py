"""A Collection that MTEB evaluates as a whole: graph, hybrid search and reranking."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mteb.models.model_meta import ModelMeta

from flowvec.arguments import whole_number
from flowvec.collection.collection import Collection
from flowvec.collection.index.choice import IndexKind
from flowvec.collection.reranking import RERANK_FROM
from flowvec.collection.results import Hit
from flowvec.encoder.encoder import Encoder
from flowvec.errors import CollectionError, InputTypeError
from flowvec.integrations.late import AnyReranker, LateEncoder
from flowvec.integrations.mteb.meta import meta_of
from flowvec.vectors import METRIC_OF_SIMILARITY

__all__ = ["FlowvecSearch", "Row", "text_of_document", "text_of_query"]

# Documents are added, and queries searched, so many at a time.
_DOCUMENTS = 4096
_QUERIES = 256

Row = Mapping[str, Any]


class FlowvecSearch:
    """Evaluates what a user of a Collection gets, not what its vectors could give.

    Each corpus is indexed in a collection of its own in a temporary folder, which is deleted by
    `close` or by the next corpus. Searches are those of `Collection.search_batch` with the options
    given here, so the graph's recall, hybrid search and a reranker are part of the result.
    """

    def __init__(
        self,
        model: str | Path | Encoder = "mini",
        *,
        rerank: AnyReranker | None = None,
        rerank_from: int = RERANK_FROM,
        index: IndexKind = "auto",
        exact_below: int | None = None,
        load_options: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        """Load a model.

        Args:
            model: what `Encoder.load` takes, or an Encoder.
            rerank: a Reranker or a MultiVectorEncoder, which sorts the best documents again. Those
                that it does not read follow in the order of the search.
            rerank_from: how many documents it reads.
            index: as for `Collection.create`.
            exact_below: as for `Collection.create`; 0 compares no corpus exactly.
            load_options: options of `Encoder.load`.
            **options: those of `Collection.search`, such as `hybrid`, `vector_weight`, `exact` and
                `ef`.

        Raises:
            FlowvecError: as `Encoder.load`.
        """
        if rerank is not None and not isinstance(rerank, AnyReranker):
            raise InputTypeError(
                f"rerank must be a Reranker or a MultiVectorEncoder, not {type(rerank).__name__}"
            )
        self._late = LateEncoder(model, load_options)
        self._rerank = rerank
        self._rerank_from = whole_number("rerank_from", rerank_from)
        self._index, self._exact_below = index, exact_below
        self._options = options
        self._late.get()
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self.collection: Collection | None = None

    @property
    def mteb_model_meta(self) -> ModelMeta:
        """Name and fingerprint of the model, and the options of the search."""
        index = None if self._index == "auto" else self._index
        settings = {**self._options, "index": index, "exact_below": self._exact_below}
        if self._rerank is not None:
            settings |= {
                "rerank": self._rerank.bundle.manifest.name,
                "rerank_fingerprint": self._rerank.fingerprint,
                "rerank_from": self._rerank_from,
            }
        kept = {name: value for name, value in settings.items() if value is not None}
        kind = "hybrid" if self._options.get("hybrid") else "dense"
        return meta_of(self._late.get(), kind, {"search": "collection", **kept})

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
        """Index a corpus, which replaces the one before.

        Args:
            corpus: documents with `id`, `text` and perhaps `title`, which comes before the text.
            task_metadata: not used.
            hf_split: not used.
            hf_subset: not used.
            encode_kwargs: not used: texts are batched by their tokens.
            num_proc: not used.
            **ignored: what later versions of MTEB may add.
        """
        self._drop()
        encoder = self._late.get()
        self._folder = tempfile.TemporaryDirectory(prefix="flowvec-mteb-")
        self.collection = Collection.create(
            Path(self._folder.name) / "corpus",
            encoder=encoder,
            metric=METRIC_OF_SIMILARITY.get(encoder.bundle.manifest.similarity, "cosine"),
            index=self._index,
            exact_below=self._exact_below,
        )
        ids: list[str] = []
        texts: list[str] = []
        for document in corpus:
            ids.append(document["id"])
            texts.append(text_of_document(document))
            if len(ids) == _DOCUMENTS:
                self.collection.add(ids, texts)
                ids, texts = [], []
        self.collection.add(ids, texts)
        if self._options.get("hybrid"):
            self.collection.index_texts()
        self.collection.prepare()

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
            For each query the scores of its documents, by their ids.

        Raises:
            CollectionError: nothing was indexed.
        """
        collection = self.collection
        if collection is None:
            raise CollectionError("nothing was indexed: call index first")
        rows = [(query["id"], text_of_query(query)) for query in queries]
        found: dict[str, dict[str, float]] = {}
        if top_ranked is not None:
            for key, text in rows:
                eligible = {"$id": {"in": list(top_ranked.get(key, ()))}}
                found[key] = self._found(collection, [text], top_k, filter=eligible)[0]
            return found
        for start in range(0, len(rows), _QUERIES):
            part = rows[start : start + _QUERIES]
            lines = self._found(collection, [text for _, text in part], top_k)
            found |= {key: line for (key, _), line in zip(part, lines, strict=True)}
        return found

    def _found(
        self, collection: Collection, texts: list[str], top_k: int, **filter: Any
    ) -> list[dict[str, float]]:
        options = {**self._options, **filter}
        lines = collection.search_batch(texts, top_k, **options)
        if self._rerank is None:
            return [_scores(hits) for hits in lines]
        read = min(self._rerank_from, top_k)
        again = collection.search_batch(
            texts, read, rerank=self._rerank, rerank_from=read, **options
        )
        return [_joined(first, rest) for first, rest in zip(again, lines, strict=True)]

    def close(self) -> None:
        """Delete the collection, and close the model if it was loaded here; twice is harmless."""
        self._drop()
        self._late.close()

    def _drop(self) -> None:
        if self.collection is not None:
            self.collection.close()
            self.collection = None
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None


def text_of_document(document: Row) -> str:
    """A document as MTEB's own search reads it."""
    title = document.get("title") or ""
    return f"{title} {document['text']}".strip()


def text_of_query(query: Row) -> Any:
    """A query with its instruction, if it has one."""
    instruction = query.get("instruction")
    return query["text"] if instruction is None else f"{query['text']} {instruction}"


def _scores(hits: Sequence[Hit]) -> dict[str, float]:
    return {str(hit.id): hit.score for hit in hits}


def _joined(first: Sequence[Hit], rest: Sequence[Hit]) -> dict[str, float]:
    """Scores that keep the order: reranked hits, and behind them the others by their rank."""
    scores = {hit.id: float(-place) for place, hit in enumerate(first)}
    for hit in rest:
        scores.setdefault(hit.id, float(-len(scores)))
    return {str(key): score for key, score in scores.items()}
