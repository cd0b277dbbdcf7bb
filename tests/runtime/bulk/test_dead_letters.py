"""Rows that cannot be embedded are named, and affect no other row."""

from __future__ import annotations

import json
import random
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flowvec import Collection, Encoder
from flowvec.bulk import encode_files
from flowvec.errors import BulkError, InputTypeError, InputValueError
from tests.makers import texts_of, write_jsonl
from tests.runtime.bulk.conftest import letters_of, npy_of

POISON = [
    ("null", b'{"id": "a", "text": null}'),
    ("nan", b'{"id": "b", "text": NaN}'),
    ("not_text", b'{"id": "c", "text": 7}'),
    ("not_text", b'{"id": "d", "text": true}'),
    ("not_text", b'{"id": "e", "text": ["nested"]}'),
    ("not_text", b'{"id": "f", "text": {"x": 1}}'),
    ("missing_field", b'{"id": "g"}'),
    ("malformed", b'{"id": "h", "text": '),
    ("malformed", b"[1, 2]"),
    ("malformed", b"[" * 100_000),
    ("malformed", b'{"id": "i", "text": ' + b"9" * 5000 + b"}"),
    ("invalid_utf8", b'{"id": "j", "text": "\xff"}'),
    ("too_large", b'{"id": "k", "text": "' + b"x" * 200_000 + b'"}'),
    ("bad_id", b'{"id": null, "text": "the cat"}'),
    ("bad_id", b'{"id": 1.5, "text": "the cat"}'),
    ("bad_field", b'{"id": 5, "text": "the cat"}'),
    ("bad_field", b'{"id": "l", "text": "the cat", "n": "seven"}'),
    ("bad_field", b'{"id": "m", "text": "the cat", "n": 18446744073709551616}'),
    ("too_long", b'{"id": "n", "text": "' + b"cat " * 400 + b'"}'),
]


@pytest.mark.usefixtures("small_windows")
@pytest.mark.parametrize("seed", range(3))
def test_every_poisoned_row_is_a_dead_letter_and_affects_no_other(
    tmp_path: Path, tiny: Encoder, seed: int
) -> None:
    rng = random.Random(seed)
    texts = texts_of(80, seed, most=8)
    good = [
        json.dumps({"id": f"good {i}", "text": t, "n": i}).encode() for i, t in enumerate(texts)
    ]
    lines = [(None, line) for line in good]
    for i, (code, line) in enumerate(rng.choices(POISON, k=60) + POISON):
        named = line.replace(b'"id": "n"', b'"id": "n%d"' % i)  # no two texts have one id
        lines.insert(rng.randrange(1, len(lines)), (code, named))
    blanks = 3
    for _ in range(blanks):
        lines.insert(rng.randrange(1, len(lines)), ("blank", rng.choice([b"", b"  "])))
    (tmp_path / "a.jsonl").write_bytes(b"\n".join(line for _, line in lines))
    done = encode_files(
        tiny, tmp_path / "a.jsonl", tmp_path / "out", id_field="id", keep=["n"], out_format="npy",
        rows_per_shard=37, truncation="error", max_text_bytes=150_000,
    )  # fmt: skip
    vectors, rows = npy_of(tmp_path / "out")
    assert [row["id"] for row in rows] == [f"good {i}" for i in range(80)]
    assert [row["n"] for row in rows] == list(range(80))
    np.testing.assert_allclose(vectors, tiny.encode(texts), atol=1e-5)
    dead_letters = letters_of(tmp_path / "out")
    bad = [(row, code) for row, (code, _) in enumerate(lines) if code not in (None, "blank")]
    assert [(letter["row"], letter["code"]) for letter in dead_letters] == bad
    assert {letter["source"] for letter in dead_letters} == {str(tmp_path / "a.jsonl")}
    assert all(letter["reason"] for letter in dead_letters)
    assert (done.rows_in, done.rows, done.dead_letters, done.blank) == (
        80 + len(bad), 80, len(bad), blanks)  # fmt: skip
    assert sum(done.codes.values()) == len(bad)
    for letter in dead_letters:
        if letter["code"] in ("null", "nan", "too_long"):
            assert letter["id"][0] in "abn"
        if letter["code"] == "bad_id":  # and no row number in its place
            assert letter["id"] is None
        assert not any(word in letter["reason"] for word in ("int64", "double", "something"))
    reasons = {letter["reason"] for letter in dead_letters if letter["code"] == "bad_field"}
    assert "n is a text, and a whole number in most rows" in reasons


def test_dead_letters_of_csv(tmp_path: Path, tiny: Encoder) -> None:
    (tmp_path / "a.csv").write_bytes(
        b"id,text\n1,the cat\n,no id\n2\n3,a,b\n\"\",no id\n4,\xff\n5,\"two\nlines\"\n6,\"x\"y\n"
        + b"\n7,"
        + b"z" * 3000
        + b"\n8,a dog\n9,\"open\n"
    )  # fmt: skip
    done = encode_files(
        tiny, tmp_path / "a.csv", tmp_path / "out", id_field="id", out_format="npy",
        max_text_bytes=2000,
    )  # fmt: skip
    vectors, rows = npy_of(tmp_path / "out")
    assert [row["id"] for row in rows] == ["1", "5", "8"]
    expected = tiny.encode(["the cat", "two\nlines", "a dog"])
    np.testing.assert_allclose(vectors, expected, atol=1e-5)
    letters = letters_of(tmp_path / "out")
    assert {x["reason"] for x in letters if x["code"] == "bad_id"} == {
        "id is missing, and an id is a text or a whole number"
    }
    codes = [letter["code"] for letter in letters]
    assert codes == [
        "bad_id",
        "malformed",
        "malformed",
        "bad_id",
        "invalid_utf8",
        "malformed",
        "too_large",
        "malformed",
    ]
    assert done.rows_in == 11


def test_dead_letters_of_parquet(tmp_path: Path, tiny: Encoder, arrow) -> None:
    import pyarrow as pa

    raw = [b"the cat", None, b"\xff\xfe", b"x" * 3000, b"a dog"]
    texts = pa.array(raw, pa.binary()).view(pa.string())
    table = pa.table({"text": texts, "key": ["a", "b", "c", "d", None], "n": [1, 2, 3, 4, 5]})
    arrow.write_table(table, tmp_path / "a.parquet")
    encode_files(
        tiny, tmp_path / "a.parquet", tmp_path / "out", id_field="key", keep=["n"],
        max_text_bytes=2000,
    )  # fmt: skip
    encoded = arrow.read_table(tmp_path / "out/part-000000.parquet")
    assert encoded["id"].to_pylist() == ["a"]
    assert encoded["n"].to_pylist() == [1]
    dead_letters = letters_of(tmp_path / "out")
    assert [(x["row"], x["code"], x["id"]) for x in dead_letters] == [
        (1, "null", "b"), (2, "invalid_utf8", "c"), (3, "too_large", "d"), (4, "bad_id", None)
    ]  # fmt: skip


def test_bytes_and_durations_are_refused_where_values_become_json(
    tmp_path: Path, tiny: Encoder, arrow
) -> None:
    """With row and field; a file of Arrow's types holds them."""
    import pyarrow as pa

    second = timedelta(seconds=1)
    columns: dict[str, Any] = {
        "raw": pa.array([b"1", None, None, None, None]),
        "took": pa.array([None, second, None, None, None], pa.duration("ms")),
        "parts": pa.array([None, None, [{"raw": b"1"}], None, [{"raw": None}]]),
        "day": pa.array([None, None, None, date(2026, 1, 2), None]),
    }
    ids = list(range(5))
    texts = ["a cat"] * 5
    table = pa.table({"id": ids, "text": texts, **columns})
    arrow.write_table(table, tmp_path / "a.parquet")
    options: dict[str, Any] = {"id_field": "id", "keep": list(columns)}
    for name in ("npy", "collection"):
        encode_files(tiny, tmp_path / "a.parquet", tmp_path / name, out_format=name, **options)
        folder = tmp_path / ("collection.job" if name == "collection" else name)
        told = [(x["row"], x["code"], x["reason"].split(",")[0]) for x in letters_of(folder)]
        assert told == [
            (0, "bad_field", "raw holds bytes"), (1, "bad_field", "took holds a duration"),
            (2, "bad_field", "parts holds bytes"),
        ]  # fmt: skip
    with Collection.open(tmp_path / "collection") as collection:
        assert [item.metadata for item in collection.rows()] == [
            {"day": "2026-01-02"}, {"parts": [{"raw": None}]}
        ]  # fmt: skip
    assert encode_files(tiny, tmp_path / "a.parquet", tmp_path / "v.parquet", **options).rows == 5
    for name, row, kind in (("raw", 0, "bytes"), ("took", 1, "timedelta"), ("parts", 2, "bytes")):
        vectors = pa.array([[1.0, 0.0]] * 5)
        taken = pa.table({"id": ids, "vector": vectors, name: columns[name]})
        arrow.write_table(taken, tmp_path / "b.parquet")
        with pytest.raises(InputTypeError, match=rf"b\.parquet, row {row}: {name} is {kind}"):
            Collection.from_parquet(tmp_path / "c", tmp_path / "b.parquet")
        assert not (tmp_path / "c").exists()


def test_dead_letters_of_txt(tmp_path: Path, tiny: Encoder) -> None:
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfthe cat\r\n\xff\n\n" + b"y" * 3000 + b"\na dog")
    done = encode_files(
        tiny, tmp_path / "a.txt", tmp_path / "out", out_format="npy", max_text_bytes=2000
    )
    vectors, rows = npy_of(tmp_path / "out")
    assert [row["row"] for row in rows] == [0, 2, 4]  # a blank line is an empty text
    np.testing.assert_allclose(vectors, tiny.encode(["the cat", "", "a dog"]), atol=1e-5)
    codes = [(letter["row"], letter["code"]) for letter in letters_of(tmp_path / "out")]
    assert codes == [(1, "invalid_utf8"), (3, "too_large")]
    assert done.rows_in == 5


@pytest.mark.parametrize("dedupe", [False, True])
def test_a_text_for_which_the_model_gives_nan_is_a_dead_letter(
    tmp_path: Path, nan_dir: Path, dedupe: bool
) -> None:
    texts = ["cat", "nan", "dog", "nan", "cat"]
    (tmp_path / "a.txt").write_text("\n".join(texts))
    with Encoder.load(nan_dir, provider="cpu") as encoder:
        encode_files(encoder, tmp_path / "a.txt", tmp_path / "out", out_format="npy", dedupe=dedupe)
        expected = encoder.encode(["cat", "dog", "cat"])
    np.testing.assert_allclose(npy_of(tmp_path / "out")[0], expected, atol=1e-5)
    dead_letters = letters_of(tmp_path / "out")
    assert [(x["row"], x["id"], x["code"]) for x in dead_letters] == [
        (1, 1, "non_finite"), (3, 3, "non_finite")]  # fmt: skip


def test_strict_stops_at_the_first_dead_letter(tmp_path: Path, tiny: Encoder) -> None:
    rows: list[Any] = [{"text": "the cat"}] * 25
    rows[13] = {"text": None}
    write_jsonl(tmp_path / "a.jsonl", rows)
    with pytest.raises(BulkError, match=r"a\.jsonl, row 13: .*null"):
        encode_files(
            tiny, tmp_path / "a.jsonl", tmp_path / "out", out_format="npy", rows_per_shard=10,
            strict=True,
        )  # fmt: skip
    assert not list((tmp_path / "out").glob("*.partial"))
    done = encode_files(
        tiny, tmp_path / "a.jsonl", tmp_path / "out", out_format="npy", rows_per_shard=10
    )
    assert (done.shards_before, done.rows, done.dead_letters) == (1, 24, 1)


@pytest.mark.parametrize(
    ("content", "options", "part"),
    [
        ('{"body": "x"}\n', {}, "no field 'text'; it has body"),
        ('{"text": "x"}\n', {"keep": ["k"]}, "no field 'k'; it has text"),
        ('{"text": "x"}\n', {"keep": ["vector"]}, "cannot be kept"),
        ('{"text": "x"}\n', {"keep": ["id"]}, "cannot be kept"),
        ('{"text": "x", "row": 1}\n', {"keep": ["row"]}, "cannot be kept"),
        ('{"text": "x"}\n', {"precision": "int4"}, "precision must be one of"),
        ('{"text": "x"}\n', {"truncation": "maybe"}, "truncation must be one of"),
        ('{"text": "x"}\n', {"prompt_name": "none"}, "no prompt"),
        ('{"text": "x"}\n', {"rows_per_shard": 0}, "at least 1"),
        ('{"text": "x"}\n', {"max_text_bytes": 0}, "at least 1"),
        ('{"text": "x"}\n', {"share": (3, 2)}, "from 1 to n"),
        ('{"text": "x"}\n', {"share": (0, 2)}, "from 1 to n"),
        ('{"text": "x"}\n', {"out_format": "csv"}, "one of parquet, npy, collection"),
    ],
)
def test_mistakes_are_found_before_anything_is_written(
    tmp_path: Path, tiny: Encoder, content, options, part
) -> None:
    (tmp_path / "a.jsonl").write_text(content)
    with pytest.raises(InputValueError, match=part):
        encode_files(
            tiny, tmp_path / "a.jsonl", tmp_path / "out", **({"out_format": "npy"} | options)
        )
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.jsonl"]


@pytest.mark.parametrize(
    ("dead", "most", "code"),
    [(0, None, 0), (99, None, 0), (100, None, 3), (2, "1%", 3), (1, "1%", 0), (1, "0", 3),
     (3, "3", 0), (4, "3", 3), (0, "0%", 0), (100, "100%", 0), (1, "0.5%", 3)],
)  # fmt: skip
def test_too_many_dead_letters_are_an_exit_code(
    tmp_path: Path, tiny_dir: Path, flowvec, dead: int, most: str | None, code: int
) -> None:
    rows = [{"text": None if i < dead else "a cat"} for i in range(100)]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    words = [] if most is None else ["--max-dead", most]
    done = flowvec("encode", tiny_dir, "a.jsonl", "-o", "v.npy", *words)
    assert done.returncode == code, done.stderr
    assert (f"{dead} of 100 rows are dead letters" in done.stderr) == (code == 3)
    assert f"100 rows in, {100 - dead} x 16" in done.stdout


@pytest.mark.parametrize("most", ["x", "-1", "101%", "nan", "inf", "%", ""])
def test_an_invalid_max_dead_is_refused(tmp_path: Path, tiny_dir: Path, flowvec, most: str) -> None:
    (tmp_path / "a.txt").write_text("a cat\n")
    done = flowvec("encode", tiny_dir, "a.txt", "-o", "v.npy", f"--max-dead={most}")
    assert (done.returncode, "--max-dead is" in done.stderr) == (2, True)
    assert not (tmp_path / "v.npy").exists()


def test_no_rows_are_not_too_many_dead_letters(tmp_path: Path, tiny_dir: Path, flowvec) -> None:
    (tmp_path / "a.txt").write_text("")
    assert flowvec("encode", tiny_dir, "a.txt", "-o", "v.npy").returncode == 0


def test_a_row_that_is_not_utf8_has_its_id_if_that_can_be_read(
    tmp_path: Path, tiny: Encoder
) -> None:
    csv = "id,text,k\n1,caf\xe9,a\n2,ok,\xe9\n\xe9,ok,a\nfour,ok,a\n"
    lines = '{"id": 0, "text": "\xe9"}\n{"id": "\xe9", "text": "a"}\n{"id": 4, "text": "a"}\n'
    (tmp_path / "a.csv").write_bytes(csv.encode("latin-1"))
    (tmp_path / "a.jsonl").write_bytes(lines.encode("latin-1"))
    for name, ids in (("a.csv", ["1", "2", None]), ("a.jsonl", [0, None])):
        keep = ["k"] if name == "a.csv" else []
        encode_files(
            tiny, tmp_path / name, tmp_path / name[2:], out_format="npy", id_field="id", keep=keep
        )
        letters = letters_of(tmp_path / name[2:])
        assert [letter["id"] for letter in letters] == ids
        assert {letter["code"] for letter in letters} == {"invalid_utf8"}


def test_a_csv_record_of_another_length_has_its_id_if_that_is_first(
    tmp_path: Path, tiny: Encoder
) -> None:
    for header, ids in (("id,text", ["7", None, "8"]), ("text,id", [None, None, None])):
        (tmp_path / "a.csv").write_text(f"{header}\n7\n,a,b\n8,a,b\n9,a\n")
        encode_files(
            tiny, tmp_path / "a.csv", tmp_path / "o", out_format="npy", id_field="id", resume=False
        )
        assert [letter["id"] for letter in letters_of(tmp_path / "o")] == ids


@pytest.mark.parametrize("out_format", ["npy", "collection"])
def test_a_time_of_day_with_nanoseconds_is_not_cut(
    tmp_path: Path, tiny: Encoder, out_format: Any
) -> None:
    pa = pytest.importorskip("pyarrow", reason="needs the extra [files]")
    import pyarrow.parquet

    times = pa.array([1001, 2000, None], pa.time64("ns"))
    table = pa.table({"id": [1, 2, 3], "text": ["a", "b", "c"], "vector": [[1.0]] * 3, "at": times})
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    out = tmp_path / "a"
    encode_files(tiny, tmp_path / "a.parquet", out, keep=["at"], out_format=out_format)
    folder = out if out_format == "npy" else tmp_path / "a.job"
    assert [(letter["row"], letter["code"]) for letter in letters_of(folder)] == [(0, "bad_field")]
    with pytest.raises(InputValueError, match=r"row 0: at .*nanoseconds"):
        Collection.from_parquet(tmp_path / "c", tmp_path / "a.parquet")


def test_what_a_collection_cannot_hold_is_a_dead_letter_of_its_row(
    tmp_path: Path, tiny: Encoder
) -> None:
    pa = pytest.importorskip("pyarrow", reason="needs the extra [files]")
    import pyarrow.parquet

    table = pa.table({
        "text": ["a", "b", "c"],
        "at": pa.array([1, 10**15, 1], pa.timestamp("s")),  # the second is after the year 9999
        "day": pa.array([1, 1, 10**9], pa.date32()),
    })  # fmt: skip
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    write_jsonl(tmp_path / "b.jsonl", [{"id": n, "text": "a"} for n in (1, 2**1024, 2**1023)])
    options: dict[str, Any] = {"out_format": "collection"}
    encode_files(tiny, tmp_path / "a.parquet", tmp_path / "a", keep=["at", "day"], **options)
    encode_files(tiny, tmp_path / "b.jsonl", tmp_path / "b", id_field="id", **options)
    found = {name: letters_of(tmp_path / f"{name}.job") for name in "ab"}
    assert [(one["row"], one["code"]) for one in found["a"]] == [(1, "bad_field"), (2, "bad_field")]
    assert [(one["row"], one["code"]) for one in found["b"]] == [(1, "bad_id")]
