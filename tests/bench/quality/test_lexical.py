"""Edit distance against cosine and gold."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("scipy", reason="needs the extra [bench]")
pytest.importorskip("rapidfuzz", reason="needs the extra [bench]")

from flowvec import Encoder
from flowvec_bench.quality.lexical import ALL_PAIRS, edit_distances, measure_lexical
from flowvec_export.sts import StsPairs, StsTask, sentence_rows, spearman


def edits(a: str, b: str) -> int:
    """Levenshtein's recurrence, as in the textbook."""
    line = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        above, line = line, [i]
        for j, y in enumerate(b, 1):
            line.append(min(above[j] + 1, line[-1] + 1, above[j - 1] + (x != y)))
    return line[-1]


def pairs(*rows: tuple[float, str, str]) -> StsPairs:
    gold, left, right = zip(*rows, strict=True)
    return StsPairs(np.array(gold), list(left), list(right))


ROWS = [
    (5.0, "a cat sleeps", "a cat sleeps"),
    (4.5, "a cat sleeps", "a cat slept"),
    (4.8, "the cat is asleep", "a cat sleeps"),
    (2.0, "a cat sleeps", "a car sleeps"),
    (0.5, "stocks fell", "übung macht"),
    (1.0, "stocks fell", "stocks fall"),
]


def test_edit_distance_is_relative_to_the_longer_sentence() -> None:
    distances = edit_distances(pairs(*ROWS))
    expected = [edits(a, b) / max(len(a), len(b)) for _, a, b in ROWS]
    np.testing.assert_allclose(distances, expected)
    assert distances[0] == 0
    assert edit_distances(pairs((0, "ab", "cd"), (0, "", ""))).tolist() == [1, 0]


def test_the_table_holds_each_task_and_all_pairs_in_both_scopes() -> None:
    tasks = [
        StsTask("A", {"one": pairs(*ROWS[:3]), "two": pairs(*ROWS[3:])}),
        StsTask("B", {"one": pairs(*ROWS[1:5])}),
    ]
    rows = sentence_rows(tasks)
    rng = np.random.default_rng(0)
    vectors = {name: rng.normal(size=(len(rows), 4)) for name in ("x", "y")}
    table = measure_lexical(tasks, rows, vectors)
    assert [(row.task, row.pairs, row.count) for row in table] == [
        ("A", "all", 6),
        ("A", "gold > 4", 3),
        ("B", "all", 4),
        ("B", "gold > 4", 2),
        (ALL_PAIRS, "all", 10),
        (ALL_PAIRS, "gold > 4", 5),
    ]
    everything = [*ROWS, *ROWS[1:5]]
    for row, chosen in zip(
        table[:2] + table[4:],
        [ROWS, ROWS[:3], everything, [r for r in everything if r[0] > 4]],
        strict=True,
    ):
        distance = [edits(a, b) / max(len(a), len(b)) for _, a, b in chosen]
        assert row.gold == pytest.approx(spearman(distance, [r[0] for r in chosen]))
        for name, matrix in vectors.items():
            unit = matrix / np.linalg.norm(matrix, axis=1, keepdims=True)
            cosines = [unit[rows[a]] @ unit[rows[b]] for _, a, b in chosen]
            assert row.cosine[name] == pytest.approx(spearman(distance, cosines))


def test_what_cannot_correlate_is_none() -> None:
    task = StsTask("A", {"one": pairs((5, "a", "b"), (1, "a", "ab"), (0, "ab", "abc"))})
    rows = sentence_rows([task])
    everything, alike = measure_lexical([task], rows, {"x": np.zeros((len(rows), 2))})
    assert everything.gold is not None
    assert everything.cosine == {"x": None}
    assert (alike.count, alike.gold, alike.cosine) == (1, None, {"x": None})


def test_the_eval_lexical_command_has_a_column_for_each_bundle(
    flowvec, tmp_path: Path, tiny_dir
) -> None:
    lines = ["score\tsentence1\tsentence2", *(f"{g}\t{a}\t{b}" for g, a, b in ROWS)]
    (tmp_path / "sts").mkdir()
    (tmp_path / "sts" / "one.tsv").write_text("\n".join(lines), encoding="utf-8")
    done = flowvec("eval", "lexical", "mini", "sts", "--against", tiny_dir)
    assert done.returncode == 0, done.stderr
    header, *rows, _, of_mini, of_tiny = done.stdout.splitlines()
    assert [line.split(":")[0] for line in (of_mini, of_tiny)] == ["mini", "tiny"]
    with Encoder.load("mini") as encoder:
        assert of_mini == f"mini: {encoder.info().provider}, {encoder.info().compute}"
    assert header.split() == ["task", "pairs", "n", "gold", "mini", "tiny"]
    assert [row.split()[0] for row in rows] == ["sts", "sts"]
    shown = json.loads(
        flowvec("eval", "lexical", "mini", "sts", "--against", tiny_dir, "--json").stdout
    )
    assert [row["count"] for row in shown["rows"]] == [6, 3]
    assert shown["rows"][0]["cosine"].keys() == {"mini", "tiny"}
    assert [e["label"] for e in shown["encoders"]] == ["mini", "tiny"]


def test_the_same_bundle_twice_is_an_error(flowvec, tmp_path: Path) -> None:
    (tmp_path / "one.tsv").write_text("score\tsentence1\tsentence2\n1\ta\tb\n2\ta\tc\n")
    done = flowvec("eval", "lexical", "mini", ".", "--against", "mini")
    assert done.returncode == 2
    assert "given twice" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
