"""The model of `flowvec rerank` and `flowvec search --rerank`."""

from __future__ import annotations

from typing import Any, cast

from flowvec.bundle.bundle import absolute_path, read_manifest
from flowvec.bundle.manifest import MANIFEST
from flowvec.multi_vector.encoder import MultiVectorEncoder
from flowvec.reranker.reranker import Reranker

__all__ = ["load_reranker"]


def load_reranker(
    model: str, provider: str | None, compute: str, revision: str | None = None
) -> Reranker | MultiVectorEncoder:
    """Load a reranker, or a multi-vector encoder, which reranks too.

    Args:
        model: a folder or a hub name.
        provider: as for `Reranker.load`.
        compute: as for `Reranker.load`.
        revision: as for `Reranker.load`.

    Raises:
        BundleError: it is neither.
    """
    path = absolute_path(model)
    is_late = (path / MANIFEST).is_file() and read_manifest(path).kind == "multi_vector"
    kind: type[Reranker | MultiVectorEncoder] = MultiVectorEncoder if is_late else Reranker
    return kind.load(model, provider=provider, compute=cast(Any, compute), revision=revision)
