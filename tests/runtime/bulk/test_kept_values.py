"""No kept value is changed, and the order of files and rows changes nothing."""

from __future__ import annotations

import json
import math
import uuid
from datetime import date, datetime
from decimal import Decimal
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

from flowvec import Collection, Encoder
from flowvec.bulk import encode_files
from flowvec.bulk.windows import read_windows
from flowvec.errors import InputValueError
from flowvec.texts.sources import find_sources
from flowvec.texts.window import Fields
from tests.makers import contents, write_jsonl
from tests.runtime.bulk.conftest import letters_of

NAN = float("nan")


def written(out: Path, out_format: str) -> dict[Any, Any]:
    """The field `k` of each row by its id; JSON is parsed."""
    if out_format == "collection":
        with Collection.open(out) as collection:
            return {item.id: (item.metadata or {}).get("k") for item in collection.rows()}
    if out_format == "npy":
        lines = [line for file in out.glob("*.rows.jsonl") for line in file.open()]
        return {row["id"]: row["k"] for row in map(json.loads, lines)}
    import pyarrow as pa
    import pyarrow.parquet

    files = sorted(out.glob("*.parquet"))
    schemas = {str(pyarrow.parquet.read_schema(file)) for file in files}
    assert len(schemas) == 1  # what readers of a folder expect
    rows = pa.concat_tables([pyarrow.parquet.read_table(file) for file in files]).to_pylist()
    is_json = json.loads((out / "_manifest.json").read_text())["columns"].get("k") == "json"
    return {
        row["id"]: json.loads(row["k"]) if is_json and row["k"] is not None else row["k"]
        for row in rows
    }


def is_same(one: Any, other: Any) -> bool:
    """Whether two values are equal; 1 equals 1.0 and not true, and NaN itself."""
    if isinstance(one, float) and isinstance(other, float):
        return (math.isnan(one) and math.isnan(other)) or (
            one == other and math.copysign(1, one) == math.copysign(1, other)
        )
    return isinstance(one, bool) == isinstance(other, bool) and one == other


@pytest.mark.usefixtures("arrow", "small_windows")
@pytest.mark.parametrize("out_format", ["parquet", "npy", "collection"])
@pytest.mark.parametrize(
    ("values", "dead"),
    [
        ([1700000000000000001, 1.5, 3], 0),  # no float64 holds the first
        ([1 << 53, 0.5, -0.0, 7], 0),
        ([None] * 20 + ["late"], 0),
        ([None, (1 << 63) + 1, 5], 0),
        ([(1 << 63) + 1, -5, 3], 0),
        ([1 << 70, 1, 2, 3], {"parquet", "npy"}),
        (["a", "007", "", 7], {"parquet", "npy"}),
        ([True, 1, "x", [1], {"a": 1.5}, None], 0),
        ([NAN, 1.5, 1.5], {"npy", "collection"}),  # JSON has no NaN
    ],
)
def test_the_order_changes_nothing_and_no_value_is_changed(
    tmp_path: Path, tiny: Encoder, out_format: Any, values: list[Any], dead: Any
) -> None:
    rows = [{"id": i, "text": "a cat"} | ({} if k is None else {"k": k})
            for i, k in enumerate(values)]  # fmt: skip
    files = [
        write_jsonl(tmp_path / f"{i}.jsonl", part) for i, part in enumerate((rows[:2], rows[2:]))
    ]
    turned = write_jsonl(tmp_path / "turned.jsonl", rows[::-1])
    results = []
    for number, inputs in enumerate((files, files[::-1], [turned])):
        out = tmp_path / f"out{number}"
        done = encode_files(tiny, inputs, out, id_field="id", keep=["k"], out_format=out_format,
                            rows_per_shard=2)  # fmt: skip
        results.append(written(out, out_format))
        assert done.dead_letters == (out_format in dead if dead else 0)
    assert repr(sorted(results[0].items())) == repr(sorted(results[1].items()))
    assert repr(sorted(results[0].items())) == repr(sorted(results[2].items()))
    assert all(is_same(k, values[i]) for i, k in results[0].items())


def test_later_shards_and_shares_have_the_types_of_the_whole_job(
    tmp_path: Path, tiny: Encoder, arrow: Any
) -> None:
    rows = [{"id": i, "text": f"cat {i}", "k": "late" if i > 7 else None} for i in range(10)]
    file = write_jsonl(tmp_path / "a.jsonl", rows)
    options: dict[str, Any] = {"id_field": "id", "keep": ["k"], "rows_per_shard": 3}
    encode_files(tiny, file, tmp_path / "whole", **options)
    whole = contents(tmp_path / "whole")
    (tmp_path / "whole/part-000000.parquet").unlink()
    encode_files(tiny, file, tmp_path / "whole", **options)
    assert contents(tmp_path / "whole") == whole
    for share in (2, 1):
        encode_files(tiny, file, tmp_path / "shares", share=(share, 2), **options)
    parts = contents(tmp_path / "shares")
    assert {n: data for n, data in parts.items() if n[0] == "p"} == {
        n: data for n, data in whole.items() if n[0] == "p"
    }


def test_a_field_that_no_row_has_is_named(tmp_path: Path, tiny: Encoder) -> None:
    rows = [{"text": "a cat"}] * 3
    late = write_jsonl(tmp_path / "late.jsonl", [*rows, {"text": "a dog", "k": 1}])
    file = write_jsonl(tmp_path / "a.jsonl", rows)
    encode_files(tiny, [file, late], tmp_path / "out", keep=["k"], out_format="npy")
    with pytest.raises(InputValueError, match="no field 'k'; it has text"):
        encode_files(tiny, file, tmp_path / "no", keep=["k"], out_format="npy")


@pytest.mark.parametrize(("first", "later"), [(0.5, (1 << 53) + 1), (1, 0.5), (1, 1 << 64)])
def test_what_the_first_rows_of_a_stream_do_not_allow_is_a_dead_letter(
    tmp_path: Path, first: Any, later: Any
) -> None:
    """Without types that were decided before, as for standard input."""
    rows = [{"text": "a", "k": k} for k in (first, first, later, first)]
    file = write_jsonl(tmp_path / "a.jsonl", rows)
    windows = list(read_windows(find_sources([file]), Fields(keep=("k",)), rows_per_shard=2))
    assert [k for window in windows for k in window.values["k"]] == [first] * 3
    assert [(x.row, x.code) for window in windows for x in window.dead] == [(2, "bad_field")]


def test_numbers_that_are_larger_than_any_float_are_dead_letters(
    tmp_path: Path, tiny: Encoder, arrow: Any
) -> None:
    numbers = ("0.5", "1e400", "-1e999", "Infinity")
    lines = [f'{{"text": "a cat", "k": {number}}}' for number in numbers]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    encode_files(tiny, tmp_path / "a.jsonl", tmp_path / "out", keep=["k"])
    assert [(x["row"], x["code"]) for x in letters_of(tmp_path / "out")] == [
        (1, "bad_field"), (2, "bad_field")]  # fmt: skip
    assert list(written(tmp_path / "out", "parquet").values()) == [0.5, math.inf]


def test_csv_and_jsonl_and_parquet_are_read_together(
    tmp_path: Path, tiny: Encoder, arrow: Any
) -> None:
    import pyarrow as pa

    (tmp_path / "a.csv").write_text("id,text,k\n007,a cat,\n1,a dog,5\n")
    write_jsonl(tmp_path / "b.jsonl", [{"id": 3, "text": "a house", "k": 5}])
    arrow.write_table(pa.table({"id": [4], "text": ["a garden"]}), tmp_path / "c.parquet")
    expected = {"007": "", "1": "5", "3": 5, "4": None}
    for number, order in enumerate(permutations(("a.csv", "b.jsonl", "c.parquet"))):
        inputs, out = [tmp_path / name for name in order], tmp_path / f"out{number}"
        encode_files(tiny, inputs, out, id_field="id", keep=["k"])
        assert written(out, "parquet") == expected
    encode_files(tiny, inputs, tmp_path / "npy", id_field="id", keep=["k"], out_format="npy")
    assert written(tmp_path / "npy", "npy") == {"007": "", "1": "5", 3: 5, 4: None}


# --- Parquet ------------------------------------------------------------------------------------


def parquet_kinds() -> dict[str, tuple[list[Any], list[Any], list[Any]]]:
    """For each case the columns of two files, and the values of both, some of which are dropped."""
    import pyarrow as pa

    big = (1 << 53) + 1
    return {
        "null and text": (pa.nulls(2), ["a", "b"], [None, None, "a", "b"]),
        "int32 and int64": (pa.array([1, 2], pa.int32()), [1 << 40, None], [1, 2, 1 << 40, None]),
        "whole and not": ([1, None], [0.5, NAN], [1, None, 0.5, NAN]),
        "large and not": ([big, 1], [0.5, 2.5], [big, 1, 0.5, 2.5]),
        "signs": (pa.array([1 << 63, 1], pa.uint64()), [-1, 2], [1 << 63, 1, -1, 2]),
        "decimal": ([Decimal("1.10"), Decimal("1.50")], [0.5, 2.5], ["dead", 1.5, 0.5, 2.5]),
        "times": (
            pa.array([datetime(2026, 1, 2), datetime(9999, 1, 1)], pa.timestamp("us")),
            pa.array([datetime(2026, 1, 3), None], pa.timestamp("ns")),
            [datetime(2026, 1, 2), "dead", datetime(2026, 1, 3), None],
        ),
        "views": (
            pa.array(["a", None], pa.string_view()),
            pa.array(["b", "c"]).dictionary_encode(),
            ["a", None, "b", "c"],
        ),
        "lists": (
            pa.array([[1], None], pa.list_view(pa.int32())),
            pa.array([[2], [1 << 40]], pa.large_list(pa.int64())),
            [[1], None, [2], [1 << 40]],
        ),
        "uuids": (
            pa.array([uuid.UUID(int=1).bytes, None], pa.uuid()),
            pa.nulls(2),
            [uuid.UUID(int=1), None, None, None],
        ),
        "days": ([date(2026, 1, 2), None], pa.nulls(2), [date(2026, 1, 2), None, None, None]),
        "objects": ([{"x": 1}, None], [{"y": "z"}, None],
                    [{"x": 1, "y": None}, None, {"x": None, "y": "z"}, None]),
        "bytes": (pa.array([b"\xff", b"a"], pa.binary_view()), ["b", None],
                  [b"\xff", b"a", b"b", None]),
    }  # fmt: skip


@pytest.mark.parametrize(
    "case",
    ["null and text", "int32 and int64", "whole and not", "large and not", "signs", "decimal",
     "times", "views", "lists", "uuids", "days", "objects", "bytes"],
)  # fmt: skip
def test_parquet_files_combine_without_a_change(
    tmp_path: Path, tiny: Encoder, arrow: Any, case: str
) -> None:
    import pyarrow as pa

    *columns, expected = parquet_kinds()[case]
    files = [tmp_path / "0.parquet", tmp_path / "1.parquet"]
    for number, (file, column) in enumerate(zip(files, columns, strict=True)):
        ids = [number * 2, number * 2 + 1]
        arrow.write_table(pa.table({"id": ids, "text": ["a cat"] * 2, "k": column}), file)
    for out, inputs in ((tmp_path / "a", files), (tmp_path / "b", files[::-1])):
        encode_files(tiny, inputs, out, id_field="id", keep=["k"], rows_per_shard=2)
        rows = written(out, "parquet")
        assert set(rows) == {i for i, k in enumerate(expected) if k != "dead"}
        assert all(is_same(k, expected[i]) for i, k in rows.items())
        dead = expected.count("dead")
        assert [x["code"] for x in letters_of(out)] == ["bad_field"] * dead


def test_types_of_parquet_that_cannot_be_combined_are_named(
    tmp_path: Path, tiny: Encoder, arrow: Any
) -> None:
    import pyarrow as pa

    arrow.write_table(pa.table({"text": ["a"], "k": [[1]]}), tmp_path / "a.parquet")
    arrow.write_table(pa.table({"text": ["a"], "k": ["b"]}), tmp_path / "b.parquet")
    with pytest.raises(InputValueError, match=r"k is list.*a\..*string.*b\."):
        encode_files(tiny, tmp_path, tmp_path / "out", keep=["k"])
    assert not (tmp_path / "out").exists()


def test_ids_and_texts_of_parquet_may_be_stored_in_any_way(
    tmp_path: Path, tiny: Encoder, arrow: Any
) -> None:
    import pyarrow as pa

    key = uuid.UUID(int=7)
    ways = {
        "view": pa.array(["a"], pa.string_view()),
        "large": pa.array(["b"], pa.large_string()),
        "dictionary": pa.array(["c"]).dictionary_encode(),
        "uuid": pa.array([key.bytes], pa.uuid()),
        "bytes": pa.array([b"d"], pa.binary_view()),
        "number": pa.array([5], pa.uint8()),
    }
    for name, ids in ways.items():
        texts = ids if name not in ("uuid", "number") else ["a cat"]
        arrow.write_table(pa.table({"id": ids, "text": texts}), tmp_path / f"{name}.parquet")
    encode_files(tiny, tmp_path, tmp_path / "out", id_field="id")
    ids = arrow.read_table(tmp_path / "out/part-000000.parquet")["id"].to_pylist()
    assert set(ids) == {"a", "b", "c", str(key), "d", "5"}


@pytest.mark.parametrize("name", ["text", "id", "k"])
def test_two_columns_of_one_name_are_refused(
    tmp_path: Path, tiny: Encoder, arrow: Any, name: str
) -> None:
    import pyarrow as pa

    names = ["id", "text", "k", "other", "other", name]
    table = pa.Table.from_arrays([pa.array(["a"])] * 6, names=names)
    arrow.write_table(table, tmp_path / "a.parquet")
    (tmp_path / "a.csv").write_text(",".join(names) + "\na,b,c,d,e,f\n")
    for file in ("a.parquet", "a.csv"):
        with pytest.raises(InputValueError, match=f"{file} .*columns .*'{name}'"):
            encode_files(tiny, tmp_path / file, tmp_path / "out", id_field="id", keep=["k"])
    (tmp_path / "a.csv").write_text("text,other,other\na cat,b,c\n")  # which are not read
    encode_files(tiny, tmp_path / "a.csv", tmp_path / "fine", out_format="npy")


def test_row_maps_hold_values_of_several_types_as_they_are(
    tmp_path: Path, tiny: Encoder, arrow: Any
) -> None:
    import pyarrow as pa

    columns = [["text"], pa.array([b"bytes"]), pa.nulls(1)]
    for number, column in enumerate(columns):
        table = pa.table({"id": [number], "text": ["a cat"], "k": column})
        arrow.write_table(table, tmp_path / f"{number}.parquet")
    encode_files(tiny, tmp_path, tmp_path / "out", id_field="id", keep=["k"], out_format="npy")
    assert written(tmp_path / "out", "npy") == {0: "text", 2: None}
    assert [(x["id"], x["code"]) for x in letters_of(tmp_path / "out")] == [(1, "bad_field")]
