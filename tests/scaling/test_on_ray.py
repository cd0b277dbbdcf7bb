"""Bulk jobs on a local Ray: the same bytes as on one machine, also if workers die."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ray", reason="needs the extra [ray]")

import ray

from flowvec import Collection, Encoder
from flowvec.bulk import RayWorkers, encode_files, saved_batches
from flowvec.errors import (
    BulkError,
    ClosedError,
    CollectionError,
    FingerprintMismatchError,
    InputValueError,
)
from flowvec.sharded import ShardedSearcher, index_shards
from tests.inside import actors_of
from tests.makers import WORDS, contents

TWO = RayWorkers(2, cpus=1)
OPTIONS: dict[str, Any] = {"id_field": "id", "keep": ["n"], "rows_per_shard": 100}


pytestmark = pytest.mark.usefixtures("cluster")


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    """Rows of which some cannot be embedded."""
    rng = random.Random(0)
    path = tmp_path / "rows.jsonl"
    lines = [
        {"id": f"r{i}", "text": None if i % 37 == 5 else " ".join(rng.choices(WORDS, k=9)), "n": i}
        for i in range(2150)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.mark.parametrize("out_format", ["parquet", "npy"])
def test_two_workers_leave_what_one_machine_leaves(
    tmp_path: Path, tiny: Encoder, rows: Path, out_format
) -> None:
    here = encode_files(tiny, rows, tmp_path / "here", out_format=out_format, **OPTIONS)
    done = encode_files(tiny, rows, tmp_path / "ray", out_format=out_format, workers=TWO, **OPTIONS)
    assert contents(tmp_path / "ray") == contents(tmp_path / "here")
    assert (done.rows, done.dead_letters, done.shards) == (here.rows, here.dead_letters, 22)
    assert (done.encoded, done.tokens, done.codes) == (here.encoded, here.tokens, here.codes)
    assert done.complete


def test_ray_continues_within_a_shard_that_was_begun_here(
    tmp_path: Path, tiny: Encoder, rows: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saved_batches, "_SAVE_EVERY", 0.0)
    options: dict[str, Any] = {"out_format": "npy", "rows_per_shard": 4000}

    class OnceSaved(threading.Event):
        def is_set(self) -> bool:
            return bool(list((tmp_path / "ray").glob("*.batches")))

    whole = encode_files(tiny, rows, tmp_path / "here", **options)
    begun = encode_files(tiny, rows, tmp_path / "ray", stop=OnceSaved(), **options)
    assert not begun.complete
    assert begun.kept
    done = encode_files(tiny, rows, tmp_path / "ray", workers=TWO, **options)
    assert done.encoded <= whole.encoded - begun.kept
    assert contents(tmp_path / "ray") == contents(tmp_path / "here")


def workers_of_ray(kind: bytes = b"ShardEncoder") -> list[int]:
    """Processes of actors that encode, or of another class."""
    pids = []
    for folder in Path("/proc").iterdir():
        try:
            line = (folder / "cmdline").read_bytes() if folder.name.isdecimal() else b""
        except OSError:
            continue
        if line.startswith(b"ray::") and kind in line:
            pids.append(int(folder.name))
    return pids


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="calls are caught on Linux alone")
def test_a_worker_that_is_killed_loses_nothing(tmp_path: Path, tiny: Encoder, rows: Path) -> None:
    encode_files(tiny, rows, tmp_path / "here", **OPTIONS)
    killed: list[int] = []

    def kill(progress) -> None:
        if len(killed) < 2 and progress.rows > 300 * (1 + len(killed)):
            # One that was killed before may not be replaced yet.
            until = time.monotonic() + 120
            while not (alive := set(workers_of_ray()) - set(killed)) and time.monotonic() < until:
                time.sleep(0.1)
            for process in sorted(alive)[:1]:
                os.kill(process, signal.SIGKILL)
                killed.append(process)

    done = encode_files(tiny, rows, tmp_path / "ray", workers=TWO, on_progress=kill, **OPTIONS)
    assert killed
    assert done.complete
    assert contents(tmp_path / "ray") == contents(tmp_path / "here")


def test_a_job_can_change_its_engine(tmp_path: Path, tiny: Encoder, rows: Path) -> None:
    encode_files(tiny, rows, tmp_path / "here", **OPTIONS)
    for engines in ((None, TWO), (TWO, None)):
        out = tmp_path / f"out {engines[0]}"
        stop = threading.Event()
        first = encode_files(
            tiny, rows, out, workers=engines[0], stop=stop,
            on_progress=lambda _, stop=stop: stop.set(), **OPTIONS,
        )  # fmt: skip
        assert not first.complete
        then = encode_files(tiny, rows, out, workers=engines[1], **OPTIONS)
        assert then.complete
        assert then.shards_before >= 1
        assert contents(out) == contents(tmp_path / "here")


def test_wrong_arguments_are_errors(tmp_path: Path, tiny: Encoder, rows: Path) -> None:
    # Two workers run shards at once: either may be the first to find a row without text.
    with pytest.raises(BulkError, match=r"rows\.jsonl, row \d+: .*null") as raised:
        encode_files(tiny, rows, tmp_path / "out", workers=TWO, strict=True, **OPTIONS)
    (row,) = re.findall(r"row (\d+)", str(raised.value))
    assert int(row) % 37 == 5
    with pytest.raises(InputValueError, match="a folder of shards"):
        encode_files(tiny, rows, tmp_path / "one.npy", workers=TWO)


def test_encode_with_ray_workers_from_the_command_line(
    flowvec_process, tmp_path: Path, tiny_dir: Path, rows: Path
) -> None:
    words = ("encode", tiny_dir, "rows.jsonl", "-o", "out", "--provider", "cpu", "--rows-per-shard",
             "500", "--json")  # fmt: skip
    done = flowvec_process(*words, "--engine", "ray", "--workers", "2", "--cpus-per-worker", "1")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["shards"] == 5
    again = flowvec_process(*words)
    assert json.loads(again.stdout)["shards_before"] == 5
    wrong = flowvec_process(*words, "--workers", "2")
    assert (wrong.returncode, "give --engine ray" in wrong.stderr) == (2, True)


def test_a_cluster_that_is_started_here_needs_no_notice(tmp_path: Path) -> None:
    """Ray warns that it asks for a token, which is its default; nobody has to do anything."""
    code = (
        "from flowvec.bulk.ray_workers import RayWorkers, connected_ray, disconnect_ray\n"
        "connected_ray(RayWorkers(1, address='local'))\n"
        "disconnect_ray()\n"
    )
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    done = subprocess.run(
        [sys.executable, "-c", code], env={**kept, "HOME": str(tmp_path)},
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "oken" not in done.stderr


# --- retrieval ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def texts() -> list[str]:
    rng = random.Random(1)
    return [" ".join(rng.choices(WORDS, k=rng.randint(3, 14))) + f" {i}" for i in range(1500)]


@pytest.fixture(scope="module")
def sharded(tmp_path_factory: pytest.TempPathFactory, mini: Encoder, texts) -> Path:
    folder = tmp_path_factory.mktemp("sharded")
    lines = [{"id": f"t{i}", "text": text, "n": i % 5} for i, text in enumerate(texts)]
    lines.insert(700, {"id": "dead", "text": None, "n": 0})
    file = folder / "texts.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    options: dict[str, Any] = {"id_field": "id", "keep": ["n"], "rows_per_shard": 200}
    done = index_shards(mini, [file.as_uri()], folder / "c", shards=3, workers=TWO, **options)
    assert sum(one.rows for one in done) == len(texts)
    assert sorted(one.dead_letters for one in done) == [0, 0, 1]
    again = index_shards(mini, [file.as_uri()], folder / "c", shards=3, workers=TWO, **options)
    assert [one.encoded for one in again] == [0, 0, 0]
    with pytest.raises(InputValueError, match="has 3 shards, not 2"):
        index_shards(mini, [file], folder / "c", shards=2, workers=TWO, **options)
    return folder / "c"


@pytest.fixture(scope="module")
def searcher(sharded: Path, mini: Encoder):
    """For all tests: each shard is a process, which takes seconds to start."""
    with ShardedSearcher(sharded, encoder=mini, cpus_per_shard=0.1, timeout=60) as searcher:
        assert searcher.rows() == 1500
        yield searcher


def test_shards_find_what_one_collection_finds(
    tmp_path: Path, mini: Encoder, texts, searcher: ShardedSearcher
) -> None:
    queries = [f"{a} {b}" for a in WORDS[:5] for b in WORDS[5:]]
    with Collection.create(tmp_path / "c", encoder=mini) as c:
        c.add([f"t{i}" for i in range(1500)], texts, [{"n": i % 5} for i in range(1500)])
        for condition in (None, {"n": 2}):
            whole = c.search_batch(queries, 10, filter=condition, exact=True)
            hit_lists = searcher.search_batch(queries, 10, filter=condition, exact=True)
            assert not hit_lists.partial
            for ours, theirs in zip(hit_lists.hits, whole, strict=True):
                assert [hit.score for hit in ours] == pytest.approx(
                    [hit.score for hit in theirs], abs=1e-5
                )
                assert {hit.id for hit in ours[:5]} & {hit.id for hit in theirs}
    one = searcher.search(queries[0], 3)
    assert len(one.hits[0]) == 3
    assert one.hits[0][0].text is not None


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="calls are caught on Linux alone")
def test_a_shard_that_does_not_answer_is_named(searcher: ShardedSearcher) -> None:
    shards = workers_of_ray(b"ShardActor")

    def send(number: signal.Signals) -> None:
        for process in shards:
            with suppress(ProcessLookupError):  # one of another searcher, which has ended
                os.kill(process, number)

    send(signal.SIGSTOP)  # none can answer before it is looked at
    try:
        late = searcher.search("the cat", 5, timeout=0.0)
    finally:
        send(signal.SIGCONT)
    assert late.partial
    names = ("shard-000", "shard-001", "shard-002")
    assert late.missing == dict.fromkeys(names, "no answer within 0 s")


def test_searches_that_were_given_up_do_not_hold_up_the_next(searcher: ShardedSearcher) -> None:
    """Ray's own time for a call that never arrives is 30 s, and then the next one fails."""
    for _ in range(30):
        searcher.search("the cat", 5, timeout=0.0)
        assert not searcher.search("the cat", 5, timeout=20.0).missing


def test_any_number_of_threads_may_search(searcher: ShardedSearcher) -> None:
    expected = {word: searcher.search(word, 5) for word in WORDS}
    with ThreadPoolExecutor(8) as pool:
        hit_lists = list(pool.map(lambda word: searcher.search(word, 5), WORDS * 5))
    assert hit_lists == list(expected.values()) * 5


def test_a_shard_that_dies_is_named_and_comes_back(searcher: ShardedSearcher) -> None:
    dying = actors_of(searcher)["shard-001"]
    ray.kill(dying, no_restart=False)
    hits = searcher.search("the cat", 5)
    assert set(hits.missing) <= {"shard-001"}
    until = time.monotonic() + 300
    while searcher.search("the cat", 5).partial and time.monotonic() < until:
        time.sleep(0.2)
    assert not searcher.search("the cat", 5).partial


def test_wrong_questions_are_errors(
    sharded: Path, tiny: Encoder, mini: Encoder, searcher: ShardedSearcher, tmp_path: Path
) -> None:
    with pytest.raises(InputValueError):
        searcher.search(np.ones(3, np.float32))
    with pytest.raises(InputValueError):
        searcher.search("the cat", 5, filter={"n": {"?": 1}})
    with pytest.raises(FingerprintMismatchError):
        ShardedSearcher(sharded, encoder=tiny)
    with pytest.raises(CollectionError, match="not a collection in shards"):
        ShardedSearcher(tmp_path)
    with ShardedSearcher(sharded, encoder=mini, cpus_per_shard=0.1) as closed:
        pass
    with pytest.raises(ClosedError):
        closed.search("the cat")


def test_the_commands_build_and_search_shards(
    flowvec, flowvec_process, tmp_path: Path, sparse_dir: Path
) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "the cat sleeps"}\n{"text": "stocks fell"}\n')
    options = ("--model", "mini", "--engine", "ray", "--shards", "2")
    built = flowvec_process("index", "c", "a.jsonl", *options)
    assert built.returncode == 0, built.stderr
    assert built.stdout.splitlines() == [
        "shard-000: 2 rows, 0 dead letters", "shard-001: 0 rows, 0 dead letters",
        "c: 2 rows in 2 shards",
    ]  # fmt: skip
    done = flowvec_process("search", "c", "a resting animal", "-k", "1")
    assert done.returncode == 0, done.stderr
    assert "the cat sleeps" in done.stdout
    by_words = flowvec("search", "c", "stocks", "--hybrid", "--vector-weight", "0", "--json")
    assert by_words.returncode == 0, by_words.stderr
    first, second = json.loads(by_words.stdout)["hits"]
    assert (first["text"], first["score"], second["score"]) == ("stocks fell", 1.0, 0.0)
    without = flowvec("search", "c", "stocks", "--sparse-model", sparse_dir)
    assert (without.returncode, without.stdout) == (0, "no rows\n")
    assert "c was built without sparse vectors" in without.stderr
    page = flowvec("search", "c", "stocks", "--hybrid", "--offset", "1", "--min-score", "0.1")
    assert (page.returncode, "stocks" in page.stdout) == (0, False)
    (tmp_path / "c" / "shard-001").rename(tmp_path / "elsewhere")
    partly = flowvec("search", "c", "a resting animal", "--json")
    assert partly.returncode == 0, partly.stderr
    answer = json.loads(partly.stdout)
    assert [hit["text"] for hit in answer["hits"]] == ["the cat sleeps", "stocks fell"]
    assert (answer["partial"], list(answer["missing"])) == (True, ["shard-001"])
    assert f"shard-001 is missing: {answer['missing']['shard-001']}" in partly.stderr
    wrong = flowvec("index", "d", "a.jsonl", "--model", "mini", "--shards", "2")
    assert (wrong.returncode, "give --engine ray" in wrong.stderr) == (2, True)
