"""`flowvec serve`: models over HTTP."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from flowvec.cli.options import MODEL_HELP, Compute, MaxBatchTokens, Provider, Revision
from flowvec.optional import require

MetricsNames = Literal["flowvec", "tei"]
LogFormat = Literal["text", "json"]

app = typer.Typer(add_completion=False, rich_markup_mode="markdown")


@app.command(epilog="Example: flowvec serve mini --port 8080")
def serve(
    models: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="MODEL...",
            help=f"{MODEL_HELP} Embedders, rerankers, sparse and multi-vector encoders, told apart "
            "by their manifests. NAME=MODEL serves it by another name.",
        ),
    ] = None,
    reranker: Annotated[
        list[str] | None,
        typer.Option(
            metavar="MODEL",
            help="A reranker, or NAME=MODEL, refused if it is of another kind; may be repeated.",
        ),
    ] = None,
    collection: Annotated[
        list[str] | None,
        typer.Option(
            metavar="DIR",
            help="A collection's directory, or NAME=DIR; may be repeated. It is served with the "
            "model that made it, and created for the first model if it does not exist.",
        ),
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on.")] = 8080,
    health_port: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=65535,
            envvar="FLOWVEC_HEALTH_PORT",
            help="Answer /live, /ready and /health on this port too, from a thread of its own that "
            "never waits for requests, and from the start on, while models are loaded.",
        ),
    ] = None,
    api_key_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="API keys, a line for each, as --new-key prints them."),
    ] = None,
    new_key: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Make an API key, print its line for the file, and end."),
    ] = None,
    admin: Annotated[
        bool, typer.Option("--admin", help="With --new-key: the key may administer the server.")
    ] = False,
    insecure: Annotated[
        bool,
        typer.Option("--insecure", help="Listen on others than this machine's addresses, keyless."),
    ] = False,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A name by which the server is called; may be repeated."),
    ] = None,
    allow_origin: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ORIGIN",
            help="An origin whose web pages may call, as https://example.org; may be repeated.",
        ),
    ] = None,
    max_waiting_tokens: Annotated[
        int,
        typer.Option(
            min=1,
            help="Most tokens that may wait for each model; more are refused with 429. Less gives "
            "shorter waits under overload.",
        ),
    ] = 2_000_000,
    max_body: Annotated[
        int, typer.Option(min=1, metavar="MIB", help="Most MiB of a request's body.")
    ] = 32,
    timeout: Annotated[
        float, typer.Option(help="Seconds after which a request is answered with 504.")
    ] = 300.0,
    metrics_names: Annotated[
        MetricsNames,
        typer.Option(help="tei adds the names of Text Embeddings Inference to /metrics."),
    ] = "flowvec",
    open_metrics: Annotated[
        bool, typer.Option("--open-metrics", help="Answer /metrics without a key.")
    ] = False,
    log_format: Annotated[
        LogFormat,
        typer.Option(
            help="json logs a line of JSON for each request and event; text logs events only."
        ),
    ] = "text",
    otlp_endpoint: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Send OpenTelemetry traces there, as to http://localhost:4318: extra [otel].",
        ),
    ] = None,
    any_model: Annotated[
        bool,
        typer.Option(
            "--any-model", help="Answer requests for other models with the only one that is served."
        ),
    ] = False,
    accept_token_ids: Annotated[
        bool,
        typer.Option(
            "--accept-token-ids",
            help="Take token ids in place of texts. They must be those of the model's tokenizer.",
        ),
    ] = False,
    truncate: Annotated[
        bool,
        typer.Option(
            "--truncate/--no-truncate", help="Cut texts above the model's length, or refuse them."
        ),
    ] = True,
    page: Annotated[
        bool,
        typer.Option("--page/--no-page", help="Answer browsers with a page at /."),
    ] = True,
    page_may_write: Annotated[
        bool,
        typer.Option(
            "--page-may-write", help="Let the page add and delete rows; without it, it only reads."
        ),
    ] = False,
    demo: Annotated[
        bool,
        typer.Option(
            "--demo", help="Serve the passages of `flowvec demo` with mini, and say where to look."
        ),
    ] = False,
    grace: Annotated[
        float,
        typer.Option(min=0.0, help="Seconds in which requests are answered after SIGTERM."),
    ] = 30.0,
    ready_delay: Annotated[
        float,
        typer.Option(
            min=0.0,
            help="Seconds after SIGTERM for which /ready fails and requests are still taken, so "
            "that load balancers notice.",
        ),
    ] = 0.0,
    provider: Provider = None,
    compute: Compute = "auto",
    streams: Annotated[
        int | None, typer.Option(min=1, help="Batches at a time; by default one for each core.")
    ] = None,
    max_batch_tokens: MaxBatchTokens = None,
    revision: Revision = None,
) -> None:
    """Serve models over HTTP, for clients of OpenAI, TEI, Cohere, Jina and Ollama.

    One process holds everything, so that texts of all callers share batches.
    """
    require("flowvec serve", "cpu,serve", "msgspec", "orjson", "uvicorn", "httptools")
    from flowvec.server.command import ServeOptions
    from flowvec.server.command import serve as run
    from flowvec.server.keys import make_key
    from flowvec.server.logs import set_up_logs
    from flowvec.server.settings import Settings
    from flowvec.server.tracing import otlp_provider

    if new_key is not None:
        token, line = make_key(new_key, is_admin=admin)
        typer.echo(f"the key, which is shown this once: {token}", err=True)
        typer.echo(line)
        return
    settings = Settings(
        max_waiting_tokens=max_waiting_tokens,
        max_body_bytes=max_body << 20,
        timeout=timeout,
        metrics_names=metrics_names,
        open_metrics=open_metrics,
        any_model=any_model,
        accept_token_ids=accept_token_ids,
        truncate=truncate,
        origins=tuple(allow_origin or ()),
        page=page,
        page_may_write=page_may_write,
        tracer_provider=None if otlp_endpoint is None else otlp_provider(otlp_endpoint),
    )
    options = ServeOptions(
        models=models or [],
        rerankers=reranker or [],
        collections=collection or [],
        host=host,
        port=port,
        health_port=health_port,
        grace=grace,
        ready_delay=ready_delay,
        key_file=api_key_file,
        allow_hosts=allow_host or [],
        is_insecure=insecure,
        is_demo=demo,
        engine={
            "provider": provider,
            "compute": compute,
            "streams": streams,
            "max_batch_tokens": max_batch_tokens,
            "revision": revision,
        },
    )
    set_up_logs(log_format)
    run(options, settings)
