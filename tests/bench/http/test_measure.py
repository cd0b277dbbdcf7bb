"""Load tests of HTTP servers: every server gets the same, and what is wrong counts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("msgspec", reason="needs the extra [serve]")
pytest.importorskip("torch", reason="needs the extra [export]")
pytest.importorskip("matplotlib", reason="needs the extra [bench]")

from flowvec import Encoder
from flowvec.errors import FlowvecError, InputValueError
from flowvec.server import create_app
from flowvec_bench.http.contestants import Loads, Served
from flowvec_bench.http.figures import BESIDE, LoadPlan
from flowvec_bench.http.lineup import load_generator, target_of
from flowvec_bench.http.measure import measure_http
from flowvec_bench.http.wrk import WrkError, parsed_rate
from flowvec_bench.peers.runner import Runner
from flowvec_bench.workers.load import arrivals
from tests.runtime.server.conftest import Running, running

pytestmark = pytest.mark.process

TEXTS = [["a man eats", "stocks fell"], ["the cat sleeps", "a dog"], ["rain", "the river rose"]]
SHORT = [["a man"], ["a dog"]]
PLAN = LoadPlan(2, (3,), (40.0,), 300_000.0, 0.25, 2, with_wrk=False)
ARRIVED = [len(arrivals(40.0, 0.25, seed)) for seed in (0, 1)]


class Faulty:
    """The application, with faults in some of its answers once `is_faulty` is set."""

    def __init__(self, app: Any, fault: str) -> None:
        self.served = app.served
        self._app = app
        self._fault = fault
        self.is_faulty = False
        self.asked = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        is_work = scope.get("path") == "/embed"
        self.asked += is_work
        if not (is_work and self.is_faulty):
            await self._app(scope, receive, send)
        elif self._fault == "refused" and self.asked % 2:
            await _drained(receive)
            await send({"type": "http.response.start", "status": 429, "headers": []})
            await send({"type": "http.response.body", "body": b"{}"})
        elif self._fault == "wrong":
            await self._app(scope, receive, _sender_of_others(send))
        else:
            await self._app(scope, receive, send)


async def _drained(receive: Any) -> None:
    while (await receive()).get("more_body"):
        pass


def _sender_of_others(send: Any) -> Any:
    """Sends the vectors of an answer in another order, with the same size."""

    async def other(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.body" and message["body"]:
            rows = message["body"][2:-2].split(b"],[")
            message = {**message, "body": b"[[" + b"],[".join(rows[::-1]) + b"]]"}
        await send(message)

    return other


@pytest.fixture(scope="module")
def client() -> Iterator[Runner]:
    runner = load_generator()
    yield runner
    runner.end()


@contextmanager
def faulty(tiny: Encoder, fault: str) -> Iterator[tuple[Faulty, Running]]:
    app = Faulty(create_app({"tiny": tiny}), fault)
    with running(app) as server:
        yield app, server


def served(name: str, server: Running, client: Runner) -> Served:
    return Served(name, client, target_of(server.url, "tei", "tiny", {}))


@pytest.mark.parametrize("fault", ["wrong", "refused"])
def test_a_fault_is_counted_and_every_server_gets_the_same(
    tiny: Encoder, client: Runner, tmp_path: Path, fault: str
) -> None:
    loads = Loads.write(tmp_path, TEXTS, SHORT)
    with faulty(tiny, "none") as (_, first), faulty(tiny, fault) as (app, second):

        def note(line: str) -> None:
            app.is_faulty = not line.startswith("comparing")

        result = measure_http(
            [served("right", first, client), served("faulty", second, client)],
            loads, PLAN, client, note,
        )  # fmt: skip
    rows = {(row.name, row.load): row for row in result.rows}
    assert len(rows) == len(result.rows) == 6
    good, bad = rows["right", "rate"], rows["faulty", "rate"]
    assert (good.calls, good.refused, good.failed, good.unanswered) == (sum(ARRIVED), 0, 0, 0)
    assert good.in_time == 1.0
    assert not good.void
    assert result.best["faulty"] == 0.0 < result.best["right"]
    for row in result.rows:
        if row.name == "right":
            assert row.min_cosine == pytest.approx(1.0, abs=1e-5)
            assert 0 < row.p50 <= row.p95 <= row.p99
    if fault == "wrong":
        assert bad.void
        assert bad.calls == sum(ARRIVED)
        assert not bad.keeps_up
    else:
        assert 0.3 < bad.refused < 0.7
        assert round(bad.calls / (1 - bad.refused)) == sum(ARRIVED)
        assert not bad.void
        assert not bad.keeps_up


def test_a_call_that_is_never_answered_is_counted(
    tiny: Encoder, client: Runner, tmp_path: Path
) -> None:
    loads = Loads.write(tmp_path, TEXTS, SHORT)
    with faulty(tiny, "none") as (_, first):
        plan = LoadPlan(2, (1,), (2000.0,), 1e-3, 0.2, 1, with_wrk=False)
        result = measure_http([served("a", first, client)], loads, plan, client)
    row = next(row for row in result.rows if row.load == "rate")
    assert row.calls + row.unanswered == len(arrivals(2000.0, 0.2, 0))
    assert row.in_time == 0.0  # nothing comes within a microsecond
    assert result.best == {"a": 0.0}


@pytest.mark.parametrize(
    "wrong",
    [{"callers": ()}, {"callers": (0,)}, {"rates": (0.0,)}, {"seconds": 0.0}, {"rounds": 0},
     {"texts_per_call": 0}, {"within": float("nan")}],
)  # fmt: skip
def test_wrong_numbers_are_errors(wrong: dict[str, Any]) -> None:
    with pytest.raises(InputValueError):
        LoadPlan(**wrong)


def test_the_first_server_must_answer(tiny: Encoder, client: Runner, tmp_path: Path) -> None:
    loads = Loads.write(tmp_path, TEXTS, SHORT)
    with faulty(tiny, "none") as (_, server):
        target = target_of(server.url + "/nowhere", "tei", "tiny", {})
        with pytest.raises(FlowvecError, match="/nowhere gave status 404"):
            measure_http([Served("a", client, target)], loads, PLAN, client)


def test_what_wrk_prints_is_understood() -> None:
    printed = "Running 3s test\n  421 requests in 3.00s, 1.5MB read\n{}Requests/sec:    140.25\n"
    assert parsed_rate(printed.format(""), "") == 140.25
    with pytest.raises(WrkError, match="7 answers"):
        parsed_rate(printed.format("  Non-2xx or 3xx responses: 7\n"), "")
    with pytest.raises(WrkError, match="unable to connect"):
        parsed_rate("", "unable to connect")


def test_the_command_measures_a_bundle_and_a_running_server(
    flowvec, tiny_dir: Path, tiny: Encoder, tmp_path: Path
) -> None:
    small = ("--callers", "2", "--seconds", "0.2", "--rounds", "1", "--rates", "30", "--count", "8",
             "--within", "300000")  # fmt: skip
    done = flowvec(
        "bench", "http", tiny_dir, *small, "--texts-per-call", "3",
        "--json-out", tmp_path / "r.json", "--report", tmp_path / "r.md",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    record = json.loads((tmp_path / "r.json").read_text())
    loads = ["one"] * 2 + ["callers"] * 3 + ["rate"] * 2
    assert [row["load"] for row in record["rows"]] == loads
    for row in record["rows"]:
        assert row["calls"] > 0
        assert row["min_cosine"] > 0.999
    assert record["ratios"]["flowvec serve"]["2"] > 0
    assert record["ratios"][BESIDE]["2"] == 1.0
    text = (tmp_path / "r.md").read_text(encoding="utf-8")
    assert "2 callers, 3 texts each" in text
    assert str(tiny_dir) not in text + json.dumps(record)
    assert (tmp_path / "r.svg").is_file()
    with running(create_app({"tiny": tiny})) as server:
        done = flowvec("bench", "http", server.url, *small)
    assert done.returncode == 0, done.stderr
    assert "30 arrivals per second" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["http://127.0.0.1:1"], "nobody answers GET http://127.0.0.1:1/health"),
        (["mini", "--callers", "two"], "callers must be numbers"),
        (["mini", "--only", "infinity"], "'infinity' is not a server here"),
        (["nowhere"], "is neither minilm-l6 nor bert-base nor bert-large nor a directory"),
        (["mini", "--report", "r.txt"], "a report is a .md file"),
    ],
)
def test_a_wrong_argument_is_one_line(flowvec, arguments: list[str], part: str) -> None:
    done = flowvec("bench", "http", *arguments)
    assert done.returncode == 2
    assert part in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
