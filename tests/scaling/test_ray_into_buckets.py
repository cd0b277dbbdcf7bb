"""A bulk job on a cluster of three nodes that share nothing but a bucket."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray", reason="needs the extra [ray]")
pytest.importorskip("s3fs", reason="needs the extra [s3]")
pytest.importorskip("moto", reason="needs the extra [test-buckets]")

import ray
from ray.cluster_utils import Cluster

from flowvec import Encoder
from flowvec.bulk import encode_files, verify_folder
from tests.faults.bucket_server import Bucket, url_of
from tests.makers import contents, texts_of

# Ray notices within seconds that a node is gone, and waits longer for one that is slow.
_HEALTH = {"health_check_initial_delay_ms": 1000, "health_check_period_ms": 500,
           "health_check_timeout_ms": 30_000, "health_check_failure_threshold": 3}  # fmt: skip


@pytest.fixture
def cluster(server: str) -> Iterator[Cluster]:
    """A head without cores for workers, and three nodes with one core each."""
    ray.shutdown()  # leaves the cluster of other modules
    cluster = Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 0, "include_dashboard": False, "_system_config": _HEALTH},
    )
    for _ in range(3):
        cluster.add_node(num_cpus=1)
    ray.init(address=cluster.address, log_to_driver=False)
    cluster.wait_for_nodes()
    ray.shutdown()
    yield cluster
    cluster.shutdown()


def put_inputs(bucket: Bucket, server: str) -> str:
    """2,400 rows in 40 objects, of which some cannot be embedded and some repeat an id."""
    texts = texts_of(2400)
    for number in range(40):
        lines = [
            {"id": f"r{i % 2300}", "text": None if i % 37 == 5 else texts[i]}
            for i in range(number * 60, number * 60 + 60)
        ]
        content = "".join(json.dumps(line) + "\n" for line in lines).encode()
        bucket.put(f"texts/{number:02}.jsonl", content)
    return f"s3://bucket/texts?endpoint_override={server.removeprefix('http://')}&scheme=http"


def test_a_node_that_dies_costs_its_shards_and_nothing_else(
    tmp_path: Path, tiny: Encoder, server: str, cluster: Cluster
) -> None:
    bucket = Bucket(server)
    inputs = put_inputs(bucket, server)
    options: dict[str, Any] = {"id_field": "id", "rows_per_shard": 50, "out_format": "npy",
                               "on_duplicate": "dead-letter"}  # fmt: skip
    here = encode_files(tiny, inputs, tmp_path / "here", **options)
    # Of the 100 repeated ids, five have no text the first or the second time.
    assert here.codes == {"duplicate_id": 95, "null": 65}
    # fmt: off
    words = [sys.executable, "-m", "flowvec", "encode", tiny.bundle.handle, inputs,
             "-o", url_of(server, "out"), "--provider", "cpu", "--id-field", "id",
             "--rows-per-shard", "50", "--out-format", "npy", "--on-duplicate", "dead-letter",
             "--engine", "ray", "--workers", "3", "--cpus-per-worker", "1",
             "--address", cluster.address, "--progress", "json", "--json"]
    # fmt: on
    nodes = [node for node in cluster.list_all_nodes() if node is not cluster.head_node]
    with subprocess.Popen(
        words, cwd=tmp_path, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env={**os.environ, "FLOWVEC_CACHE": str(tmp_path / "cache")},
    ) as job:  # fmt: skip
        assert job.stderr is not None
        lines = iter(job.stderr.readline, "")
        first = next(json.loads(line) for line in lines if line.startswith("{"))
        assert 0 < first["rows"] < 2400
        cluster.remove_node(nodes[1], allow_graceful=False)
        told, said = job.communicate(timeout=600)
    assert job.returncode == 0, said
    done = json.loads(told)
    assert (done["rows"], done["codes"], done["shards"]) == (here.rows, here.codes, 48)
    assert bucket.objects("out") == contents(tmp_path / "here")
    assert bucket.uploads("out") == []
    assert not verify_folder(url_of(server, "out")).problems
    again = subprocess.run(
        [word for word in words if word not in ("--progress", "json")], cwd=tmp_path, text=True,
        capture_output=True, check=True, timeout=600,
    )  # fmt: skip
    assert json.loads(again.stdout)["shards_before"] == 48
