"""`/metrics`: what was asked and computed, by our names and those of TEI."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flowvec import Collection, Encoder, InputValueError, Reranker
from tests.runtime.server.conftest import Running, running, texts

pytest.importorskip("msgspec", reason="needs the extra [serve]")
pytest.importorskip("prometheus_client", reason="needs the extra [serve]")

from prometheus_client import parser

from flowvec.server import Settings, create_app
from flowvec.server.keys import Key, Keys
from flowvec.server.measures import Histogram

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


@pytest.fixture(scope="module")
def measured(
    tiny: Encoder, reranker: Reranker, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Running]:
    """A server of a known history."""
    with Collection.create(tmp_path_factory.mktemp("m") / "rows", encoder=tiny) as rows:
        app = create_app({"t": tiny}, {"r": reranker}, {"rows": rows},
                         settings=Settings(metrics_names="tei"))  # fmt: skip
        with running(app) as server, server.client() as client:
            client.get("/")
            client.post("/embed", json={"inputs": texts(300)})
            client.post("/v1/embeddings", json={"input": "a cat"})
            client.post("/v1/embeddings", json={"input": []})
            client.post("/rerank", json={"query": "a", "texts": ["b", "the cat " * 200]})
            client.post("/v1/collections/rows/rows", json={"rows": [{"id": 1, "text": "a"}]})
            client.get("/nothing/secret")
            yield server


def samples(server: Running) -> Samples:
    with server.client() as client:
        answer = client.get("/metrics")
    assert answer.status_code == 200, answer.text
    families = parser.text_string_to_metric_families(answer.text)
    return {(s.name, frozenset(s.labels.items())): s.value for f in families for s in f.samples}


def value(all_of: Samples, name: str, **labels: str) -> float:
    return all_of[name, frozenset(labels.items())]


def test_requests_are_counted_by_route_and_status(measured: Running) -> None:
    seen = samples(measured)
    for route, status, number in (
        ("POST /embed", "200", 1),
        ("POST /v1/embeddings", "200", 1),
        ("POST /v1/embeddings", "400", 1),
        ("POST /v1/collections/{name}/rows", "200", 1),
        ("other", "404", 1),
    ):
        assert value(seen, "flowvec_requests_total", route=route, status=status) == number
    assert value(seen, "flowvec_request_seconds_count", route="POST /v1/embeddings") == 2
    assert not any("secret" in str(labels) for _, labels in seen)  # nothing of the requests


def test_texts_and_their_times_are_counted_by_model(measured: Running) -> None:
    seen = samples(measured)
    assert value(seen, "flowvec_texts_total", model="t") == 302
    assert value(seen, "flowvec_texts_total", model="r") == 2
    assert value(seen, "flowvec_truncated_texts_total", model="r") == 1
    assert value(seen, "flowvec_batch_texts_sum", model="t") == 302
    tokens = value(seen, "flowvec_tokens_total", model="t")
    padding = value(seen, "flowvec_padding_tokens_total", model="t")
    assert value(seen, "flowvec_batch_tokens_sum", model="t") == tokens + padding
    for name in ("tokenize", "queue", "compute"):
        assert value(seen, f"flowvec_{name}_seconds_count", model="t") == 3
    assert value(seen, "flowvec_compute_seconds_sum", model="t") > 0
    for name in ("waiting_texts", "waiting_tokens", "waiting_seconds"):
        assert value(seen, f"flowvec_{name}", model="t") == 0
    assert value(seen, "flowvec_collection_rows", collection="rows") == 1


def test_teis_names_count_its_routes(measured: Running) -> None:
    seen = samples(measured)
    for name, number in (
        ("te_request_count", 4), ("te_request_success", 3), ("te_embed_count", 3),
        ("te_embed_success", 2), ("te_rerank_success", 1), ("te_queue_size", 0),
        ("te_request_duration_count", 4), ("te_embed_duration_count", 3),
        ("te_request_inference_duration_count", 4), ("te_batch_next_size_sum", 304),
    ):  # fmt: skip
        assert value(seen, name) == number, name
    assert value(seen, "te_request_failure", err="validation") == 1


@pytest.mark.parametrize("is_open", [False, True])
def test_it_needs_a_key_unless_it_is_opened(tiny: Encoder, is_open: bool) -> None:
    testclient = pytest.importorskip("starlette.testclient", reason="needs the extra [serve]")
    keys = Keys([Key("a", b"0" * 32)])
    app = create_app({"t": tiny}, settings=Settings(keys=keys, open_metrics=is_open))
    with testclient.TestClient(app) as client:
        answer = client.get("/metrics")
        assert answer.status_code == (200 if is_open else 401)
        assert "te_request" not in answer.text


def test_a_value_on_a_bound_is_below_it() -> None:
    histogram = Histogram((1.0, 2.0))
    for number in (0.5, 1.0, 1.5, 2.0, 9.0):
        histogram.add(number)
    assert list(histogram.buckets()) == [("1.0", 2), ("2.0", 4), ("+Inf", 5)]
    assert histogram.sum == 14.0


def test_names_that_there_are() -> None:
    with pytest.raises(InputValueError, match="metrics_names"):
        Settings(metrics_names="x")  # type: ignore[arg-type]


def test_the_app_serves_without_the_package(python: Any, tiny_dir: Path) -> None:
    pytest.importorskip("starlette.testclient", reason="needs the extra [serve]")
    done = python(
        "import sys; sys.modules['prometheus_client'] = None\n"
        "import importlib.util; real = importlib.util.find_spec\n"
        "importlib.util.find_spec = (\n"
        "    lambda n, *a: None if n == 'prometheus_client' else real(n, *a))\n"
        "from flowvec import Encoder; from flowvec.server import create_app\n"
        "from starlette.testclient import TestClient\n"
        "app = create_app(Encoder.load(sys.argv[1], provider='cpu'))\n"
        "with TestClient(app) as c: print(c.get('/ready').status_code, c.get('/metrics').text)\n"
        "print([name for name in sys.modules if name.startswith('opentelemetry')])\n",
        tiny_dir,
    )
    assert done.stdout.startswith("200 "), done.stderr
    assert "prometheus_client" in done.stdout
    assert done.stdout.endswith("\n[]\n")  # nor without traces
