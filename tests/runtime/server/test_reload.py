"""Models that are loaded again while they serve."""

from __future__ import annotations

import hashlib
import json
import shutil
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flowvec import Collection, Encoder, Reranker
from flowvec.errors import BundleError
from flowvec.sparse import SparseEncoder
from tests.runtime.server.conftest import Running, is_closed, running, texts
from tests.serving import served
from tests.waiting import wait_until

pytest.importorskip("msgspec", reason="needs the extra [serve]")
pytest.importorskip("httpx", reason="needs the extra [serve]")

import httpx

from flowvec.server import Settings, create_app
from flowvec.server.keys import Key, Keys

PATH = "/v1/admin/reload"
KEYS = Keys(
    Key(name, hashlib.sha256(name.encode()).digest(), is_admin=name == "ops")
    for name in ("ops", "alice")
)
OPS = {"authorization": "Bearer ops"}

Load = Callable[[str], Encoder | Reranker]


class Loads:
    """Loads what the test says; by default, the same model."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.loaded = folder, [load(folder)]

    def __call__(self, name: str) -> Encoder:
        assert name == "one"
        self.loaded.append(load(self.folder))
        return self.loaded[-1]


def load(folder: Path) -> Encoder:
    return Encoder.load(folder, provider="cpu", streams=1)


@pytest.fixture
def loads(tiny_dir: Path) -> Iterator[Loads]:
    loads = Loads(tiny_dir)
    yield loads
    for encoder in loads.loaded:
        encoder.close()


@contextmanager
def reloadable(loads: Loads, **collections: Collection) -> Iterator[Running]:
    app = create_app(
        {"one": loads.loaded[0]}, collections=collections, settings=Settings(keys=KEYS),
        reload=loads,
    )  # fmt: skip
    app.served.owned.add(loads.loaded[0])
    with running(app) as server:
        yield server


def test_the_same_model_is_swapped_and_no_request_is_refused(loads: Loads, tiny: Encoder) -> None:
    given = texts(40)
    expected = tiny.encode(given, normalize_embeddings=True)
    seen: Counter[int] = Counter()
    is_over = threading.Event()

    def call(url: str) -> None:
        with httpx.Client(base_url=url, headers=OPS, timeout=600) as client:
            while not is_over.is_set():
                answer = client.post("/embed", json={"inputs": given})
                seen[answer.status_code] += 1
                if answer.status_code == 200:
                    np.testing.assert_allclose(answer.json(), expected, atol=1e-5)

    with reloadable(loads) as server, ThreadPoolExecutor(4) as pool:
        with server.client(headers=OPS) as client:
            calls = [pool.submit(call, server.url) for _ in range(4)]
            for count in (2, 3):
                before = seen[200]
                wait_until(lambda before=before: seen[200] > before + 5)  # type: ignore[misc]
                (about,) = client.post(PATH, json={"model": "one"}).json()["models"]
                assert (about["id"], about["status"]) == ("one", "swapped")
                assert about["fingerprint"] == about["previous_fingerprint"] == tiny.fingerprint
                assert len(loads.loaded) == count
                wait_until(lambda: is_closed(loads.loaded[-2]))
            before = seen[200]
            wait_until(lambda: seen[200] > before + 5)
            is_over.set()
        for each in calls:
            each.result(600)
        assert set(seen) == {200}
    assert all(map(is_closed, loads.loaded))


def test_collections_go_on_with_the_new_one(loads: Loads, tmp_path: Path) -> None:
    with (
        Collection.create(tmp_path / "c", encoder=loads.loaded[0]) as collection,
        reloadable(loads, notes=collection) as server,
        server.client(headers=OPS) as client,
    ):
        rows = [{"id": i, "text": text} for i, text in enumerate(texts(20))]
        url = "/v1/collections/notes"
        assert client.post(f"{url}/rows", json={"rows": rows[:10]}).status_code == 200
        assert client.post(PATH).status_code == 200
        wait_until(lambda: is_closed(loads.loaded[0]))
        assert client.post(f"{url}/rows", json={"rows": rows[10:]}).status_code == 200
        hits = client.post(f"{url}/search", json={"query": rows[3]["text"], "k": 1}).json()["hits"]
        assert hits[0]["text"] == rows[3]["text"]


def test_another_model_is_refused_where_a_collection_has_its_vectors(
    loads: Loads, mini: Encoder, tmp_path: Path
) -> None:
    with (
        Collection.create(tmp_path / "c", encoder=loads.loaded[0]) as collection,
        reloadable(loads, notes=collection) as server,
        server.client(headers=OPS) as client,
    ):
        rows = [{"id": 1, "text": "a cat"}]
        client.post("/v1/collections/notes/rows", json={"rows": rows})
        loads.folder = mini.bundle.path
        answer = client.post(PATH, json={"model": "one"})
        assert answer.status_code == 409
        assert "notes" in answer.json()["error"]["message"]
        assert is_closed(loads.loaded[1])
        assert not is_closed(loads.loaded[0])
        dim = len(client.post("/embed", json={"inputs": "a"}).json()[0])
        assert dim == loads.loaded[0].dim


def test_collections_go_on_with_a_new_sparse_encoder(
    tiny: Encoder, sparse_dir: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(sparse_dir, tmp_path / "words")

    def load_sparse(name: str) -> SparseEncoder:
        assert name == "words"
        loaded.append(SparseEncoder.load(folder, provider="cpu", streams=1))
        return loaded[-1]

    loaded: list[SparseEncoder] = []
    first = load_sparse("words")
    with (
        Collection.create(tmp_path / "own", encoder=tiny, sparse_encoder=first) as own,
        Collection.create(tmp_path / "later", encoder=tiny) as later,
    ):
        app = create_app(
            {"words": first, "tiny": tiny}, collections={"own": own, "later": later},
            settings=Settings(keys=KEYS), reload=load_sparse,
        )  # fmt: skip
        app.served.owned.add(first)
        with running(app) as server, server.client(headers=OPS) as client:

            def add(item: int) -> None:
                for name in ("own", "later"):
                    body = {"rows": [{"id": item, "text": "a cat"}], "sparse": True}
                    answer = client.post(f"/v1/collections/{name}/rows", json=body)
                    assert answer.status_code == 200, answer.text

            add(1)
            (about,) = client.post(PATH, json={"model": "words"}).json()["models"]
            assert (about["status"], about["kind"]) == ("swapped", "sparse")
            wait_until(lambda: is_closed(first))
            add(2)
            assert own.info().sparse_rows == later.info().sparse_rows == 2
            # Another model is refused, because there are vectors of the old one.
            manifest = json.loads((folder / "manifest.json").read_text())
            (folder / "manifest.json").write_text(json.dumps(manifest | {"max_active_dims": 5}))
            answer = client.post(PATH, json={"model": "words"})
            assert answer.status_code == 409
            assert "own, later" in answer.json()["error"]["message"]
            add(3)
    for encoder in loaded:
        encoder.close()


def test_another_model_is_allowed_elsewhere(loads: Loads, mini: Encoder) -> None:
    with reloadable(loads) as server, server.client(headers=OPS) as client:
        loads.folder = mini.bundle.path
        (about,) = client.post(PATH, json={}).json()["models"]
        assert (about["status"], about["fingerprint"]) == ("replaced", mini.fingerprint)
        answer = client.post("/embed", json={"inputs": "a cat"})
        assert answer.headers["x-flowvec-fingerprint"] == mini.fingerprint
        expected = mini.encode(["a cat"], normalize_embeddings=True)
        np.testing.assert_allclose(answer.json(), expected, atol=1e-5)


@pytest.mark.parametrize("error", [BundleError("it is broken"), OSError("secret")])
def test_a_reload_that_fails_changes_nothing(
    loads: Loads, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(*_: Any, **__: Any) -> Encoder:
        raise error

    with reloadable(loads) as server, server.client(headers=OPS) as client:
        monkeypatch.setattr(Encoder, "load", fail)
        answer = client.post(PATH, json={"model": "one"})
        assert answer.status_code == 500
        message = answer.json()["error"]["message"]
        assert "serves on" in message
        assert ("it is broken" in message) == isinstance(error, BundleError)
        assert "secret" not in message
        assert client.post("/embed", json={"inputs": "a"}).status_code == 200
        assert client.post(PATH, json={"model": "x"}).status_code == 404
        monkeypatch.undo()
        assert client.post(PATH, json={"model": "one"}).status_code == 200


def test_it_needs_an_admin_key(loads: Loads, tiny: Encoder) -> None:
    with reloadable(loads) as server, server.client() as client:
        assert client.post(PATH).status_code == 401
        answer = client.post(PATH, headers={"authorization": "Bearer alice"})
        assert answer.status_code == 403
        assert "--admin" in answer.json()["error"]["message"]
    testclient = pytest.importorskip("starlette.testclient", reason="needs the extra [serve]")
    for settings in (Settings(), Settings(keys=KEYS)):  # no keys; and nothing to load
        app = create_app({"one": tiny}, settings=settings)
        with testclient.TestClient(app, headers=OPS) as client:
            assert client.post(PATH).status_code == 403
    assert len(loads.loaded) == 1


@pytest.mark.process
@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="Windows has no SIGHUP")
def test_sighup_loads_all_models_again(tmp_path: Path, tiny_dir: Path, reranker_dir: Path) -> None:
    words = (f"one={tiny_dir}", "--reranker", f"two={reranker_dir}", "--streams", "1")
    words += ("--log-format", "json")
    with served(tmp_path, *words) as (url, process, log):
        process.send_signal(signal.SIGHUP)
        wait_until(lambda: log.read_text().count("was swapped") == 2)
        secret = "Mrs Robinson's diagnosis"
        assert httpx.post(f"{url}/embed", json={"inputs": secret}, timeout=600).status_code == 200
        answer = httpx.post(f"{url}/rerank", json={"query": "a", "texts": ["b"]}, timeout=600)
        assert answer.status_code == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(600) == 0, log.read_text()
        logged = log.read_text()
    assert secret not in logged
    lines = [json.loads(line) for line in logged.splitlines()]
    assert all(line["time"] and line["level"] and line["message"] for line in lines)
    assert "POST /embed" in [line.get("route") for line in lines]


_SIGNALLED = """
import logging, os, signal
from flowvec.cli.main import main

class Signals(logging.Handler):
    def emit(self, record):
        if "running on" in record.getMessage():
            os.kill(os.getpid(), signal.SIGHUP)

logging.root.addHandler(Signals())
logging.getLogger("uvicorn.error").addHandler(Signals())
main()
"""


@pytest.mark.process
@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="Windows has no SIGHUP")
def test_sighup_as_soon_as_the_server_runs_does_not_end_it(tmp_path: Path, tiny_dir: Path) -> None:
    words = ("serve", f"one={tiny_dir}", "--streams", "1", "--port", "0")
    log = tmp_path / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-c", _SIGNALLED, *words], stdout=output, stderr=subprocess.STDOUT
        )
    try:
        wait_until(lambda: process.poll() is not None or "was swapped" in log.read_text())
        assert process.poll() is None, log.read_text()
        process.send_signal(signal.SIGTERM)
        assert process.wait(600) == 0, log.read_text()
    finally:
        if process.poll() is None:
            process.kill()
            process.wait(600)
