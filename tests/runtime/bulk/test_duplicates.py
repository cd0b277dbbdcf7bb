"""Bulk jobs whose rows have equal ids: each row is written, counted, or a dead letter."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowvec import Collection, Encoder
from flowvec.bulk import encode_files, verify_folder
from flowvec.errors import BulkError, InputValueError
from tests.drawing import examples
from tests.makers import write_jsonl
from tests.runtime.bulk.conftest import letters_of

RULES = ("last", "first", "dead-letter")


@pytest.fixture(autouse=True)
def windows_of_eight_rows(windows_of: Callable[[int], None]) -> None:
    """So that a small shard has several."""
    windows_of(8)


def write_rows(path: Path, ids: list[Any], first: int = 0) -> Path:
    rows = [{"id": key, "text": f"the cat {i}"} for i, key in enumerate(ids, first)]
    return write_jsonl(path, rows)


def written(folder: Path) -> list[tuple[Any, int]]:
    """Ids and numbers of the rows of a folder, in order."""
    lines = [
        json.loads(line)
        for part in sorted(folder.glob("part-*.rows.jsonl"))
        for line in part.read_text().splitlines()
    ]
    return [(line["id"], line["row"]) for line in lines]


def expected(ids: list[Any], rule: str) -> list[tuple[Any, int]]:
    kept: dict[Any, int] = {}
    for row, key in enumerate(ids):
        if rule == "last" or key not in kept:
            kept[key] = row
    return sorted(kept.items(), key=lambda item: item[1])


def test_duplicates_in_a_collection_are_reported(tmp_path: Path, flowvec, tiny_dir: Path) -> None:
    write_rows(tmp_path / "a.jsonl", [7, 7, 7])
    done = flowvec("encode", tiny_dir, "a.jsonl", "--into", "c", "--id-field", "id")
    assert done.returncode == 0, done.stderr
    assert "3 rows in, 1 x 16 float32 out" in done.stdout
    assert "2 left out as another row has the same id (7, ...)" in done.stdout
    with Collection.open(tmp_path / "c") as c:
        assert len(c) == 1
        assert c.get([7])[0].text == "the cat 2"


@examples(25)
@given(
    ids=st.lists(st.integers(0, 12) | st.sampled_from(["1", "x", "é"]), min_size=1, max_size=60),
    rule=st.sampled_from(RULES),
    rows_per_shard=st.integers(1, 30),
)
def test_duplicates_are_written_counted_or_dead_letters(
    tmp_path_factory: pytest.TempPathFactory, tiny: Encoder, ids: list[Any], rule: Any,
    rows_per_shard: int,
) -> None:  # fmt: skip
    # The type of a field is that of most of the first rows, so all ids are of one type here.
    ids = [key if isinstance(key, int) == isinstance(ids[0], int) else ids[0] for key in ids]
    folder = tmp_path_factory.mktemp("job")
    file, out = write_rows(folder / "a.jsonl", ids), folder / "out"
    done = encode_files(
        tiny, file, out, id_field="id", out_format="npy", on_duplicate=rule,
        rows_per_shard=rows_per_shard,
    )  # fmt: skip
    due = expected(ids, rule)
    repeats = len(ids) - len(due)
    assert written(out) == due
    vectors = np.concatenate([np.load(part) for part in sorted(out.glob("*.npy"))])
    texts = [f"the cat {row}" for _, row in due]
    np.testing.assert_allclose(vectors, tiny.encode(texts), atol=1e-5)
    assert (done.rows_in, done.rows) == (len(ids), len(due))
    if rule == "dead-letter":
        assert (done.duplicates, done.dead_letters) == (0, repeats)
        assert [letter["row"] for letter in letters_of(out)] == [
            row for row, key in enumerate(ids) if (key, row) not in due
        ]
        assert all(letter["id"] == ids[letter["row"]] for letter in letters_of(out))
        assert {letter["code"] for letter in letters_of(out)} <= {"duplicate_id"}
        for letter in letters_of(out):
            first = dict(due)[letter["id"]]
            assert letter["reason"] == f"its id is that of row {first} of {file}"
    else:
        assert (done.duplicates, done.dead_letters) == (repeats, 0)
        assert set(done.duplicate_ids) <= {key for key in ids if ids.count(key) > 1}
        assert bool(done.duplicate_ids) == bool(repeats)
    check = verify_folder(out)
    assert (check.problems, check.rows, check.duplicates) == ((), len(due), done.duplicates)
    again = encode_files(
        tiny, file, out, id_field="id", out_format="npy", on_duplicate=rule,
        rows_per_shard=rows_per_shard,
    )  # fmt: skip
    assert (again.encoded, again.duplicates, again.rows) == (0, done.duplicates, done.rows)


def test_duplicates_across_files_and_formats(tmp_path: Path, tiny: Encoder) -> None:
    arrow = pytest.importorskip("pyarrow", reason="needs the extra [files]")
    import pyarrow.parquet

    for name, keys in (("a", [1, 2, 3]), ("b", [3, 4, 1])):
        table = arrow.table({"id": keys, "text": [f"{name} {key}" for key in keys]})
        pyarrow.parquet.write_table(table, tmp_path / f"{name}.parquet")
    inputs = [tmp_path / "a.parquet", tmp_path / "b.parquet"]
    done = encode_files(tiny, inputs, tmp_path / "out", id_field="id")
    encoded = pyarrow.parquet.read_table(tmp_path / "out")
    assert encoded["id"].to_pylist() == [2, 3, 4, 1]
    assert (done.duplicates, done.duplicate_ids) == (2, (1, 3))
    encode_files(tiny, inputs, tmp_path / "dead", id_field="id", on_duplicate="dead-letter")
    assert [
        (x["source"], x["row"], x["id"], x["reason"]) for x in letters_of(tmp_path / "dead")
    ] == [
        (str(inputs[1]), 0, 3, f"its id is that of row 2 of {inputs[0]}"),
        (str(inputs[1]), 2, 1, f"its id is that of row 0 of {inputs[0]}"),
    ]
    (tmp_path / "c.csv").write_text("id,text\n01,a\n1,b\n01,c\n")
    encode_files(tiny, tmp_path / "c.csv", tmp_path / "csv", id_field="id", out_format="npy")
    assert written(tmp_path / "csv") == [("1", 1), ("01", 2)]


def test_nothing_is_written_if_duplicates_are_an_error(tmp_path: Path, tiny: Encoder) -> None:
    file = write_rows(tmp_path / "a.jsonl", [*range(20), 5, 3])
    with pytest.raises(BulkError, match=r"row 20: its id 5 .*2 in all"):
        encode_files(
            tiny, file, tmp_path / "out", id_field="id", on_duplicate="error", out_format="npy"
        )
    assert not (tmp_path / "out").exists()
    with pytest.raises(InputValueError, match="on_duplicate must be one of"):
        encode_files(tiny, file, tmp_path / "out", id_field="id", out_format="npy",
                     on_duplicate="both")  # type: ignore[arg-type]  # fmt: skip


def test_ids_that_become_one_text_are_duplicates(tmp_path: Path, tiny: Encoder) -> None:
    arrow = pytest.importorskip("pyarrow.parquet", reason="needs the extra [files]")
    file = write_rows(tmp_path / "a.jsonl", [1, "1", 2, "x"])
    done = encode_files(tiny, file, tmp_path / "out", id_field="id")
    assert arrow.read_table(tmp_path / "out")["id"].to_pylist() == ["1", "2", "x"]
    assert done.duplicates == 1
    done = encode_files(tiny, file, tmp_path / "c", id_field="id", out_format="collection")
    assert done.duplicates == 0
    with Collection.open(tmp_path / "c") as c:
        assert [item.id for item in c.get([1, "1", 2, "x"])] == [1, "1", 2, "x"]


def test_dead_letters_are_not_duplicates(tmp_path: Path, tiny: Encoder) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text('{"id": 1, "text": "a cat"}\n{"id": 1, "text": null}\n')
    done = encode_files(tiny, file, tmp_path / "out", id_field="id", out_format="npy")
    assert (done.rows, done.dead_letters, done.duplicates) == (1, 1, 0)


@pytest.mark.parametrize("rule", RULES)
def test_shares_leave_out_the_duplicates_that_one_job_does(
    tmp_path: Path, tiny: Encoder, rule: Any
) -> None:
    file = write_rows(tmp_path / "a.jsonl", [i % 23 for i in range(60)])
    options: dict[str, Any] = {"id_field": "id", "out_format": "npy", "rows_per_shard": 7,
                               "on_duplicate": rule}  # fmt: skip
    encode_files(tiny, file, tmp_path / "one", **options)
    for index in (2, 1, 3):
        encode_files(tiny, file, tmp_path / "shares", share=(index, 3), **options)
    assert written(tmp_path / "shares") == written(tmp_path / "one")
    assert not verify_folder(tmp_path / "shares").problems


def test_a_job_does_not_resume_with_another_duplicate_rule(tmp_path: Path, tiny: Encoder) -> None:
    file = write_rows(tmp_path / "a.jsonl", [1, 2, 1])
    encode_files(tiny, file, tmp_path / "out", id_field="id", out_format="npy")
    with pytest.raises(BulkError, match=r"on_duplicate .*last.*first"):
        encode_files(tiny, file, tmp_path / "out", id_field="id", out_format="npy",
                     on_duplicate="first")  # fmt: skip


@pytest.mark.parametrize("rule", [None, "first", "dead-letter", "error", "last"])
def test_duplicates_on_stdin(flowvec, tmp_path: Path, tiny_dir: Path, rule: str | None) -> None:
    given = b"".join(b'{"id": %d, "text": "the cat %d"}\n' % (i % 30, i) for i in range(50))
    words = ["encode", tiny_dir, "-", "--format", "jsonl", "--id-field", "id", "-o", "out",
             "--out-format", "npy"]  # fmt: skip
    if rule is not None:
        words += ["--on-duplicate", rule]
    done = flowvec(*words, stdin=given)
    if rule == "last":
        assert done.returncode == 2
        assert "cannot be read twice" in done.stderr
    elif rule == "error":
        assert done.returncode == 2
        assert "row 30: its id is that of row 0 of standard input (0)" in done.stderr
    else:
        assert done.returncode == 0, done.stderr
        assert written(tmp_path / "out") == [(i, i) for i in range(30)]
        assert len(letters_of(tmp_path / "out")) == (20 if rule == "dead-letter" else 0)
        said = "20 dead letters (20 duplicate_id)" if rule == "dead-letter" else "20 left out"
        assert said in done.stdout


def test_duplicates_on_stdin_into_a_collection(flowvec, tmp_path: Path, tiny_dir: Path) -> None:
    lines = [b'{"id": %d, "text": "the cat %d"}\n' % (i % 3000, i) for i in range(5000)]
    lines.insert(10, b'{"id": 4, "text": "again at once"}\n')
    words = ["encode", tiny_dir, "-", "--format", "jsonl", "--id-field", "id", "--into", "c"]
    done = flowvec(*words, stdin=b"".join(lines))
    assert done.returncode == 0, done.stderr
    assert "5001 rows in, 3000 x 16 float32 out, 2001 left out" in done.stdout
    with Collection.open(tmp_path / "c") as c:
        assert len(c) == 3000
        assert [item.text for item in c.get([4, 1999, 2999])] == [
            "the cat 3004", "the cat 4999", "the cat 2999"
        ]  # fmt: skip
