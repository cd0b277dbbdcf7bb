"""`examples/ray_serve.py` on a local Ray: replicas answer as one process does."""

from __future__ import annotations

import importlib.util
import os
import re
import socket
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flowvec import Encoder
from tests.makers import texts_of
from tests.waiting import wait_until

pytest.importorskip("ray.serve", reason="needs ray, which has its environment")
pytest.importorskip("httpx", reason="needs the extra [serve]")

import httpx
import ray
from ray import cloudpickle, serve

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "ray_serve.py"


def _example() -> Any:
    spec = importlib.util.spec_from_file_location("ray_serve", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["ray_serve"] = module
    spec.loader.exec_module(module)
    cloudpickle.register_pickle_by_value(module)  # replicas cannot import it
    return module


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """The example, which gets a second replica as soon as the first is busy."""
    # On a slow machine Ray ends a proxy that is not ready after 5 seconds, and then the test.
    os.environ["RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S"] = "60"
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    port = _free_port()
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    scaling = {
        "min_replicas": 1, "max_replicas": 2, "target_ongoing_requests": 1, "upscale_delay_s": 0.1,
        "downscale_delay_s": 600, "metrics_interval_s": 0.2, "look_back_period_s": 1.0,
    }  # fmt: skip
    deployment = _example().Vectors.options(
        ray_actor_options={"num_cpus": 0.5}, autoscaling_config=scaling
    )
    serve.run(deployment.bind())
    yield f"http://127.0.0.1:{port}"
    serve.shutdown()
    ray.shutdown()


def replicas() -> int:
    (deployment,) = serve.status().applications["default"].deployments.values()
    return int(deployment.replica_states.get("RUNNING", 0))


def test_replicas_are_added_and_answer_as_one_process(url: str, mini: Encoder) -> None:
    texts = texts_of(60)
    expected = mini.encode(texts, normalize_embeddings=True)
    assert replicas() == 1

    def ask(_: int) -> bool:
        """Requests until there are two replicas that answer; whether all answers were right."""
        rights = []
        while len(starts) < 2:
            answer = httpx.post(
                f"{url}/embed", json={"inputs": texts}, timeout=300, trust_env=False
            )
            rights.append(np.allclose(answer.json(), expected, atol=1e-5))
            metrics = httpx.get(f"{url}/metrics", timeout=300, trust_env=False).text
            starts.update(re.findall(r"^process_start_time_seconds (\S+)", metrics, re.MULTILINE))
        return all(rights)

    starts: set[str] = set()
    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(ask, range(8)))
    wait_until(lambda: replicas() == 2)


def test_refusals_and_probes_pass_the_proxy(url: str) -> None:
    with httpx.Client(base_url=url, timeout=300, trust_env=False) as client:
        assert client.get("/ready").status_code == 200
        assert client.get("/info").json()["served_model_name"] == "mini"
        assert client.post("/embed", json={"inputs": [1]}).status_code == 422
        late = client.post(
            "/v1/embeddings",
            json={"input": ["a cat"] * 3000},
            headers={"x-request-timeout-ms": "1"},
        )
        assert (late.status_code, late.headers["x-should-retry"]) == (504, "false")
