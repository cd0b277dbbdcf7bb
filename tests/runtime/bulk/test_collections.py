"""Files into a collection: with a journal, or comparing rows."""

from __future__ import annotations

import json
import math
import random
import shutil
import threading
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from flowvec import Collection, Encoder
from flowvec.bulk import BulkSummary, encode_files
from flowvec.errors import BulkError, FingerprintMismatchError, InputValueError
from flowvec.texts.window import WINDOW
from tests.makers import texts_of, write_jsonl
from tests.runtime.bulk.conftest import StopAfter, letters_of

Row = dict[str, Any]


@pytest.fixture
def index(tmp_path: Path, tiny: Encoder):
    """Writes rows to a file, and adds them to the collection `c`."""

    def run(*rows: Row, **options: Any) -> BulkSummary:
        file = write_jsonl(tmp_path / "rows.jsonl", list(rows))
        given = {"id_field": "id", "keep": ["n"], "out_format": "collection", **options}
        return encode_files(tiny, file, tmp_path / "c", skip_unchanged=True, **given)

    return run


def content(folder: Path) -> dict[Any, tuple[str | None, Any]]:
    with Collection.open(folder) as collection:
        return {item.id: (item.text, item.metadata) for item in collection.rows()}


def counts(done: BulkSummary) -> tuple[int, int, int]:
    """Rows that were encoded, that were there, and that replaced another."""
    return done.encoded, done.unchanged, done.overwritten


def test_skip_unchanged_encodes_only_new_and_changed_rows(index, tmp_path: Path) -> None:
    rows = [{"id": f"k{i}", "text": f"text {i}", "n": i} for i in range(5)]
    assert counts(index(*rows[:3])) == (3, 0, 0)
    done = index(*rows)
    assert counts(done) == (2, 3, 0)
    assert (done.rows_in, done.rows, done.complete) == (5, 5, True)
    assert counts(index(*rows)) == (0, 5, 0)
    changed = [{**rows[0], "text": "other"}, {**rows[1], "n": -1}, *rows[2:]]
    assert counts(index(*changed)) == (2, 3, 2)
    assert content(tmp_path / "c") == {r["id"]: (r["text"], {"n": r["n"]}) for r in changed}
    assert sorted(file.name for file in tmp_path.iterdir()) == ["c", "rows.jsonl"]


def test_skip_unchanged_compares_kept_fields(index, tmp_path: Path, tiny: Encoder) -> None:
    row = {"id": 1, "text": "a \ud800 text", "n": None, "lang": "en"}
    surrogate = {**row, "lang": ["\udfff"]}
    index(surrogate, keep=["lang"])
    assert index(surrogate, keep=["lang"]).unchanged == 1
    assert content(tmp_path / "c") == {1: ("a \ufffd text", {"lang": ["\ufffd"]})}
    index(row, keep=["lang", "n"])
    assert content(tmp_path / "c") == {1: ("a \ufffd text", {"lang": "en"})}
    # A null field equals a missing one, and a field that is not kept does not count.
    del row["n"]
    assert index({**row, "other": 3}, {"id": 2, "text": "b", "n": 1}, keep=["lang", "n"]
                 ).unchanged == 1  # fmt: skip
    assert index({**row, "lang": "de"}, keep=[]).unchanged == 1
    assert content(tmp_path / "c")[1] == ("a \ufffd text", {"lang": "en"})
    # Rows that were added otherwise may hold nulls, or no metadata.
    with Collection.open(tmp_path / "c", encoder=tiny) as collection:
        collection.add([2, 3], ["b", "c"], [{"n": None, "lang": "en"}, None])
    more: list[Row] = [{"id": 2, "text": "b", "lang": "en"}, {"id": 3, "text": "c"}]
    assert index(row, *more, keep=["lang"]).unchanged == 3
    # 1 and "1" are two ids.
    assert counts(index({**row, "id": "1"}, keep=["lang"])) == (1, 0, 0)


@pytest.mark.parametrize("first", [0, "zero"])
@pytest.mark.parametrize("skip_unchanged", [True, False])
def test_ids_may_be_texts_and_numbers_of_any_size_with_skip_unchanged_or_without(
    tmp_path: Path, tiny: Encoder, first: Any, skip_unchanged: bool
) -> None:
    """Whatever ids the first rows have."""
    ids = [first] * 3 + [1] * 2 + list(range(2, WINDOW)) + ["1", 2, "x", 10**30, -5, 10**30, "x"]
    file = write_jsonl(tmp_path / "a.jsonl", [{"id": k, "text": f"{i}"} for i, k in enumerate(ids)])
    done = encode_files(tiny, file, tmp_path / "c", id_field="id", out_format="collection",
                        skip_unchanged=skip_unchanged)  # fmt: skip
    expected = {key: (str(i), None) for i, key in enumerate(ids)}  # of equal ids the last
    assert content(tmp_path / "c") == expected
    assert (done.dead_letters, done.rows) == (0, len(expected))
    assert done.duplicates == len(ids) - len(expected)


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


# None stands for a missing field, which is stored as a null one is.
VALUES = [2**53 + 1, 1.5, 2020, 2020.0, 1, 1.0, True, "1", "", "\ud800", -0.0, 1e300, 2**63, 10**30,
          [1, 1.0, None, "x"], {"a": {"b": [True, 2**60]}}, nested(99), None]  # fmt: skip
REFUSED = [math.nan, -math.inf, [1, math.nan], {"a": [math.inf]}, nested(100)]


@pytest.mark.usefixtures("small_windows")
@pytest.mark.parametrize("skip_unchanged", [True, False])
@pytest.mark.parametrize("first", [7, 0.5, "a", [1]], ids=["whole", "number", "text", "list"])
def test_each_row_of_a_collection_keeps_its_own_value_and_type(
    tmp_path: Path, tiny: Encoder, first: Any, skip_unchanged: bool
) -> None:
    """As `Collection.add` stores it, whatever the first rows and earlier files have.

    Except that a job replaces lone surrogates, as in texts, and `add` refuses them.
    """
    mixed = [first] * 60 + VALUES + REFUSED
    random.Random(len(str(first))).shuffle(mixed)
    # The first windows and the last have one type each.
    values = [first] * 40 + mixed + [2**53 + 1] * 32 + [2020.0] * 32
    rows = [{"id": i, "text": "a cat", **({} if v is None else {"n": v})}
            for i, v in enumerate(values)]  # fmt: skip
    files = [write_jsonl(tmp_path / "a.jsonl", rows[:30]),
             write_jsonl(tmp_path / "b.jsonl", rows[30:])]  # fmt: skip
    options: dict[str, Any] = {"id_field": "id", "keep": ["n"], "out_format": "collection"}
    job = partial(encode_files, tiny, files, tmp_path / "c", skip_unchanged=skip_unchanged,
                  **options)  # fmt: skip
    done = job()
    with Collection.create(tmp_path / "added", encoder=tiny) as added:
        for row in rows:
            metadata = {n: "\ufffd" if v == "\ud800" else v for n, v in row.items() if n == "n"}
            try:
                added.add([row["id"]], ["a cat"], [metadata])
            except InputValueError:
                continue
    # Compared as JSON, in which 1, 1.0 and true differ.
    expected = content(tmp_path / "added")
    assert list(map(json.dumps, content(tmp_path / "c").items())) == (
        list(map(json.dumps, expected.items()))
    )
    assert (done.dead_letters, done.rows) == (len(REFUSED), len(values) - len(REFUSED))
    if skip_unchanged:
        assert job().encoded == 0


def test_a_value_of_another_type_is_a_change(index, tmp_path: Path) -> None:
    for value in (1, 1.0, True):
        assert index({"id": 1, "text": "a", "n": value}).encoded == 1
        assert repr(content(tmp_path / "c")[1][1]) == repr({"n": value})


@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet"])
def test_a_kept_field_may_be_missing(tmp_path: Path, tiny: Encoder, kind: str) -> None:
    """From rows, and from files. What no row has is named, as it may be misspelt."""
    tables: list[dict[str, list[Any]]] = [
        {"id": ["a"], "text": ["x"], "n": ["7"]}, {"id": ["b"], "text": ["y"]},
        {"id": ["c"], "text": ["z"], "n": ["8"] if kind == "csv" else [8]},
    ]  # fmt: skip
    files = []
    for number, table in enumerate(tables):
        file = tmp_path / f"{number}.{kind}"
        rows = [dict(zip(table, row, strict=True)) for row in zip(*table.values(), strict=True)]
        if kind == "parquet":
            pa = pytest.importorskip("pyarrow.parquet", reason="needs the extra [files]")
            pa.write_table(pytest.importorskip("pyarrow").table(table), file)
        elif kind == "csv":
            lines = [",".join(table), *(",".join(map(str, row.values())) for row in rows)]
            file.write_text("\n".join(lines))
        else:
            write_jsonl(file, rows)
        files.append(file)
    for order in (files, files[::-1]):
        done = encode_files(tiny, order, tmp_path / "c", id_field="id", keep=["n", "nn"],
                            out_format="collection", skip_unchanged=True)  # fmt: skip
        assert (done.rows, done.dead_letters, done.absent_fields) == (3, 0, ("nn",))
    assert content(tmp_path / "c") == {
        "a": ("x", {"n": "7"}), "b": ("y", {}), "c": ("z", {"n": tables[2]["n"][0]})
    }  # fmt: skip
    with pytest.raises(InputValueError, match=r"no (field|column) 'key'"):
        encode_files(tiny, files, tmp_path / "d", id_field="key", out_format="collection")


def test_skip_unchanged_compares_the_last_of_duplicates(index, tmp_path: Path) -> None:
    old, new = {"id": 1, "text": "old", "n": 1}, {"id": 1, "text": "new", "n": 1}
    assert (index(old, new).encoded, index(old, new).encoded) == (1, 0)
    assert content(tmp_path / "c") == {1: ("new", {"n": 1})}
    done = index(new, old)
    assert (counts(done), done.duplicates) == ((1, 0, 1), 1)
    assert content(tmp_path / "c") == {1: ("old", {"n": 1})}


def test_skip_unchanged_on_stdin_takes_the_last_of_duplicates(
    tmp_path: Path, tiny_dir: Path, flowvec: Any
) -> None:
    """The second row may be compared before the first, which changes the text, is written."""

    def index(rows: list[Row]) -> SimpleNamespace:
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        done = flowvec("encode", tiny_dir, "-", "--format", "jsonl", "--id-field", "id",
                       "--into", "c", "--skip-unchanged", "--json", stdin=lines)  # fmt: skip
        assert done.returncode == 0, done.stderr
        return SimpleNamespace(**json.loads(done.stdout))

    first = {"id": "a", "text": "first"}
    assert index([first]).encoded == 1
    fill = [{"id": f"f{i}", "text": "x"} for i in range(WINDOW)]
    done = index([{"id": "a", "text": "second"}, *fill, first])
    assert content(tmp_path / "c")["a"] == ("first", None)
    assert (done.rows_in, done.rows, done.duplicates) == (WINDOW + 2, WINDOW + 1, 1)
    done = index([first, *fill, first])
    assert (done.rows_in, done.unchanged, done.duplicates) == (WINDOW + 2, WINDOW + 1, 1)
    done = index([first, *fill, {"id": "a", "text": "second"}])
    assert content(tmp_path / "c")["a"] == ("second", None)
    assert (done.rows_in, done.encoded, done.duplicates) == (WINDOW + 2, 1, 1)


@pytest.mark.usefixtures("small_windows")
def test_skip_unchanged_resumes_with_what_is_missing(
    tmp_path: Path, tiny: Encoder, many: Path
) -> None:
    options: dict[str, Any] = {"out_format": "collection", "skip_unchanged": True}
    stop = threading.Event()

    def on_progress(progress: Any) -> None:
        if progress.rows >= 100:
            stop.set()

    first = encode_files(tiny, many, tmp_path / "c", stop=stop, on_progress=on_progress, **options)
    assert not first.complete
    there = len(content(tmp_path / "c"))
    assert 100 <= there < 941
    second = encode_files(tiny, many, tmp_path / "c", **options)
    assert (second.complete, second.unchanged) == (True, there)
    whole = tmp_path / "whole"
    encode_files(tiny, many, whole, **options)
    assert content(tmp_path / "c") == content(whole)


def test_skip_unchanged_writes_the_dead_letters_of_the_last_run_beside_the_collection(
    index, tmp_path: Path
) -> None:
    file = tmp_path / "c.dead_letter.jsonl"
    done = index({"id": 1, "text": "a", "n": 1}, {"id": 2, "text": None, "n": 1})
    assert (done.rows, done.dead_letters, done.codes) == (1, 1, {"null": 1})
    (letter,) = map(json.loads, file.read_text().splitlines())
    assert (letter["id"], letter["row"], letter["code"]) == (2, 1, "null")
    index({"id": 1, "text": "a", "n": 1}, {"id": 2, "text": "b", "n": 1})
    assert not file.exists()
    rows = [{"id": 0, "text": None, "n": 1}, *({"id": i, "text": "a", "n": 1} for i in range(1, 9))]
    assert index(*rows, rows_per_shard=2).dead_letters == 1
    (letter,) = map(json.loads, file.read_text().splitlines())
    assert letter["id"] == 0
    with pytest.raises(BulkError, match="row 0: text is null"):
        index({"id": 3, "text": None, "n": 1}, strict=True)


def test_blank_lines_are_not_rows_of_a_collection(tmp_path: Path, tiny: Encoder) -> None:
    (tmp_path / "a.txt").write_bytes(b"one\n\n  \ntwo\n\xff\n\n")
    for name, more in (("compared", {"skip_unchanged": True}), ("journal", {})):
        done = encode_files(tiny, tmp_path / "a.txt", tmp_path / name, out_format="collection",
                            **more)  # fmt: skip
        assert (done.rows_in, done.rows, done.dead_letters, done.blank) == (3, 2, 1, 3)
        assert content(tmp_path / name) == {0: ("one", None), 3: ("two", None)}
    done = encode_files(tiny, tmp_path / "a.txt", tmp_path / "vectors", out_format="npy")
    assert (done.rows, done.blank) == (5, 0)


def test_skip_unchanged_is_refused_where_it_cannot_apply(
    index, tmp_path: Path, tiny: Encoder, nan_dir
) -> None:
    for options, message in (
        ({"out_format": "npy"}, "only a collection can skip"),
        ({"share": (1, 2)}, "cannot be divided into shares"),
        ({"precision": "binary"}, "float32 or float16"),
        ({"text_field": "body"}, "no field 'body'"),
    ):
        with pytest.raises(InputValueError, match=message):
            index({"id": 1, "text": "a", "n": 1}, **options)
    assert not (tmp_path / "c").exists()
    index({"id": 1, "text": "a", "n": 1})
    with Encoder.load(nan_dir, provider="cpu") as other, pytest.raises(FingerprintMismatchError):
        encode_files(other, tmp_path / "rows.jsonl", tmp_path / "c", out_format="collection",
                     id_field="id", skip_unchanged=True)  # fmt: skip


def test_vectors_go_into_a_collection(tmp_path: Path, tiny: Encoder) -> None:
    texts = texts_of(60)
    file = write_jsonl(
        tmp_path / "a.jsonl",
        [{"key": f"k{i}", "text": t, "n": i, "tags": ["x", i]} for i, t in enumerate(texts)]
        + [{"key": "bad", "text": None}],
    )
    options: dict[str, Any] = {"id_field": "key", "keep": ["n", "tags"], "out_format": "collection",
                               "rows_per_shard": 25}  # fmt: skip
    done = encode_files(tiny, file, tmp_path / "c", **options)
    assert (done.rows, done.dead_letters, done.shards) == (60, 1, 3)
    with Collection.open(tmp_path / "c", encoder=tiny) as c:
        assert len(c) == 60
        (item,) = c.get(["k7"])
        assert item is not None
        assert (item.text, item.metadata) == (texts[7], {"n": 7, "tags": ["x", 7]})
        np.testing.assert_allclose(item.vector, tiny.encode(texts[7]), atol=1e-5)
        assert c.search(item.vector, 1)[0].text == texts[7]
    (letter,) = letters_of(tmp_path / "c.job")
    assert letter["id"] == "bad"
    assert encode_files(tiny, file, tmp_path / "c", **options).encoded == 0


def test_a_dead_letter_of_the_model_is_not_in_the_collection(tmp_path: Path, nan_dir: Path) -> None:
    (tmp_path / "a.txt").write_text("cat\nnan\ndog\n")
    with Encoder.load(nan_dir, provider="cpu") as encoder:
        encode_files(encoder, tmp_path / "a.txt", tmp_path / "c", out_format="collection")
    with Collection.open(tmp_path / "c") as c:
        assert [item and item.text for item in c.get([0, 1, 2])] == ["cat", None, "dog"]


@pytest.mark.usefixtures("small_windows")
def test_a_job_into_a_collection_resumes(tmp_path: Path, tiny: Encoder, many: Path) -> None:
    options: dict[str, Any] = {"out_format": "collection", "rows_per_shard": 24}
    stop = StopAfter(tmp_path / "c.job", 1)
    first = encode_files(tiny, many, tmp_path / "c", stop=stop, **options)
    assert not first.complete
    assert encode_files(tiny, many, tmp_path / "c", **options).complete
    with Collection.open(tmp_path / "c") as c:
        assert len(c) == 941
    other = write_jsonl(many.parent / "other.jsonl", [{"text": "x"}])
    with pytest.raises(BulkError, match="Give --skip-unchanged"):
        encode_files(tiny, other, tmp_path / "c", **options)
    with pytest.raises(InputValueError, match="float32 or float16"):
        encode_files(tiny, many, tmp_path / "d", precision="binary", **options)


@pytest.mark.parametrize("shares", [1, 2])
def test_rows_of_a_collection_that_was_deleted_are_added_again(
    tmp_path: Path, tiny: Encoder, shares: int
) -> None:
    file = write_jsonl(tmp_path / "rows.jsonl", [{"id": i, "text": f"t{i}"} for i in range(4)])
    for _ in range(2):
        for index in range(1, shares + 1):
            encode_files(
                tiny, file, tmp_path / "c", id_field="id", out_format="collection",
                rows_per_shard=2, share=(index, shares),
            )  # fmt: skip
        assert {0, 1, 2, 3} <= set(content(tmp_path / "c"))
        shutil.rmtree(tmp_path / "c")
        other = write_jsonl(tmp_path / "other.jsonl", [{"id": "a", "text": "t"}])
        options = {"id_field": "id", "out_format": "collection"}
        encode_files(tiny, other, tmp_path / "c", skip_unchanged=True, **options)
    encode_files(tiny, file, tmp_path / "c", **options)
    assert set(content(tmp_path / "c")) == {0, 1, 2, 3, "a"}
