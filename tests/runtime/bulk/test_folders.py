"""What a bulk job leaves on disk: read by others, of a fixed format, and next to other shares."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flowvec import Collection, Encoder
from flowvec.bulk import encode_files, verify_folder
from flowvec.bulk.records import VERSION
from flowvec.errors import BulkError
from tests.data.make_bulk import OPTIONS
from tests.makers import write_jsonl
from tests.runtime.bulk.conftest import letters_of

FORMATS = Path(__file__).resolve().parents[2] / "data/formats"


def codes_of(folder: Path) -> list[tuple[int, str]]:
    """Row and code of each dead letter."""
    return [(letter["row"], letter["code"]) for letter in letters_of(folder)]


# --- read by others -------------------------------------------------------------------------------


@pytest.fixture
def vector_folder(tmp_path: Path, tiny: Encoder, arrow: Any) -> Path:
    """A folder of three shards, with dead letters and a share's manifest."""
    rows = [{"id": i, "text": f"a dog {i}" if i % 9 else None, "n": i} for i in range(50)]
    file = write_jsonl(tmp_path / "in.jsonl", rows)
    for index in (1, 2):
        encode_files(tiny, file, tmp_path / "vecs", rows_per_shard=20, id_field="id", keep=["n"],
                     share=(index, 2))  # fmt: skip
    assert any((tmp_path / "vecs").glob("_dead_letter*.jsonl"))
    return tmp_path / "vecs"


def test_pandas_and_arrow_read_the_folder(vector_folder: Path, arrow: Any) -> None:
    pandas = pytest.importorskip("pandas", reason="needs the extra [test]")
    import pyarrow.dataset

    frame = pandas.read_parquet(vector_folder)
    assert sorted(frame["n"]) == [i for i in range(50) if i % 9]
    table = pyarrow.dataset.dataset(vector_folder).to_table()
    assert table.num_rows == 44
    assert table.schema.field("vector").type.list_size == 16


def test_duckdb_and_polars_read_the_folder(vector_folder: Path) -> None:
    duckdb = pytest.importorskip("duckdb", reason="needs the extra [test]")
    polars = pytest.importorskip("polars", reason="needs the extra [test]")
    query = (
        f"select count(*), max(n), min(len(vector)) from read_parquet('{vector_folder}/*.parquet')"
    )
    assert duckdb.sql(query).fetchall() == [(44, 49, 16)]
    # polars refuses a folder with other files, whatever their names: hence the glob.
    frame = polars.read_parquet(f"{vector_folder}/*.parquet")
    assert frame.shape == (44, 3)
    assert frame["vector"].dtype == polars.Array(polars.Float32, 16)


def test_the_info_command_recognizes_a_bulk_folder(
    flowvec, vector_folder: Path, tiny_dir: Path
) -> None:
    told = json.loads(flowvec("info", vector_folder, "--json").stdout)
    assert (told["kind"], told["complete"], told["rows"], told["dead_letters"]) == (
        "folder of a bulk job", True, 44, 6
    )  # fmt: skip
    assert (told["model"], told["precision"], told["shards"]) == ("tiny", "float32", 3)
    next(vector_folder.glob("_manifest.1-of-2.json")).unlink()
    assert "complete      False" in flowvec("info", vector_folder).stdout
    (vector_folder / "_manifest.2-of-2.json").write_text("{")
    damaged = flowvec("info", vector_folder)
    assert (damaged.returncode, "cannot be read" in damaged.stderr) == (2, True)
    (vector_folder / "_manifest.2-of-2.json").write_text('{"flowvec_bulk": 1}')
    assert "does not describe its job" in flowvec("info", vector_folder).stderr
    assert flowvec("info", tiny_dir).returncode == 0
    # A bundle's manifest is not that of a job.
    assert "bundle" in flowvec("verify", tiny_dir).stderr


# --- other shares ---------------------------------------------------------------------------------


@pytest.mark.parametrize("other", ["input", "precision", "rows_per_shard", "shares", "one"])
def test_shares_of_another_job_are_refused(tmp_path: Path, tiny: Encoder, other: str) -> None:
    def job(given: str) -> dict[str, Any]:
        file = write_jsonl(
            tmp_path / f"{given}.jsonl", [{"text": f"{given} {i}"} for i in range(30)]
        )
        return {
            "inputs": file,
            "precision": "float16" if given == "precision" else "float32",
            "rows_per_shard": 5 if given == "rows_per_shard" else 10,
            "share": {"shares": (2, 3), "one": (1, 1)}.get(given, (2, 2)),
        }

    first = job("same") | {"share": (1, 2)}
    second = job(other)
    if other != "input":
        second["inputs"] = first["inputs"]
    encode_files(tiny, out=tmp_path / "out", out_format="npy", **first)
    with pytest.raises(BulkError, match="a share of another job"):
        encode_files(tiny, out=tmp_path / "out", out_format="npy", **second)
    # It wrote nothing, and the job that was begun can be completed.
    encode_files(tiny, out=tmp_path / "out", out_format="npy", **first | {"share": (2, 2)})
    assert not verify_folder(tmp_path / "out").problems


def test_mixed_shares_do_not_verify(tmp_path: Path, tiny: Encoder) -> None:
    for name in ("a", "b"):
        file = write_jsonl(tmp_path / f"{name}.jsonl", [{"text": f"{name} {i}"} for i in range(30)])
        for index in (1, 2):
            encode_files(tiny, file, tmp_path / name, out_format="npy", rows_per_shard=10,
                         share=(index, 2))  # fmt: skip
    for file in (*(tmp_path / "b").glob("*2-of-2*"), *(tmp_path / "b").glob("part-000001.*")):
        shutil.copy(file, tmp_path / "a")
    (problem,) = verify_folder(tmp_path / "a").problems
    assert "_manifest.2-of-2.json belongs" in problem
    assert "b.jsonl" in problem


# --- the format -----------------------------------------------------------------------------------


@pytest.fixture
def earlier(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The fixture: a whole job, and one that was stopped after two of four shards."""
    folder = Path(shutil.copytree(FORMATS / f"bulk-v{VERSION}", tmp_path / "earlier"))
    monkeypatch.chdir(folder)
    return folder


def test_a_folder_that_was_written_before_verifies_and_resumes(earlier: Path) -> None:
    assert not verify_folder(earlier / "whole").problems
    with Encoder.load(FORMATS / "bundle-v1", provider="cpu", compute="float32") as encoder:
        done = encode_files(encoder, "in.jsonl", earlier / "begun", **OPTIONS)
        again = encode_files(encoder, "in.jsonl", earlier / "whole", **OPTIONS)
    assert (done.shards_before, done.shards, done.rows, done.dead_letters) == (2, 4, 36, 4)
    assert (again.encoded, again.rows) == (0, 36)
    assert not verify_folder(earlier / "begun").problems
    names = sorted(file.name for file in (earlier / "whole").iterdir())
    assert sorted(file.name for file in (earlier / "begun").iterdir()) == names
    for name in names:
        if name.startswith(("part-", "_part-", "_dead")) and not name.endswith(".npy"):
            assert (earlier / "begun" / name).read_bytes() == (
                earlier / "whole" / name
            ).read_bytes()


def test_a_folder_of_a_newer_format_is_refused(earlier: Path) -> None:
    file = earlier / "begun/_manifest.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "flowvec_bulk": VERSION + 1}))
    before = {path.name: path.read_bytes() for path in (earlier / "begun").iterdir()}
    with (
        Encoder.load(FORMATS / "bundle-v1", provider="cpu") as encoder,
        pytest.raises(BulkError, match=r"_manifest\.json .*version"),
    ):
        encode_files(encoder, "in.jsonl", earlier / "begun", **OPTIONS)
    after = {path.name: path.read_bytes() for path in (earlier / "begun").iterdir()}
    assert {name: content for name, content in after.items() if name != ".lock"} == before


@pytest.mark.parametrize(
    "content",
    [
        '{"flowvec_bulk": 1, "inputs": [{}]}',
        '{"flowvec_bulk": 1}',
        '{"flowvec_bulk": 1, "inputs": 3}',
        "[]",
        '{"flowvec_bulk": 1, "shards": [{}], "inputs": []}',
    ],
)
def test_a_damaged_manifest_is_named(earlier: Path, content: str) -> None:
    (earlier / "begun/_manifest.json").write_text(content)
    with (
        Encoder.load(FORMATS / "bundle-v1", provider="cpu") as encoder,
        pytest.raises(BulkError, match=r"manifest|another job"),
    ):
        encode_files(encoder, "in.jsonl", earlier / "begun", out_format="npy")


# --- kept values ----------------------------------------------------------------------------------


@pytest.mark.parametrize("out_format", ["parquet", "npy", "collection"])
def test_kept_values_that_cannot_be_written_are_dead_letters(
    tmp_path: Path, tiny: Encoder, arrow: Any, out_format: Any
) -> None:
    import pyarrow

    names = pyarrow.array([b"fine", b"\xff", b"fine", b"fine"]).view(pyarrow.string())
    table = pyarrow.table({
        "text": ["a cat", "a dog", "a house", "a garden"],
        "name": names,
        "score": [1.0, 2.0, float("nan"), 3.0],
        "nested": [{"x": [1.0]}, None, {"x": [2.0]}, {"x": [float("inf")]}],
    })  # fmt: skip
    arrow.write_table(table, tmp_path / "in.parquet")
    out = tmp_path / "out"
    done = encode_files(tiny, tmp_path / "in.parquet", out, keep=["name", "score", "nested"],
                        out_format=out_format)  # fmt: skip
    if out_format == "parquet":  # whose numbers may be NaN
        assert codes_of(out) == [(1, "bad_field")]
        assert np.isnan(arrow.read_table(out)["score"].to_pylist()[1])
        return
    folder = out if out_format == "npy" else tmp_path / "out.job"
    assert codes_of(folder) == [(1, "bad_field"), (2, "bad_field"), (3, "bad_field")]
    assert done.rows == 1
    if out_format == "npy":
        (line,) = (out / "part-000000.rows.jsonl").read_text().splitlines()
        assert json.loads(line)["score"] == 1.0
    else:
        with Collection.open(out) as c:
            assert c.get([0])[0].metadata == {"name": "fine", "score": 1.0, "nested": {"x": [1.0]}}


@pytest.mark.parametrize("out_format", ["npy", "collection"])
@pytest.mark.parametrize("value", ["NaN", "-Infinity", "1e999", "[NaN]"])
def test_kept_values_that_are_not_json_are_dead_letters(
    tmp_path: Path, tiny: Encoder, out_format: Any, value: str
) -> None:
    kind = "[0.5]" if value.startswith("[") else "0.5"
    lines = [f'{{"text": "a cat", "n": {value if i == 5 else kind}}}' for i in range(9)]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    out = tmp_path / "out"
    done = encode_files(tiny, tmp_path / "a.jsonl", out, keep=["n"], out_format=out_format)
    assert (done.rows, done.codes) == (8, {"bad_field": 1})
    if out_format == "npy":
        for line in (out / "part-000000.rows.jsonl").read_text().splitlines():
            json.loads(line, parse_constant=pytest.fail)


def test_values_of_parquet_are_kept_in_a_collection_as_collections_store_them(
    tmp_path: Path, tiny: Encoder, arrow: Any
) -> None:
    import datetime
    import decimal

    import pyarrow

    table = pyarrow.table({
        "text": ["a cat"],
        "price": [decimal.Decimal("1.50")],
        "exact": [decimal.Decimal("0.12345678901234567890")],
        "when": [datetime.date(2026, 1, 2)],
        "stays": [[datetime.datetime(2026, 1, 2, 3, 4)]],
    })  # fmt: skip
    arrow.write_table(table, tmp_path / "in.parquet")
    encode_files(tiny, tmp_path / "in.parquet", tmp_path / "c", out_format="collection",
                 keep=["price", "exact", "when", "stays"])  # fmt: skip
    with Collection.open(tmp_path / "c") as c:
        assert c.get([0])[0].metadata == {
            "price": 1.5, "exact": "0.12345678901234567890", "when": "2026-01-02",
            "stays": ["2026-01-02T03:04:00"],
        }  # fmt: skip


# --- a full disk ----------------------------------------------------------------------------------

FULL = """
import resource, signal, sys
from flowvec import Encoder
from flowvec.bulk import encode_files
from flowvec.errors import BulkError
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
with Encoder.load(sys.argv[1], provider="cpu", streams=1) as encoder:
    encoder.encode("warm")
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[3]), resource.RLIM_INFINITY))
    try:
        encode_files(encoder, "in.jsonl", "out", out_format=sys.argv[2], rows_per_shard=2000)
    except BulkError as error:
        print(error)
"""


@pytest.mark.process
@pytest.mark.parametrize("limit", [3000, 20_000, 100_000])
@pytest.mark.parametrize("out_format", ["npy", "parquet"])
def test_a_full_disk_is_named_and_nothing_keeps_it_full(
    tmp_path: Path, tiny_dir: Path, arrow: Any, out_format: str, limit: int
) -> None:
    rows = [{"text": f"a cat {i}" if i % 3 else None} for i in range(6000)]
    write_jsonl(tmp_path / "in.jsonl", rows)
    run = subprocess.run(
        [sys.executable, "-c", FULL, str(tiny_dir), out_format, str(limit)],
        cwd=tmp_path, capture_output=True, text=True, timeout=600, env=os.environ, check=False,
    )  # fmt: skip
    assert "cannot write into out" in run.stdout, run.stderr
    assert "Traceback" not in run.stderr
    assert not list((tmp_path / "out").glob("*partial*"))
    with Encoder.load(tiny_dir, provider="cpu") as encoder:
        done = encode_files(encoder, tmp_path / "in.jsonl", tmp_path / "whole",
                            out_format=out_format, rows_per_shard=2000)  # fmt: skip
    assert (done.rows, done.dead_letters) == (4000, 2000)


# --- names ----------------------------------------------------------------------------------------


def test_paths_may_be_in_the_home_or_the_current_folder(
    tmp_path: Path, tiny: Encoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "in.txt").write_text("a cat\na dog\n")
    encode_files(tiny, "~/in.txt", "~/vecs", out_format="npy")
    assert (tmp_path / "vecs/part-000000.npy").exists()
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    encode_files(tiny, "../in.txt", ".", out_format="collection")
    with Collection.open(".") as c, Collection.open("~/here") as again:
        assert len(c) == len(again) == 2
    assert (tmp_path / "here.job/_manifest.json").exists()


@pytest.mark.parametrize("name", ["v.npy", "v.parquet"])
def test_one_file_is_replaced_only_without_resume(
    tmp_path: Path, tiny: Encoder, arrow: Any, name: str
) -> None:
    (tmp_path / "in.txt").write_text("a cat\na dog\n")
    encode_files(tiny, tmp_path / "in.txt", tmp_path / name)
    before = (tmp_path / name).read_bytes()
    (tmp_path / "in.txt").write_text("a cat\n")
    with pytest.raises(BulkError, match=f"{name} exists.*--restart"):
        encode_files(tiny, tmp_path / "in.txt", tmp_path / name)
    assert (tmp_path / name).read_bytes() == before
    encode_files(tiny, tmp_path / "in.txt", tmp_path / name, resume=False)
    assert (tmp_path / name).read_bytes() != before
