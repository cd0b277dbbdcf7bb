"""Rows of a collection in shards, read by their ids as those of one collection."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ray", reason="needs the extra [ray]")


from flowvec import Collection
from flowvec.collection.store.rows import Id, Item
from flowvec.errors import ClosedError, InputTypeError, InputValueError
from flowvec.sharded import ShardedSearcher
from tests.inside import run_sql

# The number and the text 3 are different ids, in different shards.
IDS: dict[str, list[Id]] = {"shard-000": ["a", 3, "b"], "shard-001": ["ü", "3", "c", 2**70]}
ALL: list[Id] = [id for ids in IDS.values() for id in ids]


def fill(folder: Path, ids: list[Id]) -> None:
    places = [ALL.index(id) for id in ids]
    with Collection.create(folder, dim=2) as c:
        c.add_vectors(
            ids, np.array([[i, 0.25] for i in places], np.float32),
            [None if i == 1 else f"text {i}" for i in places],
            [None if i == 2 else {"n": i} for i in places],
        )  # fmt: skip


def write_manifest(folder: Path) -> None:
    (folder / "shards.json").write_text(
        json.dumps({"flowvec_shards": 1, "shards": 2, "model": "m", "fingerprint": "f"})
    )


pytestmark = pytest.mark.usefixtures("cluster")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A collection in shards, and `whole`, one collection of the same rows."""
    folder = tmp_path_factory.mktemp("rows")
    for name, ids in (*IDS.items(), ("whole", ALL)):
        fill(folder / name, ids)
    write_manifest(folder)
    return folder


@pytest.fixture(scope="module")
def searcher(folder: Path) -> Iterator[ShardedSearcher]:
    with ShardedSearcher(folder, cpus_per_shard=0.1, timeout=120) as searcher:
        yield searcher


def compared(rows: list[Item | None]) -> list[Any]:
    """All that a row has, except its number in its collection."""
    return [row and (row.id, row.text, row.metadata, row.vector.tolist()) for row in rows]


@pytest.mark.parametrize(
    "ids",
    [
        ALL,
        ALL[::-1],
        ["c", "a", "c", "c"],  # an id in the request twice
        ["nothing", "a", 4, "3", 3, "03"],
        ["nothing"],
        [],
        np.array([3, 4]),
        ("ü",),
    ],
    ids=str,
)
def test_rows_are_those_of_one_collection(
    folder: Path, searcher: ShardedSearcher, ids: list[Id]
) -> None:
    found = searcher.get(ids)
    with Collection.open(folder / "whole") as whole:
        assert compared(found.rows) == compared(whole.get(ids))
    assert (found.partial, found.missing) == (False, {})


@pytest.mark.parametrize("ids", [None, 1.5, [None], [1.5], [True], ["\ud800"], [2**1024]])
def test_wrong_ids_are_the_errors_of_one_collection(
    folder: Path, searcher: ShardedSearcher, ids: Any
) -> None:
    messages = []
    with Collection.open(folder / "whole") as whole:
        for place in (whole, searcher):
            with pytest.raises((InputTypeError, InputValueError)) as refused:
                place.get(ids)
            messages.append((refused.type, str(refused.value)))
    assert messages[0] == messages[1]


def test_arguments_of_other_libraries_are_explained(searcher: ShardedSearcher) -> None:
    with pytest.raises(InputTypeError, match="write filter="):
        searcher.get(["a"], where={})  # type: ignore[call-arg]


def test_a_closed_searcher_reads_nothing(folder: Path) -> None:
    searcher = ShardedSearcher(folder, cpus_per_shard=0.1)
    searcher.close()
    for ids in (["a"], []):
        with pytest.raises(ClosedError):
            searcher.get(ids)


def test_a_lost_shard_is_named_and_not_taken_for_rows_that_are_not_there(
    folder: Path, tmp_path: Path
) -> None:
    write_manifest(tmp_path)
    (tmp_path / "shard-001").symlink_to(folder / "shard-001")
    with ShardedSearcher(tmp_path, cpus_per_shard=0.1, timeout=120) as searcher:
        found = searcher.get(["a", "c"])
        assert [row and row.id for row in found.rows] == [None, "c"]
        assert (found.partial, list(found.missing)) == (True, ["shard-000"])
        # Its rows are not among these.
        found = searcher.get(["c", "ü"])
        assert [row and row.id for row in found.rows] == ["c", "ü"]
        assert (found.partial, list(found.missing)) == (False, ["shard-000"])


def test_a_shard_that_is_late_is_named(searcher: ShardedSearcher) -> None:
    late = searcher.get(["a"], timeout=0.0)
    assert set(late.missing.values()) <= {"no answer within 0 s"}
    assert late.rows[0] is not None or late.partial


def test_a_damaged_row_is_told(tmp_path: Path) -> None:
    for name, ids in IDS.items():
        fill(tmp_path / name, ids)
    write_manifest(tmp_path)
    run_sql(tmp_path / "shard-001", "UPDATE items SET text = 'another' WHERE id = 'c'")
    with ShardedSearcher(tmp_path, cpus_per_shard=0.1, timeout=120) as searcher:
        found = searcher.get(["a", "c"])
        assert [row and row.id for row in found.rows] == ["a", None]
        assert found.partial
        assert "does not match its checksum" in found.missing["shard-001"]
        assert not searcher.get(["a", "ü"]).partial


def test_of_rows_with_the_same_id_that_of_the_first_shard_is_read(tmp_path: Path) -> None:
    for name, id in (("shard-000", "b"), ("shard-001", "a")):
        with Collection.create(tmp_path / name, dim=2) as c:
            c.add_vectors(["same", id], [[1, 0], [0, 1]], [name, name])
    write_manifest(tmp_path)
    with ShardedSearcher(tmp_path, cpus_per_shard=0.1, timeout=120) as searcher:
        rows = searcher.get(["a", "same", "b"]).rows
        assert [row and row.text for row in rows] == ["shard-001", "shard-000", "shard-000"]


def test_the_command_prints_what_it_prints_of_one_collection(
    flowvec: Any, folder: Path, tmp_path: Path
) -> None:
    limit = ("--timeout", "300")
    for words in (("c", "3", "a", "c", *limit), ("b", "--vectors", *limit)):
        ours, theirs = flowvec("get", folder, *words), flowvec("get", folder / "whole", *words)
        assert (ours.returncode, ours.stdout, ours.stderr) == (0, theirs.stdout, theirs.stderr)
    done = flowvec("get", folder, "ü", "x", "a", "--json", "--vectors", *limit)
    assert (done.returncode, done.stderr) == (1, f"{folder} has no row x\n")
    rows = json.loads(flowvec("get", folder / "whole", "ü", "a", "--json", "--vectors").stdout)
    answer = json.loads(done.stdout)
    # A label is the row's number in its own shard.
    assert [row.pop("label") for row in answer["rows"]] == [1, 1]
    assert [row.pop("label") for row in rows] == [4, 1]
    assert answer == {"rows": rows, "partial": False, "missing": {}}

    write_manifest(tmp_path)
    (tmp_path / "shard-000").symlink_to(folder / "shard-000")
    done = flowvec("get", tmp_path, "a", "c", "--json", *limit)
    answer = json.loads(done.stdout)
    assert [row["id"] for row in answer["rows"]] == ["a"]
    assert (done.returncode, answer["partial"]) == (1, True)
    assert done.stderr.splitlines() == [
        f"shard-001 is missing: {answer['missing']['shard-001']}",
        f"{tmp_path} has no row c in the shards that answered",
    ]
    done = flowvec("get", tmp_path, "b", *limit)
    assert done.returncode == 0
    assert done.stdout.startswith("id        b\n")
    assert done.stderr.startswith("shard-001 is missing: ")
    (tmp_path / "shard-000").unlink()
    none = flowvec("get", tmp_path, "a")
    assert (none.returncode != 0, none.stdout) == (True, "")
    assert f"no shard of {tmp_path} could be read" in none.stderr
    late = flowvec("get", folder, "a", "--timeout", "0")
    assert "no answer within 0 s" in late.stderr
    pages = flowvec("get", folder, "--limit", "3")
    assert pages.returncode == 2
    assert "`flowvec get` with ids reads their rows" in pages.stderr
