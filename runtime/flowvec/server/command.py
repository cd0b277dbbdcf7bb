"""What `flowvec serve` does: loads the models, proves them, and serves until it is told to stop."""

from __future__ import annotations

import asyncio
import logging
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from flowvec.collection.collection import Collection
from flowvec.demo import load_passages
from flowvec.encoder.encoder import Encoder
from flowvec.encoder.loaded_model import LoadedModel
from flowvec.errors import InputValueError
from flowvec.reranker.reranker import Reranker
from flowvec.server.app import App, create_app
from flowvec.server.guard import LOOPBACK, is_loopback
from flowvec.server.health_port import HealthPort, naming_option
from flowvec.server.keys import Keys
from flowvec.server.model_kinds import load_model
from flowvec.server.running import Server
from flowvec.server.settings import Settings
from flowvec.server.sparse_models import own_sparse

__all__ = [
    "ServeOptions",
    "application",
    "check_port",
    "demo_collection",
    "opened_collections",
    "serve",
]

logger = logging.getLogger(__name__)

# Threads of tokenizers hold Python's lock for microseconds; with the default of 5 ms, the event
# loop would wait that long for its turn.
_SWITCH_INTERVAL = 0.001
_DEMO_MODEL = "mini"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    """What the command line says.

    Attributes:
        models: of any kind, each `MODEL` or `NAME=MODEL`.
        rerankers: likewise, and refused if they are of another kind.
        collections: directories, each `DIR` or `NAME=DIR`.
        host: address to listen on.
        port: port to listen on.
        health_port: port of the probes alone; None leaves it out.
        grace: seconds in which requests are answered after SIGTERM.
        ready_delay: seconds for which `/ready` fails before new work is refused.
        key_file: API keys; None asks for none.
        allow_hosts: names by which the server is called, besides those of this machine.
        is_insecure: listen on other addresses than this machine's without a key.
        is_demo: serve the passages of `flowvec demo` too, with mini.
        engine: options of `Encoder.load`, for all models.
    """

    models: Sequence[str]
    rerankers: Sequence[str]
    collections: Sequence[str]
    host: str
    port: int
    health_port: int | None
    grace: float
    ready_delay: float
    key_file: Path | None
    allow_hosts: Sequence[str]
    is_insecure: bool
    is_demo: bool
    engine: dict[str, Any]

    def guarded(self, settings: Settings) -> Settings:
        """Settings with the keys and names of this server.

        Raises:
            InputValueError: others than this machine could reach it without a key.
        """
        keys = None if self.key_file is None else Keys.read(self.key_file)
        is_local = is_loopback(self.host)
        if not is_local and keys is None and not self.is_insecure:
            raise InputValueError(
                f"everybody who reaches {self.host} could use this server: give --api-key-file, "
                "or --insecure if it is meant so"
            )
        names = tuple(self.allow_hosts)
        hosts = (*LOOPBACK, self.host, *names) if is_local else names or None
        return replace(settings, keys=keys, hosts=hosts)


def serve(options: ServeOptions, settings: Settings) -> None:
    """Load everything, then serve until SIGTERM or SIGINT.

    Raises:
        InputValueError: there is nothing to serve, two models have the same name, or a port is in
            use.
        OSError: a port cannot be opened for another reason.
        FlowvecError: a model cannot be loaded.
    """
    if not (options.models or options.rerankers or options.collections or options.is_demo):
        raise InputValueError("nothing to serve: name a model, for example mini")
    if options.health_port == options.port != 0:
        raise InputValueError("--health-port must be another port than --port")
    settings = options.guarded(settings)
    check_port(options.host, options.port)  # models may take minutes to load
    sys.setswitchinterval(_SWITCH_INTERVAL)
    with ExitStack() as stack:
        # It opens first and closes last, so that probes see the start and the end too.
        probes = _health_port(options, stack)
        app = application(options, settings, stack)
        for model in app.served.queues:
            model.warm_up()
        if probes is not None:
            probes.served = app.served
        server = Server(
            app,
            host=options.host,
            port=options.port,
            grace=options.grace,
            ready_delay=options.ready_delay,
            heartbeat=None if probes is None else probes.heartbeat,
            log_config=None,
        )
        server.run()
    if settings.tracer_provider is not None:
        settings.tracer_provider.shutdown()


def check_port(host: str, port: int) -> None:
    """Bind the port once, as the server does later; nothing listens."""

    async def bind() -> None:
        loop = asyncio.get_running_loop()
        (await loop.create_server(asyncio.Protocol, host, port, start_serving=False)).close()

    with naming_option("--port", host, port):
        asyncio.run(bind())


def _health_port(options: ServeOptions, stack: ExitStack) -> HealthPort | None:
    """The port of the probes, which is open; None without one."""
    if options.health_port is None:
        return None
    probes = stack.enter_context(HealthPort(options.host, options.health_port))
    host = f"[{options.host}]" if ":" in options.host else options.host
    logger.info("probes at http://%s:%d", host, probes.port)
    return probes


def application(options: ServeOptions, settings: Settings, stack: ExitStack) -> App:
    """Load what is to be served, and make its application."""
    names = list(options.models)
    if options.is_demo and _DEMO_MODEL not in names:
        names.append(_DEMO_MODEL)
    models = _loaded(load_model, names, options.engine, stack)
    rerankers: dict[str, Any] = _loaded(Reranker.load, options.rerankers, options.engine, stack)
    if twice := models.keys() & rerankers.keys():
        name = min(twice)
        raise InputValueError(f"two models are called {name!r}: give one as NAME=MODEL")
    encoders = {n: model for n, model in models.items() if isinstance(model, Encoder)}
    collections = opened_collections(options.collections, encoders, stack)
    if options.is_demo:
        if "demo" in collections:
            raise InputValueError("--demo is the name of its collection: name yours otherwise")
        collections["demo"] = demo_collection(encoders[_DEMO_MODEL], stack)
    sources = dict(map(_split, [*names, *options.rerankers]))

    def load(name: str) -> LoadedModel:
        return load_model(sources[name], **options.engine)

    app = create_app(models, rerankers, collections, settings=settings, reload=load)
    app.served.owned |= {*models.values(), *rerankers.values()}
    for name, each in app.served.collections.items():
        if each.sparse_fingerprint is not None and own_sparse(app.served, each) is None:
            logger.warning(
                "collection %s: the model of its sparse vectors, %s, is not served, so new rows "
                "get none",
                name,
                each.rows.collection.info().sparse_model,
            )
    return app


def demo_collection(encoder: Encoder, stack: ExitStack) -> Collection:
    """The passages of `flowvec demo`, in a temporary folder."""
    folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="flowvec-demo-"))
    collection = stack.enter_context(Collection.create(Path(folder) / "demo", encoder=encoder))
    passages = load_passages()
    collection.add(
        [passage.id for passage in passages],
        [passage.text for passage in passages],
        [
            {"title": passage.title, "words": len(passage.text.split()), "first": passage.title[0]}
            for passage in passages
        ],
    )
    return collection


def _loaded(
    load: Callable[..., LoadedModel],
    names: Sequence[str],
    engine: dict[str, Any],
    stack: ExitStack,
) -> dict[str, LoadedModel]:
    """Models by name; one that is named twice is loaded once."""
    models: dict[str, LoadedModel] = {}
    loaded: dict[str, LoadedModel] = {}
    for given in names:
        name, source = _split(given)
        if name in models:
            raise InputValueError(f"two models are called {name!r}: give one as NAME={source}")
        if source not in loaded:
            loaded[source] = stack.enter_context(load(source, **engine))
            logger.info("%s: %r, %s", name, loaded[source], loaded[source].proof)
        models[name] = loaded[source]
    return models


def opened_collections(
    given: Sequence[str], models: dict[str, Encoder], stack: ExitStack
) -> dict[str, Collection]:
    """Collections by name, each with the model that made its vectors.

    One that does not exist is created for the first model.
    """
    collections: dict[str, Collection] = {}
    for each in given:
        name, _, folder = each.rpartition("=")
        path = Path(folder).expanduser()
        name = name or path.resolve().name
        if name in collections:
            raise InputValueError(f"two collections are called {name!r}: give one as NAME={folder}")
        collections[name] = stack.enter_context(_open(path, list(models.values())))
        logger.info("collection %s: %r", name, collections[name])
    return collections


def _open(path: Path, models: list[Encoder]) -> Collection:
    is_new = not path.exists() or (path.is_dir() and not any(path.iterdir()))
    if is_new:
        if not models:
            raise InputValueError(
                f"{path} is not a collection: name an embedding model to create it for"
            )
        return Collection.create(path, encoder=models[0])
    with Collection.open(path) as collection:
        info = collection.info()
    if info.fingerprint is None:
        return Collection.open(path)
    for model in models:
        if model.fingerprint == info.fingerprint:
            return Collection.open(path, encoder=model)
    raise InputValueError(
        f"{path} was made with {info.model} (fingerprint {info.fingerprint[:12]}), and no model "
        f"here is that one: serve it too, `flowvec serve {info.model} ...`"
    )


def _split(given: str) -> tuple[str, str]:
    """Name and source of a model; a folder is called by its last part."""
    if "=" in given and not Path(given).exists():
        name, _, source = given.partition("=")
        return name, source
    is_folder = given.startswith((".", "/", "~")) or Path(given).exists()
    return (Path(given).expanduser().resolve().name if is_folder else given), given
