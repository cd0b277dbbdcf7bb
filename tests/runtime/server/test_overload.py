"""A server under overload: what it refuses, whom it serves first, and what it says of itself.

A gate holds the model, so nothing depends on how fast it is.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flowvec import Collection, Encoder
from flowvec.encoder.queue_reports import BatchReport
from flowvec.engine.onnxruntime_session import Session
from tests.inside import end_a_thread
from tests.runtime.gate import Gate
from tests.runtime.server.conftest import Running, running, texts
from tests.waiting import wait_until

pytest.importorskip("openai", reason="needs the extra [serve]")

import openai

from flowvec.server import Settings, create_app
from flowvec.server.keys import Key, Keys
from flowvec.server.refusal import ClientGone

Serve = Callable[..., AbstractContextManager[Running]]


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    return Gate(monkeypatch)


@pytest.fixture(scope="module")
def one(tiny_dir: Path) -> Iterator[Encoder]:
    """One stream, whose batches are small."""
    with Encoder.load(tiny_dir, provider="cpu", streams=1, max_batch_tokens=64) as encoder:
        yield encoder


@pytest.fixture
def serve(one: Encoder) -> Serve:
    def start(**settings: Any) -> AbstractContextManager[Running]:
        return running(create_app({"one": one}, settings=Settings(**settings)))

    return start


def waiting(server: Running) -> int:
    (model,) = server.app.served.models
    return int(server.call(lambda: model.queue.waiting_tokens))


def post(server: Running, given: Any, path: str = "/embed", **headers: str) -> Any:
    with server.client() as client:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        field = "input" if path == "/v1/embeddings" else "inputs"
        return client.post(path, json={field: given}, headers=named)


def test_a_full_queue_refuses_and_the_probes_answer(serve: Serve, gate: Gate) -> None:
    with serve(max_waiting_tokens=200) as server, ThreadPoolExecutor(2) as pool:
        with gate.shut(), server.client() as client:
            accepted = [pool.submit(post, server, ["a cat"] * 6) for _ in range(2)]
            wait_until(lambda: waiting(server) == 192)
            for path, form in (("/v1/embeddings", "input"), ("/embed", "inputs")):
                answer = client.post(path, json={form: "a dog"})
                assert answer.status_code == 429
                seconds = int(answer.headers["retry-after-ms"]) / 1000
                assert 0 < seconds <= int(answer.headers["retry-after"]) < seconds + 1
            assert answer.json()["error_type"] == "Overloaded"
            for path in ("/live", "/ready", "/health", "/info", "/v1/models"):
                assert client.get(path).status_code == 200
            with pytest.raises(openai.RateLimitError, match="192 tokens wait"):
                server.openai().embeddings.create(model="one", input="a dog")
        assert all(call.result(600).status_code == 200 for call in accepted)
        assert post(server, "a dog").status_code == 200
        assert waiting(server) == 0


def test_a_call_above_the_bound_is_never_taken(serve: Serve) -> None:
    with serve(max_waiting_tokens=200) as server:
        answer = post(server, ["a cat"] * 13)
        assert answer.status_code == 413
        assert "200 at a time" in answer.json()["error"]
        assert post(server, ["a cat"] * 12).status_code == 200


@pytest.mark.parametrize(
    "header",
    [
        {"x_request_timeout_ms": "50"},
        {"x_stainless_read_timeout": "0.05"},
        {"x_envoy_expected_rq_timeout_ms": "50"},
    ],
)
def test_a_deadline_ends_a_request_and_frees_its_place(
    serve: Serve, gate: Gate, header: dict[str, str]
) -> None:
    with serve() as server:
        with gate.shut():
            answer = post(server, ["a cat"] * 30, "/v1/embeddings", **header)
            assert answer.status_code == 504
            assert answer.headers["x-should-retry"] == "false"
            assert answer.json()["error"]["code"] == "deadline_exceeded"
            assert waiting(server) == 0
        assert post(server, "a cat").status_code == 200


def test_headers_that_name_no_deadline_are_left_out(serve: Serve) -> None:
    with serve() as server:
        for value in ("0", "-1", "nan", "soon", "inf"):
            assert post(server, "a cat", x_request_timeout_ms=value).status_code == 200, value


def test_what_cannot_be_done_in_time_is_not_begun(serve: Serve, gate: Gate) -> None:
    many = ["a cat"] * 1000
    with serve(timeout=1e6) as server:
        (model,) = server.app.served.models
        for _ in range(500):  # as if batches had taken minutes
            model.rate.add(BatchReport(texts=1, tokens=64, padded=64, seconds=600.0))
        with gate.shut():
            answer = post(server, many, x_request_timeout_ms="60000")
            assert answer.status_code == 504
            assert not gate.entered.is_set()
        assert post(server, many, x_request_timeout_ms="900000000").status_code == 200


def test_a_client_that_leaves_frees_its_place(serve: Serve, gate: Gate) -> None:
    with serve() as server:
        with gate.shut():
            body = json.dumps({"inputs": ["a cat"] * 50}).encode()
            head = f"POST /embed HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
            with socket.create_connection(("127.0.0.1", server.server.port)) as client:
                client.sendall(head.encode() + body)
                wait_until(lambda: waiting(server) == 800)
            wait_until(lambda: waiting(server) == 0)
            wait_until(lambda: server.app.served.running == 0)
        assert post(server, "a cat").status_code == 200


def test_a_call_that_is_given_up_as_its_result_comes_keeps_nobody_waiting(
    serve: Serve, gate: Gate
) -> None:
    with serve() as server, ThreadPoolExecutor(1) as pool:
        (model,) = server.app.served.models
        texts = ["a cat"] * 4
        now, costs = time.perf_counter(), model.costs(texts)
        with gate.shut():
            # As many as are handed over at a time.
            calls = [
                server.call(lambda: model.queue.put("", texts, costs, {}, came=now, end=now + 600))
                for _ in range(4)
            ]
            later = pool.submit(post, server, texts)
            wait_until(lambda: waiting(server) == 5 * 64)
            # As deadlines do, before the tasks that wait for the results have their turn.
            for call in calls:
                server.call(lambda call=call: call.done.set_exception(ClientGone()))
        assert later.result(600).status_code == 200
        for call in calls:
            assert isinstance(server.call(call.done.exception), ClientGone)
            server.call(lambda call=call: model.queue.drop(call))
        assert waiting(server) == 0


def test_a_bulk_caller_does_not_keep_others_waiting(one: Encoder, gate: Gate) -> None:
    run, runs, most, answered = gate.run, itertools.count(1), math.inf, threading.Event()

    def run_half(session: Session, *feeds: Any) -> Any:
        if next(runs) > most:  # half of the bulk is done: the other caller must be served by now
            assert answered.wait(600)
        return run(session, *feeds)

    gate.run = run_half
    digest = {name: hashlib.sha256(name.encode()).digest() for name in ("bulk", "single")}
    keys = Keys(Key(name, value) for name, value in digest.items())
    settings = Settings(keys=keys, max_waiting_tokens=100_000)
    many = texts(1500)
    with (
        running(create_app({"one": one}, settings=settings)) as server,
        ThreadPoolExecutor(2) as pool,
    ):
        with gate.shut():
            bulk = pool.submit(post, server, many, authorization="Bearer bulk")
            wait_until(lambda: waiting(server) > 40_000)
            held = waiting(server)
            # A key may hold no more than is left free, so there is room for another one.
            assert post(server, many[:300], authorization="Bearer bulk").status_code == 429
            single = pool.submit(post, server, "a cat", authorization="Bearer single")
            single.add_done_callback(lambda _: answered.set())
            wait_until(lambda: waiting(server) > held)
            most = held // 2 // 64
        assert single.result(600).status_code == 200
        expected = one.encode(many, normalize_embeddings=True)
        np.testing.assert_allclose(bulk.result(600).json(), expected, atol=1e-5)


def test_health_fails_while_nothing_comes(serve: Serve, gate: Gate) -> None:
    with (
        serve(stall_timeout=0.05) as server,
        ThreadPoolExecutor(1) as pool,
        server.client() as client,
    ):
        assert client.get("/health").status_code == 200
        with gate.shut():
            # Its caller leaves, but the engine still hangs. On a busy machine a request can be late
            # before the model has it.
            while not gate.entered.is_set():
                assert post(server, "a cat", x_request_timeout_ms="10").status_code == 504
            wait_until(lambda: client.get("/health").status_code == 503)
            assert client.get("/ready").status_code == 503
            assert client.get("/live").status_code == 200
            stuck = pool.submit(post, server, "a cat")
        assert stuck.result(600).status_code == 200
        wait_until(lambda: client.get("/health").status_code == 200)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_health_fails_if_a_thread_has_ended(serve: Serve) -> None:
    with serve() as server, server.client() as client:
        (model,) = server.app.served.models
        end_a_thread(model._shared)
        wait_until(lambda: client.get("/health").status_code == 503)
        assert "threads have ended" in client.get("/ready").json()["error"]["message"]
        assert client.get("/live").status_code == 200


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("which", ["reads", "writes"])
def test_health_fails_if_a_thread_of_a_collection_has_ended(
    one: Encoder, tmp_path: Path, which: str
) -> None:
    with Collection.create(tmp_path / "notes", encoder=one) as notes:
        app = create_app({"one": one}, collections={"notes": notes})
        with running(app) as server, server.client() as client:
            assert client.get("/health").status_code == 200
            end_a_thread(getattr(app.served.collections["notes"].rows._calls, which))
            wait_until(lambda: client.get("/health").status_code == 503)
            assert "notes: 1 threads have ended" in client.get("/health").json()["error"]
            assert client.get("/ready").status_code == 503
            assert client.get("/live").status_code == 200


def test_a_text_that_the_model_fails_on_fails_its_caller_only(nan_dir: Path) -> None:
    with (
        Encoder.load(nan_dir, provider="cpu", streams=1) as encoder,
        running(create_app({"nan": encoder})) as server,
        ThreadPoolExecutor(4) as pool,
    ):
        bad, *good = pool.map(lambda given: post(server, given), [["a", "nan"], *texts(20)])
        assert (bad.status_code, bad.json()["error_type"]) == (424, "Backend")
        assert "item 1" in bad.json()["error"]
        assert all(answer.status_code == 200 for answer in good)
        assert post(server, ["a", "nan"], "/v1/embeddings").status_code == 500


def test_a_server_that_stops_answers_what_it_has_and_refuses_more(serve: Serve, gate: Gate) -> None:
    with serve() as server, ThreadPoolExecutor(1) as pool, server.client() as client:
        with gate.shut():
            assert client.get("/ready").status_code == 200
            taken = pool.submit(post, server, ["a cat"] * 50)
            wait_until(lambda: waiting(server) > 0)
            server.server.stop()
            answer = client.get("/ready")
            assert (answer.status_code, answer.headers["connection"]) == (503, "close")
            wait_until(lambda: server.app.served.is_stopping)
            answer = post(server, "a dog", "/v1/embeddings")
            assert answer.status_code == 503
            assert answer.headers["connection"] == "close"
            assert answer.headers["retry-after"] == "1"
            assert client.get("/live").status_code == 200
        assert len(taken.result(600).json()) == 50


def test_answers_that_nobody_reads_stop_new_work(serve: Serve) -> None:
    with serve(max_unsent_bytes=1) as server:
        served = server.app.served
        server.call(lambda: setattr(served, "unsent_bytes", 2))
        assert post(server, "a cat").status_code == 429
        server.call(lambda: setattr(served, "unsent_bytes", 0))
        assert post(server, "a cat").status_code == 200
