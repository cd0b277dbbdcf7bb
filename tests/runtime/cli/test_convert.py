"""`flowvec convert`."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.job_folders import write_job
from tests.makers import unit_vectors

pytestmark = pytest.mark.usefixtures("arrow")


def test_convert_says_what_it_wrote(flowvec: Any, tmp_path: Path) -> None:
    write_job(tmp_path / "job", unit_vectors(5, 4))
    done = flowvec("convert", "job", "v.parquet")
    assert done.returncode == 0, done.stderr
    assert re.match(r"v\.parquet: 5 rows of 4 x float32, [1-9]\d*\.\d kB; ", done.stdout)
    done = flowvec("convert", "job", "h", "--to", "hnswlib", "--json", "--progress", "json")
    assert json.loads(done.stdout)["rows"] == 5
    line = json.loads(done.stderr.splitlines()[-1])
    assert {line[key] for key in ("command", "stage", "rows", "total")} == {"convert", "writing", 5}
    done = flowvec("convert", "job", "f", "--to", "faiss")
    assert done.stdout.splitlines()[1] == (
        'import faiss; index = faiss.read_index("f/index.faiss")'
    )


def test_mistakes_are_one_line(flowvec: Any, tmp_path: Path) -> None:
    write_job(tmp_path / "job", unit_vectors(5, 4))
    (tmp_path / "v.parquet").touch()
    for words, message in (
        (("job", "out"), "name the format of out: --to parquet | faiss | hnswlib | pg"),
        (("job", "out", "--to", "csv"), "--to must be one of parquet, faiss, hnswlib, pg"),
        (("job", "v.parquet"), "exists: name another target, or give --overwrite"),
        (("nothing", "w.parquet"), "nothing is neither the folder of a bulk job nor a collection"),
        (("job", "w.parquet", "--progress", "x"), "--progress must be one of bar, json"),
    ):
        done = flowvec("convert", *words)
        assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done.stderr
        assert message in done.stderr
    assert flowvec("convert", "job", "v.parquet", "--overwrite").returncode == 0


def test_a_collection_in_shards_is_said_to_be_one(flowvec: Any, tmp_path: Path) -> None:
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "shards.json").write_text("{}")
    done = flowvec("convert", "c", "v.parquet")
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done.stderr
    assert "one by one, such as c/shard-000" in done.stderr
