"""`flowvec get`, `delete` and `dump`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flowvec import Collection
from tests.makers import write_jsonl


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    with Collection.create(tmp_path / "notes", dim=2) as c:
        c.add_vectors(
            ["a", "b", 3, "3", "ü"],
            np.array([[1, 0], [0, 1], [1, 1], [2, 1], [0.5, 0.25]], np.float32),
            ["A cat sleeps.", "A dog\nbarks.", None, "three", "ü"],
            [{"year": 2023}, {"year": 2024}, None, {"raw": "é"}, {}],
        )
    return tmp_path / "notes"


def ids_of(notes: Path) -> list[Any]:
    with Collection.open(notes) as c:
        assert c.verify() == []
        return c.ids()


def test_get_shows_rows_by_id(flowvec: Any, notes: Path) -> None:
    done = flowvec("get", notes, "a", "3")
    assert done.returncode == 0, done.stderr
    assert done.stdout == (
        'id        a\ntext      A cat sleeps.\nmetadata  {"year": 2023}\n\n'
        'id        3\ntext      three\nmetadata  {"raw": "é"}\n\nid        3\n'
    )
    rows = json.loads(flowvec("get", notes, "ü", "b", "--json", "--vectors").stdout)
    assert rows == [
        {"label": 5, "id": "ü", "text": "ü", "metadata": {}, "vector": [0.5, 0.25]},
        {"label": 2, "id": "b", "text": "A dog\nbarks.", "metadata": {"year": 2024},
         "vector": [0.0, 1.0]},
    ]  # fmt: skip
    missing = flowvec("get", notes, "a", "x", "03", "--json")
    assert missing.returncode == 1
    assert [row["id"] for row in json.loads(missing.stdout)] == ["a"]
    assert missing.stderr.splitlines() == [f"{notes} has no row x", f"{notes} has no row 03"]


def test_get_shows_pages(flowvec: Any, notes: Path) -> None:
    first = flowvec("get", notes, "--limit", 2, "--json")
    assert [row["id"] for row in json.loads(first.stdout)] == ["a", "b"]
    assert "add --after 2" in first.stderr
    rest = flowvec("get", notes, "--limit", 9, "--after", 2, "--json")
    assert [row["id"] for row in json.loads(rest.stdout)] == [3, "3", "ü"]
    assert rest.stderr == ""
    wanted = '{"$text": {"contains": "cat"}}'
    assert "A cat sleeps." in flowvec("get", notes, "--filter", wanted).stdout
    assert flowvec("get", notes, "--filter", '{"year": 1}').stdout == "no rows\n"


def test_delete_deletes_by_id_and_by_filter(flowvec: Any, notes: Path) -> None:
    done = flowvec("delete", notes, "a", "x")
    assert done.stdout == f"{notes}: 1 row deleted, 4 in all\n"
    wanted = '{"year": 2024}'
    done = flowvec("delete", notes, "--filter", wanted, "--dry-run", "--json")
    assert json.loads(done.stdout) == {
        "path": str(notes), "deleted": 0, "rows": 4, "would_delete": 1
    }  # fmt: skip
    assert len(ids_of(notes)) == 4
    done = flowvec("delete", notes, "--filter", wanted, "--json")
    assert json.loads(done.stdout) == {"path": str(notes), "deleted": 1, "rows": 3}
    ambiguous = flowvec("delete", notes, "3")
    assert ambiguous.returncode == 2
    assert "3 is the id of two rows" in ambiguous.stderr
    flowvec("delete", notes, "--filter", '{"$id": 3}')
    assert ids_of(notes) == ["3", "ü"]
    flowvec("delete", notes, "3")
    assert ids_of(notes) == ["ü"]
    assert flowvec("delete", notes, "--filter", "{}").returncode == 2
    assert ids_of(notes) == ["ü"]
    assert flowvec("delete", notes, "--filter", "{}", "--yes").returncode == 0
    assert ids_of(notes) == []


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (("get", "a", "--filter", "{}"), "give ids, or --filter"),
        (("get", "--filter", "{"), "--filter is not JSON"),
        (("get", "--filter", '{"a": {"~": 1}}'), "is not an operator"),
        (("delete",), "give ids or --filter"),
        (("delete", "a", "--filter", "{}"), "give ids or --filter"),
        (("dump", "-o", "notes.csv"), "a .jsonl or .parquet file, not notes.csv"),
    ],
)
def test_mistakes_are_one_line(flowvec: Any, notes: Path, arguments: Any, part: str) -> None:
    done = flowvec(arguments[0], notes, *arguments[1:])
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert part in done.stderr
    assert len(ids_of(notes)) == 5


def test_dump_writes_every_row(flowvec: Any, notes: Path, tmp_path: Path) -> None:
    lines = flowvec("dump", notes).stdout.splitlines()
    assert [json.loads(line) for line in lines] == [
        {"id": "a", "text": "A cat sleeps.", "metadata": {"year": 2023}},
        {"id": "b", "text": "A dog\nbarks.", "metadata": {"year": 2024}},
        {"id": 3, "text": None, "metadata": None},
        {"id": "3", "text": "three", "metadata": {"raw": "é"}},
        {"id": "ü", "text": "ü", "metadata": {}},
    ]
    done = flowvec("dump", notes, "-o", "n.jsonl", "--vectors", "--filter", '{"$id": "a"}')
    assert done.stdout == "n.jsonl: 1 row\n"
    assert json.loads((tmp_path / "n.jsonl").read_text()) == {
        "id": "a", "text": "A cat sleeps.", "metadata": {"year": 2023}, "vector": [1.0, 0.0]
    }  # fmt: skip
    before = (tmp_path / "n.jsonl").read_bytes()
    for out, said in (("n.jsonl", "--overwrite"), (notes / "n.jsonl", "is in the input")):
        done = flowvec("dump", notes, "-o", out)
        assert (done.returncode, said in done.stderr) == (2, True)
    assert (tmp_path / "n.jsonl").read_bytes() == before
    assert not (notes / "n.jsonl").exists()
    done = flowvec("dump", notes, "-o", "n.jsonl", "--overwrite")
    assert done.stdout == "n.jsonl: 5 rows\n"


def test_a_parquet_dump_is_a_collection_again(flowvec: Any, notes: Path, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow", reason="needs the extra [files]")
    done = flowvec("dump", notes, "-o", "n.parquet", "--filter", '{"not": {"$id": "b"}}')
    assert done.returncode == 0, done.stderr
    with Collection.from_parquet(tmp_path / "again", tmp_path / "n.parquet") as c:
        assert c.ids() == ["a", 3, "3", "ü"]
        np.testing.assert_array_equal(next(c.rows()).vector, [1, 0])


@pytest.mark.process
def test_a_reader_of_a_dump_may_stop(tmp_path: Path) -> None:
    with Collection.create(tmp_path / "many", dim=2) as c:
        c.add_vectors(range(3000), np.ones((3000, 2)), ["a text " * 20] * 3000)
    code = "from flowvec.cli.main import main; main()"
    with subprocess.Popen([sys.executable, "-c", code, "dump", str(tmp_path / "many")],
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE) as dump:  # fmt: skip
        assert dump.stdout is not None
        assert dump.stderr is not None
        assert json.loads(dump.stdout.readline())["id"] == 0
        dump.stdout.close()
        assert dump.stderr.read() == b""
        assert dump.wait(600) == 0


def test_index_prunes_and_names_what_it_skips(flowvec: Any, tmp_path: Path) -> None:
    def write(*rows: Any) -> None:
        (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def index(*more: Any) -> Any:
        return flowvec("index", "c", "in.jsonl", "--id-field", "id", *more)

    cat, dog = {"id": "a", "text": "a cat"}, {"id": "b", "text": "a dog"}
    write(cat, dog)
    assert index("--model", "mini").returncode == 0
    write(dog, *({"id": n, "text": None} for n in range(7)))
    done = index("--prune", "--on-error", "skip")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "c: 0 rows added (1 were there already), 7 dead letters (7 null), 1 pruned, 1 in all, "
        "384 dimensions",
        *(f"skipped: in.jsonl, row {n + 1} (id {n}): text is null" for n in range(5)),
        "skipped: ...",
        "dead letters: c.dead_letter.jsonl",
    ]
    assert json.loads(index("--prune", "--json").stdout)["pruned"] == 0
    stopped = index("--on-error", "stop")
    assert (stopped.returncode, stopped.stderr) == (2, "flowvec: in.jsonl, row 1: text is null\n")
    for more, part in (
        (("--on-error", "skip", "--strict"), "--strict is --on-error stop"),
        (("--on-error", "no"), "--on-error must be one of skip, stop"),
    ):
        wrong = index(*more)
        assert wrong.returncode == 2
        assert part in wrong.stderr


def test_index_splits_long_texts_and_search_merges_them(flowvec: Any, tmp_path: Path) -> None:
    text = "Cats sleep most of the day. They hunt at night. Mice fear them."
    rows = [{"id": "cats", "text": text}, {"id": "stocks", "text": "Stocks fell on Monday."}]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    made = flowvec("index", "c", "in.jsonl", "--model", "mini", "--id-field", "id",
                   "--split", 16, "--split-overlap", 8)  # fmt: skip
    assert made.stdout == "c: 2 rows added (3 chunks), 3 in all, 384 dimensions\n", made.stderr
    hits = flowvec("search", "c", "a mouse", "-k", 2, "--group-by", "parent", "--json")
    assert [hit["metadata"]["parent"] for hit in json.loads(hits.stdout)] == ["cats", "stocks"]
    second = flowvec("search", "c", "a mouse", "-k", 1, "--group-by", "parent", "--offset", 1,
                     "--json")  # fmt: skip
    assert [hit["metadata"]["parent"] for hit in json.loads(second.stdout)] == ["stocks"]
    whole = flowvec("index", "d", "in.jsonl", "--model", "mini", "--id-field", "id",
                    "--split", 0, "--json")  # fmt: skip
    assert json.loads(whole.stdout)["chunks"] == 2


def test_index_makes_the_full_text_index(flowvec: Any, tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("東京の天気は晴れです。\na cat\n")
    made = flowvec("index", "c", "in.txt", "--model", "mini", "--full-text", "trigram")
    assert made.returncode == 0, made.stderr
    assert json.loads(flowvec("info", "c", "--json").stdout)["full_text"] == "trigram"
    hits = flowvec("search", "c", "京の天", "--hybrid", "--prefix", "-k", 1, "--vector-weight", 0,
                   "--json")  # fmt: skip
    assert json.loads(hits.stdout)[0]["id"] == 0
    wrong = flowvec("index", "c", "in.txt", "--resume", "--full-text", "icu")
    assert wrong.returncode == 2
    assert "--full-text must be one of unicode61, trigram" in wrong.stderr
    alone = flowvec("search", "c", "a", "--prefix")
    assert (alone.returncode, "add --hybrid" in alone.stderr) == (2, True)


def test_index_makes_indexes_over_fields(flowvec: Any, tmp_path: Path) -> None:
    rows = [{"id": i, "text": f"a cat {i}", "tenant": f"t{i % 2}", "year": 2020} for i in range(4)]
    write_jsonl(tmp_path / "in.jsonl", rows)
    made = flowvec("index", "c", "in.jsonl", "--model", "mini", "--id-field", "id", "--keep",
                   "tenant,year", "--index-field", "tenant", "--index-field", "year")  # fmt: skip
    assert made.returncode == 0, made.stderr
    info = json.loads(flowvec("info", "c", "--json").stdout)
    assert info["indexed_fields"] == ["tenant", "year"]
    hits = flowvec("search", "c", "a cat", "--filter", '{"tenant": "t1"}', "--json")
    assert {hit["id"] for hit in json.loads(hits.stdout)} == {1, 3}
    wrong = flowvec("index", "d", "in.jsonl", "--model", "mini", "--index-field", "$id")
    assert (wrong.returncode, "not a field of the metadata" in wrong.stderr) == (2, True)
    assert not (tmp_path / "d").exists()


@pytest.mark.parametrize("command", ["get", "dump", "compact"])
def test_a_collection_in_shards_is_said_to_be_one(
    flowvec: Any, tmp_path: Path, command: str
) -> None:
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "shards.json").write_text("{}")
    done = flowvec(command, "c")
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done.stderr
    shard = tmp_path / "c" / "shard-000"
    assert f"{tmp_path / 'c'} is a collection in shards: " in done.stderr
    assert done.stderr.endswith(f"each shard is a collection of its own, such as {shard}\n")


def test_what_is_not_a_collection_is_said(flowvec: Any, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    for name, reason in (
        ("folder", "it has no collection.sqlite"),
        ("file", "it is not a directory"),
        ("nothing", "there is no such directory"),
    ):
        done = flowvec("get", name)
        assert done.stderr == f"flowvec: {tmp_path / name} is not a collection: {reason}\n"
        assert done.returncode == 2


def test_rows_are_not_added_to_a_collection_in_shards(
    flowvec: Any, tmp_path: Path, tiny_dir: Path
) -> None:
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "shards.json").write_text("{}")
    write_jsonl(tmp_path / "rows.jsonl", [{"text": "a"}])
    for words in (
        ("index", "c", "rows.jsonl", "--model", tiny_dir),
        ("index", "c", "rows.jsonl", "--id-field", "id"),
        ("encode", tiny_dir, "rows.jsonl", "--into", "c"),
    ):
        done = flowvec(*words)
        assert done.returncode == 2
        assert "only `flowvec index --engine ray`" in done.stderr


def test_a_url_is_not_a_collection(flowvec: Any) -> None:
    done = flowvec("dump", "s3://bucket/notes?region=eu-central-1")
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done.stderr
    assert done.stderr.startswith("flowvec: s3://bucket/notes is a URL, and a collection is a dir")
    assert "`flowvec search`, `get` with ids, `info` and `verify` work" in done.stderr
