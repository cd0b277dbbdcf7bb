"""The kinds of models that can be served, told apart by their bundles' manifests."""

from __future__ import annotations

from typing import Any

from flowvec.bundle.exported import open_bundle
from flowvec.bundle.manifest import Kind
from flowvec.encoder.encoder import Encoder
from flowvec.encoder.loaded_model import LoadedModel
from flowvec.encoder.loading import EngineRequest
from flowvec.multi_vector.encoder import MultiVectorEncoder
from flowvec.reranker.reranker import Reranker
from flowvec.server.served_model import (
    ServedEncoder,
    ServedModel,
    ServedMultiVector,
    ServedReranker,
    ServedSparse,
)
from flowvec.server.settings import Settings
from flowvec.sparse.encoder import SparseEncoder

__all__ = ["CLASSES", "load_model", "served_model"]

# What opens a bundle of each kind; static embedders are embedders too.
CLASSES: dict[Kind, type[LoadedModel]] = {
    "embedder": Encoder,
    "reranker": Reranker,
    "sparse": SparseEncoder,
    "multi_vector": MultiVectorEncoder,
}
_SERVED: dict[type[LoadedModel], Any] = {
    Encoder: ServedEncoder,
    Reranker: ServedReranker,
    SparseEncoder: ServedSparse,
    MultiVectorEncoder: ServedMultiVector,
}


def load_model(source: str, *, revision: str | None = None, **engine: Any) -> LoadedModel:
    """Load a model of any kind.

    Args:
        source: as for `Encoder.load`.
        revision: likewise.
        **engine: fields of `EngineRequest`.

    Raises:
        FlowvecError: as `Encoder.load`.
    """
    request = EngineRequest(**engine)
    bundle = open_bundle(source, revision=revision)
    return CLASSES[bundle.manifest.kind]._chosen(bundle, request, None, "cached")


def served_model(
    name: str, model: LoadedModel, settings: Settings, *, is_shared: bool
) -> ServedModel:
    """A model of any kind with its queue; arguments as `ServedModel`."""
    kind = next(served for loaded, served in _SERVED.items() if isinstance(model, loaded))
    served: ServedModel = kind(name, model, settings, is_shared=is_shared)
    return served
