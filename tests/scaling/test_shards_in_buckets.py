"""A collection in shards that is built and searched on machines that share nothing but a bucket."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray", reason="needs the extra [ray]")
pytest.importorskip("s3fs", reason="needs the extra [s3]")
pytest.importorskip("moto", reason="needs the extra [test-buckets]")

import ray

from flowvec import Encoder
from flowvec.bulk import RayWorkers
from flowvec.errors import (
    CollectionError,
    FingerprintMismatchError,
    InputValueError,
)
from flowvec.sharded import ShardedSearcher, index_shards, verify_shards
from tests.faults.bucket_server import Bucket, url_of
from tests.inside import actors_of
from tests.makers import WORDS

TWO = RayWorkers(2, cpus=1)
OPTIONS: dict[str, Any] = {"id_field": "id", "keep": ["n"], "rows_per_shard": 100}


pytestmark = pytest.mark.usefixtures("cluster")


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = random.Random(1)
    path = tmp_path_factory.mktemp("texts") / "texts.jsonl"
    texts = [" ".join(rng.choices(WORDS, k=rng.randint(3, 14))) + f" {i}" for i in range(800)]
    lines = [{"id": f"t{i}", "text": text, "n": i % 5} for i, text in enumerate(texts)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.fixture(scope="module")
def url(server: str, mini: Encoder, file: Path) -> str:
    """Three shards of 800 rows."""
    url = url_of(server, "notes")
    done = index_shards(mini, [file], url, shards=3, workers=TWO, **OPTIONS)
    assert sum(one.rows for one in done) == 800
    return url


@pytest.fixture
def bucket(server: str) -> Bucket:
    return Bucket(server)


def until(happens: Callable[[], bool], seconds: float = 300.0) -> bool:
    """Whether something happens within some seconds."""
    end = time.monotonic() + seconds
    while not happens():
        if time.monotonic() > end:
            return False
        time.sleep(0.2)
    return True


def test_shards_in_a_bucket_find_what_shards_in_a_folder_find(
    tmp_path: Path, mini: Encoder, file: Path, url: str, bucket: Bucket
) -> None:
    index_shards(mini, [file], tmp_path / "here", shards=3, workers=TWO, **OPTIONS)
    queries = [f"{a} {b}" for a in WORDS[:4] for b in WORDS[5:]]
    with (
        ShardedSearcher(url, encoder=mini, cpus_per_shard=0.1, timeout=60,
                        cache=tmp_path / "cache") as there,
        ShardedSearcher(tmp_path / "here", encoder=mini, cpus_per_shard=0.1, timeout=60) as here,
    ):  # fmt: skip
        assert there.rows() == here.rows() == 800
        for condition in (None, {"n": 2}):
            expected = here.search_batch(queries, 10, filter=condition, exact=True)
            assert there.search_batch(queries, 10, filter=condition, exact=True) == expected
    assert verify_shards(url).problems == verify_shards(tmp_path / "here").problems == ()
    assert bucket.uploads("notes") == []
    assert "_lease.json" not in bucket.objects("notes")


def test_the_same_job_does_nothing_and_another_is_refused(
    tmp_path: Path, mini: Encoder, tiny: Encoder, file: Path, url: str, bucket: Bucket
) -> None:
    before = bucket.objects("notes")
    again = index_shards(mini, [file], url, shards=3, workers=TWO, **OPTIONS)
    assert [one.encoded for one in again] == [0, 0, 0]
    assert sum(one.rows for one in again) == 800
    with pytest.raises(InputValueError, match="has 3 shards, not 2"):
        index_shards(mini, [file], url, shards=2, workers=TWO, **OPTIONS)
    with pytest.raises(FingerprintMismatchError):
        index_shards(tiny, [file], url, shards=3, workers=TWO, **OPTIONS)
    other = tmp_path / "other.jsonl"
    other.write_text('{"id": "a", "text": "a"}\n')
    with pytest.raises(CollectionError, match=r"inputs.*--rebuild") as refused:
        index_shards(mini, [other], url, shards=3, workers=TWO, **OPTIONS)
    assert "skip-unchanged" not in str(refused.value)
    assert bucket.objects("notes") == before


def test_what_is_lost_is_built_again_and_other_inputs_replace_all(
    tmp_path: Path, mini: Encoder, file: Path, server: str, bucket: Bucket
) -> None:
    url = url_of(server, "repaired")
    index_shards(mini, [file], url, shards=2, workers=TWO, **OPTIONS)
    damaged = [name for name in bucket.objects("repaired") if name.endswith(".sqlite")]
    bucket.delete_one(f"repaired/{damaged[0]}")
    bucket.put(f"repaired/{damaged[1]}", b"cut off")
    assert any("--rebuild" in one for one in verify_shards(url).problems)
    index_shards(mini, [file], url, shards=2, workers=TWO, **OPTIONS)
    assert (verify_shards(url).rows, verify_shards(url).problems) == (800, ())
    other = tmp_path / "other.jsonl"
    other.write_text('{"id": "a", "text": "a", "n": 1}\n')
    for place in (url, tmp_path / "here"):
        if place != url:
            index_shards(mini, [file], place, shards=2, workers=TWO, **OPTIONS)
        again = index_shards(mini, [other], place, shards=2, workers=TWO, resume=False, **OPTIONS)
        assert [one.rows for one in again] == [1, 0]
        assert (verify_shards(place).rows, verify_shards(place).problems) == (1, ())
    assert len([name for name in bucket.objects("repaired") if name.endswith(".sqlite")]) == 2


def test_a_job_that_fails_at_once_decides_nothing(
    tmp_path: Path, mini: Encoder, file: Path, server: str, bucket: Bucket
) -> None:
    url = url_of(server, "failed")
    with pytest.raises(CollectionError, match="no field 'nope'"):
        index_shards(mini, [file], url, shards=3, workers=TWO, id_field="nope")
    done = index_shards(mini, [file], url, shards=2, workers=TWO, **OPTIONS)
    assert sum(one.rows for one in done) == 800
    bucket.put("job/_manifest.json", b"{}")
    with pytest.raises(InputValueError, match=r"it holds _manifest\.json"):
        index_shards(mini, [file], url_of(server, "job"), shards=2, workers=TWO, **OPTIONS)
    assert set(bucket.objects("job")) == {"_manifest.json"}
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(InputValueError, match=r"it holds notes\.txt"):
        index_shards(mini, [file], tmp_path, shards=2, workers=TWO, **OPTIONS)


def test_a_lost_shard_is_named_and_comes_back(
    tmp_path: Path, mini: Encoder, url: str, bucket: Bucket
) -> None:
    record = bucket.objects("notes")["shard-001.json"]
    bucket.delete_one("notes/shard-001.json")
    try:
        with ShardedSearcher(url, encoder=mini, cpus_per_shard=0.1, timeout=60,
                             cache=tmp_path / "cache") as searcher:  # fmt: skip
            hits = searcher.search("the cat", 5)
            assert set(hits.missing) == {"shard-001"}
            assert "shard-001.json is missing" in hits.missing["shard-001"]
            assert len(hits.hits[0]) == 5
            bucket.put("notes/shard-001.json", record)
            assert until(lambda: not searcher.search("the cat", 5).partial)
            assert searcher.rows() == 800
    finally:
        bucket.put("notes/shard-001.json", record)


def test_rows_are_read_by_id_from_the_cache_and_by_the_command(
    flowvec: Callable[..., subprocess.CompletedProcess[str]],
    tmp_path: Path,
    mini: Encoder,
    file: Path,
    url: str,
    bucket: Bucket,
) -> None:
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    wanted = [lines[i] for i in (799, 0, 150, 0)]
    ids = [line["id"] for line in wanted]
    with ShardedSearcher(url, cpus_per_shard=0.1, timeout=60,
                         cache=tmp_path / "cache") as searcher:  # fmt: skip
        found = searcher.get([*ids, "nothing"])
        assert [row and row.text for row in found.rows] == [*(one["text"] for one in wanted), None]
        assert [row and row.metadata for row in found.rows][:2] == [{"n": 4}, {"n": 0}]
        assert (found.partial, found.missing) == (False, {})
        row = found.rows[0]
        assert row is not None
        assert row.vector == pytest.approx(mini.encode(lines[799]["text"]), abs=1e-5)
    done = flowvec("get", url, *ids, "nothing", "--json", "--timeout", "300")
    answer = json.loads(done.stdout)
    assert [row["id"] for row in answer["rows"]] == ids[:3]
    assert (answer["partial"], answer["missing"]) == (False, {})
    assert done.returncode == 1
    assert done.stderr.endswith("/notes has no row nothing\n"), done.stderr
    record = bucket.objects("notes")["shard-001.json"]
    bucket.delete_one("notes/shard-001.json")
    try:
        every = [line["id"] for line in lines]
        with ShardedSearcher(url, cpus_per_shard=0.1, timeout=60,
                             cache=tmp_path / "cache") as searcher:  # fmt: skip
            found = searcher.get(every)
        assert (found.partial, list(found.missing)) == (True, ["shard-001"])
        assert 0 < sum(row is None for row in found.rows) < 800
    finally:
        bucket.put("notes/shard-001.json", record)


def test_an_actor_that_dies_comes_back_from_the_cache(
    tmp_path: Path, mini: Encoder, url: str, server: str, bucket: Bucket
) -> None:
    objects = bucket.objects("notes")
    copy = url_of(server, "copy")
    for name, content in objects.items():
        bucket.put(f"copy/{name}", content)
    with ShardedSearcher(copy, encoder=mini, cpus_per_shard=0.1, timeout=60,
                         cache=tmp_path / "cache") as searcher:  # fmt: skip
        assert searcher.rows() == 800
        for name in objects:
            if not name.endswith(".json") or ".job." in name:
                bucket.delete_one(f"copy/{name}")
        ray.kill(actors_of(searcher)["shard-001"], no_restart=False)
        assert until(lambda: not searcher.search("the cat", 5).partial)
        assert searcher.rows() == 800


@pytest.mark.skipif(sys.platform == "win32", reason="SIGKILL is POSIX's")
def test_a_job_that_is_killed_is_completed_by_the_same_command(
    flowvec: Callable[..., subprocess.CompletedProcess[str]],
    flowvec_process: Callable[..., subprocess.CompletedProcess[str]],
    tmp_path: Path,
    server: str,
    file: Path,
    bucket: Bucket,
) -> None:
    url = url_of(server, "killed")
    words = ["index", url, str(file), "--model", "mini", "--id-field", "id",
             "--engine", "ray", "--shards", "4", "--workers", "2"]  # fmt: skip
    # A Ray of its own: the tests' cluster must outlive it.
    environment = {**os.environ, "RAY_ADDRESS": "local"}
    with subprocess.Popen(
        [sys.executable, "-m", "flowvec", *words], cwd=tmp_path, start_new_session=True,
        env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    ) as job:  # fmt: skip
        assert until(lambda: any(n.startswith("shard-") for n in bucket.objects("killed")))
        os.killpg(job.pid, signal.SIGKILL)
    bucket.put("killed/shard-003.0123456789ab.vectors", b"as a kill leaves it")
    done = flowvec_process(*words)
    assert done.returncode == 0, done.stderr
    assert re.search(r"killed: 800 rows in 4 shards", done.stdout), done.stdout
    checked = flowvec("verify", url, "--clean")
    assert (checked.returncode, "all well" in checked.stdout) == (0, True), checked
    assert "removed" not in checked.stdout
    assert bucket.uploads("killed") == []
    about = flowvec("info", url)
    assert (about.returncode, "collection in shards" in about.stdout) == (0, True), about
    found = flowvec("search", url, "the cat", "-k", "3", "--json")
    assert found.returncode == 0, found.stderr
    answer = json.loads(found.stdout)
    assert (len(answer["hits"]), answer["partial"], answer["missing"]) == (3, False, {})


def test_the_commands_say_what_is_wrong(
    flowvec: Callable[..., subprocess.CompletedProcess[str]], server: str, file: Path
) -> None:
    nothing = url_of(server, "nothing")
    local = flowvec("index", nothing, str(file), "--model", "mini")
    assert (local.returncode, "give --engine ray and --shards" in local.stderr) == (2, True)
    searched = flowvec("search", nothing, "the cat")
    assert (searched.returncode, "is not a collection in shards" in searched.stderr) == (2, True)
    read = flowvec("get", nothing, "a")
    assert (read.returncode, "is not a collection in shards" in read.stderr) == (2, True)
    into = flowvec("encode", "mini", str(file), "--into", nothing)
    assert (into.returncode, "below a URL it is in shards" in into.stderr) == (2, True)
    verified = flowvec("verify", nothing)
    assert (verified.returncode, "not a collection in shards" in verified.stderr) == (2, True)
