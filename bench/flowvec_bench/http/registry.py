"""Lists the servers, each with its best settings and pinned versions."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["SERVERS", "HttpServer"]

# What `{python}`, `{bin}`, `{model}`, `{port}`, `{length}` and `{workers}` in a command stand for,
# see `processes.py`.
_PLAIN = ("{python}", "{workers}/plain_server.py", "{model}", "{port}", "{length}")
_PLAIN_NEEDS = (
    "sentence-transformers==6.2.0", "transformers==5.23.0", "torch==2.13.0", "fastapi==0.165.0",
    "uvicorn[standard]==0.54.0", "orjson==3.13.0",
)  # fmt: skip
# It pins typer 0.12 and sentence-transformers 3; the others are of their time.
_INFINITY_NEEDS = (
    "infinity-emb[torch,server]==0.0.78", "torch==2.13.0", "transformers==4.57.6",
    "sentence-transformers==3.4.1", "huggingface-hub==0.36.0", "click==8.1.8",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class HttpServer:
    """A server that is started for a load test.

    Attributes:
        name: name in reports.
        command: what starts it, up to the settings.
        settings: more arguments of the command; of several, those are taken with which the server
            answers most.
        form: the form of the model that it reads, see `flowvec_bench.peers.registry.Peer`.
        requirements: requirements of its environment; none means this process's environment.
        route: see `flowvec_bench.workers.http_routes`.
        path: where it answers.
        by_default: whether it runs unless others are named.
    """

    name: str
    command: tuple[str, ...]
    settings: tuple[tuple[str, ...], ...] = ((),)
    form: str = "bundle"
    requirements: tuple[str, ...] = ()
    route: str = "openai"
    path: str = "/v1/embeddings"
    by_default: bool = True


SERVERS: dict[str, HttpServer] = {
    "flowvec": HttpServer(
        "flowvec serve",
        ("{python}", "-m", "flowvec", "serve", "bench={model}", "--port", "{port}"),
    ),
    "flowvec-int8": HttpServer(
        "flowvec serve, OpenVINO int8",
        ("{python}", "-m", "flowvec", "serve", "bench={model}", "--port", "{port}",
         "--provider", "OpenVINORuntime", "--compute", "int8"),
        by_default=False,
    ),
    "infinity": HttpServer(
        "infinity",
        ("{bin}/infinity_emb", "v2", "--model-id", "{model}", "--served-model-name", "bench",
         "--host", "127.0.0.1", "--port", "{port}", "--engine", "torch", "--device", "cpu",
         "--no-bettertransformer"),
        (("--dtype", "float32", "--batch-size", "16"),
         ("--dtype", "bfloat16", "--batch-size", "16")),
        "older", _INFINITY_NEEDS, path="/embeddings",
    ),
    "plain": HttpServer(
        "FastAPI + sentence-transformers, as people write it", (*_PLAIN, "float32", "0"),
        form="source", requirements=_PLAIN_NEEDS, route="tei", path="/embed",
    ),
    "plain-best": HttpServer(
        "FastAPI + sentence-transformers, at its best", _PLAIN,
        (("bfloat16", "16"), ("float32", "16")),
        "source", _PLAIN_NEEDS, "tei", "/embed",
    ),
}  # fmt: skip
