"""Tuned settings in the cache: whose they are, and what replaces damaged ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flowvec import Bundle, Encoder
from flowvec.engine import tuned
from flowvec.engine.providers import CPU
from flowvec.engine.tuned import Tuned, cache_file, forget, load_tuned, machine_key, save_tuned

pytestmark = pytest.mark.usefixtures("cache")

TUNED = Tuned(CPU, "float32", 1, 2, 333, False, {"short": 1.0}, "2026-01-01T00:00:00+00:00")


def test_tuned_settings_are_saved_for_one_bundle(cache: Path) -> None:
    path = save_tuned("a" * 64, TUNED)
    assert path.is_relative_to(cache)
    assert load_tuned("a" * 64) == TUNED
    assert load_tuned("b" * 64) is None
    assert [p.name for p in path.parent.iterdir()] == [path.name]  # nothing left beside it
    assert forget("a" * 64)
    assert not forget("a" * 64)
    assert load_tuned("a" * 64) is None


@pytest.mark.parametrize("what", ["cpu_name", "cpu_features", "available_cores", "gpu_names"])
def test_tuned_settings_belong_to_one_machine(monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    save_tuned("a" * 64, TUNED)
    here = machine_key()
    monkeypatch.setattr(tuned, what, lambda: "another")
    assert machine_key() != here
    assert load_tuned("a" * 64) is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        "nonsense",
        "[" * 100_000,
        json.dumps({"format": 1}),
        json.dumps({"format": 2, "provider": CPU}),
        *(
            json.dumps({"format": 2, "provider": CPU, "compute": "float32", "measured": "",
                        "texts_per_second": {}, "streams": 1, "threads": 1, "max_batch_tokens": 1,
                        **wrong})
            for wrong in ({"streams": 0}, {"streams": True}, {"threads": None}, {"threads": 1.0})
        ),
    ],
)  # fmt: skip
def test_a_damaged_file_of_tuned_settings_is_ignored(tiny_dir: Path, text: str) -> None:
    fingerprint = Bundle.load(tiny_dir).fingerprint
    save_tuned(fingerprint, TUNED)
    cache_file(fingerprint).write_text(text)
    assert load_tuned(fingerprint) is None
    with Encoder.load(tiny_dir, provider="cpu") as encoder:
        assert encoder.info().tuned is None
