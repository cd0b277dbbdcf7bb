"""Spans of requests, by OpenTelemetry's own SDK."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from itertools import pairwise
from typing import Any

import pytest

from flowvec import Encoder, Reranker

pytest.importorskip("msgspec", reason="needs the extra [serve]")
pytest.importorskip("starlette.testclient", reason="needs the extra [serve]")
pytest.importorskip("opentelemetry.sdk", reason="needs the extra [otel]")

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from starlette.testclient import TestClient

from flowvec.server import Settings, create_app, openai
from flowvec.server.tracing import otlp_provider

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def client(tiny: Encoder, reranker: Reranker, exporter: InMemorySpanExporter) -> Iterator[Any]:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    app = create_app({"t": tiny}, {"r": reranker}, settings=Settings(tracer_provider=provider))
    with TestClient(app) as client:
        yield client


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def test_a_request_continues_its_callers_trace(
    client: Any, exporter: InMemorySpanExporter, tiny: Encoder
) -> None:
    given = ["a secret", "the cat sleeps"]
    body = {"input": given, "dimensions": 7, "encoding_format": "base64"}
    parent = {"traceparent": f"00-{TRACE}-{PARENT}-01", "tracestate": "a=b"}
    answer = client.post("/v1/embeddings", json=body, headers=parent).json()
    *stages, span = exporter.get_finished_spans()
    assert (span.name, span.kind) == ("POST /v1/embeddings", SpanKind.SERVER)
    assert f"{span.context.trace_id:032x}" == TRACE
    assert f"{span.parent.span_id:016x}" == PARENT
    assert attributes(span) == {
        "http.request.method": "POST",
        "http.route": "/v1/embeddings",
        "http.response.status_code": 200,
        "url.scheme": "http",
        "gen_ai.operation.name": "embeddings",
        "gen_ai.request.model": "t",
        "gen_ai.request.encoding_formats": ("base64",),
        "gen_ai.embeddings.dimension.count": 7,
        "gen_ai.usage.input_tokens": answer["usage"]["prompt_tokens"],
        "flowvec.texts": 2,
    }
    assert [stage.name for stage in stages] == ["queue", "tokenize", "compute"]
    for stage in stages:
        assert stage.parent.span_id == span.context.span_id
        assert span.start_time <= stage.start_time <= stage.end_time <= span.end_time
    for first, second in pairwise(stages):
        assert first.end_time == second.start_time
    assert "secret" not in "".join(each.to_json() for each in exporter.get_finished_spans())


def test_others_begin_a_trace(client: Any, exporter: InMemorySpanExporter) -> None:
    client.post("/rerank", json={"query": "a", "texts": ["b", "c"]}, headers={"traceparent": "x"})
    *_, span = exporter.get_finished_spans()
    assert span.parent is None
    assert attributes(span)["gen_ai.request.model"] == "r"
    assert "gen_ai.operation.name" not in attributes(span)
    exporter.clear()
    client.post("/v1/embed-stream", content='"a"\n"b"\n')
    *stages, span = exporter.get_finished_spans()
    assert attributes(span)["flowvec.texts"] == 2
    assert stages
    exporter.clear()
    for path in ("/", "/health", "/metrics", "/v1/models", "/nothing"):
        client.get(path)
    assert exporter.get_finished_spans() == ()  # probes would drown the others


def test_failures_are_marked(
    client: Any, exporter: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.post("/v1/embeddings", json={"input": []})
    (span,) = exporter.get_finished_spans()
    assert attributes(span)["error.type"] == "400"
    assert span.status.status_code == StatusCode.UNSET  # the caller's mistake
    exporter.clear()
    monkeypatch.setattr(openai, "_options", lambda *_: 1 / 0)
    client.post("/v1/embeddings", json={"input": "a"})
    (span,) = exporter.get_finished_spans()
    assert span.status.status_code == StatusCode.ERROR


def test_spans_reach_a_collector() -> None:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="needs the extra [otel]")
    seen: list[tuple[str, bytes]] = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            seen.append((self.path, body))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    collector = HTTPServer(("127.0.0.1", 0), Collector)
    thread = threading.Thread(target=collector.serve_forever, daemon=True)
    thread.start()
    try:
        provider = otlp_provider(f"http://127.0.0.1:{collector.server_port}")
        with provider.get_tracer("test").start_as_current_span("a span's name"):
            pass
        provider.shutdown()
    finally:
        collector.shutdown()
    ((path, body),) = seen
    assert path == "/v1/traces"
    assert b"a span's name" in body
    assert b"flowvec" in body
