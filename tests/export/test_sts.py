"""STS: what the files may be, both aggregations, and the command."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("scipy", reason="needs the extra [bench]")

from flowvec import Encoder
from flowvec.errors import InputValueError
from flowvec_export.sts import (
    pair_cosines,
    positive_pairs,
    read_sts,
    score_sts,
    score_vectors,
    sentence_rows,
    spearman,
)

MINI = Path(__file__).resolve().parents[2] / "models/mini"
HEADER = "score\tsentence1\tsentence2\n"


def write_sts_set(folder: Path, name: str, rows: list[tuple[float, str, str]]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    lines = [f"{score}\t{left}\t{right}\n" for score, left, right in rows]
    (folder / f"{name}.tsv").write_text(HEADER + "".join(lines), encoding="utf-8")


# Sentences stand for angles, so that a cosine can be read off: the wider, the lower.
def at_angles(texts: list[str]) -> np.ndarray:
    angles = np.radians([float(text) for text in texts])
    return np.stack([np.cos(angles), np.sin(angles)], 1).astype(np.float32)


def agreeing(low: float, first: int, count: int) -> list[tuple[float, str, str]]:
    """Pairs whose cosines rise with their scores."""
    return [(low + i / count, "0", str(first + count - i)) for i in range(count)]


@pytest.fixture
def tasks(tmp_path: Path):
    # Each file agrees perfectly with its own scores, but small's cosines are all above large's
    # while its scores are all below.
    write_sts_set(tmp_path / "year", "large", agreeing(4, 60, 6))
    write_sts_set(tmp_path / "year", "small", agreeing(0, 10, 2))
    write_sts_set(tmp_path / "year", "reversed", [(5.0, "0", "80"), (4.0, "0", "70")])
    return read_sts(tmp_path / "year")


def test_one_folder_is_a_task_and_a_folder_of_folders_several(tmp_path: Path) -> None:
    for name in ("b", "a"):
        write_sts_set(tmp_path / "sets" / name, "two", [(1, "x", "y"), (2, "x", "z")])
    write_sts_set(tmp_path / "sets" / "a", "one", [(1, 'a "quoted', "y"), (2, "é", "")])
    (tmp_path / "sets" / "empty").mkdir()
    (task,) = read_sts(tmp_path / "sets" / "b")
    assert (task.name, list(task.subsets)) == ("b", ["two"])
    several = read_sts(tmp_path / "sets")
    assert [t.name for t in several] == ["a", "b"]
    assert list(several[0].subsets) == ["one", "two"]
    assert several[0].subsets["one"].left == ['a "quoted', "é"]
    assert several[0].subsets["one"].right == ["y", ""]
    assert several[0].subsets["one"].gold.tolist() == [1.0, 2.0]


def test_all_is_of_all_pairs_and_wmean_weights_the_files(tasks) -> None:
    (score,) = score_sts(tasks, at_angles)
    assert score.subsets == pytest.approx({"large": 100, "small": 100, "reversed": -100})
    assert score.pairs == {"large": 6, "small": 2, "reversed": 2}
    assert score.wmean == pytest.approx((6 * 100 + 2 * 100 - 2 * 100) / 10)
    gold = [4 + i / 6 for i in range(6)] + [5.0, 4.0] + [0, 0.5]
    cosine = np.cos(np.radians([66 - i for i in range(6)] + [80, 70] + [12, 11]))
    assert score.all == pytest.approx(spearman(gold, cosine))
    assert score.all < 0 < score.wmean


def test_sentences_are_embedded_once(tasks) -> None:
    calls: list[list[str]] = []

    def embed(texts: list[str]) -> np.ndarray:
        calls.append(texts)
        return at_angles(texts)

    score_sts([*tasks, *tasks], embed)
    assert len(calls) == 1
    assert len(calls[0]) == len(set(calls[0]))
    assert set(calls[0]) == {
        s for pairs in tasks[0].subsets.values() for s in (*pairs.left, *pairs.right)
    }


def test_many_matrices_are_scored_without_encoding_again(tasks) -> None:
    rows = sentence_rows(tasks)
    vectors = at_angles(list(rows))
    assert score_vectors(tasks, rows, vectors) == score_sts(tasks, at_angles)
    # Lengths do not matter to a cosine, nor does a rotation.
    lengths = np.random.default_rng(0).uniform(0.5, 20, (len(rows), 1))
    turned = vectors * lengths @ np.array([[0.0, 1.0], [-1.0, 0.0]])
    again = score_vectors(tasks, rows, turned)
    assert again[0].all == pytest.approx(score_vectors(tasks, rows, vectors)[0].all)
    with pytest.raises(InputValueError, match="sentences"):
        score_vectors(tasks, rows, vectors[:-1])


def test_a_zero_vector_has_the_cosine_zero(tasks) -> None:
    rows = sentence_rows(tasks)
    vectors = at_angles(list(rows))
    vectors[rows["0"]] = 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cosines = pair_cosines(tasks[0].subsets["large"], rows, vectors)
        (score,) = score_vectors(tasks, rows, vectors)
    assert cosines.tolist() == [0.0] * 6
    assert (score.all, score.wmean, score.subsets["small"]) == (0.0, 0.0, 0.0)


def test_spearman_is_of_ranks() -> None:
    assert spearman([1, 2, 3], [1, 100, 1e6]) == pytest.approx(100)
    assert spearman([1, 2, 3], [3, 2, 1]) == pytest.approx(-100)
    assert spearman([1, 1, 2], [1, 2, 3]) == pytest.approx(100 * np.sqrt(0.75))  # ties: mean rank
    assert spearman([1, 2, 3], [5, 5, 5]) == 0


def test_positive_pairs_are_those_above_four(tmp_path: Path) -> None:
    write_sts_set(tmp_path, "a", [(5, "a", "b"), (4, "a", "c"), (4.1, "c", "c"), (0, "b", "c")])
    tasks = read_sts(tmp_path)
    rows = sentence_rows(tasks)
    expected = [[rows["a"], rows["b"]], [rows["c"], rows["c"]]]
    assert positive_pairs(tasks, rows).tolist() == expected
    assert positive_pairs(tasks, rows, above=5).shape == (0, 2)


BAD = [
    (b"", "is empty"),
    (b"version https://git-lfs.github.com/spec/v1\noid sha256:01\n", "git lfs pull"),
    (b"1.0\ta\tb\n2.0\tc\td\n", "line 1 must be the header"),
    (HEADER.encode() + b"1.0\ta\tb\n2.0\tc\n", "line 3 has 2 columns"),
    (HEADER.encode() + b"1.0\ta\tb\n2.0\tc\td\te\n", "line 3 has 4 columns"),
    (HEADER.encode() + b"1.0\ta\tb\n\n2.0\tc\td\n", "line 3 has 1 columns"),
    (HEADER.encode() + b"1.0\ta\tb\nhigh\tc\td\n", "line 3: the score 'high'"),
    (HEADER.encode() + b"1.0\ta\tb\nnan\tc\td\n", "line 3: the score 'nan'"),
    (HEADER.encode() + b"1.0\ta\tb\n2.0\t\xff\td\n", "line 3 is not UTF-8"),
    (HEADER.encode() + b"1.0\ta\tb\n", "has 1 pairs"),
    (HEADER.encode(), "has 0 pairs"),
    (HEADER.encode() + b"3\ta\tb\n3\tc\td\n", "every score is 3"),
]


@pytest.mark.parametrize(("data", "part"), BAD, ids=[part for _, part in BAD])
def test_a_bad_file_is_named_with_its_line(tmp_path: Path, data: bytes, part: str) -> None:
    (tmp_path / "bad.tsv").write_bytes(data)
    with pytest.raises(InputValueError, match=r"bad\.tsv") as raised:
        read_sts(tmp_path)
    assert part in str(raised.value)


def test_windows_line_ends_and_a_byte_order_mark_are_read(tmp_path: Path) -> None:
    text = "\ufeff" + HEADER + "1\ta\tb\n2\tc\td"
    (tmp_path / "a.tsv").write_bytes(text.replace("\n", "\r\n").encode())
    assert read_sts(tmp_path)[0].subsets["a"].right == ["b", "d"]


@pytest.mark.parametrize("name", ["nowhere", "empty"])
def test_a_folder_without_files_is_an_error(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputValueError, match=name):
        read_sts(tmp_path / name)


def test_mini_has_the_scores_of_its_model_card(shared_data: Path, mini: Encoder) -> None:
    (task,) = read_sts(shared_data / "sts" / "STSB")
    assert {name: len(pairs) for name, pairs in task.subsets.items()} == {
        "dev": 1500,
        "test": 1379,
        "train": 5749,
    }
    task.subsets.pop("train")
    task.subsets.pop("test")
    (score,) = score_sts([task], mini.encode)
    evaluated = json.loads((MINI / "evaluation.json").read_text())
    assert round(score.subsets["dev"], 1) == evaluated["sts"]["mini"]["STS-B dev"]
    assert score.all == score.wmean == score.subsets["dev"]


def test_the_card_of_mini_shows_what_was_measured_of_it(mini: Encoder) -> None:
    evaluated = json.loads((MINI / "evaluation.json").read_text())
    assert evaluated["fingerprint"] == mini.fingerprint
    card = (MINI / "README.md").read_text(encoding="utf-8")
    for table in ("sts", "retrieval", "isotropy"):
        for system, figures in evaluated[table].items():
            assert f"| {' | '.join(map(str, [system, *figures.values()]))} |" in card


# --- the command ----------------------------------------------------------------------------------

PAIRS = [(5, "the cat sleeps", "a cat sleeps"), (1, "stocks fell", "the dog"), (3, "a man", "dog")]


def test_the_eval_sts_command_prints_the_table(
    flowvec, tmp_path: Path, tiny_dir, tiny: Encoder
) -> None:
    write_sts_set(tmp_path / "sets" / "A", "one", PAIRS)
    write_sts_set(tmp_path / "sets" / "A", "two", PAIRS[:2])
    write_sts_set(tmp_path / "sets" / "B", "one", PAIRS)
    done = flowvec("eval", "sts", tiny_dir, "sets", "--provider", "cpu", "--quiet")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    _, *lines, blank, engine = done.stdout.splitlines()
    info = tiny.info()
    assert (blank, engine) == ("", f"{info.name}: {info.provider}, {info.compute}")
    assert [line.split()[:3] for line in lines] == [
        ["A", "one", "3"],
        ["A", "two", "2"],
        ["A", "all", "5"],
        ["A", "wmean", "5"],
        ["B", "one", "3"],
        ["B", "all", "3"],
        ["B", "wmean", "3"],
    ]
    shown = json.loads(
        flowvec("eval", "sts", tiny_dir, "sets", "--json", "--provider", "cpu").stdout
    )
    expected = score_sts(read_sts(tmp_path / "sets"), tiny.encode)
    for task, score in zip(shown["tasks"], expected, strict=True):
        assert task["task"] == score.task
        assert task["all"] == pytest.approx(score.all)
        assert task["wmean"] == pytest.approx(score.wmean)
        assert task["subsets"] == pytest.approx(score.subsets)
    assert shown["encoder"]["provider"]
    assert shown["machine"]["packages"]["onnxruntime"]


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["TINY", "nowhere"], "nowhere is not a directory"),
        (["nowhere", "good"], "no bundle"),
        (["TINY", "bad"], "line 2 has 1 columns"),
        (["TINY", "good", "--compute", "int3"], "int3"),
    ],
)
def test_a_wrong_argument_is_one_line(flowvec, tmp_path: Path, tiny_dir, arguments, part) -> None:
    write_sts_set(tmp_path / "good", "one", PAIRS)
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "a.tsv").write_text(HEADER + "one\n")
    done = flowvec("eval", "sts", *[str(tiny_dir) if a == "TINY" else a for a in arguments])
    assert (done.returncode, done.stdout) == (2, "")
    assert part in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
