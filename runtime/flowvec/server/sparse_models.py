"""Which served model makes the sparse vectors of a collection's texts."""

from __future__ import annotations

from flowvec.server.model_queue import Outcome
from flowvec.server.refusal import Refusal
from flowvec.server.request import Request
from flowvec.server.served import Served
from flowvec.server.served_collection import ServedCollection
from flowvec.server.served_model import ServedSparse
from flowvec.server.sparse_bodies import SparseChoice

__all__ = ["chosen_sparse", "embed_sparse", "own_sparse"]


def own_sparse(served: Served, collection: ServedCollection) -> ServedSparse | None:
    """The model of a collection's sparse vectors; None if it is not served, or there is none.

    It is the SparseEncoder that the collection was opened with, or else the served model that made
    the sparse vectors.
    """
    if collection.sparse is None and served.sparse_encoders:
        fingerprint = collection.sparse_fingerprint
        models = served.sparse_encoders.values()
        same = (model for model in models if model.encoder.fingerprint == fingerprint)
        collection.sparse = next(same, None)
    return collection.sparse


def chosen_sparse(
    served: Served, collection: ServedCollection, choice: SparseChoice | None
) -> ServedSparse | None:
    """The model that makes the sparse vectors of a request's texts; None makes none.

    Args:
        served: the models.
        collection: the collection.
        choice: a model's name; true for the collection's own model, or the first that is served if
            it has no sparse vectors yet; None for its own if it has one; false for none.

    Raises:
        Refusal: there is no such model.
        FingerprintMismatchError: another model made the sparse vectors that are there.
    """
    if choice is False:
        return None
    own = own_sparse(served, collection)
    if isinstance(choice, str):
        model = served.sparse(choice)
        if own is not None and model.encoder.fingerprint != own.encoder.fingerprint:
            raise Refusal(
                "conflict", f"the collection's sparse vectors are of {own.name}, not {choice}"
            )
    elif own is not None:
        model = own
    elif choice:
        model = served.sparse(None)
    else:
        return None
    collection.rows.collection._checked_sparse_encoder(model.encoder)
    return model


async def embed_sparse(
    served: Served, request: Request, model: ServedSparse, texts: list[str], *, are_queries: bool
) -> Outcome:
    """Sparse vectors of texts, `SparseVectors`; there is at least one text.

    Raises:
        Refusal, ClientGone: as `Served.embed`.
    """
    encoder = model.encoder
    prompt = encoder.query_prompt if are_queries else encoder.document_prompt
    return await served.embed(request, model, texts, {"prompt_name": prompt})
