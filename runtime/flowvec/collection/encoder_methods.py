"""The Encoders of a Collection: the models that made its vectors."""

from __future__ import annotations

from pathlib import Path

from flowvec.collection.access import Access
from flowvec.collection.model import check_model, check_sparse_model, matching_encoder
from flowvec.collection.store.store import Store
from flowvec.encoder.encoder import Encoder
from flowvec.errors import CollectionError
from flowvec.sparse.encoder import SparseEncoder

__all__ = ["EncoderMethods"]


class EncoderMethods:
    """Which Encoders embed texts here, checked against the collection's models."""

    _path: Path
    _store: Store
    _access: Access
    _encoder: Encoder | None
    _own_encoder: Encoder | None
    _sparse_encoder: SparseEncoder | None

    @property
    def encoder(self) -> Encoder | None:
        """The Encoder that embeds texts here, in the compute type of the vectors; None without one.

        It embeds queries for searches by vector. Closing the collection may close it.
        """
        return self._encoder

    def _checked_encoder(self, encoder: Encoder | None = None) -> Encoder:
        """An Encoder, or the own one, after a check that it is the model that made the vectors."""
        encoder = self._need_encoder() if encoder is None else encoder
        settings = self._store.settings
        if settings.fingerprint != encoder.fingerprint:  # the model was recorded after `open`
            self._access.check()
            check_model(self._path, settings, encoder)
        return encoder

    def _take_encoder(self, encoder: Encoder) -> None:
        """Embed with an Encoder, or with one of its model in the compute type of the vectors.

        Raises:
            FingerprintMismatchError: it is another model.
        """
        settings = self._store.settings
        self._encoder = matching_encoder(settings, encoder)
        if self._encoder is not encoder:
            self._own_encoder = self._encoder
        check_model(self._path, settings, self._encoder)

    def _need_encoder(self) -> Encoder:
        if self._encoder is None:
            raise CollectionError(
                "this collection was opened without an encoder, so it takes vectors, not texts; "
                "open it with Collection.open(path, encoder=...)"
            )
        return self._encoder

    @property
    def sparse_encoder(self) -> SparseEncoder | None:
        """The SparseEncoder that makes sparse vectors here; None without one."""
        return self._sparse_encoder

    def _take_sparse_encoder(self, encoder: SparseEncoder) -> None:
        """Make sparse vectors with a SparseEncoder.

        Raises:
            FingerprintMismatchError: it is another model.
        """
        check_sparse_model(self._path, self._store.meta.read_settings(), encoder)
        self._sparse_encoder = encoder

    def _checked_sparse_encoder(self, encoder: SparseEncoder | None = None) -> SparseEncoder:
        """A SparseEncoder, or the own one, after a check that it made the sparse vectors."""
        encoder = self._sparse_encoder if encoder is None else encoder
        if encoder is None:
            raise CollectionError(
                "this collection was opened without a sparse encoder, so it takes sparse vectors, "
                "not texts; open it with Collection.open(path, sparse_encoder=...)"
            )
        with self._access.reading():  # the model may have been recorded after `open`
            check_sparse_model(self._path, self._store.meta.read_settings(), encoder)
        return encoder

    def _sparse_fingerprint(self) -> str | None:
        """Of the model that made the sparse vectors; None if it is not known."""
        with self._access.reading():
            return self._store.meta.read_settings().sparse_fingerprint
