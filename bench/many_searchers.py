"""Many searchers that start at once on one collection in shards in a bucket.

    python bench/many_searchers.py [--searchers 16] [--rows 100000] [--shards 4] [--server rclone]

Each searcher is a process with an Encoder and its own actor for each shard, on one Ray cluster of
this machine. First each has a cache folder of its own, then all share one; both start empty. Each
searches the same queries, and its answers must be those of a searcher of the same shards in a local
folder. Then one shard is lost: its objects are deleted, and its actors end, so that they must
download it again from nothing. All must answer without it, and say so. When the objects are back,
all must answer in full again without a restart.

Times run from the start of the first process, and contain the start of Python, Ray's actors,
download and check of the shards, and the first search. Memory is the private memory of a searcher's
process and of one actor. Needs the extras [cpu], [ray] and [test-buckets].
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any, get_args

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import ray
from tests.faults.bucket_server import KEY, SECRET, Bucket, Server, bucket_server, url_of
from tests.makers import WORDS

from flowvec import Encoder
from flowvec.bulk import RayWorkers
from flowvec.collection.results import Hit
from flowvec.object_store import open_store
from flowvec.sharded import ShardedSearcher, index_shards
from flowvec.sharded.manifest import SHARDS_FILE, shard_name
from flowvec.sharded.stored_shard import fetch, read_shard

_K = 10
_LOST = "shard-001"
_CPUS = 0.05  # that Ray reserves for an actor, so that all can start on this machine
_SECONDS = 600.0  # that a step may take
_PREFIX = "notes"


def main() -> None:
    """Build the collection, run both rounds, and print the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--searchers", type=int, default=16)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--shards", type=int, default=4)
    parser.add_argument("--queries", type=int, default=50)
    parser.add_argument("--server", choices=get_args(Server), default="rclone")
    parser.add_argument("--search", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.search:
        _search(*given.search)
        return
    os.environ |= {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET}
    with tempfile.TemporaryDirectory(prefix="fv") as name, bucket_server(server=given.server) as at:
        folder, bucket, url = Path(name), Bucket(at), url_of(at, _PREFIX)
        cluster = ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False)
        os.environ["RAY_ADDRESS"] = cluster.address_info["address"]
        begun = time.monotonic()
        _build(folder, url, given.rows, given.shards)
        _say("built", seconds=time.monotonic() - begun)
        queries = _texts(given.queries, seed=2)
        (folder / "queries.json").write_text(json.dumps(queries))
        expected = _local_answers(folder / "here", queries)
        for is_shared in (False, True):
            _round(folder, url, bucket, given.searchers, expected, is_shared=is_shared)
        ray.shutdown()


def _round(
    folder: Path, url: str, bucket: Bucket, count: int, expected: Any, *, is_shared: bool
) -> None:
    """Start all searchers at once, lose a shard, and put it back."""
    caches = folder / "caches"
    begun = time.monotonic()
    searchers = [
        _Searcher(url, folder / "queries.json", caches / ("all" if is_shared else str(number)))
        for number in range(count)
    ]
    first = [searcher.first_whole(begun) for searcher in searchers]
    answers = [searcher.ask() for searcher in searchers]
    equal = sum(answer["hits"] == expected for answer in answers)
    mib = [searcher.mib() for searcher in searchers]
    actors = [_private_mib(pid) for pid in _actors()]
    size = sum(path.stat().st_size for path in caches.rglob("*") if path.is_file())
    _say(
        "one cache for all" if is_shared else "a cache for each",
        first_answer_median=median(first), first_answer_worst=max(first), equal=equal,
        searcher_mib=median(mib), searcher_mib_most=max(mib), actor_mib=median(actors),
        actor_mib_most=max(actors), caches_mib=size / (1 << 20),
    )  # fmt: skip
    kept = {
        name: content for name, content in bucket.objects(_PREFIX).items()
        if name.startswith(_LOST)
    }  # fmt: skip
    for name in kept:
        bucket.delete_one(f"{_PREFIX}/{name}")
    for path in caches.rglob(_LOST):
        shutil.rmtree(path)
    for searcher in searchers:
        searcher.ask("end")  # its actor of the lost shard
    partial = sum(_until(searcher, lambda one: one["missing"] == [_LOST]) for searcher in searchers)
    for name, content in kept.items():
        bucket.put(f"{_PREFIX}/{name}", content)
    begun = time.monotonic()
    whole = sum(_until(searcher, lambda one: one["hits"] == expected) for searcher in searchers)
    _say("a shard was lost", partial=partial, whole_again=whole, seconds=time.monotonic() - begun)
    for searcher in searchers:
        searcher.close()
    shutil.rmtree(caches)
    if not equal == partial == whole == count:
        sys.exit("searchers answered otherwise")


def _until(searcher: _Searcher, is_so: Callable[[dict[str, Any]], bool]) -> bool:
    """Whether a searcher's answer becomes so."""
    end = time.monotonic() + _SECONDS
    while not is_so(searcher.ask()):
        if time.monotonic() > end:
            return False
        time.sleep(1)
    return True


class _Searcher:
    """A searcher in a process of its own."""

    def __init__(self, url: str, queries: Path, cache: Path) -> None:
        words = [sys.executable, __file__, "--search", url, str(queries), str(cache)]
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed with the process
        self._process = subprocess.Popen(  # noqa: S603
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            stderr=self._errors,
        )  # fmt: skip

    def first_whole(self, begun: float) -> float:
        """Seconds until its first answer of all shards; its clock is that of this machine."""
        return float(self._line()["at"]) - begun

    def ask(self, command: str = "search") -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{command}\n")
        self._process.stdin.flush()
        return self._line()

    def _line(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        for told in self._process.stdout:
            if told.startswith("{"):  # other lines are Ray's
                line: dict[str, Any] = json.loads(told)
                return line
        self._errors.seek(0)
        sys.exit(f"a searcher ended: {self._errors.read()[-2000:]}")

    def mib(self) -> float:
        return _private_mib(self._process.pid)

    def close(self) -> None:
        self._process.communicate("")
        self._errors.close()


def _search(url: str, queries: str, cache: str) -> None:
    """What a searcher's process does: it answers on its standard output when asked."""
    texts = json.loads(Path(queries).read_text())
    with (
        Encoder.load("mini", streams=1) as encoder,
        ShardedSearcher(
            url, encoder=encoder, cpus_per_shard=_CPUS, timeout=_SECONDS, cache=cache
        ) as searcher,
    ):
        # A shard that is opened late is missing from the first answers.
        while searcher.search_batch(texts[:1], _K).missing:
            time.sleep(0.2)
        print(json.dumps({"at": time.monotonic()}), flush=True)
        for command in sys.stdin:
            if command == "end\n":
                ray.kill(searcher._shards[_LOST], no_restart=False)
                print("{}", flush=True)
            else:
                answer = searcher.search_batch(texts, _K)
                told = {"hits": _plain(answer.hits), "missing": sorted(answer.missing)}
                print(json.dumps(told), flush=True)


def _plain(hits: list[list[Hit]]) -> list[list[list[Any]]]:
    return [[[hit.id, round(hit.score, 5)] for hit in one] for one in hits]


def _actors() -> list[int]:
    """Process ids of Ray's actors for shards."""
    named = ((one.pid, one.info["cmdline"]) for one in psutil.process_iter(["cmdline"]))
    return [pid for pid, words in named if words and words[0].startswith("ray::ShardActor")]


def _private_mib(pid: int) -> float:
    return float(psutil.Process(pid).memory_full_info().uss) / (1 << 20)


def _texts(count: int, seed: int) -> list[str]:
    rng = random.Random(seed)
    return [" ".join(rng.choices(WORDS, k=rng.randint(4, 14))) + f" {i}" for i in range(count)]


def _build(folder: Path, url: str, rows: int, shards: int) -> None:
    """Build the shards in the bucket, and copy them into the folder `here`."""
    file, here = folder / "texts.jsonl", folder / "here"
    with file.open("w", encoding="utf-8") as lines:
        for number, text in enumerate(_texts(rows, seed=1)):
            lines.write(json.dumps({"id": f"t{number}", "text": text}) + "\n")
    with Encoder.load("mini") as encoder:
        index_shards(
            encoder, [file], url, shards=shards, workers=RayWorkers(2, cpus=1), id_field="id"
        )
    store = open_store(url)
    here.mkdir()
    (here / SHARDS_FILE).write_bytes(store.read(SHARDS_FILE) or b"")
    for number in range(shards):
        shard = read_shard(store, shard_name(number))
        assert shard is not None
        (here / shard_name(number)).mkdir()
        fetch(store, shard.collection, here / shard_name(number))


def _local_answers(place: Path, queries: list[str]) -> list[list[list[Any]]]:
    with (
        Encoder.load("mini", streams=1) as encoder,  # batches as in the searchers
        ShardedSearcher(place, encoder=encoder, cpus_per_shard=_CPUS, timeout=_SECONDS) as searcher,
    ):
        return _plain(searcher.search_batch(queries, _K).hits)


def _say(what: str, **figures: float) -> None:
    print(what, json.dumps({name: round(value, 2) for name, value in figures.items()}), flush=True)


if __name__ == "__main__":
    main()
