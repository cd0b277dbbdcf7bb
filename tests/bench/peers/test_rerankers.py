"""The race of rerankers: same pairs, scores that agree, rankings that are compared. Not timed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs the extra [export]")
pytest.importorskip("matplotlib", reason="needs the extra [bench]")

from flowvec import Bundle, Reranker
from flowvec.bundle.manifest import TOKEN_TYPES
from flowvec.demo import load_passages
from flowvec.engine.providers import OPENVINO
from flowvec.engine.selection import available_providers, choose_engine
from flowvec_bench.peers import model_forms as forms_module
from flowvec_bench.peers.race import Race
from flowvec_bench.peers.registry import FLOWVEC, PEERS, Peer
from flowvec_bench.peers.rerankers import (
    DOCUMENTS,
    correlation,
    opened_reranker,
    pairs_of,
    race_rerankers,
    rerankers,
)
from flowvec_bench.reports.peers import write_peer_report

BACKBONE = Path(__file__).resolve().parents[3] / "models/backbone/checkpoint"
PASSAGES = [passage.text for passage in load_passages()]
HERE = replace(PEERS["st-float32"], requirements=(), batch_sizes=(16,))
OTHER = Peer("other", "sentence-transformers", (), {"dtype": "float32", "max_length": 6}, (16,))
PAIRS = [(query, text) for query in ("rivers of Asia", "a kind of music") for text in PASSAGES[:20]]
NAMES = ("flowvec-float32", "flowvec-int8", "flowvec-openvino-int8")


@pytest.fixture(scope="module")
def raced(tmp_path_factory: pytest.TempPathFactory) -> tuple[Race, np.ndarray]:
    """A race of a small cross-encoder, and its logits in float32."""
    shape = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
             "intermediate_size": 128}  # fmt: skip
    ours = [replace(FLOWVEC[name], batch_sizes=(None,)) for name in NAMES]
    peers = [*ours, HERE, OTHER]
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(forms_module.SHAPES, "tiny", shape)
        with opened_reranker("tiny", BACKBONE, 96, peers) as (forms, folder):
            options = {"max_length": 96, "dim": 1, "threads": 2}
            race = race_rerankers(peers, forms.paths, options, PAIRS, folder, rounds=1)
            bundle = Bundle.load(forms.paths["bundle"])
            assert TOKEN_TYPES in bundle.manifest.inputs  # as every peer sees the pairs
            with Reranker(bundle, choose_engine("cpu", "float32")) as reranker:
                logits = reranker.predict(PAIRS, activation="identity")
    return race, logits


def row_of(race: Race, name: str):
    return next(row for row in race.rows if row.name == name)


def test_every_row_says_how_far_it_ranks_as_float32_does(raced) -> None:
    race, _ = raced
    exact = row_of(race, FLOWVEC["flowvec-float32"].name)
    assert exact.quality == {"kendall_tau": pytest.approx(1.0), "top_1": 1.0}
    same = row_of(race, HERE.name)
    assert same.quality["kendall_tau"] >= 0.98
    assert same.min_cosine >= 0.9999
    assert not same.void


@pytest.mark.parametrize("name", ["flowvec-int8", "flowvec-openvino-int8"])
def test_rows_in_8_bits_run_the_bundles_variants(raced, name: str) -> None:
    row = row_of(raced[0], FLOWVEC[name].name)
    if row.error is not None:  # this processor computes it wrongly, or lacks the engine
        assert "int8" in row.error or OPENVINO not in available_providers()
        reason = "OpenVINO computes in int8 with AVX-512 only"
        pytest.skip(reason if "AVX-512 only" in row.error else row.error)
    assert "in int8 (proved" in row.versions["runs"]
    assert 0.8 < row.quality["kendall_tau"] < 1.0  # other logits than float32's
    assert 0.0 <= row.quality["top_1"] <= 1.0


def test_other_logits_make_a_row_void(raced) -> None:
    other = row_of(raced[0], "other")
    assert other.void
    assert other.quality["kendall_tau"] < 0.9


def test_a_report_has_the_rankings_agreement(raced, tmp_path: Path) -> None:
    machine = {"cpu": "A", "cpu_features": ["b"], "cores": 2, "memory_gib": 1, "system": "L",
               "python": "3", "measured": "now"}  # fmt: skip
    about = {"machine": machine, "model": "tiny", "corpus": "c", "seed": 0, "max_length": 96}
    write_peer_report(raced[0], about, tmp_path / "r.md", unit="pairs")
    text = (tmp_path / "r.md").read_text(encoding="utf-8")
    header = next(line for line in text.splitlines() if line.startswith("| peer"))
    assert header.endswith("| correlation | Kendall's tau | same first |")
    exact = next(line for line in text.splitlines() if "ONNX Runtime float32" in line)
    assert exact.endswith("| 1.00000 | 1.000 | 1.000 |")
    assert len(exact.split("|")) == len(header.split("|"))


def test_a_query_has_100_documents() -> None:
    long = [" ".join(PASSAGES[i : i + 3]) for i in range(250)]
    queries = (f"query number {i} of these" for i in range(10))
    pairs = pairs_of(iter(long), queries, 2, seed=0)
    assert len(pairs) == 2 * DOCUMENTS
    assert len({query for query, _ in pairs[:DOCUMENTS]}) == 1
    assert pairs[0][0] != pairs[DOCUMENTS][0]
    assert all(50 <= len(document.split()) <= 200 for _, document in pairs)


def test_correlation_is_that_of_numpy(raced) -> None:
    logits = raced[1]
    noisy = logits + np.random.default_rng(0).normal(size=logits.shape).astype(np.float32)
    assert correlation(logits, noisy) == pytest.approx(np.corrcoef(logits, noisy)[0, 1], abs=1e-5)
    assert np.isnan(correlation(logits, logits[:-1]))


def test_peers_without_a_cross_encoder_do_not_race() -> None:
    assert "infinity" not in rerankers()
    assert {"flowvec", "flowvec-int8", "flowvec-openvino-int8", "st-default"} <= rerankers().keys()
