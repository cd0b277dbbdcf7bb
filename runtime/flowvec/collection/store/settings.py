"""A collection's settings: what its vectors are, and which model made them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Literal, cast, get_args

from flowvec.vectors import METRICS, Metric

__all__ = [
    "TOKEN_DTYPES",
    "VECTOR_DTYPES",
    "CollectionSettings",
    "TokenDtype",
    "VectorDtype",
]

VectorDtype = Literal["float32", "float16"]
VECTOR_DTYPES: tuple[VectorDtype, ...] = get_args(VectorDtype)
TokenDtype = Literal["float16", "signs"]
TOKEN_DTYPES: tuple[TokenDtype, ...] = get_args(TokenDtype)

# Keys of the table `meta` that differ from the attribute's name.
_KEYS = {"m": "M"}


@dataclass(frozen=True, slots=True)
class CollectionSettings:
    """The settings of a collection.

    They do not change after `create`, with exceptions: if `create` got no model, the first added
    texts set it; the first sparse vectors set theirs; so do token vectors, which can be dropped.

    Attributes:
        dim: length of the vectors.
        metric: `cosine`, `ip` or `l2`.
        m: links per node of the graph.
        ef_construction: search depth while the graph is built.
        created: when, ISO 8601.
        created_by: version of flowvec.
        vector_dtype: how vectors are stored.
        model: name or directory of the bundle that made the vectors.
        fingerprint: that bundle's fingerprint; None for plain vectors.
        compute: compute type that the first vectors were made with.
        sparse_dim: dimensions of the sparse vectors; None without any.
        sparse_model: name or directory of the bundle that made them.
        sparse_fingerprint: that bundle's fingerprint; None for sparse vectors made elsewhere.
        token_dim: length of the token vectors; None without any.
        token_dtype: how they are stored.
        token_model: name or directory of the bundle that made them.
        token_fingerprint: that bundle's fingerprint.
    """

    dim: int
    metric: Metric
    m: int
    ef_construction: int
    created: str
    created_by: str
    vector_dtype: VectorDtype = "float32"
    model: str | None = None
    fingerprint: str | None = None
    compute: str | None = None
    sparse_dim: int | None = None
    sparse_model: str | None = None
    sparse_fingerprint: str | None = None
    token_dim: int | None = None
    token_dtype: TokenDtype | None = None
    token_model: str | None = None
    token_fingerprint: str | None = None

    @classmethod
    def parse(cls, meta: Mapping[str, str]) -> CollectionSettings:
        """Settings from the keys and values of the table `meta`.

        Raises:
            ValueError: a key is missing, or its value is not valid.
        """
        values = {name: meta[key] for name, key in SETTING_KEYS.items() if key in meta}
        try:
            dim, m, ef_construction = (int(values[k]) for k in ("dim", "m", "ef_construction"))
            if dim < 1:
                raise ValueError(f"dim is {dim}")
            sparse_dim = int(values["sparse_dim"]) if "sparse_dim" in values else None
            # Token vectors that were dropped leave empty values.
            token_dtype = values.get("token_dtype") or None
            return cls(
                dim=dim,
                metric=METRICS[METRICS.index(values["metric"])],
                m=m,
                ef_construction=ef_construction,
                created=values["created"],
                created_by=values["created_by"],
                vector_dtype=VECTOR_DTYPES[VECTOR_DTYPES.index(values["vector_dtype"])],
                model=values.get("model"),
                fingerprint=values.get("fingerprint"),
                compute=values.get("compute"),
                sparse_dim=sparse_dim,
                sparse_model=values.get("sparse_model"),
                sparse_fingerprint=values.get("sparse_fingerprint"),
                token_dim=int(values.get("token_dim", "0")) or None,
                token_dtype=None
                if token_dtype is None
                else TOKEN_DTYPES[TOKEN_DTYPES.index(cast(TokenDtype, token_dtype))],
                token_model=values.get("token_model") or None,
                token_fingerprint=values.get("token_fingerprint") or None,
            )
        except KeyError as error:
            raise ValueError(f"{error} is missing") from None

    def as_meta(self) -> dict[str, str]:
        """The keys and values of the table `meta`, which `parse` reads."""
        values = {name: getattr(self, name) for name in SETTING_KEYS}
        return {SETTING_KEYS[name]: str(v) for name, v in values.items() if v is not None}


# The key of each setting in the table `meta`; a checksum covers these keys.
SETTING_KEYS = {
    field.name: _KEYS.get(field.name, field.name) for field in fields(CollectionSettings)
}
