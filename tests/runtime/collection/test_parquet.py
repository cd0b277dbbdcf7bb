"""A collection to Parquet files and from them."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import pytest

from flowvec import (
    Collection,
    Encoder,
    FingerprintMismatchError,
    InputTypeError,
    InputValueError,
)
from flowvec.bulk import encode_files
from flowvec.collection.parquet import read_parquet
from flowvec.errors import FlowvecError
from tests.makers import vectors


def test_a_parquet_file_that_cannot_be_taken_in_leaves_nothing(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow", reason="needs the extra [files]")
    import pyarrow.parquet

    table = pa.table({"id": ["a", "b"], "vector": [[1.0, 2.0], [float("nan"), 1.0]]})
    pyarrow.parquet.write_table(table, tmp_path / "t.parquet")
    with pytest.raises(InputValueError):
        Collection.from_parquet(tmp_path / "c", tmp_path / "t.parquet")
    assert not (tmp_path / "c").exists()
    (tmp_path / "c").mkdir()
    with pytest.raises(InputValueError):
        Collection.from_parquet(tmp_path / "c", tmp_path / "t.parquet")
    assert list((tmp_path / "c").iterdir()) == []


def _at(row: int, bad: object, good: object) -> list[object]:
    return [bad if i == row else good for i in range(5000)]


@pytest.mark.parametrize(
    ("columns", "part"),
    [
        ({"id": [None if i == 4500 else i for i in range(5000)]}, "its id is None"),
        ({"id": [2**63 * 10**400 if i == 4500 else i for i in range(5000)]}, "its id is a number"),
        ({"vector": _at(4500, [1.0, float("nan")], [1.0, 1.0])}, "its vector holds NaN"),
        ({"vector": _at(4500, [1.0], [1.0, 1.0])}, "its vector does not have 2 numbers"),
        ({"vector": _at(4500, None, [1.0, 1.0])}, "its vector does not have 2 numbers"),
        ({"metadata": _at(4500, "[1]", "{}")}, "its metadata is a list"),
        ({"metadata": _at(4500, "{", "{}")}, "its metadata is not JSON"),
        ({"metadata": _at(4500, '{"a": NaN}', "{}")}, "its metadata, field 'a', is nan"),
        ({"n": _at(4500, b"x", None)}, "n is bytes"),
    ],
)
def test_an_error_of_a_row_names_its_file_and_its_number_there(
    tmp_path: Path, columns: dict[str, list[Any]], part: str
) -> None:
    pa = pytest.importorskip("pyarrow", reason="needs the extra [files]")
    import pyarrow.parquet

    good = {"id": list(range(5000, 10_000)), "vector": [[1.0, 1.0]] * 5000}
    pyarrow.parquet.write_table(pa.table(good), tmp_path / "a.parquet")
    wrong = good | columns
    if isinstance(wrong["id"][4500], int):  # more digits than Arrow has in a number
        wrong |= {"id": list(map(str, wrong["id"])), "id_is_int": [True] * 5000}
    pyarrow.parquet.write_table(pa.table(wrong), tmp_path / "b.parquet", row_group_size=1700)
    with pytest.raises((InputTypeError, InputValueError)) as caught:
        Collection.from_parquet(tmp_path / "c", [tmp_path / "a.parquet", tmp_path / "b.parquet"])
    assert str(caught.value).startswith(f"{tmp_path / 'b.parquet'}, row 4500: {part}")


def test_a_link_beside_a_parquet_file_is_not_read(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow", reason="needs the extra [files]")
    import pyarrow.parquet

    (tmp_path / "in").mkdir()
    table = pa.table({"id": [1, 1], "vector": [[1.0, 2.0]] * 2})
    pyarrow.parquet.write_table(table, tmp_path / "in/b.parquet")
    (tmp_path / "in/a.parquet").symlink_to("b.parquet")
    read = read_parquet(tmp_path / "in")
    assert sum(len(rows.ids) for rows in read.batches) == 2


def test_a_collection_goes_out_as_parquet_and_comes_back(tmp_path: Path, tiny: Encoder) -> None:
    pytest.importorskip("pyarrow", reason="needs the extra [files]")
    with Collection.create(tmp_path / "c", encoder=tiny, metric="ip") as c:
        (tmp_path / "made").mkdir()
        c.to_parquet(tmp_path / "made" / "empty.parquet")
        c.add(["a", 1, "1", 2**70], ["x", "", "y \x00", "z"], [{"k": [1, None]}, None, {}, None])
        c.add_vectors(["no text"], vectors(1, tiny.dim))
        for name in ("c.csv", "c.jsonl", "c"):  # as `flowvec dump -o` does
            with pytest.raises(InputValueError, match=f"a .parquet file, not {name}"):
                c.to_parquet(tmp_path / name)
            assert not (tmp_path / name).is_file()
        assert c.to_parquet(tmp_path / "c.parquet") == 5
        with pytest.raises(InputValueError, match="overwrite=True"):
            c.to_parquet(tmp_path / "c.parquet")
        assert c.to_parquet(tmp_path / "c.parquet", overwrite=True) == 5
        with pytest.raises(InputValueError, match="is in the input"):
            c.to_parquet(tmp_path / "c" / "c.parquet")
        with pytest.raises(InputValueError, match="is in the input"):
            Collection.from_parquet(tmp_path / "made" / "d", tmp_path / "made")
        for into in (tmp_path / "c", tmp_path / "c" / "new", tmp_path):
            with pytest.raises(InputValueError, match="the input"):
                Collection.salvage(tmp_path / "c", into)
        with Collection.from_parquet(tmp_path / "d", tmp_path / "c.parquet") as d:
            for one, other in zip(c.rows(), d.rows(), strict=True):
                assert (one.id, one.text, one.metadata) == (other.id, other.text, other.metadata)
                np.testing.assert_array_equal(one.vector, other.vector)
            assert d.info().metric == "ip"
            assert d.info().fingerprint == tiny.fingerprint
    with Collection.open(tmp_path / "d", encoder=tiny) as d:
        assert len(d.search("x", k=9)) == 5
    assert [p.name for p in tmp_path.glob("*.partial")] == []


def test_parquet_of_another_engines_making_is_read(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow", reason="needs the extra [files]")
    import pyarrow.parquet

    rows = vectors(3, 4)
    table = pa.table({"id": [10, 20, 30], "vector": rows.tolist(), "other": ["x", "y", "z"]})
    pyarrow.parquet.write_table(table, tmp_path / "t.parquet")
    with Collection.from_parquet(tmp_path / "c", tmp_path / "t.parquet", metric="l2") as c:
        assert [item.id for item in c.rows()] == [10, 20, 30]
        assert c.search(rows[1], k=1)[0].id == 20
    for columns, part in (
        ({"vector": rows.tolist()}, "no column 'id'"),
        ({"id": [1]}, "no column 'vector'"),
        ({"id": [1.5], "vector": [[1.0]]}, "row 0: its id is 1.5"),
        (
            {"id": [1, 2], "vector": [[1.0, 2.0], [1.0]]},
            "row 1: its vector does not have 2 numbers",
        ),
        ({"id": [1], "vector": [[]]}, "holds no vectors"),
        (
            {"id": [1, 2, 3], "vector": [[1.0] * 4, [2.0] * 3, [3.0] * 5]},
            "row 1: its vector does not have 4 numbers",
        ),
    ):
        pyarrow.parquet.write_table(pa.table(columns), tmp_path / "t.parquet")
        with pytest.raises(InputValueError, match=part):
            Collection.from_parquet(tmp_path / "d", tmp_path / "t.parquet")
    (tmp_path / "t.parquet").write_text("nonsense")
    with pytest.raises(InputValueError, match="cannot read"):
        Collection.from_parquet(tmp_path / "z", tmp_path / "t.parquet")


pytest.importorskip("pyarrow.parquet", reason="needs the extra [files]")


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    lines = [
        {"id": f"k{i}", "text": f"a cat {i}", "n": i, "w": i / 2, "tags": [i, "x"]}
        for i in range(40)
    ]
    file = tmp_path / "in.jsonl"
    file.write_text("\n".join(map(json.dumps, lines)))
    return file


KEEP: dict[str, Any] = {"id_field": "id", "keep": ["text", "n", "w", "tags"], "rows_per_shard": 9}


@pytest.mark.parametrize("precision", ["float32", "float16"])
@pytest.mark.parametrize("source", ["folder", "glob", "parts", "one file", "shares"])
def test_a_bulk_job_becomes_a_collection(
    tmp_path: Path, tiny: Encoder, rows: Path, source: str, precision: Any
) -> None:
    out = tmp_path / ("vecs.parquet" if source == "one file" else "vecs")
    shares = [(1, 2), (2, 2)] if source == "shares" else [(1, 1)]
    for share in shares:
        encode_files(tiny, rows, out, precision=precision, share=share, **KEEP)
    given: Any = {
        "glob": str(out / "part-*.parquet"), "parts": sorted(out.glob("*.parquet")),
    }.get(source, out)  # fmt: skip
    with Collection.from_parquet(tmp_path / "c", given) as made:
        info = made.info()
    assert (info.rows, info.model, info.fingerprint, info.compute, info.vector_dtype) == (
        40, "tiny", tiny.fingerprint, tiny.engine.compute, precision
    )  # fmt: skip
    with Collection.open(tmp_path / "c", encoder=tiny) as c:
        (item,) = c.get(["k7"])
        assert item.text == "a cat 7"
        assert item.metadata == {"n": 7, "w": 3.5, "tags": [7, "x"]}
        np.testing.assert_allclose(item.vector, tiny.encode("a cat 7"), rtol=2e-3, atol=2e-3)
        assert c.search("a cat 7", k=1, filter={"n": 7})[0].id == "k7"


def test_a_collection_from_parquet_equals_that_of_the_bulk_job(
    tmp_path: Path, tiny: Encoder, rows: Path
) -> None:
    keep = KEEP | {"keep": ["n", "w", "tags"]}
    encode_files(tiny, rows, tmp_path / "vecs", **keep)
    encode_files(tiny, rows, tmp_path / "into", out_format="collection", **keep)
    with (
        Collection.from_parquet(tmp_path / "c", tmp_path / "vecs") as c,
        Collection.open(tmp_path / "into") as into,
    ):
        for mine, its in zip(c.rows(), into.rows(), strict=True):
            assert (mine.id, mine.metadata) == (its.id, its.metadata)
            assert mine.text is None  # which no column holds
            np.testing.assert_array_equal(mine.vector, its.vector)


def test_files_of_another_model_are_refused(
    tmp_path: Path, tiny: Encoder, mini: Encoder, rows: Path
) -> None:
    encode_files(tiny, rows, tmp_path / "vecs", **KEEP)
    Collection.from_parquet(tmp_path / "c", tmp_path / "vecs").close()
    with pytest.raises(FingerprintMismatchError):
        Collection.open(tmp_path / "c", encoder=mini)
    encode_files(mini, rows, tmp_path / "others", **KEEP)
    both = [tmp_path / "vecs", tmp_path / "others"]
    with pytest.raises(InputValueError, match="cannot be combined"):
        Collection.from_parquet(tmp_path / "d", both)
    assert not (tmp_path / "d").exists()


def test_an_unfinished_job_is_refused(tmp_path: Path, tiny: Encoder, rows: Path) -> None:
    encode_files(tiny, rows, tmp_path / "share", share=(1, 2), **KEEP)
    with pytest.raises(InputValueError, match="not complete"):
        Collection.from_parquet(tmp_path / "c", tmp_path / "share")
    encode_files(tiny, rows, tmp_path / "vecs", **KEEP)
    manifest = json.loads((tmp_path / "vecs/_manifest.json").read_text())
    del manifest["shards"]
    (tmp_path / "vecs/_manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(InputValueError, match="not complete"):
        Collection.from_parquet(tmp_path / "c", tmp_path / "vecs")
    parts = sorted((tmp_path / "vecs").glob("*.parquet"))
    with Collection.from_parquet(tmp_path / "c", parts[:2]) as c:  # named explicitly
        assert len(c) == 18


@pytest.mark.parametrize("precision", ["binary", "ubinary"])
def test_quantized_vectors_are_refused(
    tmp_path: Path, tiny: Encoder, rows: Path, precision: Any
) -> None:
    encode_files(tiny, rows, tmp_path / "vecs", precision=precision, **KEEP)
    with pytest.raises(InputValueError, match="float32 or float16"):
        Collection.from_parquet(tmp_path / "c", tmp_path / "vecs")


def test_a_file_that_is_not_parquet_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "bad.parquet").write_text("x")
    for wrong in (tmp_path / "empty", tmp_path / "none.parquet", str(tmp_path / "x*.parquet"), [],
                  tmp_path / "bad.parquet"):  # fmt: skip
        with pytest.raises(InputValueError):
            Collection.from_parquet(tmp_path / "c", wrong)
    for odd in (None, 3, [3], {"a": 1}, threading):
        with pytest.raises(FlowvecError):
            Collection.from_parquet(tmp_path / "c", odd)  # type: ignore[arg-type]
    with pytest.raises(InputTypeError):
        Collection.from_parquet(tmp_path / "c", [None])  # type: ignore[list-item]


def test_columns_of_other_origin_become_metadata(tmp_path: Path) -> None:
    import datetime

    import pyarrow
    import pyarrow.parquet

    table = pyarrow.table({
        "id": [1, 2],
        "vector": [[1.0, 0.0], [0.0, 1.0]],
        "metadata": ['{"a": 1, "n": 5}', None],
        "n": [1.5, float("nan")],
        "when": [datetime.date(2026, 1, 2), None],
    })  # fmt: skip
    pyarrow.parquet.write_table(table, tmp_path / "t.parquet")
    with Collection.from_parquet(tmp_path / "c", tmp_path / "t.parquet") as c:
        assert [item.metadata for item in c.get([1, 2])] == [
            {"a": 1, "n": 1.5, "when": "2026-01-02"}, {"n": None, "when": None}
        ]  # fmt: skip


def test_columns_may_be_stored_in_any_way(tmp_path: Path) -> None:
    """Views, dictionaries, UUIDs, and texts without the type."""
    pa = pytest.importorskip("pyarrow", reason="needs the extra [files]")
    import pyarrow.parquet

    key, rows = UUID(int=7), [[1.0, 0.0], [0.0, 1.0]]
    files = {
        "views": {
            "id": pa.array(["a", "b"], pa.string_view()),
            "text": pa.array([b"x", None], pa.binary_view()),
            "vector": pa.array(rows, pa.list_view(pa.float32())),
            "k": pa.array([[1], None], pa.list_view(pa.int8())),
        },
        "uuids": {
            "id": pa.array([key.bytes, bytes(16)], pa.uuid()),
            "text": pa.array(["x", None]).dictionary_encode(),
            "vector": pa.array(rows, pa.large_list(pa.float64())),
            "k": pa.array([key.bytes, None], pa.uuid()),
        },
    }
    for name, columns in files.items():
        pyarrow.parquet.write_table(pa.table(columns), tmp_path / f"{name}.parquet")
        with Collection.from_parquet(tmp_path / name, tmp_path / f"{name}.parquet") as c:
            first = next(iter(c.rows()))
            expected = ("a", [1]) if name == "views" else (str(key), str(key))
            assert (first.id, first.text, first.metadata) == (expected[0], "x", {"k": expected[1]})
            assert [row.vector.tolist() for row in c.rows()] == rows


def test_two_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow", reason="needs the extra [files]")
    import pyarrow.parquet

    columns = [pa.array(["a"]), pa.array([[1.0, 0.0]]), pa.array([1]), pa.array([2])]
    table = pa.Table.from_arrays(columns, names=["id", "vector", "k", "k"])
    pyarrow.parquet.write_table(table, tmp_path / "t.parquet")
    with pytest.raises(InputValueError, match=r"t\.parquet .*columns .*'k'"):
        Collection.from_parquet(tmp_path / "c", tmp_path / "t.parquet")
    assert not (tmp_path / "c").exists()
