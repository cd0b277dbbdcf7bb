"""Indexes over fields of the metadata: they change how fast filters are, and nothing else."""

from __future__ import annotations

import os
import random
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from flowvec import Collection, CollectionError, InputTypeError, InputValueError
from flowvec.collection.store.filters import compile_filter
from tests.inside import store_of
from tests.makers import vectors


def plan(c: Collection, filter: dict[str, Any]) -> str:
    """How SQLite looks for the rows that meet a filter."""
    condition = compile_filter(filter)
    statement = f"EXPLAIN QUERY PLAN SELECT label FROM items WHERE {condition.sql}"
    # A new connection: SQLite does not plan an EXPLAIN again that it has planned before.
    with closing(store_of(c).database.connect()) as db:
        return "\n".join(row[3] for row in db.execute(statement, condition.parameters))


def filled(path: Path, rows: int = 200) -> Collection:
    c = Collection.create(path, dim=2)
    c.add_vectors(range(rows), vectors(rows, 2), metadata=[
        {"tenant": f"t{i % 10}", "n": {"m": i}} if i % 7 else None for i in range(rows)
    ])  # fmt: skip
    return c


FILTERS: list[dict[str, Any]] = [
    {"tenant": "t3"}, {"tenant": {"in": ["t3", "t4"]}}, {"tenant": {"starts with": "t"}},
    {"tenant": None}, {"n.m": {">": 150}}, {"n.m": {"<=": 20}, "tenant": {"!=": "t2"}},
    {"or": [{"tenant": "t1"}, {"n.m": 7}]},
]  # fmt: skip


def test_filters_find_the_same_rows_through_every_change(tmp_path: Path) -> None:
    with filled(tmp_path / "c") as c:
        expected = [c.ids(filter) for filter in FILTERS]
        assert c.info().indexed_fields == ()
        assert "field_" not in plan(c, {"tenant": "t3"})
        c.create_index("tenant")
        c.create_index("n.m")
        c.create_index("tenant")  # is there
        assert c.info().indexed_fields == ("n.m", "tenant")
        assert "field_" in plan(c, {"tenant": "t3"})
        assert [c.ids(filter) for filter in FILTERS] == expected
        assert c.count({"tenant": "t3"}) == len(expected[0])
        c.delete(expected[0][:5])
        c.update_metadata(expected[0][5:7], {"tenant": "t99"})
        c.add_vectors(range(500, 503), vectors(3, 2), metadata=[{"tenant": "t3"}] * 3)
        assert c.ids({"tenant": "t3"}) == [*expected[0][7:], 500, 501, 502]
        assert [h.id for h in c.search([1, 0], k=9, filter={"tenant": "t99"})] != []
        assert c.verify() == []
        after = [c.ids(filter) for filter in FILTERS]
        c.drop_index("tenant")
        c.drop_index("tenant")  # is gone
        assert c.info().indexed_fields == ("n.m",)
        assert "field_" not in plan(c, {"tenant": "t3"})
        assert [c.ids(filter) for filter in FILTERS] == after
        c.compact()
        assert c.info().indexed_fields == ("n.m",)
    with Collection.open(tmp_path / "c") as c:
        assert c.info().indexed_fields == ("n.m",)


@pytest.mark.parametrize(
    "field", ["Tenant", "tenant", "a.b", "a\\.b", "\\or", "\\$id", "it's", "日本 語", "x" * 300]
)
def test_any_field_that_filters_reach_has_an_index(tmp_path: Path, field: str) -> None:
    with Collection.create(tmp_path / "c", dim=2) as c:
        c.create_index("TENANT")  # SQLite's names do not differ by case
        c.create_index(field)
        assert c.info().indexed_fields == tuple(sorted(["TENANT", field]))
        assert "field_" in plan(c, {field: 1})


@pytest.mark.parametrize(
    ("field", "error", "part"),
    [
        (7, InputTypeError, "not int"),
        ("$id", InputValueError, "not a field of the metadata"),
        ("$text", InputValueError, "not a field of the metadata"),
        ("", InputValueError, "must not be empty"),
        ("a..b", InputValueError, "must not be empty"),
        ('a"b', InputValueError, "quotes"),
        ("a\0", InputValueError, "control characters"),
    ],
)
def test_other_fields_are_refused(tmp_path: Path, field: Any, error: Any, part: str) -> None:
    with Collection.create(tmp_path / "c", dim=2) as c:
        for method in (c.create_index, c.drop_index):
            with pytest.raises(error, match=part):
                method(field)
        assert c.info().indexed_fields == ()


def test_a_collection_that_cannot_be_written_is_not_indexed(tmp_path: Path) -> None:
    filled(tmp_path / "c").close()
    for file in (tmp_path / "c").iterdir():
        file.chmod(0o444)
    (tmp_path / "c").chmod(0o555)
    try:
        with Collection.open(tmp_path / "c") as c:
            if not os.access(tmp_path / "c", os.W_OK):  # the superuser may write
                with pytest.raises(CollectionError):
                    c.create_index("tenant")
            assert c.info().indexed_fields == ()
    finally:
        (tmp_path / "c").chmod(0o755)


def test_sqlite_alone_keeps_an_index(tmp_path: Path) -> None:
    """Other programs have none of flowvec's functions: an index needs none of them."""
    with filled(tmp_path / "c") as c:
        c.create_index("tenant")
    with closing(sqlite3.connect(tmp_path / "c" / "collection.sqlite")) as db:
        db.execute("DELETE FROM items WHERE label <= 50")
        db.execute('UPDATE items SET metadata = \'{"tenant": "new"}\' WHERE label = 60')
        db.commit()
        assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        (name,) = db.execute("SELECT name FROM sqlite_master WHERE name LIKE 'field_%'").fetchone()
        value = "json_extract(metadata, '$.\"tenant\"')"
        assert db.execute(
            f"SELECT label FROM items INDEXED BY {name} WHERE {value} = 'new'"
        ).fetchall() == [(60,)]


KILLED = """
import os, random, signal, sys, time
from flowvec import Collection
path, rng = sys.argv[1], random.Random(int(sys.argv[2]))
for kill in range(25):
    child = os.fork()
    if not child:
        try:
            with Collection.open(path) as c:
                for _ in range(1000):
                    c.create_index("tenant")
                    c.drop_index("tenant")
        finally:
            os._exit(1)
    time.sleep(rng.uniform(0.0, 0.05))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    with Collection.open(path) as c:
        assert c.verify() == [], c.verify()
        print(*c.info().indexed_fields, "count", c.count({"tenant": "t3"}))
"""


@pytest.mark.process
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_kill_leaves_an_index_or_none(tmp_path: Path) -> None:
    with filled(tmp_path / "c", 3000) as c:
        count = c.count({"tenant": "t3"})
    seed = random.Random(os.environ.get("FLOWVEC_SEED", "1")).randrange(1 << 30)
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / "c"), str(seed)],
                          capture_output=True, text=True, timeout=300, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.splitlines()) <= {f"tenant count {count}", f"count {count}"}
