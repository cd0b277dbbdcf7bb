"""OpenTelemetry spans of requests, where a provider is given; its packages are not needed else.

A request gives a server span, which continues the trace of the header `traceparent`, and a span for
each stage of a model. Attributes are those of OpenTelemetry's conventions for HTTP and for
generative AI; nothing of the texts is among them.
"""

from __future__ import annotations

import time
from typing import Any

from flowvec.errors import MissingDependencyError
from flowvec.optional import install_line
from flowvec.server.request import Request
from flowvec.version import __version__

__all__ = ["Traces", "otlp_provider"]


class Traces:
    """Makes spans with the tracer of a provider."""

    def __init__(self, provider: Any) -> None:
        """Use a TracerProvider of `opentelemetry.sdk.trace`, or of any other implementation.

        Raises:
            MissingDependencyError: opentelemetry-api is not installed.
        """
        try:
            from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
        except ModuleNotFoundError as error:
            raise _missing(error) from None

        self._tracer = provider.get_tracer("flowvec.server", __version__)
        self._propagator = TraceContextTextMapPropagator()

    def add(self, request: Request, method: str, path: str, status: int) -> None:
        """Record a request that was answered.

        Args:
            request: with what it cost.
            method: of its route.
            path: of its route, without the values of parameters.
            status: HTTP status; 499 if its client left.
        """
        from opentelemetry.trace import SpanKind, set_span_in_context

        names = (b"traceparent", b"tracestate")
        carrier = {n.decode(): v for n in names if (v := request.header(n)) is not None}
        # Spans have times of the epoch, and requests those of perf_counter.
        offset = time.time_ns() - time.perf_counter_ns()

        def nanoseconds(seconds: float) -> int:
            return int(seconds * 1e9) + offset

        span = self._tracer.start_span(
            f"{method} {path}",
            context=self._propagator.extract(carrier),
            kind=SpanKind.SERVER,
            start_time=nanoseconds(request.came),
            attributes={
                "http.request.method": method,
                "http.route": path,
                "http.response.status_code": status,
                "url.scheme": request.scope.get("scheme", "http"),
                **_about_model(request),
            },
        )
        _mark_failure(span, status)
        context = set_span_in_context(span)
        for stage in request.spent.stages:
            child = self._tracer.start_span(
                stage.name,
                context=context,
                start_time=nanoseconds(stage.start),
                attributes={"gen_ai.request.model": stage.model},
            )
            child.end(nanoseconds(stage.end))
        span.end(nanoseconds(time.perf_counter()))


def _about_model(request: Request) -> dict[str, Any]:
    spent = request.spent
    if not spent.items:
        return {}
    about: dict[str, Any] = {
        "gen_ai.request.model": spent.model,
        "gen_ai.usage.input_tokens": spent.tokens,
        "flowvec.texts": spent.items,
        **spent.attributes,
    }
    if spent.dim is not None:
        about["gen_ai.operation.name"] = "embeddings"
        about["gen_ai.embeddings.dimension.count"] = spent.dim
    return about


def _mark_failure(span: Any, status: int) -> None:
    from opentelemetry.trace import Status, StatusCode

    if status >= 400:
        span.set_attribute("error.type", str(status))
    if status >= 500:
        span.set_status(Status(StatusCode.ERROR))


def _missing(error: ModuleNotFoundError) -> MissingDependencyError:
    return MissingDependencyError(f"traces need {error.name}: {install_line('otel')}")


def otlp_provider(endpoint: str) -> Any:
    """A TracerProvider that sends spans to a collector by OTLP over HTTP.

    Args:
        endpoint: such as `http://localhost:4318`; the path `/v1/traces` is added if there is none.

    Raises:
        MissingDependencyError: a package is not installed.
    """
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ModuleNotFoundError as error:
        raise _missing(error) from None
    host = endpoint.partition("://")[2]
    url = endpoint if "/" in host.rstrip("/") else f"{endpoint.rstrip('/')}/v1/traces"
    resource = Resource.create({"service.name": "flowvec", "service.version": __version__})
    provider = TracerProvider(resource=resource)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=url)))
    return provider
