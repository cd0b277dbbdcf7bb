"""The command line: what it writes, and one line with exit code 2 for a user's mistake."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path

import numpy as np
import pytest

from flowvec import Collection, Encoder, progress
from flowvec.cli.demo import SUGGESTED
from flowvec.collection.index import choice
from tests.inside import run_sql
from tests.waiting import wait_until

LINES = ["the cat sleeps", "", "a dog runs", "stocks fell"]


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    path = tmp_path / "notes.txt"
    path.write_text("\n".join(LINES) + "\n")
    return path


def assert_mistake(done, *parts: str) -> None:
    assert done.returncode == 2, done
    assert "Traceback" not in done.stderr
    for part in parts:
        assert part in done.stderr, done.stderr
    assert done.stdout == ""


def test_help_lists_the_commands(flowvec) -> None:
    done = flowvec("--help")
    assert done.returncode == 0
    commands = [point.name for point in entry_points(group="flowvec.commands")]
    assert commands
    assert all(command in done.stdout for command in commands)


@pytest.mark.parametrize("command", ["search", "eval sts"])
def test_help_of_a_command_has_its_example(flowvec, command: str) -> None:
    done = flowvec(*command.split(), "--help")
    assert done.returncode == 0
    assert f"Example: flowvec {command}" in done.stdout


def test_the_version_is_printed(flowvec) -> None:
    import flowvec as package

    assert flowvec("--version").stdout.strip() == f"flowvec {package.__version__}"


@pytest.mark.parametrize("command", ["nonsense", "encode --nonsense", "search"])
def test_a_wrong_call_is_a_usage_error(flowvec, command: str) -> None:
    done = flowvec(*command.split())
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


# --- encode ---------------------------------------------------------------------------------------


def test_encode_writes_the_encoders_vectors(flowvec, notes, tiny: Encoder, tiny_dir) -> None:
    done = flowvec("encode", tiny_dir, notes, "-o", "out.npy", "--provider", "cpu")
    assert done.returncode == 0, done.stderr
    written = np.load(notes.parent / "out.npy")
    assert written.dtype == np.float32
    np.testing.assert_allclose(written, tiny.encode(LINES), atol=1e-5)
    assert "4 x 16 float32" in done.stdout
    assert done.stderr == ""  # no progress bar away from a terminal
    assert sorted(p.name for p in notes.parent.iterdir()) == ["notes.txt", "out.npy"]


def test_encode_reads_stdin_and_prints_json(flowvec, tmp_path, tiny_dir) -> None:
    done = flowvec("encode", tiny_dir, "-", "-o", "out.npy", "--json", stdin="\ufeffone\ntwo\n")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert (result["rows"], result["dim"], result["truncated"]) == (2, 16, 0)
    assert np.load(tmp_path / "out.npy").shape == (2, 16)


def test_encode_reads_fields_and_uses_prompts(flowvec, tmp_path, tiny: Encoder, tiny_dir) -> None:
    (tmp_path / "a.csv").write_text("id,body\n1,cat\n")
    options = ("--text-field", "body", "--prompt", "query", "--provider", "cpu")
    done = flowvec("encode", tiny_dir, "a.csv", "-o", "out.npy", *options)
    assert done.returncode == 0, done.stderr
    expected = tiny.encode_query(["cat"])
    np.testing.assert_allclose(np.load(tmp_path / "out.npy"), expected, atol=1e-5)


def test_encode_of_empty_stdin_is_an_empty_array(flowvec, tmp_path, tiny_dir) -> None:
    done = flowvec("encode", tiny_dir, "-", "-o", "out.npy")
    assert done.returncode == 0, done.stderr
    assert np.load(tmp_path / "out.npy").shape == (0, 16)


RAY = ["index", "c", "-", "--model", "TINY", "--engine", "ray", "--shards", "2"]


@pytest.mark.parametrize(
    ("arguments", "stdin", "part"),
    [
        (["encode", "nowhere", "-", "-o", "o.npy"], "x", "no bundle 'nowhere'"),
        (["encode", "TINY", "nowhere.txt", "-o", "o.npy"], "", "cannot read nowhere.txt"),
        (["encode", "TINY", "-", "-o", "o.txt"], "x", ".npy"),
        (["encode", "TINY", "-", "-o", "no/o.npy"], "x", "no directory"),
        (["encode", "TINY", "-", "-o", "o.npy", "--strict"], b"\xff", "not UTF-8"),
        (
            ["encode", "TINY", "-", "-o", "o.npy", "--format", "jsonl", "--strict"],
            "x\n",
            "standard input, row 0: the line is not JSON",
        ),
        (["encode", "TINY", "-", "-o", "o.npy", "--provider", "tpu"], "x", "'tpu' is unknown"),
        (["encode", "TINY", "-", "-o", "o.npy", "--compute", "int3"], "x", "int3"),
        (["encode", "TINY", "-", "-o", "o.npy", "--prompt", "none"], "x", "no prompt"),
        (["encode", "NAN", "-", "-o", "o.npy", "--strict"], "nan", "row 0: the model gave NaN"),
        (["index", "c", "-"], "x", "give --model"),
        (["index", "c", "nowhere.txt", "--model", "TINY"], "", "cannot read"),
        (["index", "c", "-", "--model", "TINY", "--strict"], b"\xff", "not UTF-8"),
        (["encode", "~nosuchuser/x", "-", "-o", "o.npy"], "x", "no bundle"),
        (["encode", "TINY", "-"], "x", "either --out or --into"),
        (
            ["encode", "TINY", "-", "-o", "c", "--out-format", "npy", "--shard", "1/2"],
            "x",
            "cannot be divided into shares",
        ),
        (["encode", "TINY", "-", "-o", "c", "--shard", "half"], "x", "--shard is I/N"),
        (
            [*RAY, "--on-duplicate", "first", "--strict", "--max-dead", "1", "--replace"],
            "x",
            "--on-duplicate, --max-dead, --strict, --replace cannot be used with --engine ray",
        ),
        ([*RAY, "--resume"], "x", "--resume cannot be used with --engine ray"),
        (["search", "nowhere", "query"], "", "nowhere is not a collection"),
        (["search", "nowhere", "query", "--prefix"], "", "add --hybrid"),
        (["search", "nowhere", "query", "--vector-weight", "0.2"], "", "add --hybrid"),
        (
            ["info", "nowhere"],
            "",
            "no directory nowhere of a bundle, a collection or a bulk job; and",
        ),
        (["info", "nowhere"], "", "model's name: there is no bundle 'nowhere'"),
        (["info", "./nowhere"], "", "there is no directory ./nowhere; give one of a bundle"),
    ],
)
def test_a_wrong_argument_is_one_line_and_leaves_nothing(
    flowvec, tmp_path, tiny_dir, nan_dir, arguments, stdin, part
) -> None:
    paths = {"TINY": str(tiny_dir), "NAN": str(nan_dir)}
    done = flowvec(*[paths.get(a, a) for a in arguments], stdin=stdin)
    assert_mistake(done, part)
    assert len(done.stderr.strip().splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


# --- index and search -----------------------------------------------------------------------------


def test_index_and_search_end_to_end(flowvec, tmp_path, tiny_dir) -> None:
    rows = [{"id": f"n{i}", "text": text} for i, text in enumerate(LINES)]
    (tmp_path / "notes.jsonl").write_text("\n".join(map(json.dumps, rows)))
    made = flowvec("index", "c", "notes.jsonl", "--model", tiny_dir, "--id-field", "id")
    assert made.returncode == 0, made.stderr
    assert "4 rows added, 4 in all" in made.stdout

    done = flowvec("search", "c", "the cat sleeps", "-k", 2, "--json")
    assert done.returncode == 0, done.stderr
    hits = json.loads(done.stdout)
    assert len(hits) == 2
    always = {"id", "score", "text", "metadata"}
    assert hits[0].keys() == always | {"search_score", "search_rank", "word_score", "sparse_score"}
    assert {hits[0][name] for name in hits[0].keys() - always} == {None}

    # The same rows again are left out; the model is remembered.
    again = flowvec("index", "c", "notes.jsonl", "--id-field", "id", "--json")
    summary = json.loads(again.stdout)
    assert (summary["rows"], summary["added"], summary["unchanged"]) == (4, 0, 4)
    plain = flowvec("search", "c", "stocks", "-k", 3)
    assert len(plain.stdout.splitlines()) == 3
    assert flowvec("search", "c", "stocks", "--min-score", 2).stdout == "no rows\n"

    info = json.loads(flowvec("info", "c", "--json").stdout)
    assert (info["kind"], info["rows"], info["model"]) == ("collection", 4, str(tiny_dir))


def test_index_takes_every_row_of_a_long_input(flowvec, tmp_path, tiny_dir) -> None:
    from flowvec.texts.window import WINDOW

    (tmp_path / "long.txt").write_text("the cat\n" * (2 * WINDOW + 1))
    done = flowvec("index", "c", "long.txt", "--model", tiny_dir, "--json")
    assert json.loads(done.stdout)["rows"] == 2 * WINDOW + 1


@pytest.mark.process
@pytest.mark.skipif(os.name == "nt", reason="a console's Ctrl-C cannot be sent to one process")
@pytest.mark.parametrize(
    ("options", "again"),
    [((), ("--resume",)), (("--format", "jsonl", "--id-field", "id"), ())],
    ids=["numbers", "ids"],
)
def test_an_interrupted_index_of_stdin_says_how_to_continue(
    flowvec, tmp_path: Path, tiny_dir, options: tuple[str, ...], again: tuple[str, ...]
) -> None:
    """What it says is true: the command that it names adds what is missing."""
    from flowvec.texts.window import WINDOW

    lines = [f"{i} the cat\n" for i in range(6 * WINDOW)]
    if not again:
        lines = [json.dumps({"id": f"k{i}", "text": text}) + "\n" for i, text in enumerate(lines)]
    # If tests run in the background, the shell has set Ctrl-C to be ignored.
    listen = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    command = [sys.executable, "-c", f"{listen}; from flowvec.cli.main import main; main()"]
    with subprocess.Popen(
        [*command, "index", "c", "-", "--model", tiny_dir, *options],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
    ) as process:
        assert process.stdin is not None
        assert process.stderr is not None
        process.stdin.write("".join(lines[: 5 * WINDOW + 1]))
        process.stdin.flush()  # and it waits for the rest
        file = tmp_path / "c" / "collection.sqlite"
        wait_until(lambda: process.poll() is not None or (file.is_file() and rows_of(file)))
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        said = process.stderr.read()
    assert process.returncode == 128 + signal.SIGINT
    named = "the same command with --resume" if again else "the same command"
    told = re.search(rf"c: (\d+) rows are there; {named} continues", said)
    assert told is not None, said
    there = int(told[1])
    assert there == len(rows_of(file)) > 0
    assert "Traceback" not in said
    repeated = ("index", "c", "-", *options, *again, "--json")
    done = json.loads(flowvec(*repeated, stdin="".join(lines)).stdout)
    assert (done["left_out"], done["added"]) == (there, 6 * WINDOW - there)
    assert done["rows"] == 6 * WINDOW


def rows_of(file: Path) -> list[tuple[int]]:
    """Labels of committed rows; none while there are no tables."""
    db = sqlite3.connect(f"file:{file}?mode=ro", uri=True)
    with contextlib.closing(db), contextlib.suppress(sqlite3.OperationalError):
        return db.execute("SELECT label FROM items").fetchall()
    return []


def test_index_leaves_nothing_to_build_for_the_first_search(
    flowvec, tmp_path: Path, tiny_dir, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choice, "_most_scanned", lambda: 0)
    monkeypatch.setattr(choice, "_EXACT_BELOW", 1000)  # a graph above as many rows
    (tmp_path / "long.txt").write_text("".join(f"{i} the cat\n\n" for i in range(1001)))
    done = flowvec("index", "c", "long.txt", "--model", tiny_dir, "--json")
    assert json.loads(done.stdout)["rows"] == 1001  # no blank ones
    assert json.loads(flowvec("info", "c", "--json").stdout)["graph_rows"] == 1001


def test_a_kept_field_is_optional_and_one_that_no_row_has_is_named(
    flowvec, tmp_path: Path, tiny_dir
) -> None:
    lines = '{"id": 1, "text": "a", "lang": "en", "year": 1}\n'
    options = ("--model", tiny_dir, "--format", "jsonl", "--id-field", "id", "--keep")
    done = flowvec("index", "c", "-", *options, "lang, year,nope", stdin=lines)
    told = "no row has a field 'nope' of --keep; is it misspelt?\n"
    assert (done.returncode, done.stderr) == (0, told)
    update = '{"id": 2, "text": "b", "lang": "de"}\n{"id": 3, "text": "c", "year": null}\n'
    done = flowvec("index", "c", "-", *options, "lang,year", stdin=update)
    assert (done.returncode, done.stderr) == (0, "")
    assert flowvec("search", "c", "a", "--filter", '{"year": 1}').stdout != "no rows\n"
    options = ("--model", tiny_dir, "--format", "jsonl", "--keep", "lang")
    lines = '{"text": "a", "lang": NaN}\n'
    done = flowvec("index", "d", "-", *options, stdin=lines)
    assert (done.returncode, done.stderr) == (3, "1 of 1 rows are dead letters\n")
    (letter,) = (tmp_path / "d.dead_letter.jsonl").read_text().splitlines()
    assert json.loads(letter)["reason"] == "lang is NaN or infinity"


def test_index_replaces_numbered_rows_of_stdin_only_if_requested(flowvec, tiny_dir) -> None:
    made = flowvec("index", "c", "-", "--model", tiny_dir, stdin="a\nb\n")
    assert made.returncode == 0, made.stderr
    assert_mistake(flowvec("index", "c", "-", stdin="c\n"), "holds 2 rows", "--replace")
    done = flowvec("index", "c", "-", "--replace", "--json", stdin="c\n")
    assert json.loads(done.stdout)["rows"] == 2


def test_index_refuses_another_model(flowvec, tiny_dir, nan_dir) -> None:
    assert flowvec("index", "c", "-", "--model", tiny_dir, stdin="a\n").returncode == 0
    done = flowvec("index", "c", "-", "--model", nan_dir, "--replace", stdin="b\n")
    assert_mistake(done, "another model")


# --- info, doctor, demo ---------------------------------------------------------------------------


def test_info_shows_a_bundle(flowvec, tiny_dir) -> None:
    plain = flowvec("info", tiny_dir)
    assert plain.returncode == 0, plain.stderr
    assert "dense(32->16, tanh)" in plain.stdout
    shown = json.loads(flowvec("info", "mini", "--json").stdout)
    assert (shown["kind"], shown["name"]) == ("bundle", "mini")
    files = {"model.onnx", "table.native", "tokenizer.json", "references.npz", "int8_ranges.npy"}
    assert set(shown["files"]) == files
    assert shown["variants"] == ["float32-native"]


def test_doctor_finds_no_problems_in_this_installation(flowvec) -> None:
    done = flowvec("doctor")
    assert done.returncode == 0, done.stdout
    assert "no problems found" in done.stdout
    report = json.loads(flowvec("doctor", "--json").stdout)
    assert report["packages"]["onnxruntime"]
    assert "CPUExecutionProvider" in report["providers"]
    assert report["models"] == ["mini"]


def test_index_resumes_stdin_with_new_and_changed_rows(flowvec, tmp_path: Path, tiny_dir) -> None:
    def index(*rows: dict[str, object]) -> tuple[int, int, int]:
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        options = ("--id-field", "id", "--keep", "n", "--format", "jsonl", "--json")
        done = flowvec("index", "r", "-", "--model", tiny_dir, *options, "--resume", stdin=lines)
        assert done.returncode == 0, done.stderr
        summary = json.loads(done.stdout)
        return summary["added"], summary["left_out"], summary["rows"]

    rows = [{"id": i, "text": f"text {i}", "n": i} for i in range(4)]
    assert index(*rows[:2]) == (2, 0, 2)
    assert index(*rows) == (2, 2, 4)
    assert index(*rows) == (0, 4, 4)
    # The last row of an id counts, in every run.
    twice = [{**rows[0], "text": "old"}, rows[0]]
    assert index(*twice) == (0, 2, 4)
    assert index(*twice[::-1])[::2] == (1, 4)
    assert index(*twice)[::2] == (1, 4)
    assert index(rows[0], {**rows[1], "text": "other"}, {**rows[2], "n": 7}) == (2, 1, 4)
    done = flowvec("search", "r", "other", "-k", "1", "--model", tiny_dir, "--json")
    assert json.loads(done.stdout)[0]["text"] == "other"


def test_verify_compact_and_salvage_say_what_they_found(flowvec, tmp_path: Path, tiny_dir) -> None:
    flowvec("index", "v", "-", "--model", tiny_dir, stdin="a\nb\nc\n")
    done = flowvec("verify", "v")
    assert (done.returncode, done.stdout) == (0, "v: 3 rows, all well\n")
    done = flowvec("compact", "v", "--json")
    assert json.loads(done.stdout)["rows"] == 3
    run_sql(tmp_path / "v", "UPDATE items SET text = 'x' WHERE label = 2")
    done = flowvec("verify", "v", "--json")
    assert done.returncode == 1
    assert json.loads(done.stdout) == {
        "rows": 3, "lost": None,
        "problems": ["collection.sqlite: row 2 (id 1) does not match its checksum"],
    }  # fmt: skip
    run_sql(tmp_path / "v", "DELETE FROM items WHERE label = 2")
    done = flowvec("verify", "v")
    assert done.returncode == 1
    assert "holds 2 rows, but 3 were written" in done.stdout
    done = flowvec("verify", "v", "--salvage", "saved")
    assert done.returncode == 1
    assert "saved: made of all intact rows; 1 were lost" in done.stdout
    assert flowvec("verify", "saved").stdout == "saved: 2 rows, all well\n"
    saved = json.loads(flowvec("search", "saved", "c", "--json").stdout)
    assert {(hit["id"], hit["text"]) for hit in saved} == {(0, "a"), (2, "c")}


def test_demo_shows_neighbours(flowvec) -> None:
    done = flowvec("demo")
    assert done.returncode == 0, done.stderr
    assert "of 20 queries find their passage" in done.stdout
    result = json.loads(flowvec("demo", "--query", "how banks lend money", "--json").stdout)
    assert len(result["results"][0]["hits"]) == 5
    assert f'flowvec demo --query "{SUGGESTED}"' in done.stdout
    result = json.loads(flowvec("demo", "--query", SUGGESTED, "--json").stdout)
    best, second = result["results"][0]["hits"][:2]
    assert best["title"] == "Rainbow rose"
    assert best["score"] > 1.5 * second["score"]


# --- extras ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "package", "extra"),
    [
        (["export", "x", "-o", "y"], "torch", "[cpu,export]"),
        (["export", "x", "-o", "y"], "onnxscript", "[cpu,export]"),
        (
            ["fit", "flow", "--model", "x", "--corpus", "y", "-o", "z"],
            "safetensors",
            "[cpu,export]",
        ),
        (["bench", "throughput", "mini"], "psutil", "[cpu,bench]"),
        (["eval", "sts", "mini", "x"], "scipy", "[cpu,bench]"),
        (["eval", "lexical", "mini", "x"], "rapidfuzz", "[cpu,bench]"),
        (["eval", "retrieval", "mini", "x"], "Stemmer", "[cpu,bench]"),
        (["eval", "isotropy", "mini", "x"], "matplotlib", "[cpu,bench]"),
        (["eval", "isotropy", "mini", "x", "--source", "y"], "torch", "[cpu,export,bench]"),
        (["encode", "mini", "-", "-o", "o.npy", "--provider", "cpu"], "onnxruntime", "[cpu]"),
        (["bench", "peers", "x", "--corpus", "y"], "onnxscript", "[cpu,export,bench]"),
    ],
)
def test_a_command_without_its_extra_prints_the_pip_line(
    python, tmp_path: Path, command, package, extra
) -> None:
    if command[0] == "export":
        # The packages it needs depend on the files: a graph is read without torch.
        folder = tmp_path / "m"
        command = [command[0], str(folder), *command[2:]]
        folder.mkdir()
        (folder / "config.json").write_text("{}")
        (folder / "model.safetensors").touch()
    code = """
import importlib.abc, sys
absent = sys.argv.pop(1).split()
class Absent(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in absent:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Absent())
real = __import__("importlib.util").util.find_spec
__import__("importlib.util").util.find_spec = lambda n, p=None: None if n in absent else real(n, p)
from flowvec.cli.main import main
main()
"""
    done = python(code, package, *command, "--quiet")
    assert done.returncode == 2, done.stderr
    assert extra in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_a_closed_stdout_is_silent(python) -> None:
    code = """
import os, subprocess, sys
flowvec = [sys.executable, "-c", "from flowvec.cli.main import main; main()"]
reader, writer = os.pipe()
os.close(reader)
child = subprocess.Popen([*flowvec, "info", "mini"], stdout=writer, stderr=subprocess.PIPE)
print(child.stderr.read().decode())
sys.exit(child.wait())
"""
    done = python(code)
    assert done.returncode == 1
    assert done.stdout.strip() == ""


def test_texts_that_were_cut_are_counted(flowvec, tmp_path: Path, tiny_dir: Path) -> None:
    lines = "".join("the cat " * (100 if i % 42 == 0 else 1) + "\n" for i in range(4200))
    done = flowvec("index", "c", "-", "--model", tiny_dir, stdin=lines)
    assert "100 texts have more than 64 tokens, and were cut" in done.stdout
    assert "cut" not in done.stderr
    told = json.loads(flowvec("index", "d", "-", "--model", tiny_dir, "--json", stdin=lines).stdout)
    assert told["truncated"] == 100
    (tmp_path / "a.txt").write_text(lines)
    assert "100 texts were cut" in flowvec("encode", tiny_dir, "a.txt", "--into", "e").stdout


def test_a_search_does_not_wait_for_a_graph(flowvec, tmp_path: Path, tiny: Encoder) -> None:
    with Collection.create(tmp_path / "c", encoder=tiny) as c:
        vectors = np.random.default_rng(0).standard_normal((12_000, 16))
        c.add_vectors(list(range(12_000)), vectors, ["a cat"] * 12_000)
    for _ in range(2):
        done = flowvec("search", "c", "a cat", "-k", "1")
        assert (done.returncode, done.stderr) == (0, "")
        assert "a cat" in done.stdout


def test_a_bundle_that_has_moved_is_explained(flowvec, tmp_path: Path, tiny_dir: Path) -> None:
    bundle = Path(shutil.copytree(tiny_dir, tmp_path / "bundle"))
    assert flowvec("index", "c", "-", "--model", bundle, stdin="a cat\n").returncode == 0
    bundle.rename(tmp_path / "moved")
    done = flowvec("search", "c", "a cat")
    assert done.returncode == 2
    assert "c was made with the model" in done.stderr
    assert "If it has moved, name it with --model" in done.stderr
    assert "a cat" in flowvec("search", "c", "a cat", "--model", "moved").stdout


# --- other invocations ----------------------------------------------------------------------


@pytest.mark.parametrize("words", [["-h"], ["encode", "-h"], ["bench", "-h"], ["info", "-h"]])
def test_the_short_option_h_prints_help(flowvec, words: list[str]) -> None:
    done = flowvec(*words)
    assert (done.returncode, "Usage:" in done.stdout) == (0, True)


@pytest.mark.parametrize(
    ("words", "near"),
    [(["encod"], "Did you mean encode"), (["serch", "c", "x"], "Did you mean search"),
     (["search", "c", "x", "--hybird"], "--hybrid"), (["encode", "--preciion"], "--precision")],
)  # fmt: skip
def test_a_mistyped_command_suggests_the_nearest(flowvec, words, near: str) -> None:
    done = flowvec(*words)
    assert done.returncode == 2
    assert near in " ".join(done.stderr.replace("│", " ").split())


@pytest.mark.process
def test_the_package_runs_as_a_module(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-m", "flowvec", "--version"], cwd=tmp_path, text=True,
                          capture_output=True, timeout=600, check=False)  # fmt: skip
    assert (done.returncode, done.stdout[:8]) == (0, "flowvec ")


@pytest.mark.process
@pytest.mark.parametrize("encoding", ["ascii", "cp1252", "utf-8"])
def test_what_the_output_cannot_show_is_replaced(
    tmp_path: Path, tiny_dir: Path, encoding: str
) -> None:
    def run(*words: object, given: str = "") -> bytes:
        done = subprocess.run(
            [sys.executable, "-m", "flowvec", *map(str, words)], cwd=tmp_path, timeout=600,
            input=given.encode(), capture_output=True, check=False,
            env=os.environ | {"PYTHONIOENCODING": encoding, "PYTHONUTF8": "0"},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    run("index", "c", "-", "--model", tiny_dir, given="das Überraschungsei 日本語\n")
    # Where the locale says ASCII, click writes UTF-8.
    written = "utf-8" if encoding == "ascii" else encoding
    assert "berraschungsei" in run("search", "c", "cat").decode(written)
    (hit,) = json.loads(run("search", "c", "cat", "--json").decode(written))
    assert hit["text"] == "das Überraschungsei 日本語"


@pytest.mark.process
@pytest.mark.skipif(sys.platform == "win32", reason="pipes are POSIX's")
def test_a_closed_pipe_is_not_a_traceback(tmp_path: Path, tiny_dir: Path) -> None:
    lines = "".join(f"the cat {i}\n" for i in range(3000))
    code = "from flowvec.cli.main import main; main()"
    words = [sys.executable, "-c", code]
    subprocess.run([*words, "index", "c", "-", "--model", str(tiny_dir)], cwd=tmp_path,
                   input=lines.encode(), check=True, capture_output=True)  # fmt: skip
    process = subprocess.Popen([*words, "search", "c", "cat", "-k", "3000"], cwd=tmp_path,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE)  # fmt: skip
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    told = process.stderr.read()
    process.wait(600)
    assert b"Traceback" not in told


@pytest.mark.parametrize("place", [0, 1], ids=["first", "last"])
def test_quiet_is_of_one_command(
    flowvec: Callable[..., subprocess.CompletedProcess[str]], tiny_dir: Path, place: int
) -> None:
    words = ["info", tiny_dir]
    words.insert(place, "--quiet")
    assert flowvec(*words).returncode == 0
    assert progress.is_shown()
    words.append("--no-such-option")
    assert flowvec(*words).returncode == 2
    assert progress.is_shown()
