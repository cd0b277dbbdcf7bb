"""Which model made a collection's vectors, and whether an Encoder is that model."""

from __future__ import annotations

import logging
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from flowvec.arguments import choice, whole_number
from flowvec.bundle.bundle import absolute_path
from flowvec.collection.index.hnsw import EF_CONSTRUCTION, M
from flowvec.collection.store.meta import MetaTable
from flowvec.collection.store.settings import VECTOR_DTYPES, CollectionSettings, VectorDtype
from flowvec.collection.store.store import FILE, Store
from flowvec.encoder.argument import check_encoder_or_none
from flowvec.encoder.encoder import Encoder
from flowvec.engine.providers import COMPUTES
from flowvec.errors import (
    FingerprintMismatchError,
    InputTypeError,
    InputValueError,
    MissingDependencyError,
    ProviderUnavailableError,
)
from flowvec.sparse.encoder import SparseEncoder
from flowvec.vectors import METRICS, Metric
from flowvec.version import __version__

__all__ = [
    "Model",
    "check_model",
    "check_same_settings",
    "check_sparse_encoder_or_none",
    "check_sparse_model",
    "check_sparse_queries",
    "encoder_for",
    "matching_encoder",
    "new_settings",
    "record_sparse_model",
]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Model:
    """The model that made a collection's vectors.

    Attributes:
        model: name or directory of its bundle.
        fingerprint: its fingerprint.
        compute: compute type of the first vectors.
    """

    model: str | None = None
    fingerprint: str | None = None
    compute: str | None = None

    @classmethod
    def of(cls, encoder: Encoder) -> Model:
        """The model of an Encoder."""
        return cls(encoder.bundle.handle, encoder.fingerprint, encoder.engine.compute)

    def as_meta(self) -> dict[str, str]:
        """Keys and values for the collection's settings; none without a fingerprint."""
        if self.fingerprint is None:
            return {}
        return {key: value for key, value in asdict(self).items() if value is not None}


def check_model(path: Path, settings: CollectionSettings, encoder: Encoder) -> None:
    """Check that an Encoder is the model that made a collection's vectors.

    A collection without a model takes any Encoder of its dimension: the first texts decide. Another
    compute type of the same model is only warned about.

    Raises:
        FingerprintMismatchError: it is another model.
    """
    expected = settings.fingerprint
    if expected is None and encoder.dim == settings.dim:
        return
    if encoder.fingerprint != expected:
        made_with = f"plain vectors of {settings.dim} dimensions"
        if expected is not None:
            made_with = f"{settings.model} (fingerprint {expected[:12]})"
        raise FingerprintMismatchError(
            f"{path} was made with {made_with}, and {encoder.bundle.manifest.name} is another "
            f"model (fingerprint {encoder.fingerprint[:12]}): their vectors cannot be compared"
        )
    if settings.compute not in (None, encoder.engine.compute):
        logger.warning(
            "%s was made in %s and is now used in %s: scores may differ in the third digit",
            path,
            settings.compute,
            encoder.engine.compute,
        )


def check_sparse_encoder_or_none(encoder: object) -> None:
    """Check that an argument is a SparseEncoder or None.

    Raises:
        InputTypeError: it is neither.
    """
    if encoder is not None and not isinstance(encoder, SparseEncoder):
        raise InputTypeError(
            "sparse_encoder must be a SparseEncoder, as SparseEncoder.load returns, not "
            f"{type(encoder).__name__}"
        )


def check_sparse_model(path: Path, settings: CollectionSettings, encoder: SparseEncoder) -> None:
    """Check that a SparseEncoder is the model that made a collection's sparse vectors.

    Where that is not known, any of their dimensions will do.

    Raises:
        FingerprintMismatchError: it is another model.
    """
    expected = settings.sparse_fingerprint
    if expected == encoder.fingerprint:
        return
    if expected is None and settings.sparse_dim in (None, encoder.dim):
        return
    raise FingerprintMismatchError(
        f"{path} has sparse vectors of {_sparse_origin(settings)}, and "
        f"{encoder.bundle.manifest.name} is another model (fingerprint "
        f"{encoder.fingerprint[:12]}): their vectors cannot be compared"
    )


def check_sparse_queries(
    path: Path, settings: CollectionSettings, dim: int, fingerprint: str | None
) -> None:
    """Check that sparse vectors of queries can be compared with a collection's.

    Args:
        path: the collection.
        settings: its settings.
        dim: dimensions of the queries' vectors.
        fingerprint: of the model that made them; None if it is not known.

    Raises:
        InputValueError: they have other dimensions.
        FingerprintMismatchError: another model made the collection's.
    """
    expected = settings.sparse_fingerprint
    if None not in (expected, fingerprint) and expected != fingerprint:
        raise FingerprintMismatchError(
            f"{path} has sparse vectors of {_sparse_origin(settings)}, and those of the queries "
            f"were made by another model (fingerprint {str(fingerprint)[:12]})"
        )
    if settings.sparse_dim not in (None, dim):
        raise InputValueError(
            f"sparse vectors of queries must have {settings.sparse_dim} dimensions, as those of "
            f"{path}, and not {dim}"
        )


def _sparse_origin(settings: CollectionSettings) -> str:
    if settings.sparse_fingerprint is None:
        return f"{settings.sparse_dim} dimensions, made elsewhere"
    return f"{settings.sparse_model} (fingerprint {settings.sparse_fingerprint[:12]})"


def record_sparse_model(path: Path, meta: MetaTable, encoder: SparseEncoder) -> None:
    """Record the model of the first sparse vectors that are made here; inside a transaction.

    Raises:
        FingerprintMismatchError: it is another model.
    """
    settings = meta.read_settings()
    check_sparse_model(path, settings, encoder)
    if settings.sparse_fingerprint is None:
        meta.write_settings(
            {
                "sparse_model": encoder.bundle.handle,
                "sparse_fingerprint": encoder.fingerprint,
            }
        )


def matching_encoder(settings: CollectionSettings, encoder: Encoder) -> Encoder:
    """An Encoder in the compute type of a collection's first vectors, if its own was left open.

    Compute types give slightly different vectors, and the default of `Encoder.load` depends on the
    machine and on flowvec's version. So a collection stays with the type that it began with.

    Returns:
        `encoder` itself, or another Encoder of the same model, which the caller closes.
    """
    recorded = settings.compute
    if (
        encoder.compute_is_open
        and settings.fingerprint == encoder.fingerprint
        and recorded in COMPUTES
        and recorded != encoder.engine.compute
    ):
        try:
            same = encoder.with_compute(recorded)
        except (ProviderUnavailableError, MissingDependencyError) as error:
            logger.debug("%s", error)
        else:
            logger.info(
                "vectors were made in %s, so %s is opened in it", recorded, encoder.bundle.handle
            )
            return same
    return encoder


def encoder_for(path: Path, encoder: Encoder) -> Encoder:
    """`matching_encoder` for the collection in a directory.

    Raises:
        CollectionError: there is no collection.
    """
    store = Store(absolute_path(path) / FILE)
    try:
        return matching_encoder(store.settings, encoder)
    finally:
        store.close()


def new_settings(
    encoder: Encoder | None, dim: int | None, metric: Metric, vector_dtype: VectorDtype
) -> CollectionSettings:
    """Settings of a new collection.

    Args:
        encoder: the model of its vectors, or None.
        dim: length of its vectors, if there is no encoder.
        metric: how vectors are compared.
        vector_dtype: how vectors are stored.

    Raises:
        InputTypeError, InputValueError: an argument is not valid.
    """
    check_encoder_or_none(encoder)
    choice("metric", metric, METRICS)
    choice("vector_dtype", vector_dtype, VECTOR_DTYPES)
    if encoder is not None and dim is None:
        model, length = Model.of(encoder), encoder.dim
    elif encoder is None and dim is not None:
        model, length = Model(), whole_number("dim", dim)
    else:
        raise InputValueError("give either an encoder or a dim")
    return CollectionSettings(
        dim=length,
        metric=metric,
        m=M,
        ef_construction=EF_CONSTRUCTION,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        created_by=f"flowvec {__version__}",
        vector_dtype=vector_dtype,
        model=model.model,
        fingerprint=model.fingerprint,
        compute=model.compute,
    )


def check_same_settings(
    existing: CollectionSettings, settings: CollectionSettings, folder: Path
) -> None:
    """Check that an existing collection has the requested settings.

    Raises:
        InputValueError: it has another dim, metric or vector_dtype.
    """
    for name in ("dim", "metric", "vector_dtype"):
        actual, wanted = getattr(existing, name), getattr(settings, name)
        if actual != wanted:
            raise InputValueError(f"{folder} has {name} {actual}, not {wanted}")
