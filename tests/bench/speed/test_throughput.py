"""The throughput benchmark: its plans, its checks, its report. No time is asserted."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("psutil", reason="needs the extra [bench]")

from flowvec import Encoder
from flowvec.encoder.batching import padded_tokens
from flowvec.errors import InputValueError
from flowvec_bench import measure_throughput
from flowvec_bench.speed.mixed_texts import mixed_lengths
from flowvec_bench.speed.throughput import BATCHINGS, make_plan


def test_token_batching_pads_least() -> None:
    texts = mixed_lengths(1000, seed=0)
    lengths = [len(text.split()) + 2 for text in texts]
    cost = {b: padded_tokens(make_plan(b, texts, lengths, 1024, 512)) for b in BATCHINGS}
    assert sum(lengths) < cost["tokens"] < cost["characters"] < cost["none"]


@pytest.mark.parametrize("batching", BATCHINGS)
def test_each_plan_holds_every_text_once(batching) -> None:
    texts = ["a" * (i * 7 % 40 + 1) for i in range(100)]
    batches = make_plan(batching, texts, [len(t) for t in texts], 256, 64)
    assert sorted(row for batch in batches for row in batch.rows) == list(range(100))


def test_results_carry_their_figures(tiny: Encoder) -> None:
    texts = ["the cat", "a dog runs " * 5, "stocks"] * 20
    results = measure_throughput(tiny, texts, repeats=2)
    assert [r.batching for r in results] == list(BATCHINGS)
    tokens = sum(tiny.tokenize(texts).lengths)
    for r in results:
        assert (r.texts, r.tokens) == (60, tokens)
        assert 0 <= r.padding < 1
        assert r.texts_per_second == pytest.approx(60 / r.seconds)
        assert r.seconds >= max(r.tokenize_seconds, r.session_seconds) > 0


def test_a_batching_with_other_vectors_is_an_error(tiny_dir: Path) -> None:
    rng = np.random.default_rng(0)

    with Encoder.load(tiny_dir, provider="cpu") as noisy:
        run = noisy.run
        noisy.run = lambda ids, batches: run(ids, batches) + rng.normal(size=(len(ids), 16)) * 9
        with pytest.raises(ArithmeticError, match="differ"):
            measure_throughput(noisy, ["the cat", "a dog"], repeats=1)


def test_nothing_cannot_be_measured(tiny: Encoder) -> None:
    with pytest.raises(InputValueError):
        measure_throughput(tiny, [])


def test_the_bench_throughput_command_prints_a_table_and_writes_json(
    flowvec, tmp_path, tiny_dir
) -> None:
    (tmp_path / "texts.txt").write_text("the cat\na dog runs\n" * 30)
    done = flowvec(
        "bench",
        "throughput",
        tiny_dir,
        "--texts",
        "texts.txt",
        "--repeats",
        1,
        "--json-out",
        "r.json",
    )
    assert done.returncode == 0, done.stderr
    for batching in BATCHINGS:
        assert f"\n{batching}" in done.stdout
    result = json.loads((tmp_path / "r.json").read_text())
    assert [r["batching"] for r in result["results"]] == list(BATCHINGS)
    assert result["machine"]["packages"]["onnxruntime"]
    assert result["encoder"]["provider"]
    one = flowvec("bench", "throughput", tiny_dir, "--count", 20, "--batching", "tokens")
    assert one.returncode == 0, one.stderr
    assert "characters" not in one.stdout


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["--batching", "magic"], "magic"),
        (["--texts", "nowhere.txt"], "cannot read"),
        (["--json-out", "no/where.json"], "no directory"),
        (["--json-out", "old.json"], "--overwrite"),
        (["--json-out", "texts.txt", "--texts", "texts.txt", "--overwrite"], "is the input"),
        (["--texts", "-"], "at least one text"),
    ],
)
def test_a_wrong_argument_is_one_line(flowvec, tiny_dir, tmp_path, arguments, part) -> None:
    for name in ("old.json", "texts.txt"):
        (tmp_path / name).write_text("the cat\n")
    done = flowvec("bench", "throughput", tiny_dir, *arguments)
    assert done.returncode == 2
    assert part in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
