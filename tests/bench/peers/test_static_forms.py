"""Static embedders in the race: model2vec and sentence-transformers get the same table."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs the extra [export]")
pytest.importorskip("matplotlib", reason="needs the extra [bench]")

from flowvec.demo import load_passages
from flowvec.errors import ExportError
from flowvec_bench.peers.model_forms import make_forms
from flowvec_bench.peers.race import race
from flowvec_bench.peers.registry import FLOWVEC, PEERS, STATIC, Forms, suited
from tests.export.static_models import make_model2vec, make_st, word_level, word_piece

PASSAGES = [passage.text for passage in load_passages()][:24]
TEXTS = {"long": PASSAGES, "short": [text[:30] for text in PASSAGES]}
# They run in this environment, so nothing is installed.
HERE = {name: replace(peer, requirements=(), batch_sizes=(8, 64)) for name, peer in STATIC.items()}


def rows_of(forms: Forms, folder: Path) -> dict[str, list[Any]]:
    options = {"max_length": forms.max_length, "dim": forms.dim, "threads": 2}
    peers = [FLOWVEC["flowvec"], *HERE.values()]
    rows = race(peers, forms.paths, options, TEXTS, folder, rounds=1).rows
    return {name: [r for r in rows if r.name == peer.name] for name, peer in HERE.items()}


def test_sentence_transformers_table_races_in_model2vec_too(tmp_path) -> None:
    pytest.importorskip("model2vec", reason="needs model2vec")
    # To these words many others are unknown, and count, which model2vec does not do by itself.
    make_st(tmp_path / "st", tokenizer=word_level())
    (tmp_path / "forms").mkdir()
    # The long texts are cut, and the short ones are not.
    forms = make_forms(tmp_path / "st", tmp_path / "forms", 12)
    assert sorted(forms.paths) == ["bundle", "model2vec", "older", "source", "static"]
    for rows in rows_of(forms, tmp_path).values():
        assert [row.error for row in rows] == [None, None]
        assert all(row.min_cosine >= 0.99999 for row in rows)


@pytest.mark.parametrize("max_length", [None, 12])
def test_a_directory_of_model2vec_races(tmp_path, max_length) -> None:
    count = word_piece().get_vocab_size()
    rng = np.random.default_rng(0)
    weights, mapping = rng.uniform(0.1, 1, count), rng.integers(0, 90, count)
    vectors = rng.standard_normal((90, 24), dtype=np.float32)
    make_model2vec(tmp_path / "m", word_piece(), vectors, weights=weights, token_mapping=mapping)
    (tmp_path / "forms").mkdir()
    forms = make_forms(tmp_path / "m", tmp_path / "forms", max_length)
    for name, rows in rows_of(forms, tmp_path).items():
        assert [row.error for row in rows] == [None, None]
        # model2vec cuts 12 tokens by their characters too, and sentence-transformers does not.
        if max_length is None or name != "st-static":
            assert all(row.min_cosine >= 0.99999 for row in rows)


def test_model2vec_does_not_race_over_a_dense_layer(tmp_path) -> None:
    from sentence_transformers.sentence_transformer.modules import Dense

    make_st(tmp_path / "st", Dense(24, 5))
    (tmp_path / "forms").mkdir()
    forms = make_forms(tmp_path / "st", tmp_path / "forms")
    assert sorted(forms.paths) == ["bundle", "older", "source", "static"]
    assert forms.dim == 5


def test_only_static_embedders_get_the_rows_of_their_libraries(tmp_path) -> None:
    everyone = [*FLOWVEC.values(), *PEERS.values(), *STATIC.values()]
    plain = Forms({"source": tmp_path, "bundle": tmp_path}, 256, 8)
    assert suited(everyone, plain) == [*FLOWVEC.values(), *PEERS.values()]
    static = Forms({**plain.paths, "static": tmp_path, "model2vec": tmp_path}, 256, 8)
    assert suited(everyone, static) == everyone


def test_what_cannot_be_exported_is_an_error(tmp_path) -> None:
    make_model2vec(tmp_path / "m")
    (tmp_path / "m/pipeline.skops").write_bytes(b"")
    with pytest.raises(ExportError, match="trained head"):
        make_forms(tmp_path / "m", tmp_path)
