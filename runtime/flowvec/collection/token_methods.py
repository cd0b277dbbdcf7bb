"""Methods of a Collection for token vectors of its rows, with which searches are reranked."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from flowvec.arguments import choice
from flowvec.collection.encoder_methods import EncoderMethods
from flowvec.collection.index.vector_index import VectorIndex
from flowvec.collection.results import Hit, TokenVectorsSize
from flowvec.collection.store.settings import TOKEN_DTYPES, CollectionSettings, TokenDtype
from flowvec.collection.store.token_table import Floats, TokenCodec
from flowvec.errors import FingerprintMismatchError, InputTypeError, InputValueError
from flowvec.multi_vector.encoder import MultiVectorEncoder

__all__ = ["StoredTokens", "TokenMethods"]

# A row of 256 tokens of 128 dimensions takes 131 kB of float32.
_ROWS_AT_ONCE = 256
_SAMPLE_ROWS = 200
# SQLite's own bytes for a row, with the digest and the checksum.
_BYTES_PER_ROW = 40


@dataclass(frozen=True, slots=True)
class StoredTokens:
    """Token vectors that a collection has of some texts.

    Attributes:
        vectors: float32 (tokens, dim), by text.
        missing: the texts that have none, each once.
        codec: how they are stored.
    """

    vectors: dict[str, Floats]
    missing: list[str]
    codec: TokenCodec

    def completed(self, made: Sequence[Floats]) -> dict[str, Floats]:
        """All token vectors, by text, with those of the missing texts that were made now."""
        # As they would be read, so that scores can be compared.
        rounded = [self.codec.decode(self.codec.encode(one)) for one in made]
        return self.vectors | dict(zip(self.missing, rounded, strict=True))


class TokenMethods(EncoderMethods):
    """Token vectors: their size, how they are made and dropped."""

    _index: VectorIndex

    def token_vectors_size(
        self, encoder: MultiVectorEncoder, *, dtype: TokenDtype | None = None
    ) -> TokenVectorsSize:
        """How much `add_token_vectors` would store. Nothing is written.

            >>> colbert = MultiVectorEncoder.load("my-colbert")
            >>> with Collection.create("sized", dim=2) as collection:
            ...     collection.add_vectors(["a"], [[1, 0]], texts=["A dog swims."])
            ...     size = collection.token_vectors_size(colbert, dtype="signs")
            Added(rows=1, replaced=0, truncated=0)
            >>> size.rows, size.tokens_per_row, size.bytes
            (1, 6.0, 52)

        The texts of up to 200 rows, chosen at random, are encoded.

        Args:
            encoder: the model.
            dtype: as for `add_token_vectors`.

        Raises:
            InputTypeError, InputValueError, FingerprintMismatchError: as for `add_token_vectors`.
        """
        codec = self._codec_for(encoder, dtype)
        with self._access.reading():
            labels = self._store.tokens.missing(-1, 1 << 62)
            chosen = np.random.default_rng(0).permutation(len(labels))[:_SAMPLE_ROWS]
            items = self._store.read([labels[i] for i in sorted(chosen.tolist())])
        texts = [item.text or "" for item in items.values()]
        lengths = [len(one) for one in encoder.encode_document(texts)] if texts else [0]
        tokens = float(np.mean(lengths))
        per_row = tokens * codec.bytes_per_token + _BYTES_PER_ROW
        return TokenVectorsSize(len(labels), tokens, round(len(labels) * per_row), codec.dtype)

    def add_token_vectors(
        self,
        encoder: MultiVectorEncoder,
        *,
        dtype: TokenDtype | None = None,
        stop: threading.Event | None = None,
    ) -> int:
        """Make and store token vectors of all texts that have none, for searches with `rerank`.

            >>> colbert = MultiVectorEncoder.load("my-colbert")
            >>> with Collection.create("late", encoder=Encoder.load("mini")) as collection:
            ...     collection.add(["a", "b"], ["A dog swims.", "Stocks fell."])
            ...     collection.add_token_vectors(colbert)
            ...     hits = collection.search("a swimming dog", rerank=colbert)
            Added(rows=2, replaced=0, truncated=0)
            2
            >>> len(hits)
            2

        A search that reranks by the same model reads them instead of encoding the hits' texts;
        texts without them are encoded then. Call it again after rows were added or replaced, and
        after it was stopped or killed: a few hundred rows are made and stored at a time. They are
        used for nothing else, so `salvage` and Parquet files do not have them.

        `token_vectors_size` says before how much they take.

        Args:
            encoder: the model. All token vectors of a collection are of one.
            dtype: `float16`, or `signs`: a sixteenth of that, one bit for each number, which is
                less accurate. None is that of those that are there, or float16.
            stop: set it to stop after the rows that are being made.

        Returns:
            How many rows got token vectors.

        Raises:
            InputTypeError, InputValueError: an argument is not valid.
            FingerprintMismatchError: another model made those that are there; `drop_token_vectors`
                deletes them.
        """
        codec = self._codec_for(encoder, dtype)
        count, after = 0, -1
        while stop is None or not stop.is_set():
            with self._access.reading():
                labels = self._store.tokens.missing(after, _ROWS_AT_ONCE)
                items = self._store.read(labels)
            if not labels:
                break
            texts = {label: items[label].text or "" for label in labels}
            vectors = encoder.encode_document(list(texts.values()))
            count += self._access.change(partial(self._put_tokens, encoder, codec, texts, vectors))
            after = labels[-1]
        return count

    def drop_token_vectors(self) -> None:
        """Delete all token vectors. `compact` gives their space back to the disk."""

        def change() -> None:
            self._store.tokens.drop()
            self._store.meta.touch()
            self._index.stage()  # the same rows, in a state of another number

        self._access.change(change)

    def _put_tokens(
        self,
        encoder: MultiVectorEncoder,
        codec: TokenCodec,
        texts: dict[int, str],
        vectors: Sequence[Floats],
    ) -> int:
        """Write token vectors of rows that still lack them; inside a transaction."""
        tokens, labels = self._store.tokens, list(texts)
        self._checked_codec(self._store.meta.read_settings(), encoder, codec.dtype)
        if not tokens.has_any:
            tokens.record_model(codec, encoder.bundle.handle, encoder.fingerprint)
        lacking = set(tokens.missing(labels[0] - 1, len(labels)))
        places = [place for place, label in enumerate(labels) if label in lacking]
        tokens.put(
            [labels[i] for i in places],
            [texts[labels[i]] for i in places],
            [vectors[i] for i in places],
        )
        self._store.meta.touch()
        self._index.stage()  # the same rows, in a state of another number
        return len(places)

    def _codec_for(self, encoder: MultiVectorEncoder, dtype: TokenDtype | None) -> TokenCodec:
        """How this encoder's token vectors are stored; raises as `add_token_vectors`."""
        if not isinstance(encoder, MultiVectorEncoder):
            raise InputTypeError(
                "encoder must be a MultiVectorEncoder, as MultiVectorEncoder.load returns, not "
                f"{type(encoder).__name__}"
            )
        if dtype is not None:
            choice("dtype", dtype, TOKEN_DTYPES)
        with self._access.reading():
            settings = self._store.meta.read_settings()
        return self._checked_codec(settings, encoder, dtype)

    def _checked_codec(
        self, settings: CollectionSettings, encoder: MultiVectorEncoder, dtype: TokenDtype | None
    ) -> TokenCodec:
        """`_codec_for` valid arguments, and settings that were read."""
        if settings.token_dim is None or settings.token_dtype is None:
            return TokenCodec(encoder.dim, dtype or "float16")
        if settings.token_fingerprint != encoder.fingerprint:
            raise FingerprintMismatchError(
                f"{self._path} has token vectors of {settings.token_model}, and "
                f"{encoder.bundle.manifest.name} is another model; drop_token_vectors deletes them"
            )
        if dtype not in (None, settings.token_dtype):
            raise InputValueError(
                f"the token vectors that are there are {settings.token_dtype}, not {dtype}; "
                "drop_token_vectors deletes them"
            )
        return TokenCodec(settings.token_dim, settings.token_dtype)

    def _document_tokens(
        self, encoder: MultiVectorEncoder, hits: Sequence[Sequence[Hit]]
    ) -> dict[str, Floats] | None:
        """Token vectors of the hits' texts, stored ones and others that are made now.

        Returns:
            By text; None if the collection has no token vectors of this model.
        """
        stored = self._stored_tokens(encoder, hits)
        if stored is None or not stored.missing:
            return None if stored is None else stored.vectors
        return stored.completed(encoder.encode_document(stored.missing))

    def _stored_tokens(
        self, encoder: MultiVectorEncoder, hits: Sequence[Sequence[Hit]]
    ) -> StoredTokens | None:
        """The stored token vectors of the hits' texts; None if there are none of this model."""
        texts = {hit.id: hit.text for line in hits for hit in line if hit.text is not None}
        with self._access.reading():
            codec = self._store.tokens.codec
            if codec is None or self._token_fingerprint() != encoder.fingerprint:
                return None
            labels = {label: texts[item] for item, label in self._store.labels_of(list(texts))}
            found = self._store.tokens.read(labels)
        tokens = {labels[label]: vectors for label, vectors in found.items()}
        missing = [text for text in dict.fromkeys(texts.values()) if text not in tokens]
        return StoredTokens(tokens, missing, codec)

    def _token_fingerprint(self) -> str | None:
        """Of the model that made the token vectors; None without any."""
        with self._access.reading():
            return self._store.meta.read_settings().token_fingerprint

    def _tokens_lacking(self) -> int:
        """How many texts have no token vectors; 0 before the first ones."""
        with self._access.reading():
            return self._store.tokens.lacking()

    def _token_figures(self) -> tuple[int, int]:
        """How many rows have token vectors, and their size on disk in bytes."""
        with self._access.reading():
            return self._store.tokens.count, self._store.tokens.bytes
