"""The races of sparse and multi-vector encoders: same texts, vectors that agree. Not timed."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs the extra [export]")
pytest.importorskip("matplotlib", reason="needs the extra [bench]")
pytest.importorskip("sentence_transformers", reason="needs the extra [train]")

import sentence_transformers
import transformers

from flowvec import InputValueError
from flowvec.bundle.manifest import VARIANTS
from flowvec.demo import load_passages
from flowvec_bench.cli.peers import race_lines
from flowvec_bench.machine import describe_machine
from flowvec_bench.peers import model_forms as forms_module
from flowvec_bench.peers.kinds import (
    encoders_of,
    least_cosine_of_texts,
    least_mean_cosine,
    opened_kind,
    race_kind,
    random_encoder,
    text_scores,
)
from flowvec_bench.peers.race import Race, Row
from flowvec_bench.peers.registry import Peer
from flowvec_bench.reports.peers import write_peer_report
from flowvec_export.sources.late_interaction import MultiVectorSource
from flowvec_export.sources.load import read_any_source
from tests.export.sparse_encoders import make_splade

BACKBONE = Path(__file__).resolve().parents[3] / "models/backbone/checkpoint"
TEXTS = [passage.text for passage in load_passages()][:24]
SHAPE = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
         "intermediate_size": 128}  # fmt: skip


def _peers(kind: Any) -> list[Peer]:
    every = encoders_of(kind)
    ours = replace(every["flowvec-float32"], batch_sizes=(None,))
    other = replace(every["st-float32"], requirements=(), batch_sizes=(16,))
    if kind == "sparse":
        return [ours, other]
    return [ours, other, replace(other, name="st on PyLate's directory", form="pylate")]


@pytest.mark.parametrize("kind", ["sparse", "multi-vector"])
def test_peers_agree_on_one_checkpoint(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(forms_module.SHAPES, "tiny", SHAPE)
    with opened_kind(kind, "tiny", BACKBONE, 48) as (forms, folder):
        options = {"max_length": 48, "dim": forms.dim, "threads": 2}
        # Many of the texts are longer than 48 tokens: they are cut alike.
        race = race_kind(
            kind, _peers(kind), forms.paths, options, {"long": TEXTS}, folder, rounds=1
        )
        if kind == "multi-vector":
            read = read_any_source(forms.paths["pylate"])
            assert isinstance(read, MultiVectorSource)
            assert read.about.is_pylate
            assert (forms.paths["tokens"] / "model.onnx").is_file()
    ours, *others = race.rows
    assert ours.error is None
    assert "in float32 (proved" in ours.versions["runs"]
    assert len(others) == {"sparse": 1, "multi-vector": 2}[kind]
    for other in others:
        assert other.error is None
        assert other.min_cosine is not None
        assert other.min_cosine > 0.9999
        assert not other.void
        assert other.remark == ""
        assert other.quality.keys() == {"kendall_tau", "top_1", "top_10"}
        assert min(other.quality.values()) > 0.95
        assert other.texts_per_second is not None


def test_the_marker_of_documents_is_one_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of BERT's own tokenizer too, where the third token is not a special one."""
    words = ["[PAD]", "[unused0]", "[unused1]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "cat"]
    bert = transformers.BertTokenizerFast(
        vocab={word: i for i, word in enumerate([*words, "[", "]", "un", "##used", "##1"])}
    )
    bert.save_pretrained(tmp_path / "bert")
    monkeypatch.setitem(forms_module.SHAPES, "tiny", SHAPE)
    source = random_encoder("multi-vector", "tiny", tmp_path / "bert", 48, tmp_path / "model")
    encoder = sentence_transformers.MultiVectorEncoder(str(source), device="cpu")
    (vectors,) = encoder.encode_document(["cat"])
    assert len(vectors) == len(["[CLS]", "[unused1]", "cat", "[SEP]"])


def test_rows_in_8_bits_say_how_far_they_rank_alike(tmp_path: Path) -> None:
    """A random model may rank too differently in 8 bits; the first of a few that does not races."""
    every = encoders_of("sparse")
    peers = [
        replace(every[name], batch_sizes=(None,)) for name in ("flowvec-float32", "flowvec-int8")
    ]
    for seed in range(6):
        source = make_splade(tmp_path / str(seed), seed=seed)
        with opened_kind("sparse", str(source), None, None, peers) as (forms, folder):
            if not (forms.paths["bundle"] / VARIANTS["int8"]).is_file():
                continue
            options = {"max_length": 48, "dim": forms.dim, "threads": 2}
            texts = {"long": TEXTS}
            race = race_kind("sparse", peers, forms.paths, options, texts, folder, rounds=1)
        break
    exact, rounded = race.rows
    assert (exact.is_rounded, exact.remark) == (False, "")
    assert min(exact.quality.values()) == 1.0
    assert rounded.error is None
    assert "in int8" in rounded.versions["runs"]
    assert rounded.min_cosine is not None
    assert rounded.min_cosine < 1.0
    assert rounded.is_rounded
    assert rounded.void == (min(rounded.quality.values()) < 0.9)
    assert rounded.remark == ("void: ranks otherwise" if rounded.void else "8 bits: other vectors")


def _row(cosine: float, tau: float | None, *, is_rounded: bool) -> Row:
    quality = {} if tau is None else {"kendall_tau": tau, "top_1": 0.95, "top_10": 0.97}
    return Row(
        "a peer", "long", None, 9.0, [1.0], {}, cosine, 1.0, {}, None, 0.99, quality, is_rounded
    )


@pytest.mark.parametrize(
    ("row", "void", "remark"),
    [
        (_row(0.995, 0.5, is_rounded=False), False, ""),
        (_row(0.9, 1.0, is_rounded=False), True, "void: other vectors"),
        (_row(0.9, 0.95, is_rounded=True), False, "8 bits: other vectors"),
        (_row(0.9999, 0.95, is_rounded=True), False, "8 bits: other vectors"),
        (_row(0.9999, 0.89, is_rounded=True), True, "void: ranks otherwise"),
        (_row(0.9999, float("nan"), is_rounded=True), True, "void: ranks otherwise"),
        (_row(0.9999, None, is_rounded=True), True, "void: too few texts to rank"),
    ],
)
def test_8_bits_count_by_their_ranking_and_others_by_their_vectors(
    row: Row, void: bool, remark: str, tmp_path: Path
) -> None:
    assert (row.void, row.remark) == (void, remark)
    first = replace(_row(1.0, None, is_rounded=False), name="the first")
    race = Race({"long": 1}, 1, [first, row])
    (line,) = [line for line in "\n".join(race_lines(race)).splitlines() if "a peer" in line]
    assert remark in line
    assert remark or "8 bits" not in line
    machine = asdict(describe_machine())
    record = {"model": "m", "machine": machine, "corpus": "c", "seed": 0, "max_length": 9}
    write_peer_report(race, record, tmp_path / "report.md")
    shown = (tmp_path / "report.md").read_text()
    assert (f"({remark})" in shown) == bool(remark)
    assert ("rank the others" in shown) == bool(row.quality)


def test_scores_of_texts_are_products_with_all_others() -> None:
    sparse = np.array([[0, 3, 1.0], [0, 5, 2.0], [1, 3, 3.0], [3, 5, 4.0], [9, 1, 9.0]], np.float32)
    scores = text_scores("sparse", sparse, 4)  # the third text has no weight
    np.testing.assert_array_equal(scores, [[3, 0, 8], [3, 0, 0], [0, 0, 0], [8, 0, 0]])
    tokens = np.array([[0, 1, 0], [0, 0, 1], [1, 2, 3], [2, 0, 5]], np.float32)
    scores = text_scores("multi-vector", tokens, 3)
    np.testing.assert_array_equal(scores, [[5, 5], [3, 15], [5, 15]])


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
