"""The races of sparse and multi-vector encoders: same texts, vectors that agree. Not timed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs the extra [export]")
pytest.importorskip("matplotlib", reason="needs the extra [bench]")
pytest.importorskip("sentence_transformers", reason="needs the extra [train]")

from flowvec import InputValueError
from flowvec.demo import load_passages
from flowvec_bench.peers import model_forms as forms_module
from flowvec_bench.peers.kinds import (
    encoders_of,
    least_cosine_of_texts,
    least_mean_cosine,
    opened_kind,
    race_kind,
)
from flowvec_bench.peers.registry import Peer
from flowvec_export.sources.late_interaction import MultiVectorSource
from flowvec_export.sources.load import read_any_source

BACKBONE = Path(__file__).resolve().parents[3] / "models/backbone/checkpoint"
TEXTS = [passage.text for passage in load_passages()][:24]
SHAPE = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
         "intermediate_size": 128}  # fmt: skip


def _peers(kind: Any) -> list[Peer]:
    every = encoders_of(kind)
    ours = replace(every["flowvec-float32"], batch_sizes=(None,))
    return [ours, replace(every["st-float32"], requirements=(), batch_sizes=(16,))]


@pytest.mark.parametrize("kind", ["sparse", "multi-vector"])
def test_peers_agree_on_one_checkpoint(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(forms_module.SHAPES, "tiny", SHAPE)
    with opened_kind(kind, "tiny", BACKBONE, 48) as (forms, folder):
        options = {"max_length": 48, "dim": forms.dim, "threads": 2}
        # Many of the texts are longer than 48 tokens: they are cut alike.
        race = race_kind(
            kind, _peers(kind), forms.paths, options, {"long": TEXTS}, folder, rounds=1
        )
    ours, other = race.rows
    assert ours.error is None
    assert "in float32 (proved" in ours.versions["runs"]
    assert other.error is None
    assert other.min_cosine is not None
    assert other.min_cosine > 0.9999
    assert not other.void
    assert other.texts_per_second is not None


def test_pylates_directory_has_the_same_vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(forms_module.SHAPES, "tiny", SHAPE)
    with opened_kind("multi-vector", "tiny", BACKBONE, 48) as (forms, folder):
        options = {"max_length": 48, "dim": forms.dim, "threads": 2}
        ours, other = _peers("multi-vector")
        peers = [ours, replace(other, form="pylate")]
        race = race_kind(
            "multi-vector", peers, forms.paths, options, {"long": TEXTS}, folder, rounds=1
        )
        read = read_any_source(forms.paths["pylate"])
        assert isinstance(read, MultiVectorSource)
        assert read.about.is_pylate
        assert (forms.paths["tokens"] / "model.onnx").is_file()
    assert race.rows[1].error is None
    assert race.rows[1].min_cosine is not None
    assert race.rows[1].min_cosine > 0.9999


def test_tables_of_other_vectors_do_not_agree() -> None:
    sparse = np.array([[0, 3, 1.0], [0, 5, 2.0], [1, 4, 1.0]], np.float32)
    assert least_cosine_of_texts(sparse, sparse) == pytest.approx(1.0)
    moved = sparse.copy()
    moved[2, 1] = 9  # another term
    assert least_cosine_of_texts(sparse, moved) == 0.0
    assert least_cosine_of_texts(sparse, sparse[:1]) != 1.0
    assert np.isnan(least_cosine_of_texts(sparse, sparse[:2]))  # a text is missing
    tokens = np.array([[0, 1, 0], [0, 0, 1], [1, 1, 0]], np.float32)
    assert least_mean_cosine(tokens, tokens) == pytest.approx(1.0)
    turned = tokens.copy()
    turned[1, 1:] = [1, 0]
    assert least_mean_cosine(tokens, turned) == pytest.approx(0.5)
    assert np.isnan(least_mean_cosine(tokens, tokens[:2]))
    other = tokens.copy()
    other[1, 0] = 1  # as many tokens, of another text
    assert np.isnan(least_mean_cosine(tokens, other))


def test_a_length_is_refused_where_the_model_has_its_own(tmp_path: Path) -> None:
    with (
        pytest.raises(InputValueError, match="lengths of its own"),
        opened_kind("multi-vector", str(tmp_path), None, 64),
    ):
        pass
