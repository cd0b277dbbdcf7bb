"""Stopping a bulk job: at once, with its exit code, and the command that continues it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from flowvec import Collection, Encoder
from flowvec.bulk import encode_files
from flowvec.collection.index import choice

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals are POSIX's")

# The tests look for hangs: every job here takes far less time.
PATIENCE = 600
START = (
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    "from flowvec.cli.main import main; main()"
)


def started(folder: Path, *words: object, stdin: int | None = None) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", START, "encode", *map(str, words)], cwd=folder, stdin=stdin,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env=os.environ | {"PYTHONUNBUFFERED": "1", "COLUMNS": "200"},
    )  # fmt: skip


def wait_for(folder: Path, pattern: str) -> None:
    until = threading.Event()
    for _ in range(PATIENCE * 20):
        if list(folder.glob(pattern)):
            return
        until.wait(0.05)
    pytest.fail(f"no {pattern} in {sorted(folder.rglob('*'))}")


@pytest.fixture
def long(tmp_path: Path) -> Path:
    """More rows than are encoded during a test."""
    (tmp_path / "long.txt").write_text("the cat sleeps in the garden of the house\n" * 3_000_000)
    return tmp_path / "long.txt"


@pytest.mark.process
@pytest.mark.parametrize("out", ["v.npy", "v.parquet"])
def test_an_interrupt_abandons_one_file(
    tmp_path: Path, tiny_dir: Path, long: Path, out: str
) -> None:
    if out == "v.parquet":
        pytest.importorskip("pyarrow.parquet", reason="needs the extra [files]")
    process = started(tmp_path, tiny_dir, long, "-o", out)
    wait_for(tmp_path, "_v.*partial")
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130, told
    assert b"nothing was written; the same command starts again:\nflowvec encode" in told
    assert b"Traceback" not in told
    assert [file.name for file in tmp_path.iterdir()] == ["long.txt"]


@pytest.mark.process
def test_a_termination_abandons_the_shard(tmp_path: Path, tiny_dir: Path, long: Path) -> None:
    process = started(tmp_path, tiny_dir, long, "-o", "v", "--rows-per-shard", 3_000_000,
                      "--out-format", "npy")  # fmt: skip
    wait_for(tmp_path, "v/_part*partial")
    process.send_signal(signal.SIGTERM)
    _, told = process.communicate(timeout=PATIENCE)
    assert process.returncode == 143, told
    assert b"this continues the job:\nflowvec encode" in told
    # On a slow machine, work on the shard is kept.
    assert not [one for one in tmp_path.glob("v/*part*") if one.suffix != ".batches"]


def test_a_stop_abandons_the_survey(tmp_path: Path, tiny: Encoder, long: Path) -> None:
    class ReadOnce(threading.Event):
        """Set when it is read for the first time, before the survey, which reads it once more."""

        reads = 0

        def is_set(self) -> bool:
            self.reads += 1
            return True

    stop = ReadOnce()
    done = encode_files(tiny, long, tmp_path / "v", stop=stop, out_format="npy")
    assert (done.complete, done.rows_in, stop.reads) == (False, 0, 2)
    assert not (tmp_path / "v").exists()


def test_a_stop_abandons_the_search_graph(
    tmp_path: Path, tiny: Encoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All rows are there by then, and can be searched without it."""
    monkeypatch.setattr(choice, "_most_scanned", lambda: 0)
    monkeypatch.setattr(choice, "_EXACT_BELOW", 1000)  # a graph above as many rows
    (tmp_path / "in.txt").write_text("".join(f"the cat {i}\n" for i in range(1100)))

    class OnceComplete(threading.Event):
        def is_set(self) -> bool:
            manifest = tmp_path / "c.job/_manifest.json"
            return manifest.exists() and '"shards"' in manifest.read_text()

    done = encode_files(tiny, tmp_path / "in.txt", tmp_path / "c", out_format="collection",
                        stop=OnceComplete())  # fmt: skip
    assert (done.complete, done.rows) == (True, 1100)
    with Collection.open(tmp_path / "c", encoder=tiny) as c:
        assert (len(c), c.info().graph_rows) == (1100, 0)
        assert len(c.search("the cat 7", k=3)) == 3
        assert c.prepare()
        assert c.info().graph_rows == 1100


@pytest.mark.process
def test_an_interrupt_does_not_wait_for_an_idle_stdin(tmp_path: Path, tiny_dir: Path) -> None:
    process = started(tmp_path, tiny_dir, "-", "-o", "v", "--out-format", "npy",
                      stdin=subprocess.PIPE)  # fmt: skip
    assert process.stdin is not None
    process.stdin.write(b"a cat\n" * 10)
    process.stdin.flush()
    wait_for(tmp_path, "v/_manifest.json")
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=PATIENCE) == 130
    assert process.stderr is not None
    told = process.stderr.read()
    assert b"Traceback" not in told
    assert b"Fatal" not in told
    process.stdin.close()


@pytest.mark.process
def test_strict_does_not_wait_for_an_idle_stdin(tmp_path: Path, tiny_dir: Path) -> None:
    process = started(tmp_path, tiny_dir, "-", "--format", "jsonl", "-o", "v", "--strict",
                      "--out-format", "npy", stdin=subprocess.PIPE)  # fmt: skip
    assert process.stdin is not None
    # Two windows, so that the first one is encoded while the pipe stays open.
    lines = [json.dumps({"text": "a cat" if i != 3 else None}) for i in range(20_000)]
    with suppress(BrokenPipeError):  # it may end before it has read all
        process.stdin.write("\n".join(lines).encode() + b"\n")
        process.stdin.flush()
    assert process.wait(timeout=PATIENCE) == 2
    assert process.stderr is not None
    assert b"row 3: text is null" in process.stderr.read()
    with suppress(BrokenPipeError):
        process.stdin.close()


@pytest.mark.process
def test_a_second_interrupt_ends_at_once(tmp_path: Path, tiny_dir: Path, long: Path) -> None:
    process = started(tmp_path, tiny_dir, long, "-o", "v", "--out-format", "npy")
    wait_for(tmp_path, "v/_journal.jsonl")
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=PATIENCE) == 130
    again = subprocess.run(
        [sys.executable, "-c", START, "encode", str(tiny_dir), "short.txt", "-o", "v",
         "--out-format", "npy", "--restart"],
        cwd=tmp_path, input=b"", capture_output=True, timeout=PATIENCE, check=False,
    )  # fmt: skip
    assert b"short.txt" in again.stderr
    (tmp_path / "short.txt").write_text("a cat\n")
    again = subprocess.run(again.args, cwd=tmp_path, capture_output=True, timeout=PATIENCE,
                           check=False)  # fmt: skip
    assert again.returncode == 0, again.stderr
    assert not list(tmp_path.glob("v/*partial*"))
