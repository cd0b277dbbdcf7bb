"""The isotropy report: one page that loads nothing, escapes what it is given, and its command."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("matplotlib", reason="needs the extra [bench]")

from flowvec import Bundle, Encoder
from flowvec.demo import load_passages
from flowvec.errors import InputValueError
from flowvec_bench.machine import describe_machine
from flowvec_bench.quality.isotropy_report import (
    BundleIsotropy,
    IsotropyReport,
    Picture,
    examine_bundle,
    label_bundles,
    sample_corpus,
)
from flowvec_bench.quality.word_frequency import (
    WordFrequency,
    count_tokens,
    frequency_table,
    measure_word_frequency,
)
from flowvec_bench.reports.charts import draw_charts
from flowvec_bench.reports.isotropy import check_report_path, report_markdown, write_report
from flowvec_bench.reports.isotropy_figures import explain, figures
from flowvec_bench.texts import split_sentences
from flowvec_export.sts import StsPairs, StsTask

EVIL = "<script>alert('a')</script> & $x_1$ \"quoted\""


@pytest.fixture(scope="module")
def sentences() -> list[str]:
    return [s for p in load_passages() for s in split_sentences(p.text)]


@pytest.fixture(scope="module")
def task() -> StsTask:
    pairs = [(5.0, "the cat", "a cat"), (4.5, "a dog runs", "the dog runs"), (1.0, "a man", "cat")]
    gold, left, right = zip(*pairs, strict=True)
    return StsTask("labelled", {"one": StsPairs(np.array(gold), list(left), list(right))})


@pytest.fixture(scope="module")
def examined(tiny: Encoder, sentences, task) -> tuple[BundleIsotropy, Picture]:
    return examine_bundle(tiny, "tiny", sentences[:300], [task], seed=0)


def make_report(bundles: list[BundleIsotropy], words=None) -> IsotropyReport:
    return IsotropyReport(
        corpus="notes.txt",
        texts=1000,
        rows=300,
        seed=0,
        sts="labelled",
        bundles=bundles,
        word_frequency=words,
        notes=explain(bundles, has_sts=True),
        machine=describe_machine(),
    )


@pytest.fixture(scope="module")
def evil_report(examined) -> IsotropyReport:
    """A report whose names are Markdown, HTML and mathematics."""
    bundle, _ = examined
    other = replace(bundle, label=EVIL, transform=(EVIL,), normalised=True)
    bands = frequency_table(np.random.default_rng(0).normal(size=(600, 4)), np.arange(600))
    words = WordFrequency(EVIL, 5000, 620, 5, 15, bands)
    return replace(make_report([bundle, other], words), corpus=EVIL, sts=EVIL)


def test_names_are_shown_as_they_are(evil_report: IsotropyReport) -> None:
    text = report_markdown(evil_report, "charts.svg", "flowvec eval isotropy")
    assert EVIL not in text
    assert r"\<script\>" in text
    assert text.replace("\\", "").count(EVIL) > 8
    tables = [line for line in text.splitlines() if line.startswith("|")]
    assert {line.count(" | ") for line in tables if "IsoScore" in line} == {4}


def test_charts_are_whole_and_name_every_bundle(
    evil_report: IsotropyReport, examined, tmp_path: Path
) -> None:
    _, picture = examined
    draw_charts(evil_report, [picture, picture], tmp_path / "charts.svg")
    root = ElementTree.parse(tmp_path / "charts.svg").getroot()
    texts = [text.text or "" for text in root.iter() if text.tag.endswith("}text")]
    assert texts.count(EVIL) == 2  # the legends of spectrum and cosines
    assert f"{EVIL}: two principal components" in texts
    assert "Word embeddings: norm by frequency" in texts
    assert not any("mathdefault" in text for text in texts)


def test_a_name_with_an_underscore_is_in_the_legend(examined, tmp_path: Path) -> None:
    bundle, picture = examined
    report = make_report([bundle, replace(bundle, label="_hidden")])
    draw_charts(report, [picture, picture], tmp_path / "charts.svg")
    assert (tmp_path / "charts.svg").read_text(encoding="utf-8").count("_hidden") >= 2


def test_equal_input_gives_an_equal_report(examined, tmp_path: Path) -> None:
    bundle, picture = examined
    report = make_report([bundle])
    later = replace(report, machine=replace(report.machine, measured="2001-01-01T00:00:00+00:00"))
    made = []
    for name, one in (("a", report), ("b", report), ("c", later)):
        (tmp_path / name).mkdir()
        write_report(tmp_path / name / "r.md", one, [picture], "flowvec eval isotropy")
        made.append([f.read_bytes() for f in sorted((tmp_path / name).iterdir())])
    assert made[0] == made[1] == made[2]
    assert len(made[0]) == 2


def test_figures_stand_side_by_side_with_sts(examined) -> None:
    bundle, _ = examined
    flat = replace(bundle, label="flat", isotropy=replace(bundle.isotropy, isoscore=0.123))
    rows = {row.name: row for row in figures([bundle, flat])}
    assert rows["IsoScore"].values == [f"{bundle.isotropy.isoscore:.3f}", "0.123"]
    assert (rows["IsoScore"].better, rows["Uniformity"].better) == ("higher", "lower")
    text = report_markdown(make_report([bundle, flat]), "charts.svg", "x")
    assert f"{bundle.isotropy.isoscore:.3f} | 0.123 |" in text
    score = f"{bundle.sts[0].all:.2f}"
    assert f"| labelled | all | 3 | {score} | {score} |" in text
    assert "does not by itself mean better vectors" in text


def test_the_notes_say_what_limits_the_figures(examined) -> None:
    bundle, _ = examined
    normalized = replace(bundle, label="unit", normalised=True)
    few = replace(bundle, isotropy=replace(bundle.isotropy, rows=159))
    assert "does not normalize" in explain([bundle], has_sts=True)[0]
    assert "unit normalizes inside its graph" in explain([normalized], has_sts=True)[0]
    assert not any("fewer than 10" in note for note in explain([bundle], has_sts=True))
    assert any("fewer than 10" in note for note in explain([few], has_sts=True))
    without = replace(bundle, isotropy=replace(bundle.isotropy, alignment=None), sts=[])
    assert "alignment is not available" in explain([without], has_sts=False)[-1]
    assert "alignment is not available" in explain([without], has_sts=True)[-1]


def test_labelled_sentences_give_alignment_and_sts(tiny: Encoder, sentences, task) -> None:
    labelled, _ = examine_bundle(tiny, "tiny", sentences[:200], [task], seed=0)
    assert labelled.isotropy.alignment_pairs == 2
    a, b = (tiny.encode(side) for side in (["the cat", "a dog runs"], ["a cat", "the dog runs"]))
    a, b = (v / np.linalg.norm(v, axis=1, keepdims=True) for v in (a, b))
    expected = np.square(a - b).sum(1).mean()
    assert labelled.isotropy.alignment == pytest.approx(expected, abs=1e-5)
    assert labelled.isotropy.uniformity_rows == 6
    plain, picture = examine_bundle(tiny, "tiny", sentences[:200], [], seed=0)
    assert (plain.isotropy.alignment, plain.sts) == (None, [])
    assert plain.isotropy.uniformity_rows == 200
    assert picture.points.shape == (200, 2)
    assert 1 > picture.explained[0] > picture.explained[1] > 0
    # The projection is of centred rows, on axes without correlation.
    assert np.abs(picture.points.mean(0)).max() < 1e-9
    assert abs(np.corrcoef(picture.points.T)[0, 1]) < 1e-9


def test_a_corpus_is_sampled_with_a_seed() -> None:
    texts = [f"text {i}" for i in range(150)]
    windows: list[str] = []
    total, sample = sample_corpus([*texts, "", "  ", *texts], 100, seed=1, on_window=windows.extend)
    assert total == 150
    assert windows == texts
    assert len(set(sample)) == 100
    assert sample == sample_corpus(texts, 100, seed=1)[1] != sample_corpus(texts, 100, seed=2)[1]
    assert sorted(sample_corpus(texts, 10_000, seed=0)[1]) == sorted(texts)
    with pytest.raises(InputValueError, match="99 distinct texts"):
        sample_corpus([*texts[:99], *texts[:99]], 100, seed=0)


def test_every_text_of_a_corpus_is_drawn_as_often() -> None:
    texts = [f"text {i}" for i in range(120)]
    places = {text: i for i, text in enumerate(texts)}
    drawn, first = np.zeros(120), np.zeros(120)
    for seed in range(600):
        _, sample = sample_corpus(texts, 30, seed, texts_at_once=7)
        rows = [places[text] for text in sample]
        drawn[rows] += 1
        first[rows[0]] += 1
    # 150 of 600 each, with a standard deviation of 10.6.
    assert np.abs(drawn - 150).max() < 5 * 10.6
    assert first[:30].sum() == pytest.approx(150, abs=5 * 10.6)


def test_bundles_with_the_same_name_get_different_labels(tiny_dir: Path, nan_dir: Path) -> None:
    tiny, nan = Bundle.load(tiny_dir), Bundle.load(nan_dir)
    twin = replace(nan, manifest=replace(nan.manifest, name=tiny.manifest.name))
    assert label_bundles([tiny]) == ["tiny"]
    assert label_bundles([tiny, twin]) == [
        f"tiny ({tiny.fingerprint[:8]})",
        f"tiny ({twin.fingerprint[:8]})",
    ]
    with pytest.raises(InputValueError, match="twice"):
        label_bundles([tiny, tiny])


@pytest.mark.parametrize("name", ["r.txt", "no/r.md", "folder.md"])
def test_a_report_that_could_not_be_written_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder.md").mkdir()
    with pytest.raises(InputValueError):
        check_report_path(tmp_path / name, (), overwrite=True)


# --- the command ----------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path, sentences, task) -> Path:
    (tmp_path / "corpus.txt").write_text("\n".join(sentences[:400]), encoding="utf-8")
    (tmp_path / "sts").mkdir()
    one = task.subsets["one"]
    lines = [f"{g}\t{a}\t{b}\n" for g, a, b in zip(one.gold, one.left, one.right, strict=True)]
    (tmp_path / "sts" / "one.tsv").write_text("score\tsentence1\tsentence2\n" + "".join(lines))
    return tmp_path


def test_the_eval_isotropy_command_prints_both_bundles_and_writes_the_page(
    flowvec, folder, tiny_dir
) -> None:
    arguments = ["eval", "isotropy", tiny_dir, "corpus.txt", "--against", "mini", "--rows", 150]
    done = flowvec(*arguments, "--sts", "sts", "--report", "r.md", "--quiet")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert re.search(r"^figure +better +tiny +mini$", done.stdout, re.MULTILINE)
    assert re.search(r"^sts +wmean +-?[\d.]+ +-?[\d.]+$", done.stdout, re.MULTILINE)
    assert "report: r.md" in done.stdout
    page = (folder / "r.md").read_text(encoding="utf-8")
    assert "![charts](r.svg)" in page
    assert "flowvec eval isotropy" in page
    assert sorted(p.name for p in folder.iterdir()) == ["corpus.txt", "r.md", "r.svg", "sts"]


def test_the_eval_isotropy_command_prints_json_from_stdin(
    flowvec, tiny_dir, sentences, tiny
) -> None:
    done = flowvec(
        "eval", "isotropy", tiny_dir, "-", "--json", "--provider", "cpu", stdin="\n".join(sentences)
    )
    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout)
    assert (shown["corpus"], shown["sts"], shown["word_frequency"]) == (
        "standard input",
        None,
        None,
    )
    (bundle,) = shown["bundles"]
    isotropy = bundle["isotropy"]
    assert isotropy["rows"] == shown["rows"] == len(set(sentences))
    _, sample = sample_corpus(sentences, 10_000, 0)
    expected = examine_bundle(tiny, "tiny", sample, [], 0)[0].isotropy
    for key in ("mean_cosine", "isoscore", "effective_rank", "uniformity"):
        assert isotropy[key] == pytest.approx(getattr(expected, key), rel=1e-3)
    assert isotropy["alignment"] is None
    assert any("--sts" in note for note in shown["notes"])


@pytest.mark.exports
def test_a_checkpoint_adds_its_word_embeddings(flowvec, folder, tiny_dir) -> None:
    pytest.importorskip("torch", reason="needs the extra [export]")
    source = Path(__file__).resolve().parents[3] / "models" / "mini" / "checkpoint"
    arguments = ["eval", "isotropy", tiny_dir, "corpus.txt", "--source", source, "--rows", 150]
    done = flowvec(*arguments, "--json", "--report", "r.md", "--quiet")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    table = json.loads(done.stdout)["word_frequency"]

    from flowvec_export import read_source

    read = read_source(source)
    texts = (folder / "corpus.txt").read_text(encoding="utf-8").split("\n")
    weights = read.model.get_input_embeddings().weight.detach().numpy()
    counts = count_tokens(read.tokenizer, list(dict.fromkeys(texts)))
    expected = measure_word_frequency(weights, read.tokenizer, counts, "x")
    assert (table["unused"], table["tokens"]) == (expected.unused, expected.tokens)
    assert table["bands"][0]["norm"] == pytest.approx(expected.bands[0].norm)
    assert "Word embeddings by frequency" in (folder / "r.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["TINY", "few.txt"], "3 distinct texts"),
        (["TINY", "nowhere.txt"], "cannot read nowhere.txt"),
        (["TINY", "corpus.txt", "--report", "no/r.md"], "no directory"),
        (["TINY", "corpus.txt", "--report", "r.pdf"], ".md"),
        (["TINY", "corpus.txt", "--against", "nowhere"], "no bundle 'nowhere'"),
        (["TINY", "corpus.txt", "--against", "TINY"], "given twice"),
        (["TINY", "corpus.txt", "--sts", "nowhere"], "nowhere is not a directory"),
        (["TINY", "corpus.txt", "--source", "./nowhere"], "nowhere does not exist"),
    ],
)
def test_a_wrong_argument_is_one_line_and_leaves_nothing(
    flowvec, folder, tiny_dir, arguments, part
) -> None:
    (folder / "few.txt").write_text("a\nb\nc\n")
    before = sorted(folder.iterdir())
    done = flowvec(
        "eval", "isotropy", "--quiet", *[str(tiny_dir) if a == "TINY" else a for a in arguments]
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert part in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert sorted(folder.iterdir()) == before
