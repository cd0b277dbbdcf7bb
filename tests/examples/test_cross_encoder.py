"""The cross-encoder's lessons are what they say, and its recipe ends in a reranker."""

from __future__ import annotations

import json
import random
import sys
from importlib import import_module
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs the extra [export]")
pytest.importorskip("datasets", reason="needs the extra [train]")
pytest.importorskip("accelerate", reason="needs the extra [train]")
pytest.importorskip("bm25s", reason="needs the extra [bench]")

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from sentence_transformers import CrossEncoder

from flowvec import Reranker
from flowvec.errors import InputValueError
from tests.drawing import examples
from tests.examples.test_recipes import ROOT, cut_backbone, run

sys.path.insert(0, str(ROOT / "examples"))
lessons = import_module("paragraph_lessons")
recipe = import_module("recipe")

FIRST, SECOND = ["river", "butter", "horse", "music", "doctor"], ["wood", "land", "man"]
WORDS = [first + second for first in FIRST for second in SECOND]


def paragraphs_of(count: int, seed: int = 0) -> list[list[str]]:
    """Paragraphs of four sentences; each has three words that only its own sentences repeat."""
    draw = random.Random(seed)
    found = []
    for _ in range(count):
        topic = draw.sample(WORDS, 3)
        found.append([" ".join(draw.sample(topic, 3) + draw.sample(WORDS, 3)) for _ in range(4)])
    return found


def is_part(words: list[str], text: str) -> bool:
    """Whether words come in a text, in this order."""
    rest = iter(text.split())
    return all(word in rest for word in words)


@pytest.mark.parametrize("lesson", lessons.LESSONS, ids=lambda lesson: lesson.name)
def test_the_first_document_is_the_querys_own(lesson) -> None:
    found = paragraphs_of(40)
    data = lessons.make_data(lesson, found, seed=3)
    assert data["query"] == lessons.make_data(lesson, found, seed=3)["query"]
    own = [" ".join(sentences) for sentences in found]
    dropped = 0
    for sentences, query, documents, labels in zip(
        found, data["query"], data["docs"], data["labels"], strict=True
    ):
        chosen = [s for s in sentences if is_part(query.split(), s)]
        rests = [[s for s in sentences if s != one] for one in chosen]
        assert documents[0] in [
            " ".join(kept) for kept in (rests if lesson.taken_out else [sentences])
        ]
        assert (len(documents), labels[0], sum(labels[1:])) == (5, 10, 0)
        assert documents[0] not in documents[1:]
        dropped += len(query.split()) < 6
        if not lesson.taken_out:
            assert set(documents) <= set(own)
    assert 8 <= dropped <= 32  # half of the queries have lost half of their words


def test_near_documents_share_more_words_with_the_query_than_random_ones() -> None:
    found = paragraphs_of(200)
    shared = {}
    for lesson in lessons.LESSONS:
        data = lessons.make_data(lesson, found, seed=0)
        counts = [
            [len(set(query.split()) & set(text.split())) for text in documents[1:]]
            for query, documents in zip(data["query"], data["docs"], strict=True)
        ]
        shared[lesson.name] = np.mean(counts, axis=0)
    assert min(shared["words"][:2]) > max(shared["words"][2:]) + 0.5
    assert min(shared["hard"][:2]) > max(shared["hard"][2:]) + 0.5
    assert np.ptp(shared["easy"]) < 0.5


@examples(50)
@given(st.integers(12, 60), st.integers(0, 10), st.integers(0, 10))
def test_lessons_share_the_paragraphs_in_order(count: int, easy: int, words: int) -> None:
    words = min(words, 10 - easy)
    found = [[str(i)] for i in range(count)]
    parts = lessons.split_lessons(found, easy / 10, words / 10)
    assert [lesson.name for lesson, _ in parts] == [
        lesson.name for lesson in lessons.LESSONS if lesson in [of for of, _ in parts]
    ]
    joined = [paragraph for _, part in parts for paragraph in part]
    # A lesson of one paragraph has no other documents, and is left out.
    assert len(found) - len(joined) <= 2
    assert joined == sorted(joined, key=lambda paragraph: int(paragraph[0]))
    sizes = {lesson.name: len(part) for lesson, part in parts}
    assert abs(sizes.get("easy", 0) - count * easy / 10) <= 1.5
    assert abs(sizes.get("words", 0) - count * words / 10) <= 1.5


def test_two_paragraphs_are_too_few_for_two_lessons() -> None:
    with pytest.raises(InputValueError, match="at least two paragraphs"):
        lessons.split_lessons([["a"], ["b"]], 0.5, 0)


def test_paragraphs_that_were_seen_are_skipped(tmp_path: Path) -> None:
    corpus = tmp_path / "corpus.txt"
    found = [[f"The {w} number {i} came." for i in range(3)] for w in WORDS]
    corpus.write_text("\n".join([" ".join(f) for f in found] + ["Too short."]) + "\n")
    assert lessons.read_paragraphs(corpus, 0, 4) == found[:4]
    assert lessons.read_paragraphs(corpus, 3, 100) == found[3:]
    with pytest.raises(InputValueError, match=r"3 sentences .*first 14"):
        lessons.read_paragraphs(corpus, len(found) - 1, 10)


def test_a_model_is_trained_goes_on_and_is_exported(tmp_path: Path) -> None:
    cut_backbone(tmp_path / "encoder")
    corpus = tmp_path / "corpus.txt"
    corpus.write_text(
        "\n".join(". ".join(s.capitalize() for s in f) + "." for f in paragraphs_of(60)) + "\n"
    )
    first, second = tmp_path / "first", tmp_path / "second"
    run("cross_encoder", "--model", tmp_path / "encoder", "--corpus", corpus, "-o", first,
        "--paragraphs", 40, "--easy", 1, "--steps", 3, "--learning-rate", 1e-3)  # fmt: skip
    run("cross_encoder", "--model", first / "model", "--corpus", corpus, "-o", second,
        "--skip", 40, "--easy", 0, "--words", 0.5, "--steps", 4,
        "--learning-rate", 1e-6)  # fmt: skip
    reports = [json.loads((out / "report.json").read_text()) for out in (first, second)]
    (losses,) = reports[0]["losses"].values()
    assert losses[0] == pytest.approx(np.log(5), abs=0.3)
    assert list(reports[1]["losses"]) == ["words", "hard"]
    assert (reports[1]["settings"]["skip"], reports[1]["settings"]["paragraphs"]) == (40, 20)
    pairs = [("riverwood butterland", " ".join(f)) for f in paragraphs_of(20, seed=9)]
    scores = []
    for out in (first, second):
        expected = CrossEncoder(str(out / "model"), device="cpu").predict(pairs)
        with Reranker.load(out / "bundle", provider="cpu", compute="float32") as reranker:
            scores.append(reranker.predict(pairs))
        np.testing.assert_allclose(scores[-1], expected, atol=1e-5)
    # It went on from what was learned, rather than from a new head.
    assert np.corrcoef(scores)[0, 1] > 0.9


def test_shares_above_one_are_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["cross_encoder", "--model", "x", "--corpus", "y", "-o", str(tmp_path / "out"),
             "--easy", "0.7", "--words", "0.4"]  # fmt: skip
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit) as stop:
        recipe.run_app(import_module("cross_encoder").app)
    shown = capsys.readouterr().err
    assert stop.value.code == 2
    assert shown.count("\n") == 1
    assert "together above 1" in shown
