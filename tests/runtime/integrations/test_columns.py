"""Columns of texts become columns of vectors, in the library that they come from."""

from __future__ import annotations

import doctest
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowvec import Collection, Encoder, InputTypeError, InputValueError
from flowvec.integrations import columns
from flowvec.integrations.columns import encode_column
from tests.drawing import examples

pandas = pytest.importorskip("pandas", reason="needs pandas")
polars = pytest.importorskip("polars", reason="needs polars")
duckdb = pytest.importorskip("duckdb", reason="needs duckdb")
pyarrow = pytest.importorskip("pyarrow", reason="needs pyarrow")

TEXTS = ["a man eats", "", "the dog", "a man eats"]
MAKERS: dict[str, Callable[[list[str | None]], Any]] = {
    "polars": lambda texts: polars.Series("text", texts, polars.String),
    "pandas": lambda texts: pandas.Series(texts, name="text", dtype=object, index=index_of(texts)),
    "pandas string": lambda texts: pandas.Series(
        texts, name="text", dtype="string", index=index_of(texts)
    ),
    "Arrow": lambda texts: pyarrow.array(texts, pyarrow.string()),
    "Arrow in chunks": lambda texts: pyarrow.chunked_array(
        [texts[:1], texts[1:]], pyarrow.large_string()
    ),
}


def index_of(values: list[Any]) -> list[int]:
    return list(range(7, 7 + len(values)))


def rows_of(column: Any) -> list[Any]:
    """Its rows as lists, and None where there is none."""
    if hasattr(column, "to_pylist"):
        return list(column.to_pylist())
    if hasattr(column, "isna"):
        return [None if m else list(v) for v, m in zip(column, column.isna(), strict=True)]
    return list(column.to_list())


@pytest.mark.parametrize("kind", MAKERS)
@examples(15)
@given(
    texts=st.lists(st.sampled_from(TEXTS) | st.none(), max_size=5),
    precision=st.sampled_from(["float32", "ubinary"]),
)
def test_rows_are_the_encoders_vectors(
    kind: str, tiny: Encoder, texts: list[str | None], precision: Any
) -> None:
    given_column = MAKERS[kind](texts)
    found = encode_column(tiny, given_column, precision=precision)
    assert type(found) is type(given_column) or kind == "Arrow"
    expected = [
        None if text is None else tiny.encode_document(text, precision=precision) for text in texts
    ]
    assert len(found) == len(texts)
    for row, vector in zip(rows_of(found), expected, strict=True):
        assert (row is None) == (vector is None)
        if row is not None:
            np.testing.assert_allclose(row, vector, atol=1e-5)
    width = 16 if precision == "float32" else 2
    if kind == "polars":
        item = polars.Float32 if precision == "float32" else polars.UInt8
        assert found.dtype == polars.Array(item, width)
    else:
        arrow = found.array.__arrow_array__() if kind.startswith("pandas") else found
        item = pyarrow.float32() if precision == "float32" else pyarrow.uint8()
        assert arrow.type == pyarrow.list_(item, width)
    if kind.startswith("pandas"):
        assert found.index.tolist() == index_of(texts)
    if kind.startswith(("pandas", "polars")):
        assert found.name == "text"


@pytest.mark.parametrize("kind", MAKERS)
def test_a_collection_takes_the_vectors(kind: str, tmp_path: Path, tiny: Encoder) -> None:
    ids, vectors = list("abcd"), encode_column(tiny, MAKERS[kind](list(TEXTS)))
    with Collection.create(tmp_path / "c", dim=16) as c:
        c.add_vectors(ids, vectors, TEXTS)
        queries = encode_column(tiny, MAKERS[kind](["the dog"]), prompt_name="query")
        expected = c.search(tiny.encode_query("the dog"))
        assert c.search_batch(queries) == [expected]
        missing = encode_column(tiny, MAKERS[kind](["x", None]))
        with pytest.raises((InputTypeError, InputValueError), match=r"row 1 of vectors"):
            c.add_vectors(["x", "y"], missing)
        assert c.count() == 4


def test_duckdb_reads_the_vectors_and_gives_them_back(tmp_path: Path, tiny: Encoder) -> None:
    database = duckdb.connect(str(tmp_path / "d.db"))
    database.sql("create table t as select * from (values (1, 'the dog'), (2, null)) v(id, text)")
    table = database.sql("from t order by id").to_arrow_table()
    table = table.append_column("vector", encode_column(tiny, table["text"]))
    database.register("encoded", table)
    database.sql("create table vectors as select id, vector from encoded")
    (kind,) = database.sql("select distinct typeof(vector) from vectors").fetchall()
    assert kind == ("FLOAT[16]",)
    query = tiny.encode_document("the dog").tolist()
    score = "array_inner_product(vector, ?::FLOAT[16]) / array_inner_product(vector, vector)"
    found = database.execute(f"select {score} from vectors order by id", [query]).fetchall()
    assert found[0][0] == pytest.approx(1, abs=1e-5)
    assert found[1][0] is None
    back = database.sql("select vector from vectors where vector is not null").to_arrow_table()
    with Collection.create(tmp_path / "c", dim=16) as c:
        c.add_vectors([1], back["vector"])
        assert c.search(query)[0].score == pytest.approx(1, abs=1e-5)
    database.close()


def test_a_lazy_frame_of_polars_encodes_batches(tiny: Encoder) -> None:
    frame = polars.LazyFrame({"text": TEXTS}).with_columns(
        vector=polars.col("text").map_batches(
            lambda column: encode_column(tiny, column),
            return_dtype=polars.Array(polars.Float32, 16),
        )
    )
    found = frame.collect()["vector"]
    np.testing.assert_allclose(found.to_numpy(), tiny.encode_document(TEXTS), atol=1e-5)


@pytest.mark.parametrize(
    ("column", "part"),
    [
        (TEXTS, "not list: write table"),
        (polars.DataFrame({"text": TEXTS}), "not DataFrame"),
        (pyarrow.table({"text": TEXTS}), "not Table"),
        (polars.Series([1, 2]), "row 0 of the column is int"),
        (pandas.Series(["a", None, 2.5]), "row 2 of the column is float"),
    ],
)
def test_other_columns_are_refused(tiny: Encoder, column: Any, part: str) -> None:
    with pytest.raises(InputTypeError, match=part):
        encode_column(tiny, column)


def test_its_example_runs() -> None:
    result = doctest.testmod(columns)
    assert result.attempted
    assert not result.failed
