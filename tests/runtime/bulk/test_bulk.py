"""Bulk jobs: the command, signals, and windows."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from flowvec import Encoder
from flowvec.bulk import encode_files
from flowvec.bulk.shard_files import ShardFile
from flowvec.errors import BulkError, InputValueError
from tests.makers import contents, write_jsonl
from tests.runtime.bulk.conftest import COMMON, letters_of
from tests.waiting import wait_until


def test_the_encode_command_encodes_folders_and_prints_a_summary(
    flowvec, tmp_path, tiny_dir
) -> None:
    (tmp_path / "in").mkdir()
    write_jsonl(tmp_path / "in/a.jsonl", [{"t": "the cat", "u": "x"}, {"t": 5, "u": "y"}])
    options = ("--text-field", "t", "--id-field", "u", "--out-format", "npy", "--provider", "cpu")
    done = flowvec("encode", tiny_dir, "in", "-o", "out", *options)
    assert done.returncode == 0, done.stderr
    assert "2 rows in, 1 x 16 float32 out, 1 dead letter (1 not_text); 1 file;" in done.stdout
    repeated = flowvec("encode", tiny_dir, "in", "-o", "out", *options)
    assert "out: nothing left to do: 1 x 16 float32" in repeated.stdout
    again = flowvec("encode", tiny_dir, "in", "-o", "out", *options, "--json")
    summary = json.loads(again.stdout)
    assert (summary["encoded"], summary["rows_in"], summary["shards_before"]) == (0, 2, 1)
    refused = flowvec("encode", tiny_dir, "in", "-o", "out", *options, "--precision", "float16")
    assert (refused.returncode, "options.precision was" in refused.stderr) == (2, True)
    anew = flowvec("encode", tiny_dir, "in", "-o", "out", *options, "--restart", "--strict")
    assert (anew.returncode, "a.jsonl, row 1: t is a number" in anew.stderr) == (2, True)
    dry = flowvec("encode", tiny_dir, "in", "--dry-run", "--text-field", "t")
    assert "2 rows" in dry.stdout
    flowvec("encode", tiny_dir, "in", "-o", "out", *options, "--restart")
    dry = flowvec("encode", tiny_dir, "in", "-o", "out", *options, "--dry-run")
    assert "out holds a complete job of 1 row: nothing is left to do" in dry.stdout
    into = flowvec("encode", tiny_dir, "in", "--into", "c", "--text-field", "t", "--id-field", "u")
    assert into.returncode == 0, into.stderr
    assert "the cat" in flowvec("search", "c", "cat").stdout


@pytest.mark.process
@pytest.mark.skipif(sys.platform == "win32", reason="signals are POSIX's")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_job_after_a_shard_and_says_how_to_resume(
    tmp_path: Path, tiny_dir: Path, number: int
) -> None:
    # More rows than are encoded before the signal comes, however late that is.
    (tmp_path / "a.txt").write_text("the cat sleeps in the garden of the house\n" * 600_000)
    code = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from flowvec.cli.main import main; main()"
    )
    words = ["encode", str(tiny_dir), "a.txt", "-o", "out", "--out-format", "npy",
             "--rows-per-shard", "500", "--provider", "cpu"]  # fmt: skip
    process = subprocess.Popen(
        [sys.executable, "-c", code, *words], cwd=tmp_path, stderr=subprocess.PIPE, text=True,
        stdout=subprocess.PIPE,
    )  # fmt: skip
    wait_until(lambda: list(tmp_path.glob("out/part-*.npy")))
    process.send_signal(number)
    _, told = process.communicate(timeout=300)
    assert process.returncode == 128 + number, told
    assert "stopped; this continues the job:\nflowvec encode" in told
    assert not list(tmp_path.glob("out/*.partial"))
    lines = (tmp_path / "out/_journal.jsonl").read_text().splitlines()
    assert 0 < len(lines) < 1200
    assert len(lines) == len(list(tmp_path.glob("out/part-*.npy")))


def test_one_wrong_row_does_not_decide_what_a_field_holds(tmp_path: Path, tiny: Encoder) -> None:
    rows = [{"id": f"k{i}", "text": "the cat", "n": i, "w": i if i % 2 else i / 2, "x": [i]}
            for i in range(20)]  # fmt: skip
    rows[3]["id"], rows[5]["n"] = 3, "five"
    file = write_jsonl(tmp_path / "a.jsonl", rows)
    encode_files(tiny, file, tmp_path / "o", id_field="id", keep=["n", "w", "x"], out_format="npy")
    columns = json.loads((tmp_path / "o/_manifest.json").read_text())["columns"]
    assert columns == {"id": "string", "n": "int64", "w": "double", "x": "json"}
    assert [x["row"] for x in letters_of(tmp_path / "o")] == [3, 5]


def test_nothing_is_written_after_a_window_that_could_not_be(
    tmp_path: Path, tiny: Encoder, rows: Path, monkeypatch: pytest.MonkeyPatch, windows_of: Any
) -> None:
    windows_of(8)
    write, calls = ShardFile.write, []

    def failing(self, window, kept, vectors) -> None:
        calls.append(window.first)
        if window.first == 32:
            raise OSError(28, "No space left on device")
        write(self, window, kept, vectors)

    with monkeypatch.context() as patch:
        patch.setattr(ShardFile, "write", failing)
        with pytest.raises(BulkError, match=r"out.*No space left"):
            encode_files(tiny, rows, tmp_path / "out", **COMMON)
    assert calls[-1] == 32
    encode_files(tiny, rows, tmp_path / "out", **COMMON)
    encode_files(tiny, rows, tmp_path / "whole", **COMMON)
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


def test_values_that_cannot_be_ids_do_not_change_the_column_of_those_that_can(
    tiny: Encoder, tmp_path: Path, arrow: Any
) -> None:
    rows = [{"id": key, "text": "a cat"} for key in (1, 1.5, 2, True, 3, [4], {"a": 1})]
    file = tmp_path / "in.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    done = encode_files(tiny, file, tmp_path / "out", id_field="id")
    table = arrow.read_table(tmp_path / "out" / "part-000000.parquet")
    assert table["id"].to_pylist() == [1, 2, 3]
    assert done.codes == {"bad_id": 4}


def test_an_output_named_like_a_text_file_is_refused(tiny: Encoder, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a cat")
    with pytest.raises(InputValueError, match=r"out\.csv: name a folder"):
        encode_files(tiny, tmp_path / "a.txt", tmp_path / "out.csv")
    assert not (tmp_path / "out.csv").exists()
