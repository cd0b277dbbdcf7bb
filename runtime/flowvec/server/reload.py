"""Loading models again while they serve: `POST /v1/admin/reload`, and SIGHUP."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Literal, TypedDict

import msgspec

from flowvec.encoder.loaded_model import LoadedModel
from flowvec.errors import FlowvecError
from flowvec.server.answer import Answer, json_answer
from flowvec.server.bodies import body_of, decoder
from flowvec.server.described import described
from flowvec.server.refusal import Refusal
from flowvec.server.request import Request
from flowvec.server.served import Served
from flowvec.server.served_model import ModelKind, ServedModel

__all__ = ["reload", "reload_models"]

logger = logging.getLogger(__name__)


class Reload(msgspec.Struct, forbid_unknown_fields=True):
    """Which model to load again; without a name, all."""

    model: str | None = None


class ReloadedModel(TypedDict):
    """A model that was loaded again. `swapped`: it is the same; `replaced`: its vectors or scores
    are others."""

    id: str
    kind: ModelKind
    status: Literal["swapped", "replaced"]
    fingerprint: str
    previous_fingerprint: str


class Reloaded(TypedDict):
    """All that were loaded again."""

    models: list[ReloadedModel]


_RELOAD = decoder(Reload)


@described(Reloaded, takes=Reload)
async def reload(served: Served, request: Request) -> Answer:
    """Load models again, with an admin key; all of them are replaced, or none."""
    if served.settings.keys is None:
        raise Refusal("forbidden", "this route is off: the server has no --api-key-file")
    if not request.is_admin:
        raise Refusal(
            "forbidden", "an admin key is needed: `flowvec serve --new-key NAME --admin` makes one"
        )
    body = await body_of(request, _RELOAD, empty=b"{}")
    return json_answer({"models": await reload_models(served, body.model)})


async def reload_models(served: Served, name: str | None = None) -> list[ReloadedModel]:
    """Load a model again, or all, and put it in the place of the one that serves.

    Requests that have begun are answered by the old one, which is closed after the last of them.

    Raises:
        Refusal: there is no such model, it cannot be loaded, or a collection holds vectors of the
            old one that are not those of the new one. Nothing has changed then.
    """
    load = served.load
    if load is None:
        raise Refusal("forbidden", "this server cannot load its models again")
    if served.is_reloading:
        raise Refusal("conflict", "models are being loaded again already", retry_after=10.0)
    served.is_reloading = True
    loaded: dict[LoadedModel, LoadedModel] = {}
    successors: list[tuple[ServedModel, ServedModel]] = []
    try:
        for old in _chosen(served, name):
            if old.model not in loaded:
                new = await asyncio.to_thread(_loaded, load, old)
                loaded[old.model] = new
                _check_collections(served, old, new)
            successor = old.successor(loaded[old.model])
            successors.append((old, successor))
            await asyncio.to_thread(successor.warm_up)
    except BaseException:
        for _, successor in successors:
            await successor.close()
        for new in loaded.values():
            await asyncio.to_thread(new.close)
        raise
    finally:
        served.is_reloading = False
    for old, successor in successors:
        served.replace(old, successor)
    return [_about(old, successor) for old, successor in successors]


def _chosen(served: Served, name: str | None) -> list[ServedModel]:
    """The models of a name, and those that share what computes with one of them."""
    named = [model for model in served.models if name in (None, model.name)]
    if not named:
        raise Refusal("no_such_model", f"there is no model {name!r:.100}", "model")
    models = {model.model for model in named}
    return [model for model in served.models if model.model in models]


def _loaded(load: Callable[[str], LoadedModel], old: ServedModel) -> LoadedModel:
    kind = type(old.model)
    try:
        new = load(old.name)
    except FlowvecError as error:
        raise Refusal(
            "load_failed", f"{old.name} could not be loaded, and the old one serves on: {error}"
        ) from error
    except Exception as error:
        logger.exception("loading %s", old.name)
        raise Refusal(
            "load_failed",
            f"{old.name} could not be loaded, and the old one serves on; the log says more",
        ) from error
    if not isinstance(new, kind):
        new.close()
        raise Refusal("load_failed", f"{old.name} is not of {kind.__name__} any more")
    return new


def _check_collections(served: Served, old: ServedModel, new: LoadedModel) -> None:
    """Refuse another model for vectors that are stored."""
    before, after = old.model.fingerprint, new.fingerprint
    if before == after:
        return
    names = [
        name
        for name, each in served.collections.items()
        if before in (each.fingerprint, each.sparse_fingerprint)
    ]
    if names:
        raise Refusal(
            "conflict",
            f"{old.name} has changed (fingerprint {before[:12]}, now {after[:12]}), and the "
            f"vectors of {', '.join(names)} are those of the old one, which serves on: serve the "
            "new model by another name, and embed the rows again",
        )


def _about(old: ServedModel, new: ServedModel) -> ReloadedModel:
    before, after = old.model.fingerprint, new.model.fingerprint
    status: Literal["swapped", "replaced"] = "swapped" if before == after else "replaced"
    logger.info("%s was %s: fingerprint %s, before %s", new.name, status, after[:12], before[:12])
    return {
        "id": new.name,
        "kind": new.kind,
        "status": status,
        "fingerprint": after,
        "previous_fingerprint": before,
    }
