"""`compare`: every pooling with every transform, and advice that does not oversell."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs the extra [export]")

from flowvec import Encoder
from flowvec.demo import load_passages
from flowvec.errors import InputValueError
from flowvec.texts.sentences import split_sentences
from flowvec_bench.quality.advice import NONE, TRANSFORMS, WORD_VECTORS, Candidate, advise
from flowvec_bench.quality.compare import Comparison, compare, figure_names, parse_transforms
from flowvec_bench.speed.transform_cost import added_microseconds
from flowvec_export import export, read_source
from flowvec_export.fitting.fit import FitSettings
from flowvec_export.fitting.flow import FlowTraining
from flowvec_export.sts import StsScore, StsTask, read_sts, score_sts, sentence_rows
from flowvec_export.transforms import Identity, Moments, Whitening

SENTENCES = [s for passage in load_passages() for s in split_sentences(passage.text)]
HALVES = [h for s in SENTENCES for h in (s[: len(s) // 2], s[len(s) // 2 :])]
TEXTS = list(dict.fromkeys([*SENTENCES, *HALVES]))


def write_sts(folder: Path, name: str, subsets: list[str]) -> Path:
    """Pairs of a sentence and its own beginning: the longer the beginning, the higher the score."""
    (folder / name).mkdir(parents=True)
    for number, subset in enumerate(subsets):
        rows = ["score\tsentence1\tsentence2"]
        for i in range(60):
            text = SENTENCES[100 * number + i]
            share = (i % 6) / 5.5
            other = SENTENCES[300 + 100 * number + i]
            half = text[: int(len(text) * share)] + " " + other[int(len(other) * share) :]
            rows.append(f"{i % 6}\t{text}\t{half}")
        (folder / name / f"{subset}.tsv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def sts_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sts")
    write_sts(folder, "AB", ["dev", "test"])
    return write_sts(folder, "YEAR", ["one", "two"])


@pytest.fixture(scope="module")
def tasks(sts_folder: Path) -> list[StsTask]:
    return read_sts(sts_folder)


@pytest.fixture(scope="module")
def comparison(tasks, trained) -> Comparison:
    settings = FitSettings(training=FlowTraining(epochs=1))
    return compare(
        trained, TEXTS, tasks, poolings=["mean"], settings=settings,
        transforms=["whitening", "flow-released"], rows=1200, seeds=2,
    )  # fmt: skip


@pytest.fixture(scope="module")
def of_poolings(tasks, trained) -> Comparison:
    return compare(
        trained, TEXTS, tasks, poolings=["own", "mean"], transforms=["whitening"], rows=800, seeds=2
    )


def pick(comparison: Comparison, pooling: str, transform: str = NONE) -> Candidate:
    (candidate,) = [
        c for c in comparison.candidates if (c.pooling, c.transform) == (pooling, transform)
    ]
    return candidate


@pytest.mark.exports
def test_every_pooling_is_measured_with_every_transform_and_without(
    of_poolings, comparison
) -> None:
    names = [(c.pooling, c.transform) for c in of_poolings.candidates]
    assert names == [(p, transform) for p in ("own", "mean") for transform in (NONE, "whitening")]
    names = [(c.pooling, c.transform) for c in comparison.candidates]
    assert names == [("mean", transform) for transform in (NONE, "whitening", "flow-released")]
    both = (*of_poolings.candidates, *comparison.candidates)
    assert all(c.seeds == (1 if c.transform == NONE else 2) for c in both)
    assert (of_poolings.rows, comparison.rows) == (800, 1200)


@pytest.mark.exports
@pytest.mark.parametrize(("pooling", "only"), [("own", False), ("mean", True)])
def test_without_a_transform_the_scores_are_the_bundles(
    of_poolings, tasks, tmp_path, pooling, only, trained
) -> None:
    requested_pooling = None if pooling == "own" else pooling
    bundle = export(
        trained, tmp_path / "b", pooling=requested_pooling, encoder_only=only, calibration=()
    )
    with Encoder.load(bundle.path, provider="cpu") as encoder:
        expected = figure_names(score_sts(tasks, encoder.encode))
    assert pick(of_poolings, pooling).sts == pytest.approx(expected, abs=0.05)


@pytest.mark.exports
def test_a_transform_spreads_vectors_over_their_space(comparison) -> None:
    raw = pick(comparison, "mean")
    for name in ("whitening", "flow-released"):
        fitted = pick(comparison, "mean", name)
        assert fitted.mean_cosine < raw.mean_cosine - 0.3
        assert fitted.uniformity < raw.uniformity
        assert fitted.alignment > raw.alignment
        assert fitted.added_microseconds > 0
    assert pick(comparison, "mean", "whitening").dim == 255  # the null direction is gone
    assert raw.dim == 256
    assert raw.added_microseconds == 0


@pytest.mark.exports
def test_seeds_draw_other_texts(comparison) -> None:
    fitted = pick(comparison, "mean", "whitening")
    assert max(fitted.sts_deviation.values()) > 0
    assert pick(comparison, "mean").sts_deviation == dict.fromkeys(fitted.sts, 0.0)
    assert pick(comparison, "mean", "flow-released").bits_per_dim is not None
    assert fitted.bits_per_dim is None
    assert len(fitted.sts_by_seed) == 2
    for name, mean in fitted.sts.items():
        by_seed = [figures[name] for figures in fitted.sts_by_seed]
        assert (np.mean(by_seed), np.std(by_seed, ddof=1)) == pytest.approx(
            (mean, fitted.sts_deviation[name])
        )


@pytest.mark.exports
def test_a_transform_that_cannot_be_fitted_does_not_lose_the_others(tasks, trained) -> None:
    settings = FitSettings(training=FlowTraining(epochs=2, learning_rate=1e30))
    comparison = compare(
        trained, TEXTS, tasks, poolings=["mean"], transforms=["flow-released", "whitening"],
        settings=settings, rows=1100,
    )  # fmt: skip
    assert [c.transform for c in comparison.candidates] == [NONE, "whitening"]
    (failure,) = comparison.failures
    assert (failure.pooling, failure.transform) == ("mean", "flow-released")
    assert "diverged" in failure.reason
    # As measured: without the Dense layer that follows the pooling of this checkpoint.
    assert "`flowvec fit whitening --pooling mean --encoder-only`" in comparison.advice


@pytest.mark.exports
def test_word_vectors_are_the_means_of_the_input_embeddings(tasks, trained) -> None:
    result = compare(trained, TEXTS, tasks, transforms=[], rows=100)
    source = read_source(trained)
    table = source.model.get_input_embeddings().weight.detach().numpy()

    def embed(texts: list[str]) -> np.ndarray:
        rows = [source.tokenizer.encode(t, add_special_tokens=False).ids for t in texts]
        return np.stack([table[ids].mean(axis=0) for ids in rows])

    expected = figure_names(score_sts(tasks, embed))
    assert pick(result, WORD_VECTORS).sts == pytest.approx(expected, abs=1e-3)
    # By default all poolings that this checkpoint supports; it has no pooler.
    poolings = [c.pooling for c in result.candidates]
    assert poolings == [WORD_VECTORS, "own", "cls", "mean", "first_last_mean"]


# --- advice ---------------------------------------------------------------------------------------


def candidate(pooling: str, transform: str, dev: float, deviation: float = 0.0) -> Candidate:
    return Candidate(
        pooling, transform, 3, 8, {"AB dev": dev, "AB test": 100 - dev},
        {"AB dev": deviation, "AB test": 9.0}, [], 0.0, 0.0, None, 0.0, None,
    )  # fmt: skip


def test_advice_takes_the_best_on_dev() -> None:
    candidates = [
        candidate("mean", NONE, 60), candidate("mean", "flow", 70, 0.5),
        candidate("cls", NONE, 40), candidate("cls", "flow", 69),
    ]  # fmt: skip
    chosen_on, best, advice = advise(candidates)
    assert (chosen_on, best) == ("AB dev", 1)
    assert advice.startswith("Take mean with flow: 70.0 on AB dev, +10.0 points over mean as it is")


@pytest.mark.parametrize(("dev", "deviation"), [(60.9, 0.0), (63.0, 2.0), (59.0, 0.0)])
def test_advice_is_to_leave_a_model_alone_for_a_small_or_uncertain_gain(dev, deviation) -> None:
    candidates = [candidate("mean", NONE, 60), candidate("mean", "flow", dev, deviation)]
    _, best, advice = advise(candidates)
    assert best == 0
    assert advice.startswith("Take no transform: mean as it is has 60.0 on AB dev")


def test_a_transform_is_weighed_against_the_model_as_it_is() -> None:
    # Better than the bare pooling, but not better than the model as it is published.
    candidates = [
        candidate("own", NONE, 76), candidate("mean", NONE, 60), candidate("mean", "flow", 76.5),
    ]  # fmt: skip
    assert advise(candidates)[1] == 0


def test_a_noisy_best_does_not_hide_a_solid_second() -> None:
    candidates = [
        candidate("mean", NONE, 60), candidate("mean", "flow", 65, 2.6),
        candidate("mean", "whitening", 64.9, 0.1),
    ]  # fmt: skip
    assert advise(candidates)[1] == 2


def test_word_vectors_are_neither_base_nor_advice() -> None:
    candidates = [
        candidate(WORD_VECTORS, NONE, 66), candidate("mean", NONE, 60),
        candidate("mean", "flow", 64.5),
    ]  # fmt: skip
    _, best, advice = advise(candidates)
    assert best == 2
    assert "word vectors alone have 66.0" in advice


def test_another_pooling_may_be_the_advice_without_a_transform() -> None:
    candidates = [candidate("own", NONE, 60), candidate("mean", NONE, 65)]
    _, best, advice = advise(candidates)
    assert best == 1
    assert advice == "Take mean as it is: 65.0 on AB dev, +5.0 points over own as it is."


def test_advice_says_how_to_make_it() -> None:
    candidates = [candidate("mean", NONE, 60), candidate("mean", "flow-released", 65)]
    assert "`flowvec fit flow --pooling mean --preset released`" in advise(candidates)[2]
    # For any sentence-transformers model, whether or not `own` was compared.
    advice = advise(candidates, encoder_only=True)[2]
    assert "`flowvec fit flow --pooling mean --encoder-only --preset released`" in advice
    candidates = [candidate("own", NONE, 60), candidate("own", "whitening", 65)]
    assert "`flowvec fit whitening`," in advise(candidates, encoder_only=True)[2]


def test_sentences_that_are_scored_are_not_fitted_on(tasks, trained) -> None:
    scored = list(sentence_rows(tasks))
    with pytest.raises(InputValueError, match="0 of 5 are left"):
        compare(trained, [*scored, *TEXTS[-5:]], tasks, poolings=["mean"],
                transforms=["whitening"])  # fmt: skip


def test_without_a_dev_set_advice_goes_by_all_figures() -> None:
    plain = candidate("mean", NONE, 60)
    candidates = [
        replace(plain, sts={"YEAR all": 50.0, "YEAR wmean": 50.0}),
        replace(plain, transform="flow", sts={"YEAR all": 60.0, "YEAR wmean": 45.0},
                sts_deviation={"YEAR all": 0.0, "YEAR wmean": 0.0}),
    ]  # fmt: skip
    chosen_on, best, _ = advise(candidates)
    assert (chosen_on, best) == ("the mean of all sets", 1)


def test_a_task_with_a_test_set_gives_its_parts_and_others_both_aggregations() -> None:
    scores = [
        StsScore("AB", {"dev": 1.0, "test": 2.0, "train": 3.0}, {}, 4.0, 5.0),
        StsScore("YEAR", {"one": 1.0, "two": 2.0}, {}, 6.0, 7.0),
    ]
    assert figure_names(scores) == {
        "AB dev": 1.0, "AB test": 2.0, "YEAR all": 6.0, "YEAR wmean": 7.0,
    }  # fmt: skip


# --- wrong input ----------------------------------------------------------------------------------


def test_unknown_names_are_errors(tasks, trained) -> None:
    assert parse_transforms(None) == list(TRANSFORMS)
    assert parse_transforms("flow,none,flow") == ["flow"]
    with pytest.raises(InputValueError, match="'glow' is unknown"):
        parse_transforms("glow")
    with pytest.raises(InputValueError, match="one by one"):
        compare(trained, TEXTS, tasks, poolings=["mean+cls", "max"], transforms=["whitening"])
    with pytest.raises(InputValueError, match="flow needs at least"):
        compare(trained, TEXTS[-900:], tasks, transforms=["whitening", "flow"])
    with pytest.raises(InputValueError, match="at least 10"):
        compare(trained, TEXTS[:10], tasks, poolings=["mean"], transforms=["whitening"])


def test_the_tail_is_timed_on_any_transform() -> None:
    data = np.random.default_rng(0).normal(size=(300, 12)).astype(np.float32)
    assert added_microseconds(Whitening.fit(Moments.of(data)), batch_size=4) > 0
    assert Identity(4).fold()(3) == 3


@pytest.mark.peers
def test_the_compare_command_prints_a_table_and_writes_json(
    flowvec, tmp_path, sts_folder, trained
) -> None:
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS))
    done = flowvec(
        "compare", trained, "--corpus", "texts.txt", "--sts", sts_folder, "--poolings",
        "own", "--transforms", "soft-zca", "--rows", 500, "--json-out", "out.json",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for part in ("AB dev", "YEAR wmean", "soft-zca", "Take "):
        assert part in done.stdout
    written = json.loads((tmp_path / "out.json").read_text())
    assert written["evaluation"] == "compare"
    assert len(written["candidates"]) == 2
    assert str(tmp_path) not in json.dumps(written)


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["--transforms", "glow"], "'glow' is unknown"),
        (["--poolings", "middle"], "'middle' is unknown"),
        (["--json-out", "no/out.json"], "no directory"),
        (["--corpus", "nowhere.txt"], "cannot read nowhere.txt"),
        (["--sts", "nowhere"], "not a directory of STS files"),
    ],
)
def test_a_wrong_argument_is_one_line(
    flowvec, tmp_path, sts_folder, arguments, part, trained
) -> None:
    (tmp_path / "t.txt").write_text("\n".join(TEXTS[:50]))
    defaults = ["--corpus", "t.txt", "--sts", str(sts_folder)]
    done = flowvec("compare", trained, *defaults, *arguments)
    assert done.returncode == 2, done
    assert part in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
