"""Tuning: what is kept, when it is used, and what it may not change. Nothing here is timed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from flowvec import Bundle, Encoder, InputValueError, Reranker
from flowvec.engine.providers import CPU, NATIVE, OPENVINO, Engine
from flowvec.engine.selection import available_providers, choose_engine, tuned_engine
from flowvec.engine.tuned import Tuned, save_tuned
from flowvec.machine import available_cores
from flowvec.tuning import (
    KINDS,
    Candidate,
    Measured,
    kinds_of_pairs,
    kinds_of_texts,
    tune,
    winner,
)

pytestmark = pytest.mark.usefixtures("cache")

TUNED = Tuned(CPU, "float32", 1, 2, 333, False, {"short": 1.0}, "2026-01-01T00:00:00+00:00")


# --- when it is used ------------------------------------------------------------------------------


def test_load_uses_the_tuned_engine_and_says_so(tiny_dir: Path) -> None:
    save_tuned(Bundle.load(tiny_dir).fingerprint, TUNED)
    with Encoder.load(tiny_dir) as encoder:
        info = encoder.info()
    assert (info.provider, info.compute, info.streams, info.threads) == (CPU, "float32", 1, 2)
    assert info.max_batch_tokens == 333
    assert info.tuned == TUNED.measured


def test_a_named_engine_wins_over_the_tuned_one(tiny_dir: Path) -> None:
    save_tuned(Bundle.load(tiny_dir).fingerprint, TUNED)
    with Encoder.load(tiny_dir, streams=3, max_batch_tokens=64) as encoder:
        info = encoder.info()
    assert (info.provider, info.streams, info.max_batch_tokens) == (CPU, 3, 64)
    assert info.threads == 1  # those that were found belong to other streams
    save_tuned(Bundle.load(tiny_dir).fingerprint, replace(TUNED, streams=5, threads=1))
    with Encoder.load(tiny_dir, threads=2) as encoder:
        info = encoder.info()
    assert (info.threads, info.streams) == (2, max(1, available_cores() // 2))
    others = [name for name in available_providers() if name not in (CPU, NATIVE)]
    for other in others[:1]:
        with Encoder.load(tiny_dir, provider=other) as encoder:
            info = encoder.info()
        assert (info.provider, info.tuned) == (other, None)
        assert info.max_batch_tokens == 512


@pytest.mark.parametrize(
    "change",
    [{"provider": "CUDAExecutionProvider"}, {"provider": "Gone"}, {"compute": "int8"}],
)
def test_a_tuned_engine_that_no_longer_runs_is_ignored(tiny_dir: Path, change) -> None:
    if change.get("provider") in available_providers():
        pytest.skip("this machine has an NVIDIA GPU")
    save_tuned(Bundle.load(tiny_dir).fingerprint, replace(TUNED, **change))
    with Encoder.load(tiny_dir) as encoder:
        assert encoder.engine == choose_engine()
        assert encoder.info().tuned is None


def test_settings_tuned_without_a_gpu_do_not_hide_it() -> None:
    default = Engine("CUDAExecutionProvider", "float32", 1)
    assert tuned_engine(TUNED, default, None, "auto", None, None, choose_engine) is None


def test_an_engine_named_by_the_user_is_not_called_tuned(tiny_dir: Path) -> None:
    save_tuned(Bundle.load(tiny_dir).fingerprint, TUNED)
    options = {
        "provider": "cpu",
        "compute": "float32",
        "streams": 1,
        "threads": 1,
        "max_batch_tokens": 64,
    }
    with Encoder.load(tiny_dir, **options) as encoder:
        assert encoder.info().tuned is None


# --- what it measures -----------------------------------------------------------------------------


@pytest.mark.engines
def test_tuning_tries_everything_of_the_same_compute_type_and_keeps_one(tiny_dir: Path) -> None:
    bundle = Bundle.load(tiny_dir)
    steps = {}
    settings = tune(
        bundle, seconds=0.1, on_measured=lambda name, tried: steps.update({name: tried})
    )
    attention = ["attention"] if settings.provider == OPENVINO else []
    assert list(steps) == ["provider", "streams", *attention, "budget"]
    for name in attention:
        assert {m.candidate.engine.fused_attention for m in steps[name]} == {False, True}
    default = choose_engine()
    assert {m.candidate.engine.compute for tried in steps.values() for m in tried} == {
        default.compute
    }
    assert len({m.candidate for m in steps["budget"]}) == 5
    for tried in steps.values():
        assert [m.score for m in tried] == sorted((m.score for m in tried), reverse=True)
        assert all(0 < m.score <= 1 + 1e-9 for m in tried)
    standing = next(m.candidate for m in steps["budget"] if m.candidate.max_batch_tokens == 512)
    best = winner(steps["budget"], standing)
    assert settings.max_batch_tokens == best.candidate.max_batch_tokens
    assert (settings.provider, settings.compute) == (
        best.candidate.engine.provider,
        best.candidate.engine.compute,
    )
    assert settings.texts_per_second.keys() == set(KINDS)


@pytest.mark.parametrize(
    ("score", "stands"), [(1.0, True), (0.98, True), (0.95, False), (0.5, False)]
)
def test_tuning_replaces_the_default_only_beyond_the_noise(score: float, stands: bool) -> None:
    engine = choose_engine("cpu")
    default, other = Candidate(engine, 512), Candidate(engine, 4096)
    measured = [Measured(other, {}, 1.0), Measured(default, {}, score)]
    assert winner(measured, default).candidate == (default if stands else other)


def test_tuning_replaces_a_default_that_does_not_run() -> None:
    engine = choose_engine("cpu")
    measured = [Measured(Candidate(engine, 256), {}, 1.0), Measured(Candidate(engine, 1), {}, 0.99)]
    assert winner(measured, Candidate(engine, 512)) == measured[0]


@pytest.mark.engines
def test_tuning_tries_other_compute_types_only_if_allowed(tiny_dir: Path) -> None:
    seen = set()
    tune(
        Bundle.load(tiny_dir), seconds=0.1, allow_compute=True,
        on_measured=lambda _, tried: seen.update(m.candidate.engine for m in tried),
    )  # fmt: skip
    assert choose_engine("cpu").provider in {engine.provider for engine in seen}
    assert {"float32"} <= {engine.compute for engine in seen}


def test_tuning_times_short_natural_and_long_texts(tiny_dir: Path) -> None:
    texts = kinds_of_texts(Bundle.load("mini"))
    words = {kind: [len(t.split()) for t in items] for kind, items in texts.items()}
    assert max(words["short"]) <= 5 < sum(words["natural"]) / len(words["natural"]) < 40
    with Encoder.load("mini", provider="cpu") as encoder:
        lengths = encoder.tokenize(texts["long"]).lengths
    assert sorted(lengths)[len(lengths) // 2] >= 0.6 * encoder.max_length


# --- rerankers ------------------------------------------------------------------------------------


@pytest.mark.engines
def test_a_reranker_is_timed_on_pairs_and_loads_what_was_found(reranker_dir: Path) -> None:
    bundle = Bundle.load(reranker_dir)
    steps = {}
    found = tune(bundle, seconds=0.1, on_measured=lambda name, tried: steps.update({name: tried}))
    assert {"provider", "streams", "budget"} <= steps.keys()
    default = choose_engine(layers=bundle.manifest.layers)
    assert found.compute == default.compute
    assert found.texts_per_second.keys() == set(KINDS)
    save_tuned(bundle.fingerprint, replace(found, max_batch_tokens=333))
    with Reranker.load(reranker_dir) as reranker:
        info = reranker.info()
    assert (info.provider, info.streams, info.threads) == (
        found.provider,
        found.streams,
        found.threads,
    )
    assert (info.max_batch_tokens, info.tuned) == (333, found.measured)


def test_pairs_for_timing_have_one_query_for_many_documents(reranker_dir: Path) -> None:
    pairs = kinds_of_pairs(Bundle.load(reranker_dir))
    assert {kind: len(items) for kind, items in pairs.items()} == {
        "short": 256,
        "natural": 64,
        "long": 32,
    }
    for items in pairs.values():
        queries = [query for query, _ in items]
        assert max(len(query.split()) for query in queries) <= 5
        assert len(set(queries)) == -(-len(items) // 32)
        assert queries == sorted(queries, key=queries.index)  # a query's documents in a row
    words = {kind: sum(len(d.split()) for _, d in p) / len(p) for kind, p in pairs.items()}
    assert words["short"] < words["natural"]
    with Reranker.load(reranker_dir, provider="cpu") as reranker:
        lengths = reranker.tokenize(pairs["long"]).lengths
    assert sorted(lengths)[len(lengths) // 2] >= 0.6 * reranker.max_length


@pytest.mark.engines
def test_the_tune_command_counts_pairs_of_a_reranker(
    flowvec, reranker_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = json.loads(flowvec("tune", reranker_dir, "--seconds", 1, "--json").stdout)
    assert shown["unit"] == "pairs"
    (tmp_path / "file").touch()
    monkeypatch.setenv("FLOWVEC_CACHE", str(tmp_path / "file"))
    done = flowvec("tune", reranker_dir, "--seconds", 1)
    assert done.returncode == 0, done.stderr
    assert "pairs/s: short" in done.stdout
    assert "texts/s" not in done.stdout
    assert f"Reranker.load({str(reranker_dir)!r}" in done.stdout


# --- the command ----------------------------------------------------------------------------------


@pytest.mark.engines
def test_the_tune_command_keeps_and_forgets(flowvec, tiny_dir: Path, cache: Path) -> None:
    flowvec = flowvec
    done = flowvec("tune", tiny_dir, "--seconds", 1)
    assert done.returncode == 0, done.stderr
    assert "tokens a batch" in done.stdout
    assert len(list(cache.glob("tuned/*.json"))) == 1
    shown = json.loads(flowvec("tune", tiny_dir, "--seconds", 1, "--json").stdout)
    assert shown["tuned"]["provider"] in available_providers()
    assert flowvec("tune", tiny_dir, "--reset").stdout == "forgotten\n"
    assert not list(cache.glob("tuned/*.json"))
    wrong = flowvec("tune", "nowhere")
    assert (wrong.returncode, len(wrong.stderr.splitlines())) == (2, 1)


def test_tuning_without_time_is_an_error(tiny_dir: Path) -> None:
    with pytest.raises(InputValueError, match="seconds"):
        tune(Bundle.load(tiny_dir), seconds=0)


@pytest.mark.engines
def test_tuning_without_a_cache_says_so_first_and_prints_the_result(
    flowvec, tiny_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("FLOWVEC_CACHE", str(tmp_path / "file"))
    done = flowvec("tune", tiny_dir, "--seconds", "1")
    assert done.returncode == 0, done.stderr
    assert "the result cannot be cached" in done.stderr
    assert "Encoder.load(" in done.stdout
    assert "max_batch_tokens=" in done.stdout
