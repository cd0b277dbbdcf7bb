"""The race: same texts, vectors that agree, a failing peer that fails alone. Nothing is timed."""

from __future__ import annotations

import json
import shutil
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs the extra [export]")
pytest.importorskip("matplotlib", reason="needs the extra [bench]")

from flowvec import Bundle
from flowvec.demo import load_passages
from flowvec.errors import FlowvecError, InputValueError
from flowvec.texts.sentences import split_sentences
from flowvec_bench.peers import model_forms as forms_module
from flowvec_bench.peers.environments import PeerEnvironmentError, make_environment
from flowvec_bench.peers.model_forms import make_forms, random_model
from flowvec_bench.peers.race import Race, race, time_sizes
from flowvec_bench.peers.registry import FLOWVEC, PEERS, Forms, Peer
from flowvec_bench.reports.peers import write_peer_report
from flowvec_export.variants import variants

BACKBONE = Path(__file__).resolve().parents[3] / "models/backbone/checkpoint"
SENTENCES = [s for p in load_passages() for s in split_sentences(p.text)]
TEXTS = {"natural": SENTENCES[:40], "short": [s[:20] for s in SENTENCES[:16]]}
# It runs in this environment, so nothing is installed.
HERE = replace(PEERS["st-float32"], requirements=(), batch_sizes=(4, 16))
CUT = Peer("cut", "sentence-transformers", (), {"dtype": "float32", "max_length": 6}, (8,))
BROKEN = Peer("broken", "no such engine", ())


@pytest.fixture(scope="module")
def forms(tmp_path_factory: pytest.TempPathFactory) -> Forms:
    folder = tmp_path_factory.mktemp("forms")
    shape = {"hidden_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4,
             "intermediate_size": 96}  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(forms_module.SHAPES, "tiny", shape)
        source = random_model("tiny", BACKBONE, 64, folder / "tiny")
    return make_forms(source, folder)


@pytest.fixture(scope="module")
def race_result(forms: Forms, tmp_path_factory: pytest.TempPathFactory) -> Race:
    options = {"max_length": forms.max_length, "dim": forms.dim, "threads": 2}
    peers = [FLOWVEC["flowvec-float32"], FLOWVEC["flowvec-int8"], HERE, CUT, BROKEN]
    folder = tmp_path_factory.mktemp("race")
    return race(peers, forms.paths, options, TEXTS, folder, rounds=2)


def rows_of(race_result: Race, name: str):
    return [row for row in race_result.rows if row.name == name]


def test_every_peer_has_a_row_for_each_kind_of_text(race_result: Race) -> None:
    assert race_result.kinds == {"natural": 40, "short": 16}
    assert len(race_result.rows) == 5 * 2
    for row in rows_of(race_result, FLOWVEC["flowvec-float32"].name):
        assert row.ratio == 1.0
        assert row.min_cosine == pytest.approx(1.0)
    for row in rows_of(race_result, HERE.name):
        assert len(row.seconds) == 2
        assert row.texts_per_second > 0
        assert row.batch_size in (4, 16)
        assert row.versions["sentence-transformers"]


def test_the_same_weights_give_the_same_vectors(race_result: Race) -> None:
    for row in rows_of(race_result, HERE.name):
        assert row.min_cosine >= 0.99999
        assert not row.void
    for row in rows_of(race_result, FLOWVEC["flowvec-int8"].name):
        assert row.min_cosine >= 0.99


def test_other_vectors_make_a_row_void(race_result: Race) -> None:
    assert rows_of(race_result, "cut")[0].void
    assert rows_of(race_result, "cut")[0].error is None


def test_a_batch_size_near_the_best_is_timed_again_and_its_better_time_counts() -> None:
    looks = {8: [1.0], 16: [0.5, 0.6], 32: [0.55, 0.4], 64: [0.9]}
    assert time_sizes(list(looks), lambda size: looks[size].pop(0)) == {
        8: 1.0, 16: 0.5, 32: 0.4, 64: 0.9
    }  # fmt: skip
    assert not any(looks.values())


def test_a_peer_that_fails_fails_alone(race_result: Race) -> None:
    for row in rows_of(race_result, "broken"):
        assert "KeyError" in row.error
        assert row.texts_per_second is None
        assert row.void


def test_the_first_peer_must_run(forms: Forms, tmp_path: Path) -> None:
    with pytest.raises(FlowvecError, match="broken: KeyError"):
        race([BROKEN], forms.paths, {}, TEXTS, tmp_path)
    with pytest.raises(InputValueError):
        race([HERE], forms.paths, {}, {"none": []}, tmp_path)


def test_a_report_names_everyone_and_no_path(race_result: Race, tmp_path: Path) -> None:
    machine = {"cpu": "A", "cpu_features": ["b"], "cores": 2, "memory_gib": 1, "system": "L",
               "python": "3", "measured": "now"}  # fmt: skip
    about = {"machine": machine, "model": "tiny", "corpus": "c.txt", "seed": 0, "max_length": 64}
    write_peer_report(race_result, about, tmp_path / "r.md")
    text = (tmp_path / "r.md").read_text(encoding="utf-8")
    for row in race_result.rows:
        assert row.name in text
    assert "did not run: broken: KeyError" in text
    assert "(void: other vectors)" in text
    assert "CPUExecutionProvider in float32 (proved: cosine" in text
    assert "r.svg" in text
    assert str(tmp_path) not in text
    drawn = "".join(ElementTree.parse(tmp_path / "r.svg").getroot().itertext())
    assert HERE.name in drawn
    assert "cut" not in drawn  # what is void is not shown as a speed


def test_an_environment_that_cannot_be_created_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLOWVEC_CACHE", str(tmp_path))
    with pytest.raises(PeerEnvironmentError, match="no requirement"):
        make_environment(("no requirement at all",))
    assert make_environment(()).versions["numpy"]


def test_a_model_with_own_layers_is_not_raced_by_peers_that_only_pool(
    tmp_path: Path, trained: Path
) -> None:
    forms = make_forms(trained, tmp_path, 64, computes=())
    assert sorted(forms.paths) == ["bundle", "older", "source"]
    assert forms.max_length == 64
    # What an export adds by itself is what the row "flowvec" runs.
    assert "int8-native" in Bundle.load(forms.paths["bundle"]).variants
    options = {"max_length": forms.max_length, "dim": forms.dim, "threads": 2}
    peers = [FLOWVEC["flowvec-float32"], HERE, PEERS["fastembed"]]
    race_result = race(peers, forms.paths, options, TEXTS, tmp_path, rounds=1)
    assert all(row.min_cosine >= 0.9999 for row in rows_of(race_result, HERE.name))
    assert all(
        "does not support this model's layers" in row.error
        for row in rows_of(race_result, "fastembed")
    )


def test_the_shipped_model_races_in_the_forms_that_it_can_have(tmp_path: Path) -> None:
    # Its words have weights, which the peers' mean pooling lacks, and it has no layers for int8.
    forms = make_forms(Path(__file__).resolve().parents[3] / "models/mini/checkpoint", tmp_path)
    assert sorted(forms.paths) == ["bundle", "older", "source"]
    options = {"max_length": forms.max_length, "dim": forms.dim, "threads": 2}
    peers = [FLOWVEC["flowvec-float32"], FLOWVEC["flowvec-int8"], HERE]
    race_result = race(peers, forms.paths, options, TEXTS, tmp_path, rounds=1)
    assert all(row.min_cosine >= 0.9999 for row in rows_of(race_result, HERE.name))
    assert all("int8" in row.error for row in rows_of(race_result, FLOWVEC["flowvec-int8"].name))


def test_a_refused_variant_does_not_affect_the_others(
    forms: Forms, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(variants.MIN_COSINE_OF, "int8", 1.01)
    made = make_forms(forms.paths["source"], tmp_path, computes=["int8"])
    assert "int8" not in Bundle.load(made.paths["bundle"]).variants


def test_the_fastembed_form_is_one_that_it_reads(forms: Forms) -> None:
    file_names = {path.name for path in forms.paths["onnx"].iterdir()}
    wanted = {"config.json", "model.onnx", "tokenizer.json", "tokenizer_config.json"}
    assert wanted <= file_names
    special = json.loads((forms.paths["onnx"] / "special_tokens_map.json").read_text())
    assert special["pad_token"] == "[PAD]"


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["minilm-l6"], "needs --tokenizer"),
        (["minilm-l6", "--tokenizer", "."], "is not a tokenizer's directory"),
        (["nowhere"], "neither minilm-l6 nor bert-base nor bert-large nor a directory"),
        (["minilm-l6", "--only", "nobody"], "'nobody' is not a peer"),
        (["minilm-l6", "--tokenizer", BACKBONE, "--report", "r.pdf"], "a report is a .md file"),
        (["minilm-l6", "--tokenizer", BACKBONE, "--json-out", "no/r.json"], "no directory"),
        (["minilm-l6", "--tokenizer", BACKBONE, "--corpus", "none.txt"], "no file none.txt"),
    ],
)
def test_a_wrong_argument_is_one_line(flowvec, tmp_path: Path, arguments, part: str) -> None:
    (tmp_path / "c.txt").write_text("A text.\n")
    done = flowvec("bench", "peers", "--corpus", "c.txt", *arguments)
    assert (done.returncode, done.stdout) == (2, ""), done
    assert part in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_a_directory_of_a_new_version_is_written_for_older_ones(
    forms: Forms, tmp_path: Path
) -> None:
    assert forms.paths["older"] == forms.paths["source"]  # it has the older names
    source = tmp_path / "source"
    shutil.copytree(forms.paths["source"], source)
    modules = json.loads((source / "modules.json").read_text())
    for module, place in zip(
        modules, ("base.modules.transformer", "sentence_transformer.modules.pooling",
                  "base.modules.normalize"), strict=True
    ):  # fmt: skip
        kind = module["type"].rpartition(".")[2]
        module["type"] = f"sentence_transformers.{place}.{kind}"
    (source / "modules.json").write_text(json.dumps(modules))
    (source / "1_Pooling/config.json").write_text(
        '{"embedding_dimension": 48, "pooling_mode": "mean", "include_prompt": true}'
    )
    older = make_forms(source, tmp_path / "forms", computes=()).paths["older"]
    assert older != source
    written = json.loads((older / "modules.json").read_text())
    assert [module["type"] for module in written] == [
        f"sentence_transformers.models.{kind}" for kind in ("Transformer", "Pooling", "Normalize")
    ]
    assert [module["path"] for module in written] == [module["path"] for module in modules]
    pooling = json.loads((older / "1_Pooling/config.json").read_text())
    assert pooling["word_embedding_dimension"] == 48
    assert [flag for flag, is_on in pooling.items() if is_on is True] == [
        "pooling_mode_mean_tokens"
    ]
