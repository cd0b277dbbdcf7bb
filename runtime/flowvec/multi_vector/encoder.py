"""MultiVectorEncoder: texts in, a vector for each token out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypedDict, Unpack, cast, get_args, overload

import numpy as np
import numpy.typing as npt

from flowvec.arguments import choice, explaining, flag, whole_number
from flowvec.bundle.manifest import Head, LateInteraction
from flowvec.compat import override
from flowvec.encoder.batching import Batch
from flowvec.encoder.loaded_model import call_bar
from flowvec.encoder.options import OnEmpty, Truncation, prompt_text
from flowvec.encoder.pipeline import refuse_non_finite, windows_of
from flowvec.encoder.text_model import TextModel, check_iterable, checked
from flowvec.engine.onnxruntime_session import runtime_version
from flowvec.errors import InputTypeError
from flowvec.multi_vector.rows import TokenJob, TokenRows
from flowvec.multi_vector.scoring import maxsim
from flowvec.reranker.scores import Ranked, Ranking, Scores
from flowvec.sequences import as_list
from flowvec.tokenizer.pairs import check_pairs
from flowvec.tokenizer.token_ids import TokenIds
from flowvec.tokenizer.tokenizer import Tokenized

__all__ = ["MultiVectorEncoder", "MultiVectorInfo", "MultiVectorOptions"]

Floats = npt.NDArray[np.float32]

# What callers of sentence-transformers, PyLate and fastembed write.
_FOREIGN = {
    "batch_size": "texts are batched by their tokens; leave it out, or give max_batch_tokens=",
    "is_query": "call encode_query or encode_document",
    "task": "call encode_query or encode_document",
    "convert_to_numpy": "vectors are numpy arrays; leave it out",
    "convert_to_tensor": "vectors are numpy arrays; torch.from_numpy(vectors) is a tensor",
    "normalize_embeddings": "vectors are normalized if the checkpoint says so; leave it out",
    "pool_factor": "token vectors are not pooled; leave it out",
    "device": "the engine is chosen by MultiVectorEncoder.load(device=)",
    "parallel": "a MultiVectorEncoder uses all cores; leave it out",
}


class MultiVectorOptions(TypedDict, total=False):
    """Options of every call that encodes texts; `encode_query` says what they mean."""

    max_batch_tokens: int | None
    truncation: Truncation
    on_empty: OnEmpty


class _CallOptions(MultiVectorOptions, total=False):
    show_progress_bar: bool | None


@dataclass(frozen=True, slots=True)
class MultiVectorInfo:
    """A MultiVectorEncoder's model, and the engine that runs it.

        >>> info = MultiVectorEncoder.load("my-colbert").info()
        >>> info.dim, info.query_length, info.document_length, info.expansion_length
        (16, 24, 64, 24)

    `query_length` and `document_length` are the most tokens of a text; queries with fewer than
    `expansion_length` tokens are filled up (None: they are not). `skipped_tokens` says how many
    tokens of the vocabulary have no vector in documents. The other fields are those of
    `EncoderInfo`.
    """

    name: str
    path: str
    source: str
    dim: int
    query_length: int
    document_length: int
    expansion_length: int | None
    skipped_tokens: int
    normalised: bool
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


class MultiVectorEncoder(TextModel):
    """A ColBERT-style model loaded on an engine: texts in, a vector for each token out.

    Documents are encoded without the query, as by an `Encoder`, and compared token by token: more
    accurate than one vector, and faster than a `Reranker`. Use it to sort the best hits of a
    search, with `rerank=`.

        >>> model = MultiVectorEncoder.load("my-colbert")
        >>> documents = model.encode_document(["A dog swims.", "Stocks fell."])
        >>> len(documents), documents[0].shape[1], documents[0].dtype
        (2, 16, dtype('float32'))
        >>> maxsim(model.encode_query("who swims?"), documents).shape
        (1, 2)
    """

    _kind = "multi_vector"

    @property
    def late_interaction(self) -> LateInteraction:
        """Lengths, query expansion and skipped tokens."""
        late_interaction = self._bundle.manifest.late_interaction
        assert late_interaction is not None, "`require_kind` has checked it"
        return late_interaction

    @property
    def head(self) -> Head:
        """What a collection's search asks of a reranker: one score, used as it is."""
        return Head(("maxsim",), "identity")

    def info(self) -> MultiVectorInfo:
        """The model's figures, and the engine that runs it."""
        manifest, engine, head = self._bundle.manifest, self._engine, self.late_interaction
        return MultiVectorInfo(
            name=manifest.name,
            path=str(self._bundle.path),
            source=manifest.source,
            dim=manifest.dim,
            query_length=head.query_length,
            document_length=head.document_length,
            expansion_length=head.expansion_length,
            skipped_tokens=len(head.skipped_tokens),
            normalised=manifest.normalised,
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

    @overload
    def encode_query(  # type: ignore[overload-overlap]
        self, texts: str, **options: Unpack[_CallOptions]
    ) -> Floats: ...

    @overload
    def encode_query(
        self, texts: Iterable[str], **options: Unpack[_CallOptions]
    ) -> list[Floats]: ...

    @explaining(_FOREIGN)
    def encode_query(
        self,
        texts: str | Iterable[str],
        *,
        max_batch_tokens: int | None = None,
        truncation: Truncation = "truncate",
        on_empty: OnEmpty = "encode",
        show_progress_bar: bool | None = None,
    ) -> Floats | list[Floats]:
        """Encode queries.

        Args:
            texts: one text, or any iterable of texts.
            max_batch_tokens: replaces the encoder's for this call.
            truncation: `truncate` cuts queries at `query_length` and counts them; `error` raises.
            on_empty: `encode` encodes empty texts as the model sees them; `error` raises.
            show_progress_bar: None shows one on a terminal for long calls.

        Returns:
            float32 (tokens, dim) for one text; a list of such arrays, in input order, for several.

        Raises:
            InputTypeError: an item is not a str. The message names its index; nothing was computed.
            InputValueError: an argument is not valid, or the options refuse a text.
            NonFiniteError: the model gave NaN or infinity. The message names the texts.
        """
        job = self._job(True, max_batch_tokens, truncation, on_empty)
        return self._encode(texts, job, on_empty, show_progress_bar)

    @overload
    def encode_document(  # type: ignore[overload-overlap]
        self, texts: str, **options: Unpack[_CallOptions]
    ) -> Floats: ...

    @overload
    def encode_document(
        self, texts: Iterable[str], **options: Unpack[_CallOptions]
    ) -> list[Floats]: ...

    @explaining(_FOREIGN)
    def encode_document(
        self,
        texts: str | Iterable[str],
        *,
        max_batch_tokens: int | None = None,
        truncation: Truncation = "truncate",
        on_empty: OnEmpty = "encode",
        show_progress_bar: bool | None = None,
    ) -> Floats | list[Floats]:
        """Encode documents. Tokens that the checkpoint skips, such as punctuation, get no vector.

        Arguments, results and errors are those of `encode_query`, with `document_length`.
        """
        job = self._job(False, max_batch_tokens, truncation, on_empty)
        return self._encode(texts, job, on_empty, show_progress_bar)

    def _encode(
        self,
        texts: str | Iterable[str],
        job: TokenJob,
        on_empty: OnEmpty,
        show_progress_bar: bool | None,
    ) -> Floats | list[Floats]:
        items, single = self.items(texts, on_empty)
        with call_bar("encode", len(items), "texts", show_progress_bar) as drawn:
            vectors = self._encoded(items, job, drawn.update)
        return vectors[0] if single else vectors

    def _encoded(
        self, items: list[str], job: TokenJob, done: Callable[[int], object] | None = None
    ) -> list[Floats]:
        windows = self._pipeline.windows(windows_of(items), job, self._report, done)
        return [array for window in windows for array in cast(list[Floats], window.vectors)]

    def stream_documents(
        self, texts: Iterable[str], **options: Unpack[MultiVectorOptions]
    ) -> Iterator[Floats]:
        """Encode documents of an iterable of any length at constant memory.

        Reads a few thousand texts at a time and yields float32 (tokens, dim) per text, in order.

        Args:
            texts: any iterable of texts.
            **options: as for `encode_document`.

        Raises:
            As `encode_document`.
        """
        if isinstance(texts, str):
            raise InputTypeError("stream_documents takes an iterable of texts")
        check_iterable(texts)
        job = self._job(False, **options)
        parts = windows_of(checked(texts, job.refuse_empty))
        windows = self._pipeline.windows(parts, job, self._report)
        return (array for part in windows for array in cast(list[Floats], part.vectors))

    # --- scores ---------------------------------------------------------------------------------

    def rank(
        self,
        query: str,
        documents: Sequence[str],
        *,
        top_k: int | None = None,
        return_documents: bool = False,
    ) -> list[Ranked]:
        """Sort documents by how well they answer a query.

        Args:
            query: a text.
            documents: texts.
            top_k: how many to return; None returns all.
            return_documents: put each document into its row.

        Returns:
            Rows `{"corpus_id", "score"}` and, if asked for, `"text"`, best first. `corpus_id` is
            the document's index. Equal scores are ordered by index.

        Raises:
            InputTypeError: the query or a document is not a str.
            InputValueError: an argument is not valid.
        """
        ranking = self.ranking(query, documents, top_k=top_k, return_documents=return_documents)
        return ranking.of(self.predict(ranking.pairs))

    def predict(self, pairs: Iterable[Sequence[str]], *, activation: str | None = None) -> Floats:
        """MaxSim of pairs (query, document), float32 (pairs,), in input order.

        A text that is in several pairs is encoded once.

        Args:
            pairs: pairs of texts.
            activation: `identity` or None; scores are not changed. `Reranker.predict` has others.

        Raises:
            InputTypeError: an item is not a pair of str. The message names its index.
            InputValueError: an argument is not valid.
        """
        if activation is not None:
            choice("activation", activation, ("identity",))
        if isinstance(pairs, str | bytes) or not isinstance(pairs, Iterable):
            raise InputTypeError(f"pairs must be pairs of texts, not {type(pairs).__name__}")
        given = check_pairs(list(pairs))
        queries = list(dict.fromkeys(query for query, _ in given))
        documents = list(dict.fromkeys(document for _, document in given))
        query_vectors = dict(zip(queries, self.encode_query(queries), strict=True))
        document_vectors = dict(zip(documents, self.encode_document(documents), strict=True))
        out = np.empty(len(given), dtype=np.float32)
        rows_of: dict[str, list[int]] = {query: [] for query in queries}
        for row, (query, _) in enumerate(given):
            rows_of[query].append(row)
        for query, rows in rows_of.items():
            out[rows] = maxsim(query_vectors[query], [document_vectors[given[i][1]] for i in rows])
        return out

    def ranking(
        self,
        query: str,
        documents: Sequence[str],
        *,
        top_k: int | None = None,
        return_documents: bool = False,
    ) -> Ranking:
        """The pairs that `rank` scores, and what it makes of their scores.

        Raises:
            InputTypeError, InputValueError: as `rank`.
        """
        if not isinstance(query, str):
            raise InputTypeError(f"query must be a str, not {type(query).__name__}")
        if top_k is not None:
            whole_number("top_k", top_k)
        return Ranking(
            pairs=check_pairs([(query, text) for text in as_list("documents", documents)]),
            options={"activation": "identity"},
            finish=Scores("identity"),
            column=0,
            top_k=top_k,
            return_documents=flag("return_documents", return_documents),
        )

    def warmup(self) -> MultiVectorEncoder:
        """Run batches of a few lengths, so that later calls do not pay for first-time work."""
        longest = self.late_interaction.document_length
        words = ["warm"] * longest
        lengths = {2, 8, 16, 32, 64, 128, longest}
        self.encode_document([" ".join(words[:n]) for n in sorted(lengths) if n <= longest])
        self.encode_query("warm")
        return self

    # --- building blocks ------------------------------------------------------------------------

    @override
    def run(
        self,
        ids: Tokenized | TokenIds | Sequence[Sequence[int] | npt.NDArray[np.int32]],
        batches: Sequence[Batch],
        *,
        alone: bool = True,
    ) -> Floats:
        """Run given batches: `LoadedModel.run`, but with a row for each token.

        Returns:
            float32 (tokens, dim): the tokens of all texts, in order.

        Raises:
            As `LoadedModel.run`.
        """
        ids = self._checked_ids(ids, batches)
        rows = TokenRows(ids, None)
        self._pipeline.run_into(ids, batches, rows, alone=alone)
        refuse_non_finite(rows.non_finite())
        return np.concatenate([np.empty((0, self.dim), np.float32), *rows.results()])

    def _job(
        self,
        is_query: bool,
        max_batch_tokens: int | None = None,
        truncation: Truncation = "truncate",
        on_empty: OnEmpty = "encode",
    ) -> TokenJob:
        """Check a call's options, before any text is touched."""
        self._pipeline.ready()
        choice("truncation", truncation, get_args(Truncation))
        choice("on_empty", on_empty, get_args(OnEmpty))
        tokens = self._max_batch_tokens if max_batch_tokens is None else max_batch_tokens
        prompt = self.query_prompt if is_query else self.document_prompt
        return TokenJob(
            head=self.late_interaction,
            is_query=is_query,
            prompt=prompt_text(self._bundle.manifest, prompt),
            max_batch_tokens=whole_number("max_batch_tokens", tokens),
            refuse_long=truncation == "error",
            refuse_empty=on_empty == "error",
            shared_out=max_batch_tokens is None,
        )

    def __repr__(self) -> str:
        name = self._bundle.manifest.name
        return f"MultiVectorEncoder({name!r}, dim={self.dim}, {self._engine.provider})"
